package rlock

import (
	"context"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/redistest"
	"github.com/relock-go/relock/internal/script"
)

// What Redisson's own tests ask of all kinds, of the fenced, spin and non-reentrant lock,
// and of renewal, as far as no other test here does. The comment of each test begins with
// what they ask.

// A lock whose client has died: others wait in vain while it lives, and come in when the
// watchdog timeout is over. It knows by then.
func TestBehaviourKinds_AbandonedLock(t *testing.T) {
	t.Parallel()
	for what, k := range kindsOfLocks {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			dead, p := onProxy(t, WithWatchdogTimeout(900*time.Millisecond))
			t.Cleanup(func() { p.BlackHole(false) })
			l := k.lock(dead, unique(what))
			other := k.against(onShared(t), l.Name())
			require.NoError(t, l.Lock(as("a")))
			refusedOnce(t, other, "b", "it lives")
			lost := l.Lost(as("a"))
			p.BlackHole(true)
			require.NoError(t, other.Lock(as("b")))
			require.Zero(t, l.Validity(as("a")), "the dead one knows")
			recv(t, lost, "and is told")
			p.BlackHole(false)
			require.ErrorIs(t, l.Unlock(as("a")), ErrLost)
			require.NoError(t, other.Unlock(as("b")))
			nothingLeft(t, l)
		})
	}
}

// The hold count goes 0, 1, 0 and 0, 2, 1, 0. Only the owner holds it, others see it
// locked for as long.
func TestBehaviourKinds_HoldCounts(t *testing.T) {
	t.Parallel()
	for what, k := range kindsOfLocks {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			l := k.lock(onShared(t), unique(what))
			far := k.lock(onShared(t), l.Name())
			is := func(want int) {
				t.Helper()
				for _, c := range []struct {
					at   anyLock
					o    Owner
					want int
				}{{l, "a", want}, {l, "b", 0}, {far, "a", 0}} {
					n, err := c.at.HoldCount(as(c.o))
					require.NoError(t, err)
					require.Equal(t, c.want, n)
					held, err := c.at.IsHeld(as(c.o))
					require.NoError(t, err)
					require.Equal(t, c.want > 0, held)
					by, err := c.at.IsHeldBy(as("x"), c.o)
					require.NoError(t, err)
					require.Equal(t, c.want > 0, by)
					locked, err := c.at.IsLocked(as(c.o))
					require.NoError(t, err)
					require.Equal(t, want > 0, locked)
				}
			}
			for _, depth := range []int{1, 2} {
				is(0)
				for n := range depth {
					require.NoError(t, l.Lock(as("a")))
					is(n + 1)
				}
				for n := range depth {
					require.NoError(t, l.Unlock(as("a")))
					is(depth - n - 1)
				}
			}
			nothingLeft(t, l)
		})
	}
}

// The Unlock of a lease that ran out, when nobody has the lock: theirs is no error for a
// fair lock and for a reader, here it is ErrLost, once.
func TestBehaviourKinds_LateUnlockOfAFreeLock(t *testing.T) {
	t.Parallel()
	onEachKind(t, func(t *testing.T, l, other anyLock) {
		require.NoError(t, l.LockLease(as("a"), 200*time.Millisecond))
		recv(t, l.Lost(as("a")), "the end of the lease")
		nothingLeft(t, l)
		require.ErrorIs(t, l.Unlock(as("a")), ErrLost)
		require.ErrorIs(t, l.Unlock(as("a")), ErrNotHeld)
		got, err := other.TryLock(as("b"), 0, 0)
		require.NoError(t, err)
		require.True(t, got)
		require.NoError(t, other.Unlock(as("b")))
		nothingLeft(t, l)
	})
}

// Three holds with a lease, two Unlocks: the lease is still the one that was asked for,
// and not the watchdog timeout.
func TestBehaviourKinds_InnerUnlockKeepsTheLease(t *testing.T) {
	t.Parallel()
	onEachKind(t, func(t *testing.T, l, _ anyLock) {
		for range 3 {
			require.NoError(t, l.LockLease(as("a"), 10*time.Second))
		}
		for range 2 {
			require.NoError(t, l.Unlock(as("a")))
			between(t, time.Second, 10*time.Second, pttl(t, l.Key()), "in Redis")
			between(t, time.Second, 10*time.Second, l.Validity(as("a")), "here")
		}
		require.NoError(t, l.Unlock(as("a")))
		nothingLeft(t, l)
	})
}

