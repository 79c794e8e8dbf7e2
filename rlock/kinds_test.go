package rlock

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/relock-go/relock/internal/script"
)

// anyLock is what every kind has.
type anyLock interface {
	Locker
	Key() string
	Client() *Client
	Do(ctx context.Context, fn func(ctx context.Context) error) error
	ForceUnlock(ctx context.Context) (bool, error)
	IsLocked(ctx context.Context) (bool, error)
	IsHeld(ctx context.Context) (bool, error)
	IsHeldBy(ctx context.Context, o Owner) (bool, error)
	HoldCount(ctx context.Context) (int, error)
	TTL(ctx context.Context) (time.Duration, error)
	Info(ctx context.Context) (Info, error)
}

// kindsOfLocks make a lock, and one of the same name that it excludes.
var kindsOfLocks = map[string]struct {
	lock, against func(c *Client, name string, opts ...LockOption) anyLock
	info          Info // of one hold of one owner, without TTL and names
}{
	"lock": {
		func(c *Client, name string, opts ...LockOption) anyLock { return c.NewLock(name, opts...) },
		func(c *Client, name string, opts ...LockOption) anyLock { return c.NewLock(name, opts...) },
		Info{Kind: "lock", Holders: []Holder{{Depth: 1}}},
	},
	"fair": {
		func(c *Client, name string, opts ...LockOption) anyLock { return c.NewFairLock(name, opts...) },
		func(c *Client, name string, opts ...LockOption) anyLock { return c.NewFairLock(name, opts...) },
		Info{Kind: "lock", Holders: []Holder{{Depth: 1}}},
	},
	"fenced": {
		func(c *Client, name string, opts ...LockOption) anyLock { return c.NewFencedLock(name, opts...) },
		func(c *Client, name string, opts ...LockOption) anyLock { return c.NewFencedLock(name, opts...) },
		Info{Kind: "lock", Holders: []Holder{{Depth: 1}}},
	},
	"spin": {
		func(c *Client, name string, opts ...LockOption) anyLock { return c.NewSpinLock(name, opts...) },
		func(c *Client, name string, opts ...LockOption) anyLock { return c.NewSpinLock(name, opts...) },
		Info{Kind: "lock", Holders: []Holder{{Depth: 1}}},
	},
	"read": {
		func(c *Client, name string, opts ...LockOption) anyLock {
			return c.NewReadWriteLock(name, opts...).ReadLock()
		},
		func(c *Client, name string, opts ...LockOption) anyLock {
			return c.NewReadWriteLock(name, opts...).WriteLock()
		},
		Info{Kind: "rwlock", Holders: []Holder{{Depth: 1, Mode: "read"}}},
	},
	"write": {
		func(c *Client, name string, opts ...LockOption) anyLock {
			return c.NewReadWriteLock(name, opts...).WriteLock()
		},
		func(c *Client, name string, opts ...LockOption) anyLock {
			return c.NewReadWriteLock(name, opts...).ReadLock()
		},
		Info{Kind: "rwlock", Holders: []Holder{{Depth: 1, Mode: "write"}}},
	},
}

// onEachKind runs f with a client, a lock of each kind, and one of another client that
// it excludes.
func onEachKind(t *testing.T, f func(t *testing.T, l, other anyLock), opts ...LockOption) {
	t.Helper()
	for what, k := range kindsOfLocks {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			name := unique(what)
			f(t, k.lock(onShared(t), name, opts...), k.against(onShared(t), name))
		})
	}
}

// nothingLeft tells that nothing stands in Redis for a lock, but a token counter.
func nothingLeft(t testing.TB, l anyLock) {
	t.Helper()
	eventually(t, func() bool {
		keys, err := look(t).Keys(context.Background(), "*"+l.Key()+"*").Result()
		require.NoError(t, err)
		return len(keys) == 0 || len(keys) == 1 && keys[0] == script.TokenKey(l.Key())
	}, "nothing of %s is left", l.Key())
}

