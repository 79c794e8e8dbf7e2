package redisson

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/relock-go/relock/internal/redistest"
	"github.com/relock-go/relock/internal/script"
	"github.com/relock-go/relock/rlock"
)

// javaThreads are n threads of one Redisson client.
func (m *match) javaThreads(n int) []*javaParty {
	m.Helper()
	return m.workers(m.java.open(m.T, long).(*javaPeer), n)
}

func (m *match) workers(client *javaPeer, n int) []*javaParty {
	m.Helper()
	all := make([]*javaParty, n)
	for i := range all {
		all[i] = client.worker(m.T, m.kind, m.key)
	}
	return all
}

// owners are n owners of one relock client.
func (m *match) owners(client *goPeer, n int) []*goParty {
	all := make([]*goParty, n)
	for i := range all {
		all[i] = client.worker(m.T, m.kind, m.key)
	}
	return all
}

// contendBoth lets all of them contend, and checks that no increment is lost.
func (m *match) contendBoth(java []*javaParty, golang []*goParty, d, pause time.Duration) (j, g tally) {
	m.Helper()
	return m.contending(java, golang, d, pause)()
}

// contending is contendBoth that goes on meanwhile: over waits for its end.
func (m *match) contending(java []*javaParty, golang []*goParty, d, pause time.Duration) (over func() (j, g tally)) {
	var j, g tally
	counter := m.key + ":counter"
	var mu sync.Mutex // guards j and g
	add := func(sum *tally, one tally) {
		mu.Lock()
		defer mu.Unlock()
		sum.Entries += one.Entries
		sum.Waited += one.Waited
		sum.Longest = max(sum.Longest, one.Longest)
	}
	var all errgroup.Group
	for _, p := range java {
		all.Go(func() error {
			one, err := p.contend(counter, d, 0, pause)
			add(&j, one)
			return err
		})
	}
	for _, p := range golang {
		all.Go(func() error {
			one, err := p.contend(m.rdb, counter, d, 0, pause)
			add(&g, one)
			return err
		})
	}
	return func() (tally, tally) {
		m.Helper()
		defer m.rdb.Del(m.ctx, counter)
		require.NoError(m, all.Wait())
		n, err := m.rdb.Get(m.ctx, counter).Int()
		require.NoError(m, err)
		require.Equal(m, j.Entries+g.Entries, n, "increments were lost")
		m.eventually(func() bool { return len(m.fields()) == 0 }, "all have given the lock back")
		return j, g
	}
}

// contention is for kinds of which no more is asked than that it stays exclusive, and
// that both languages come in.
func contention(m *match) {
	java := m.workers(m.java.open(m.T, missed).(*javaPeer), 3)
	golang := m.owners(m.golang.open(m.T, missed).(*goPeer), 3)
	golang = append(golang, m.owners(m.golang.open(m.T, missed).(*goPeer), 1)...)
	j, g := m.contendBoth(java, golang, soak(m.T, time.Second), time.Millisecond)
	m.Logf("java: %d entries, the longest wait %v; go: %d, %v", j.Entries, j.Longest, g.Entries, g.Longest)
	require.Positive(m, j.Entries)
	require.Positive(m, g.Entries)
	require.Less(m, g.Longest, missed, "nobody waits for a TTL")
	if m.kind != "write" {
		require.Less(m, j.Longest, missed, "nobody waits for a TTL")
	}
}

// missed is a watchdog timeout that may be waited out. A Redisson thread that finds a
// read-write lock taken and does not sleep yet misses the message that its writer
// leaves, so it waits for as long as it was told.
const missed = 5 * time.Second

// leastShare is the part of the entries that each language gets at least.
const leastShare = 0.1

// Twenty processes: ten clients of each language, with one owner each.
func testProcesses(t *testing.T, h *harness, d time.Duration) {
	m := newMatch(t, h, "lock")
	var java []*javaParty
	var golang []*goParty
	for range 10 {
		client := m.java.client(t, h.addrs, long)
		t.Cleanup(func() { client.close(t) })
		java = append(java, m.workers(client, 1)...)
		golang = append(golang, m.owners(m.golang.client(t, h.client(t)), 1)...)
	}
	// Their first connections are no part of it.
	m.contendBoth(java, golang, 300*time.Millisecond, 0)
	m.shares(java, golang, soak(t, d), nil)
}

