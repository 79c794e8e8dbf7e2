package redisson

import (
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/redistest"
	"github.com/relock-go/relock/internal/script"
	"github.com/relock-go/relock/rlock"
)

// modes are those in which both languages agree, and the kind of channel that each
// means.
var modes = []struct {
	name    string
	mode    mode
	sharded bool
}{
	{"left to the clients", automatic, true},
	{"sharded", mode{"ON", []rlock.Option{rlock.WithShardedPubSub(true)}}, true},
	{"plain", plain, false},
}

// mixed are a Redisson and a relock that do not listen to each other's messages.
var mixed = []struct {
	name string
	mode mode
}{
	{"java plain, go default", mode{java: "OFF"}},
	{"java default, go plain", mode{"AUTO", []rlock.Option{rlock.WithShardedPubSub(false)}}},
}

// testModes are the ways to tell of a release on a cluster.
func testModes(t *testing.T, j *jvm, on *deployment) {
	for _, v := range modes {
		t.Run("mode "+v.name, func(t *testing.T) {
			t.Parallel()
			h := newHarness(t, j, on, v.mode)
			m := newMatch(t, h, "lock")
			m.holds, m.other = h.java, h.golang
			listensTo(m, v.sharded)
			for range 2 {
				woken(m)
				forced(m)
				m.holds, m.other = m.other, m.holds
			}
		})
	}
	for _, v := range mixed {
		t.Run("mismatch/"+v.name, func(t *testing.T) {
			t.Parallel()
			testMismatch(t, newHarness(t, j, on, v.mode))
		})
	}
	t.Run("not known yet", func(t *testing.T) {
		t.Parallel()
		testUndecided(t, j, on)
	})
}

// listensTo checks to which kind of channel waiters of both languages listen.
func listensTo(m *match, sharded bool) {
	m.Helper()
	for _, s := range []side{m.holds, m.other} {
		m.again()
		peer := s.open(m.T, long)
		holder, waiter := peer.party(m.T, m.kind, m.key), peer.party(m.T, m.kind, m.key)
		require.NoError(m, holder.lock(0))
		got := m.waits(waiter)
		plain, shard, err := m.listeners(m.ctx, script.Channel(m.key))
		require.NoError(m, err)
		require.Equal(m, sharded, shard > 0, "%v: %d listen to the shard", s, shard)
		require.Equal(m, !sharded, plain > 0, "%v: %d listen", s, plain)
		require.NoError(m, holder.unlock())
		m.enters(got, "one of its own process")
		require.NoError(m, waiter.unlock())
	}
}

// testMismatch records what it costs when the modes differ: exclusion is as
// always, but nobody is woken by the other language.
func testMismatch(t *testing.T, h *harness) {
	const (
		lease   = 2 * time.Second
		recheck = 700 * time.Millisecond
	)
	java := h.java.open(t, long).(*javaPeer)
	golang := h.golang.client(t, h.client(t), rlock.WithRecheck(recheck))
	decided(t, h, golang)

	// Java sleeps for the TTL that it was told, however early the lock is free.
	m := newMatch(t, h, "lock")
	holder, waiter := golang.owner(t, m.key), java.worker(t, "lock", m.key)
	m.yes(holder.tryLock(0, lease))
	got := m.waits(waiter)
	end := time.Now().Add(m.pttl())
	require.NoError(t, holder.unlock())
	freed := time.Now()
	entered := m.enters(got, "Java finds out").at
	t.Logf("java enters %v after go's unlock, %v after the end of the lease", entered.Sub(freed), entered.Sub(end))
	require.Greater(t, entered, end.Add(-soon), "Java was woken")
	m.isHash(waiter, "1")
	require.NoError(t, waiter.unlock())

	// relock asks again by itself.
	m.again()
	other, mine := java.worker(t, "lock", m.key), golang.owner(t, m.key)
	require.NoError(t, other.lock(0))
	asked := time.Now()
	got = m.waits(mine)
	require.NoError(t, other.unlock())
	freed = time.Now()
	entered = m.enters(got, "relock asks again").at
	t.Logf("go enters %v after java's unlock; it asks every %v", entered.Sub(freed), recheck)
	require.GreaterOrEqual(t, entered.Sub(asked), recheck, "relock was woken")
	m.isHash(mine, "1")
	require.NoError(t, mine.unlock())
}

// decided has relock's client find out what its servers can do.
func decided(t *testing.T, h *harness, golang *goPeer) {
	t.Helper()
	m := newMatch(t, h, "lock")
	holder, waiter := golang.owner(t, m.key), golang.owner(t, m.key)
	require.NoError(t, holder.lock(0))
	got := m.waits(waiter) // so it has subscribed
	require.NoError(t, holder.unlock())
	m.enters(got, "the hand-off")
	require.NoError(t, waiter.unlock())
}

// A relock client that does not know yet which kind the others listen to tells
// both: a Redisson in either mode is woken. Here it never learns it.
func testUndecided(t *testing.T, j *jvm, on *deployment) {
	for _, redisson := range []string{"AUTO", "OFF"} {
		h := newHarness(t, j, on, mode{java: redisson})
		var took []time.Duration
		for range tries {
			m := newMatch(t, h, "lock")
			proxies := on.cluster.Proxies(t)
			golang := h.golang.client(t, on.cluster.Client(t, func(o *redis.ClusterOptions) {
				o.Dialer = proxies.Dialer()
			}))
			var questions []*redistest.Rule
			for _, addr := range on.addrs {
				questions = append(questions, proxies.For(addr).On(redistest.Command("pubsub"), redistest.HoldRequest).Times(0))
			}
			asked := func() (n int) {
				for _, q := range questions {
					n += q.Count()
				}
				return n
			}
			holder := golang.owner(t, m.key)
			waiter := h.java.open(t, long).party(t, "lock", m.key)
			require.NoError(t, holder.lock(0))
			m.eventually(func() bool { return asked() > 0 }, "relock asks")
			got := m.waits(waiter)
			freed := time.Now()
			require.NoError(t, holder.unlock())
			took = append(took, m.enters(got, fmt.Sprintf("Redisson %s is woken", redisson)).at.Sub(freed))
			require.NoError(t, waiter.unlock())
			for _, q := range questions {
				q.Off()
			}
		}
		t.Logf("Redisson %s is woken within %v", redisson, took)
	}
}