func TestKinds_ExcludeCountAndFree(t *testing.T) {
	t.Parallel()
	onEachKind(t, func(t *testing.T, l, other anyLock) {
		a, b := as("a"), as("b")
		for depth := 1; depth <= 3; depth++ {
			require.NoError(t, l.Lock(a))
			n, err := l.HoldCount(a)
			require.NoError(t, err)
			require.Equal(t, depth, n)
			got, err := other.TryLock(b, 0, 0)
			require.NoError(t, err)
			require.False(t, got)
		}
		got, err := settled(t, func() (bool, error) { return other.TryLock(b, 300*time.Millisecond, 0) })
		require.NoError(t, err)
		require.False(t, got)
		held, err := l.IsHeld(a)
		require.NoError(t, err)
		require.True(t, held)
		held, err = l.IsHeldBy(b, "a")
		require.NoError(t, err)
		require.True(t, held)
		held, err = other.IsHeld(a)
		require.NoError(t, err)
		require.False(t, held)
		require.Greater(t, l.Validity(a), 25*time.Second)
		require.ErrorIs(t, l.Unlock(b), ErrNotHeld)
		waiter := async(func() error { return other.Lock(b) })
		for range 3 {
			require.False(t, isClosed(l.Lost(a)))
			require.NoError(t, l.Unlock(a))
		}
		require.NoError(t, recv(t, waiter, "who waits"))
		require.ErrorIs(t, l.Unlock(a), ErrNotHeld)
		require.NoError(t, other.Unlock(b))
		nothingLeft(t, l)
	})
}

func TestKinds_Info(t *testing.T) {
	t.Parallel()
	for what, k := range kindsOfLocks {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			c := onShared(t)
			l := k.lock(c, unique(what))
			none, err := l.Info(as("a"))
			require.NoError(t, err)
			require.Equal(t, Info{}, none)
			require.NoError(t, l.LockLease(as("a"), time.Minute))
			locked, err := l.IsLocked(as("a"))
			require.NoError(t, err)
			require.True(t, locked)
			info, err := l.Info(as("a"))
			require.NoError(t, err)
			require.InDelta(t, time.Minute, info.TTL, float64(20*time.Second))
			ttl, err := l.TTL(as("a"))
			require.NoError(t, err)
			require.InDelta(t, time.Minute, ttl, float64(20*time.Second))
			want := k.info
			want.Holders[0].Client, want.Holders[0].Owner, want.TTL = c.ID(), "a", info.TTL
			require.Equal(t, want, info)
			require.NoError(t, l.Unlock(as("a")))
		})
	}
}

// A lease ends by itself, here before it does in Redis, and Extend and a nested Lock
// move its end.
func TestKinds_Leases(t *testing.T) {
	t.Parallel()
	onEachKind(t, func(t *testing.T, l, other anyLock) {
		a := as("a")
		require.NoError(t, l.LockLease(a, 300*time.Millisecond))
		lost := l.Lost(a)
		require.NoError(t, other.Lock(as("b")), "it comes in when the lease is over")
		require.True(t, isClosed(lost))
		require.Zero(t, l.Validity(a))
		require.ErrorIs(t, l.Unlock(a), ErrLost)
		require.NoError(t, other.Unlock(as("b")))

		require.NoError(t, l.LockLease(a, time.Minute))
		require.NoError(t, l.LockLease(a, 2*time.Minute))
		require.Greater(t, pttl(t, l.Key()), 100*time.Second)
		require.NoError(t, l.Extend(a, 4*time.Minute))
		require.Greater(t, l.Validity(a), 200*time.Second)
		require.Greater(t, pttl(t, l.Key()), 200*time.Second)
		require.NoError(t, l.Unlock(a))
		require.Greater(t, l.Validity(a), 200*time.Second)
		require.NoError(t, l.Unlock(a))
		nothingLeft(t, l)
	})
}

func TestKinds_TheWatchdogKeepsThem(t *testing.T) {
	t.Parallel()
	for what, k := range kindsOfLocks {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			c := onShared(t, WithWatchdogTimeout(600*time.Millisecond))
			l := k.lock(c, unique(what))
			require.NoError(t, l.Lock(as("a")))
			require.NoError(t, l.Lock(as("a")))
			eventually(t, func() bool { return c.Stats().Renewals >= 4 }, "it is renewed beyond its timeout")
			require.Positive(t, l.Validity(as("a")))
			require.NoError(t, l.Unlock(as("a")))
			require.NoError(t, l.Unlock(as("a")))
			nothingLeft(t, l)
		})
	}
}

func TestKinds_LossIsTold(t *testing.T) {
	t.Parallel()
	for what, k := range kindsOfLocks {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			c := onShared(t, WithWatchdogTimeout(600*time.Millisecond))
			l := k.lock(c, unique(what))
			err := l.Do(as("a"), func(ctx context.Context) error {
				require.NoError(t, look(t).Del(ctx, l.Key()).Err())
				recv(t, ctx.Done(), "the end of the ctx")
				require.True(t, isClosed(l.Lost(ctx)))
				return context.Cause(ctx)
			})
			require.ErrorIs(t, err, ErrLost)
			require.NoError(t, l.Do(as("a"), func(context.Context) error { return nil }), "and it can be had again")
		})
	}
}

