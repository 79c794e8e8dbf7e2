package redlock

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/redistest"
	"github.com/relock-go/relock/rlock"
)

// minis are embedded servers, with a client for each.
func minis(t *testing.T, n int) (all []*miniredis.Miniredis, clients []*rlock.Client) {
	for range n {
		m := redistest.StartMini(t)
		all, clients = append(all, m), append(clients, clientOf(t, m))
	}
	return all, clients
}

func clientOf(t *testing.T, m *miniredis.Miniredis, opts ...rlock.Option) *rlock.Client {
	c, err := rlock.New(redistest.NewClient(t, m.Addr()), opts...)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close(context.Background())) })
	return c
}

func locksOf(name string, clients ...*rlock.Client) (all []rlock.Locker) {
	for _, c := range clients {
		all = append(all, c.NewLock(name))
	}
	return all
}

func patient() Option { return WithNodeTimeout(10 * time.Second) } // a loaded machine

func TestNewRefusesTheSameClient(t *testing.T) {
	ms, cs := minis(t, 2)
	_, err := New(locksOf("x", cs[0], cs[1], cs[0]))
	require.ErrorContains(t, err, "locks 1 and 3 are of one client")
	_, err = New(append(locksOf("x", cs[0], cs[1]), cs[0].NewLock("y")))
	require.ErrorContains(t, err, "locks 1 and 3 are of one client", "another key is no other server")
	same := clientOf(t, ms[0], rlock.WithID(cs[1].ID()))
	_, err = New(locksOf("x", cs[0], cs[1], same))
	require.ErrorContains(t, err, "locks 2 and 3", "two clients with one ID")
	_, err = New(append(locksOf("x", cs[0], cs[1]), clientOf(t, ms[0]).NewLock("y")))
	require.ErrorContains(t, err, `locks 1 and 3 have the keys "x" and "y"`)
}

// Readers would keep each other out.
func TestNewRefusesReadHalves(t *testing.T) {
	_, cs := minis(t, 3)
	locks := locksOf("x", cs...)
	locks[1] = cs[1].NewReadWriteLock("x").ReadLock()
	_, err := New(locks)
	require.ErrorContains(t, err, "lock 2 is the read half")
	locks[1] = cs[1].NewReadWriteLock("x").WriteLock()
	_, err = New(locks)
	require.NoError(t, err)
}

// MULTI-7: the same server by two clients is found by the first Lock, which leaves
// nothing behind. It is found out also when another owner of ours has it.
func TestMULTI7_SameServerTwice(t *testing.T) {
	ms, cs := minis(t, 4)
	again := clientOf(t, ms[1])
	r, err := New(locksOf("x", cs[0], cs[1], cs[2], again, cs[3]), patient())
	require.NoError(t, err)
	ctx := as(t, "o")
	for range 3 {
		err = r.Lock(ctx)
		require.ErrorIs(t, err, errTwice)
		require.Regexp(t, `node (2 of 5: the same server as node 4|4 of 5: the same server as node 2)`, err.Error())
		require.Zero(t, r.Validity(ctx))
		waitFree(t, ms)
	}
}

// away is a lock that cannot be reached while it is told so.
type away struct {
	rlock.Locker
	server
	now atomic.Bool
}

func awayOf(l *rlock.Lock) *away { return &away{Locker: l, server: l} }

func (a *away) TryLock(ctx context.Context, wait, lease time.Duration) (bool, error) {
	if a.now.Load() {
		return false, errHung
	}
	return a.Locker.TryLock(ctx, wait, lease)
}

// It is found as well if the two did not answer together at first: each of them has shown
// that it is none of the others, and not that it is not the other one.
func TestSameServerTwiceLater(t *testing.T) {
	ms, cs := minis(t, 4)
	one, two := awayOf(cs[3].NewLock("x")), awayOf(clientOf(t, ms[3]).NewLock("x"))
	r, err := New(append(locksOf("x", cs[:3]...), one, two), patient())
	require.NoError(t, err)
	ctx := as(t, "o")
	eventually := func(what string, f func() bool) {
		t.Helper()
		require.Eventually(t, func() bool {
			r.mu.Lock()
			defer r.mu.Unlock()
			return f()
		}, 10*time.Second, time.Millisecond, what)
	}
	unlock := func() {
		t.Helper()
		require.NoError(t, r.Unlock(ctx))
		waitFree(t, ms)
	}
	for _, a := range []*away{one, two} {
		a.now.Store(true)
		require.NoError(t, r.Lock(ctx))
		eventually("four are a part of it", func() bool { return len(r.holds["o"].terms.in) == 4 })
		unlock()
		if a == one {
			for _, m := range r.members {
				require.Equal(t, m.server == server(one), r.doubtful(m), "a refusal of the others costs no look while it is away")
			}
		}
		a.now.Store(false)
	}
	for range 2 {
		if err = r.Lock(ctx); err == nil {
			eventually("it is found when the majority is in", func() bool { return r.doubts })
			unlock()
			err = r.Lock(ctx)
		}
		require.ErrorIs(t, err, errTwice)
		waitFree(t, ms)
	}
}