// A timed try takes its time and is false, and is true when the lock comes free before.
func TestBehaviourKinds_TimedTries(t *testing.T) {
	t.Parallel()
	onEachKind(t, func(t *testing.T, l, other anyLock) {
		require.NoError(t, other.Lock(as("b")))
		began := time.Now()
		got, err := settled(t, func() (bool, error) { return l.TryLock(as("a"), 300*time.Millisecond, 0) })
		require.GreaterOrEqual(t, time.Since(began), 300*time.Millisecond)
		require.NoError(t, err)
		require.False(t, got)
		trying := async(func() bool {
			got, err := l.TryLock(as("a"), limit, 0)
			return got && err == nil
		})
		waitForWaiters(t, l.Client(), 1)
		require.NoError(t, other.Unlock(as("b")))
		require.True(t, recv(t, trying, "the try"))
		require.NoError(t, l.Unlock(as("a")))
		nothingLeft(t, l)
	})
}

// To lock it once more is an error in every form, through another object too, and keeps
// the count. A contender comes in on the release.
func TestBehaviourNonReentrant_EveryForm(t *testing.T) {
	t.Parallel()
	for what, k := range kindsOfLocks {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			c := onShared(t)
			l := k.lock(c, unique(what), NonReentrant())
			twin := k.lock(c, l.Name(), NonReentrant())
			other := k.against(onShared(t), l.Name(), NonReentrant())
			require.NoError(t, l.Lock(as("a")))
			before := fields(t, l.Key())
			contender := async(func() error { return other.Lock(as("b")) })
			waitForWaiters(t, other.Client(), 1)
			for _, at := range []anyLock{l, twin} {
				require.ErrorIs(t, at.Lock(as("a")), ErrReentry)
				require.ErrorIs(t, at.LockLease(as("a"), time.Minute), ErrReentry)
				for _, wait := range []time.Duration{0, time.Second, -1} {
					for _, lease := range []time.Duration{0, time.Minute} {
						got, err := at.TryLock(as("a"), wait, lease)
						require.ErrorIs(t, err, ErrReentry)
						require.False(t, got)
					}
				}
				require.ErrorIs(t, at.Do(as("a"), func(context.Context) error { return nil }), ErrReentry)
				n, err := at.HoldCount(as("a"))
				require.NoError(t, err)
				require.Equal(t, 1, n)
				require.Equal(t, before, fields(t, l.Key()))
			}
			require.NoError(t, twin.Unlock(as("a")), "it is one lock")
			require.NoError(t, recv(t, contender, "who waits"))
			require.NoError(t, other.Unlock(as("b")))
			nothingLeft(t, l)
		})
	}
}

// Tokens rise over all forms of acquiring, whoever comes next and however the one before
// has ended. Theirs are 1, 2, 3, here they are times.
func TestBehaviourFenced_TokensRiseOverEveryForm(t *testing.T) {
	t.Parallel()
	c := onShared(t)
	l := c.NewFencedLock(unique("tokens"))
	far := onShared(t).NewFencedLock(l.Name())
	var last uint64
	rises := func(at *FencedLock, o Owner) {
		t.Helper()
		token, err := at.Token(as(o))
		require.NoError(t, err)
		require.Greater(t, token, last)
		require.Equal(t, strconv.FormatUint(token, 10), look(t).Get(t.Context(), script.TokenKey(l.Key())).Val())
		last = token
	}
	for _, at := range []*FencedLock{l, far, l} {
		for _, lease := range []time.Duration{0, time.Minute} {
			require.NoError(t, at.LockLease(as("a"), lease))
			rises(at, "a")
			require.NoError(t, at.Unlock(as("a")))
			for _, wait := range []time.Duration{0, time.Second, -1} {
				got, err := at.TryLock(as("a"), wait, lease)
				require.NoError(t, err)
				require.True(t, got)
				rises(at, "a")
				require.NoError(t, at.Unlock(as("a")))
			}
		}
	}
	require.NoError(t, l.LockLease(as("a"), 200*time.Millisecond))
	rises(l, "a")
	require.NoError(t, far.Lock(as("b")), "the lease runs out")
	rises(far, "b")
	refusedOnce(t, l, "c", "a refusal draws none")
	require.Equal(t, strconv.FormatUint(last, 10), look(t).Get(t.Context(), script.TokenKey(l.Key())).Val())
	_, err := l.Token(as("a"))
	require.ErrorIs(t, err, ErrLost)
	require.ErrorIs(t, l.Unlock(as("a")), ErrLost)
	waiter := async(func() error { return l.Lock(as("c")) })
	waitForWaiters(t, c, 1)
	require.NoError(t, far.Unlock(as("b")))
	require.NoError(t, recv(t, waiter, "one that waited"))
	rises(l, "c")
	_, err = far.ForceUnlock(as("x"))
	require.NoError(t, err)
	require.NoError(t, far.Lock(as("b")), "after a ForceUnlock")
	rises(far, "b")
	require.NoError(t, far.Unlock(as("b")))
	require.ErrorIs(t, l.Unlock(as("c")), ErrLost)
	nothingLeft(t, l)
}