func TestKinds_ForceUnlock(t *testing.T) {
	t.Parallel()
	onEachKind(t, func(t *testing.T, l, other anyLock) {
		removed, err := l.ForceUnlock(as("x"))
		require.NoError(t, err)
		require.False(t, removed)
		require.NoError(t, l.Lock(as("a")))
		waiter := async(func() error { return other.Lock(as("b")) })
		eventually(t, func() bool { return other.Client().Stats().Waiting == 1 }, "another one waits")
		removed, err = l.ForceUnlock(as("x"))
		require.NoError(t, err)
		require.True(t, removed)
		require.NoError(t, recv(t, waiter, "who waits"))
		require.True(t, isClosed(l.Lost(as("a"))))
		require.ErrorIs(t, l.Unlock(as("a")), ErrLost)
		require.NoError(t, other.Unlock(as("b")))
	})
}

func TestKinds_MaxHoldAndNonReentrant(t *testing.T) {
	t.Parallel()
	onEachKind(t, func(t *testing.T, l, _ anyLock) {
		require.NoError(t, l.Lock(as("a")))
		require.ErrorIs(t, l.Lock(as("a")), ErrReentry)
		lost := l.Lost(as("a"))
		recv(t, lost, "the end of the longest hold")
		require.ErrorIs(t, l.Unlock(as("a")), ErrMaxHold)
	}, NonReentrant(), WithMaxHold(700*time.Millisecond))
}

func TestKinds_Panic(t *testing.T) {
	t.Parallel()
	onEachKind(t, func(t *testing.T, l, _ anyLock) {
		require.PanicsWithValue(t, "oh", func() {
			_ = l.Do(as("a"), func(context.Context) error { panic("oh") })
		})
		nothingLeft(t, l)
	})
}

func TestKinds_CancelledWaiterLeavesNothing(t *testing.T) {
	t.Parallel()
	onEachKind(t, func(t *testing.T, l, other anyLock) {
		require.NoError(t, other.Lock(as("b")))
		ctx, cancel := context.WithCancel(as("a"))
		waiter := async(func() error { return l.Lock(ctx) })
		eventually(t, func() bool { return l.Client().Stats().Waiting == 1 }, "it waits")
		cancel()
		require.ErrorIs(t, recv(t, waiter, "who waits"), context.Canceled)
		require.NoError(t, other.Unlock(as("b")))
		nothingLeft(t, l)
		require.NoError(t, l.Lock(as("a")))
		require.NoError(t, l.Unlock(as("a")))
	})
}

// Close ends waiters, wherever they stand, and leaves no key and no goroutine.
func TestKinds_Close(t *testing.T) {
	for what, k := range kindsOfLocks {
		t.Run(what, func(t *testing.T) {
			look(t)
			old := goleak.IgnoreCurrent()
			rdb := redis.NewClient(&redis.Options{Addr: shared.server.Addr})
			other := redis.NewClient(&redis.Options{Addr: shared.server.Addr})
			c, err := New(rdb)
			require.NoError(t, err)
			d, err := New(other)
			require.NoError(t, err)
			name := unique(what)
			l, against := k.lock(c, name), k.against(c, name)
			require.NoError(t, l.Lock(as("a")))
			waiters := []<-chan error{
				async(func() error { return against.Lock(as("b")) }),
				async(func() error { return k.against(d, name).Lock(as("c")) }),
			}
			eventually(t, func() bool { return c.Stats().Waiting == 1 && d.Stats().Waiting == 1 }, "two wait")
			require.NoError(t, d.Close(context.Background()))
			require.ErrorIs(t, recv(t, waiters[1], "the waiter of the other client"), ErrClosed)
			require.NoError(t, c.Close(context.Background()))
			require.ErrorIs(t, recv(t, waiters[0], "the waiter"), ErrClosed)
			require.ErrorIs(t, l.Unlock(as("a")), ErrClosed)
			nothingLeft(t, l)
			require.NoError(t, rdb.Close())
			require.NoError(t, other.Close())
			goleak.VerifyNone(t, old)
		})
	}
}

// Lock, FairLock, FencedLock and SpinLock on one name are one lock: one owner's holds
// nest, whichever object is unlocked first.
func TestACQ17_KindsOfOneHashNest(t *testing.T) {
	t.Parallel()
	c := onShared(t)
	name := unique("mixed")
	locks := []anyLock{c.NewLock(name), c.NewFencedLock(name), c.NewSpinLock(name), c.NewFairLock(name)}
	for first := range locks {
		order := append(append([]anyLock{}, locks[first:]...), locks[:first]...)
		for i, l := range order {
			require.NoError(t, l.Lock(as("a")))
			n, err := locks[0].HoldCount(as("a"))
			require.NoError(t, err)
			require.Equal(t, i+1, n)
			got, err := order[(i+1)%len(order)].TryLock(as("b"), 0, 0)
			require.NoError(t, err)
			require.False(t, got)
		}
		for _, l := range append(append([]anyLock{}, order[2:]...), order[:2]...) {
			require.NoError(t, l.Unlock(as("a")))
		}
		nothingLeft(t, locks[0])
	}
}