// waitFree waits until no server has the lock: an Unlock does not wait for all.
func waitFree(t *testing.T, ms []*miniredis.Miniredis) {
	t.Helper()
	for _, m := range ms {
		require.Eventually(t, func() bool { return !m.Exists("x") }, 10*time.Second, time.Millisecond)
	}
}

// Others at all servers are no reason to think that two are one.
func TestDifferentServers(t *testing.T) {
	ms, cs := minis(t, 3)
	r, err := New(locksOf("x", cs...), patient())
	require.NoError(t, err)
	var others []*rlock.Client
	for _, m := range ms {
		others = append(others, clientOf(t, m))
	}
	other, err := New(locksOf("x", others...), patient())
	require.NoError(t, err)
	ctx := as(t, "o")
	require.NoError(t, other.Lock(ctx))
	got, err := r.TryLock(ctx, 0, 0)
	require.NoError(t, err)
	require.False(t, got)
	require.NoError(t, other.Unlock(ctx))
	waitFree(t, ms)
	require.NoError(t, r.Lock(ctx))
	for i, m := range ms {
		require.Equal(t, "1", m.HGet("x", cs[i].ID()+":o"))
	}
	for _, m := range r.members {
		require.False(t, r.doubtful(m), "a refusal of it costs no look any more")
	}
	require.NoError(t, r.Unlock(ctx))
}

// Two objects over the same locks nest for one owner, and each gives back what it took.
func TestTwoObjects(t *testing.T) {
	ms, cs := minis(t, 3)
	r, err := New(locksOf("x", cs...), patient())
	require.NoError(t, err)
	q, err := New(locksOf("x", cs...), patient())
	require.NoError(t, err)
	ctx := as(t, "o")
	depth := func(want string) {
		t.Helper()
		for i, m := range ms {
			require.Eventually(t, func() bool { return m.HGet("x", cs[i].ID()+":o") == want }, 10*time.Second, time.Millisecond)
		}
	}
	require.NoError(t, r.Lock(ctx))
	require.NoError(t, q.Lock(ctx))
	depth("2")
	got, err := q.TryLock(as(t, "other"), 0, 0)
	require.NoError(t, err)
	require.False(t, got)
	require.NoError(t, r.Unlock(ctx))
	depth("1")
	require.Positive(t, q.Validity(ctx))
	require.Zero(t, r.Validity(ctx))
	require.NoError(t, q.Unlock(ctx))
	depth("")
}

// What rlock reports before anything is sent comes from all members.
func TestMemberErrors(t *testing.T) {
	_, cs := minis(t, 3)
	r, err := New(locksOf("", cs...), patient())
	require.NoError(t, err)
	require.ErrorIs(t, r.Lock(t.Context()), rlock.ErrInvalidName)
	r, err = New(locksOf("x", cs...), patient())
	require.NoError(t, err)
	err = r.Lock(rlock.WithOwner(t.Context(), "not legal"))
	require.ErrorIs(t, err, rlock.ErrInvalidOwner)
	var e *rlock.Error
	require.True(t, errors.As(err, &e))
	require.Equal(t, "x", e.Lock)
}

// A client that closes takes its vote away; the holder is told with the majority.
func TestClosedClients(t *testing.T) {
	_, cs := minis(t, 3)
	r, err := New(locksOf("x", cs...), patient())
	require.NoError(t, err)
	ctx := as(t, "o")
	require.NoError(t, r.Lock(ctx))
	lost := r.Lost(ctx)
	require.NoError(t, cs[0].Close(ctx))
	require.Positive(t, r.Validity(ctx))
	require.NoError(t, cs[1].Close(ctx))
	<-lost
	err = r.Unlock(ctx)
	require.ErrorIs(t, err, rlock.ErrLost)
	require.ErrorIs(t, err, rlock.ErrClosed)
	require.ErrorIs(t, r.Lock(ctx), rlock.ErrClosed)
}