// Ten threads of one Redisson client, and ten goroutines of one relock client,
// which pass the lock among themselves.
func testThreads(t *testing.T, h *harness, d time.Duration) {
	m := newMatch(t, h, "lock")
	client := m.golang.client(t, h.client(t))
	m.shares(m.javaThreads(10), m.owners(client, 10), soak(t, d), client)
	t.Logf("relock's client: %+v", client.c.Stats())
}

// shares lets them contend, and checks how often each language came in. How the
// machine deals out its processors is not what is tested: one try of a few must
// do. If all of Go is one client, that one passes the lock among its own for as long
// as it may, which are the more passes the longer Java waits for a processor: then
// Java has had its share too if it came in for half the turns that the client left
// to all.
func (m *match) shares(java []*javaParty, golang []*goParty, d time.Duration, one *goPeer) {
	m.Helper()
	for try := 1; ; try++ {
		before := one.turns()
		j, g := m.contendBoth(java, golang, d, 0)
		share := float64(j.Entries) / float64(j.Entries+g.Entries)
		m.Logf("java: %d entries, %.1f %%, the longest wait %v; go: %d, %v", j.Entries, 100*share, j.Longest, g.Entries, g.Longest)
		require.Less(m, max(j.Longest, g.Longest), waitLimit, "nobody waits for a TTL")
		turns := one.turns() - before
		if min(share, 1-share) >= leastShare || turns > 0 && uint64(j.Entries) >= turns/2 && share < leastShare {
			return
		}
		require.Less(m, try, tries, "a language is starved")
	}
}

// turns is how often relock's client released a lock to all, instead of passing it to
// one of its own.
func (p *goPeer) turns() uint64 {
	if p == nil {
		return 0
	}
	s := p.c.Stats()
	return s.Released - s.HandedOff
}

// Both languages on a lock of each master, all at once.
func testMasters(t *testing.T, h *harness, d time.Duration) {
	java := h.java.open(t, long).(*javaPeer)
	one, two := h.golang.client(t, h.client(t)), h.golang.client(t, h.client(t))
	masters := map[string]bool{}
	var over []func()
	for range h.nodes {
		m := newMatch(t, h, "lock")
		master := h.cluster.Master(m.key).Addr
		masters[master] = true
		contention := m.contending(m.workers(java, 4), append(m.owners(one, 3), m.owners(two, 1)...), soak(t, d), 0)
		over = append(over, func() {
			j, g := contention()
			t.Logf("%s: java: %d entries, the longest wait %v; go: %d, %v", master, j.Entries, j.Longest, g.Entries, g.Longest)
			require.Greater(t, j.Entries, 20)
			require.Greater(t, g.Entries, 20)
			require.Less(t, max(j.Longest, g.Longest), waitLimit, "nobody waits for a TTL")
		})
	}
	require.Len(t, masters, len(h.nodes))
	for _, wait := range over {
		wait()
	}
}

// handoffLimit is relock's default, and what issue 5 adds to it for a JVM.
const handoffLimit = 50*time.Millisecond + 300*time.Millisecond

// One Java thread beside 32 goroutines that pass the lock among themselves: it
// gets its turn, within the limit, when their process has had its share. A JVM
// that waits for a processor misses some turns, which is not what is tested here:
// one time in five may be later, and one try of a few must do. A machine that has
// nothing else to do shows none that is later.
//
// relock listens for another name too. With plain messages on a cluster, one
// connection for all its names may be at another node than the lock.
func testHandoff(t *testing.T, h *harness, d time.Duration) {
	for try := 1; ; try++ {
		m := newMatch(t, h, "lock")
		client := h.golang.client(t, h.client(t))
		holder, waiter := client.owner(t, m.key), client.owner(t, m.key)
		require.NoError(t, holder.lock(0))
		got := m.waits(waiter)
		java := handoff(t, h, client, soak(t, d)) // the next name: on a cluster, another master's
		require.NoError(t, holder.unlock())
		m.enters(got, "the hand-off")
		require.NoError(t, waiter.unlock())
		require.Less(t, java.Longest, waitLimit, "nobody waits for a TTL")
		if 5*java.Late <= java.Entries {
			return
		}
		require.Less(t, try, tries, "Java waits for longer than %v", handoffLimit)
	}
}