// The server is restarted, empty, while locks are held: their Unlocks are errors, and
// later locks are renewed as ever.
func TestBehaviourRenewal_RestartedServer(t *testing.T) {
	t.Parallel()
	look(t)
	s := redistest.StartServer(t)
	c := newClient(t, s.Client(t), WithWatchdogTimeout(900*time.Millisecond), WithReleaseTimeout(limit))
	var locks []anyLock
	for what, k := range kindsOfLocks {
		locks = append(locks, k.lock(c, what))
	}
	for _, l := range locks {
		require.NoError(t, l.Lock(as("a")))
	}
	require.NoError(t, s.Restart())
	for _, l := range locks {
		require.ErrorIs(t, l.Unlock(as("a")), ErrLost, l.Name())
	}
	for _, l := range locks {
		eventually(t, func() bool { return l.Lock(as("a")) == nil }, "%s is locked again", l.Name())
	}
	from := c.Stats().Renewals
	eventually(t, func() bool {
		return c.Stats().Renewals >= from+uint64(4*len(locks))
	}, "renewed for longer than the timeout")
	for _, l := range locks {
		require.Positive(t, l.Validity(as("a")), l.Name())
		require.NoError(t, l.Unlock(as("a")), l.Name())
	}
}

// Two holds and two Unlocks of one owner, then the lock of another one: that lives for
// ten periods.
func TestBehaviourRenewal_TheNextOwnerIsRenewed(t *testing.T) {
	t.Parallel()
	for what, k := range kindsOfLocks {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			c := onShared(t, WithWatchdogTimeout(600*time.Millisecond))
			l := k.lock(c, unique(what))
			for range 2 {
				require.NoError(t, l.Lock(as("a")))
			}
			for range 2 {
				require.NoError(t, l.Unlock(as("a")))
			}
			require.NoError(t, l.Lock(as("b")))
			from := c.Stats().Renewals
			eventually(t, func() bool {
				require.Positive(t, pttl(t, l.Key()))
				return c.Stats().Renewals >= from+10
			}, "ten periods")
			require.Positive(t, l.Validity(as("b")))
			require.NoError(t, l.Unlock(as("b")))
			nothingLeft(t, l)
		})
	}
}

// After as many Unlocks as Locks of many goroutines nothing is kept for renewal, and no
// key is remembered.
func TestBehaviourRenewal_NothingIsLeftToRenew(t *testing.T) {
	t.Parallel()
	c := onShared(t)
	var locks []anyLock
	for what, k := range kindsOfLocks {
		locks = append(locks, k.lock(c, unique(what)))
	}
	var all sync.WaitGroup
	for _, l := range locks {
		for _, o := range []Owner{"a", "b", "c", "d"} {
			all.Go(func() {
				for range 10 {
					for range 2 {
						if err := l.Lock(as(o)); err != nil {
							t.Error(err)
						}
					}
					if c.dog.Len() == 0 {
						t.Error("a hold is not kept")
					}
					for range 2 {
						if err := l.Unlock(as(o)); err != nil {
							t.Error(err)
						}
					}
				}
			})
		}
	}
	all.Wait()
	eventually(t, func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return len(c.entries) == 0 && c.dog.Len() == 0
	}, "all is forgotten")
	require.Zero(t, c.Stats().Held)
	for _, l := range locks {
		nothingLeft(t, l)
	}
}