func TestKinds_OtherKindsOnTheNameAreRefused(t *testing.T) {
	t.Parallel()
	c := onShared(t)
	name := unique("mixed")
	rw := c.NewReadWriteLock(name)
	whole := []anyLock{c.NewLock(name), c.NewFencedLock(name), c.NewSpinLock(name), c.NewFairLock(name)}
	for _, half := range []anyLock{rw.ReadLock(), rw.WriteLock()} {
		require.NoError(t, half.Lock(as("a")))
		before := fields(t, name)
		for _, l := range whole {
			for _, o := range []Owner{"a", "b"} {
				require.ErrorIs(t, l.Lock(as(o)), ErrWrongType)
				_, err := l.TryLock(as(o), 0, 0)
				require.ErrorIs(t, err, ErrWrongType)
				require.ErrorIs(t, l.Unlock(as(o)), ErrNotHeld)
			}
			_, err := l.ForceUnlock(as("a"))
			require.ErrorIs(t, err, ErrWrongType)
		}
		require.Equal(t, before, fields(t, name))
		require.NoError(t, half.Unlock(as("a")))
	}
	for _, l := range whole {
		require.NoError(t, l.Lock(as("a")))
		before := fields(t, name)
		for _, half := range []anyLock{rw.ReadLock(), rw.WriteLock()} {
			require.ErrorIs(t, half.Lock(as("a")), ErrWrongType)
			require.ErrorIs(t, half.Lock(as("b")), ErrWrongType)
			_, err := half.ForceUnlock(as("a"))
			require.ErrorIs(t, err, ErrWrongType)
		}
		require.Equal(t, before, fields(t, name))
		require.NoError(t, l.Unlock(as("a")))
	}
}

func TestKinds_KeysOfOtherTypes(t *testing.T) {
	t.Parallel()
	onEachKind(t, func(t *testing.T, l, _ anyLock) {
		ctx := context.Background()
		bad := []string{l.Key()}
		switch l.(type) {
		case *FairLock:
			bad = append(bad, script.QueueKey(l.Key()), script.ScoresKey(l.Key()))
		case *FencedLock:
			bad = append(bad, script.TokenKey(l.Key()))
		}
		for _, key := range bad {
			require.NoError(t, look(t).SAdd(ctx, key, "x").Err())
			require.ErrorIs(t, l.Lock(as("a")), ErrWrongType, key)
			require.Equal(t, "set", look(t).Type(ctx, key).Val())
			require.NoError(t, look(t).Del(ctx, key).Err())
		}
		// A hash of somebody's data looks like a lock, but for its fields.
		require.NoError(t, look(t).HSet(ctx, l.Key(), "name", "x", "age", 1).Err())
		require.ErrorIs(t, l.Lock(as("a")), ErrWrongType)
		for _, ttl := range []time.Duration{0, time.Minute} {
			_, err := l.ForceUnlock(as("a"))
			require.ErrorIs(t, err, ErrWrongType)
			require.Len(t, fields(t, l.Key()), 2)
			_, err = l.IsLocked(as("a"))
			if ttl == 0 {
				require.ErrorIs(t, err, ErrWrongType)
				require.NoError(t, look(t).Expire(ctx, l.Key(), time.Minute).Err())
			}
		}
		require.Zero(t, look(t).Exists(ctx, script.QueueKey(l.Key())).Val())
		remove(t, l.Key())
		require.NoError(t, l.Lock(as("a")))
		require.NoError(t, l.Unlock(as("a")))
	})
}

func TestKinds_BadCalls(t *testing.T) {
	t.Parallel()
	onEachKind(t, func(t *testing.T, l, _ anyLock) {
		_, err := l.TryLock(as("a"), 0, -1)
		require.ErrorIs(t, err, ErrInvalidLease)
		require.ErrorIs(t, l.LockLease(as("a"), time.Microsecond), ErrInvalidLease)
		require.ErrorIs(t, l.Lock(as("a:b")), ErrInvalidOwner)
		over, cancel := context.WithCancelCause(as("a"))
		cancel(errors.New("enough"))
		require.ErrorIs(t, l.Lock(over), context.Canceled)
		require.ErrorIs(t, l.Extend(as("a"), time.Second), ErrNotHeld)
		nothingLeft(t, l)
	})
}