// handoff returns how Java fared beside client.
func handoff(t *testing.T, h *harness, client *goPeer, d time.Duration) tally {
	t.Helper()
	m := newMatch(t, h, "lock")
	var over atomic.Bool
	var passing errgroup.Group
	for _, g := range m.owners(client, 32) {
		passing.Go(func() error {
			for !over.Load() {
				if err := g.l.Lock(g.ctx); err != nil {
					return err
				}
				time.Sleep(time.Millisecond)
				if err := g.l.Unlock(g.ctx); err != nil {
					return err
				}
			}
			return nil
		})
	}
	m.eventually(func() bool { return client.c.Stats().HandedOff > 0 }, "the lock passes")
	java, err := m.javaThreads(1)[0].contend(m.key+":counter", d, 0, 5*time.Millisecond)
	over.Store(true)
	require.NoError(t, passing.Wait())
	require.NoError(t, err)
	require.NoError(t, m.rdb.Del(m.ctx, m.key+":counter").Err())

	s := client.c.Stats()
	require.Greater(t, s.HandedOff, s.Acquired/2, "the lock passes inside the process")
	require.Positive(t, java.Entries)
	t.Logf("java: %d entries, %v on average, %v at most, %d later than %v; go: %d, and %d times it let all have their turn",
		java.Entries, java.Waited/time.Duration(java.Entries), java.Longest, java.Late, handoffLimit,
		s.Acquired, s.Released-s.HandedOff)
	return java
}

// The network between relock and Redis swallows answers, while Java contends.
func testLostReplies(t *testing.T, h *harness, d time.Duration) {
	m := newMatch(t, h, "lock")
	rdb, proxy := h.flaky(t, m.key)
	client := m.golang.client(t, rdb)
	// The scripts are there: no fault hits a call that they were missed for.
	for _, s := range []*script.Script{script.Acquire, script.Keep, script.Release, script.Pass} {
		require.NoError(t, h.rdb.ScriptLoad(m.ctx, s.Text).Err())
	}
	var seen atomic.Int64
	every := func(n, rest int64) redistest.Match {
		return func(r redistest.Request) bool {
			return redistest.And(redistest.Command("evalsha"), redistest.HasArg(m.key))(r) && seen.Add(1)%n == rest
		}
	}
	closing := proxy.On(every(5, 0), redistest.LoseReplyAndClose).Times(0)
	hanging := proxy.On(every(61, 7), redistest.LoseReplyAndHang).Times(0)

	java, golang := m.contendBoth(m.javaThreads(4), m.owners(client, 4), soak(t, d), 0)
	t.Logf("java: %d entries, the longest wait %v; go: %d, %v; replies lost: %d, and %d in silence",
		java.Entries, java.Longest, golang.Entries, golang.Longest, closing.Count(), hanging.Count())
	require.Greater(t, closing.Count(), 20)
	require.Positive(t, hanging.Count())
	require.Greater(t, java.Entries, 20)
	require.Greater(t, golang.Entries, 20)
	require.Less(t, max(java.Longest, golang.Longest), waitLimit, "nobody waits for a TTL")
	require.Zero(t, client.c.Stats().Lost)

	// Re-entries, too, are counted once.
	closing.Off()
	hanging.Off()
	lossy := proxy.On(redistest.And(redistest.Command("evalsha"), redistest.HasArg(m.key)), redistest.LoseReplyAndClose)
	a, b := client.owner(t, m.key), m.party(h.java, long)
	for range 3 {
		require.NoError(t, a.lock(0))
	}
	require.Equal(t, 1, lossy.Count())
	require.Equal(t, "3", only(m.fields()))
	m.no(b.tryLock(0, 0))
	got := m.waits(b)
	for left := 2; left >= 0; left-- {
		m.still(got, "three unlocks are needed")
		proxy.On(redistest.And(redistest.Command("evalsha"), redistest.HasArg(m.key)), redistest.LoseReplyAndClose)
		require.NoError(t, a.unlock())
	}
	m.enters(got, "the last unlock frees the lock")
	require.ErrorIs(t, a.unlock(), rlock.ErrNotHeld)
	m.isHash(b, "1")
	require.NoError(t, b.unlock())
}

// only is the value of the only field. After a lost reply nobody but relock
// knows its name.
func only(fields map[string]string) string {
	for _, v := range fields {
		if len(fields) == 1 {
			return v
		}
	}
	return ""
}
