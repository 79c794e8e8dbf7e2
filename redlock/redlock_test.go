package redlock

import (
	"context"
	"errors"
	"fmt"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/multilock"
	"github.com/relock-go/relock/rlock"
)

func TestNewRefuses(t *testing.T) {
	one := func() rlock.Locker { return &fakeLock{} }
	three := []rlock.Locker{one(), one(), one()}
	for want, f := range map[string]func() (*RedLock, error){
		"three servers or more":   func() (*RedLock, error) { return New(three[:2]) },
		"0 locks":                 func() (*RedLock, error) { return New(nil) },
		"no more servers than 3":  func() (*RedLock, error) { return New(append(three, one())) },
		"lock 2 is nil":           func() (*RedLock, error) { return New([]rlock.Locker{one(), nil, one()}) },
		"lock 3 is nil":           func() (*RedLock, error) { return New([]rlock.Locker{one(), one(), (*rlock.Lock)(nil)}) },
		"an option is nil":        func() (*RedLock, error) { return New(three, nil) },
		"WithNodeTimeout(0s)":     func() (*RedLock, error) { return New(three, WithNodeTimeout(0)) },
		"WithNodeTimeout(1m1s)":   func() (*RedLock, error) { return New(three, WithNodeTimeout(61*time.Second)) },
		"WithDriftFactor(-0.1)":   func() (*RedLock, error) { return New(three, WithDriftFactor(-0.1)) },
		"WithDriftFactor(NaN)":    func() (*RedLock, error) { return New(three, WithDriftFactor(math.NaN())) },
		"WithRetryDelay(2s, 1s)":  func() (*RedLock, error) { return New(three, WithRetryDelay(2*time.Second, time.Second)) },
		"WithRetryDelay(0s, 1s)":  func() (*RedLock, error) { return New(three, WithRetryDelay(0, time.Second)) },
		"WithMaxHold(0s)":         func() (*RedLock, error) { return New(three, WithMaxHold(0)) },
		"WithMaxHold(2562047h47m": func() (*RedLock, error) { return New(three, WithMaxHold(math.MaxInt64)) },
	} {
		r, err := f()
		require.ErrorContains(t, err, want)
		require.Nil(t, r)
	}
}

// What New has not made says so, at once, and holds nothing.
func TestNotMadeByNew(t *testing.T) {
	ctx := as(t, "o")
	for _, r := range []*RedLock{{}, nil} {
		for range 2 {
			got, err := r.TryLock(ctx, 0, 0)
			require.False(t, got)
			require.ErrorIs(t, err, errNotMade)
			require.ErrorIs(t, r.Lock(ctx), errNotMade)
			require.ErrorIs(t, r.LockLease(ctx, time.Second), errNotMade)
			require.ErrorIs(t, r.Extend(ctx, time.Second), errNotMade)
			require.ErrorIs(t, r.Unlock(ctx), errNotMade)
			require.ErrorIs(t, r.Do(ctx, func(context.Context) error { panic("not reached") }), errNotMade)
			require.Zero(t, r.Validity(ctx))
			require.True(t, closed(r.Lost(ctx)))
			require.Empty(t, r.Name())
		}
	}
}

// A majority grants it, and it is valid for lease - elapsed - drift.
func TestLockLease(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := redlockOn(t, "a", servers(5))
		ctx := as(t, "o")
		require.Zero(t, f.Validity(ctx))
		require.NoError(t, f.LockLease(ctx, 10*time.Second))
		require.Equal(t, 10*time.Second-time.Millisecond-102*time.Millisecond, f.Validity(ctx))
		require.Equal(t, []int{1, 1, 1, 1, 1}, f.held("o"))
		require.NoError(t, f.Unlock(ctx))
		require.Zero(t, f.Validity(ctx))
		synctest.Wait()
		require.Equal(t, []int{0, 0, 0, 0, 0}, f.held("o"))
		require.ErrorIs(t, f.Unlock(ctx), rlock.ErrNotHeld)
	})
}

// Leases that cannot be kept are refused before anything is sent.
func TestInvalidLease(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := redlockOn(t, "a", servers(3))
		ctx := as(t, "o")
		for _, lease := range []time.Duration{-1, 1, time.Millisecond - 1, 2 * time.Millisecond, longestLease + 1, math.MinInt64, math.MaxInt64} {
			_, err := f.TryLock(ctx, 0, lease)
			require.ErrorIs(t, err, rlock.ErrInvalidLease, lease)
			require.ErrorIs(t, f.LockLease(ctx, lease), rlock.ErrInvalidLease, lease)
			require.ErrorIs(t, f.Extend(ctx, lease), rlock.ErrInvalidLease, lease)
		}
		require.Zero(t, f.count("trylock")+f.count("extend"))
	})
}

// A majority that comes when nothing of the lease is left is given back.
func TestTooLate(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := redlockOn(t, "a", servers(3), WithNodeTimeout(time.Second))
		for _, s := range f.servers {
			s.delay(40 * time.Millisecond)
		}
		ctx := as(t, "o")
		require.ErrorIs(t, f.LockLease(ctx, 40*time.Millisecond), rlock.ErrInvalidLease)
		synctest.Wait()
		time.Sleep(20 * time.Millisecond) // the releases arrive
		require.Equal(t, []int{0, 0, 0}, f.held("o"))
		require.Equal(t, mostLate*3, f.count("trylock"))
	})
}

// MULTI-8: a nested Lock asks nobody, also when a node that failed the first time works
// the second. So its Unlock frees nothing.
func TestMULTI8_Nesting(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := redlockOn(t, "a", servers(5))
		ctx := as(t, "o")
		f.servers[4].fail(errors.New("out of order"))
		require.NoError(t, f.LockLease(ctx, 10*time.Second))
		f.servers[4].fail(nil)
		left := f.Validity(ctx)
		require.NoError(t, f.LockLease(ctx, time.Second))
		ok, err := f.TryLock(ctx, 0, 9*time.Second)
		require.NoError(t, err)
		require.True(t, ok)
		require.Equal(t, 5, f.count("trylock"), "nobody was asked")
		require.Zero(t, f.count("extend"))
		require.Equal(t, left, f.Validity(ctx), "the lease is what it was")
		require.NoError(t, f.Unlock(ctx))
		require.NoError(t, f.Unlock(ctx))
		require.Equal(t, []int{1, 1, 1, 1, 0}, f.held("o"))
		require.NoError(t, f.Unlock(ctx))
		synctest.Wait()
		require.Equal(t, []int{0, 0, 0, 0, 0}, f.held("o"))
	})
}

// Others have it: false, and no error, unless a majority failed.
func TestTryLockOutcomes(t *testing.T) {
	broken := errors.New("broken")
	for _, v := range []struct {
		taken, failed int // so many of five
		got           bool
		err           error
	}{
		{0, 0, true, nil}, {0, 2, true, nil}, {2, 0, true, nil}, {1, 1, true, nil},
		{3, 0, false, nil}, {3, 2, false, nil}, {1, 2, false, nil}, {5, 0, false, nil},
		{0, 3, false, broken}, {2, 3, false, broken}, {0, 5, false, broken},
	} {
		t.Run(fmt.Sprintf("%d taken, %d failed", v.taken, v.failed), inBubble(func(t *testing.T) {
			f := redlockOn(t, "a", servers(5))
			for i, s := range f.servers {
				switch {
				case i < v.taken:
					s.take("other", 0)
				case i < v.taken+v.failed:
					s.fail(broken)
					s.delay(2 * time.Millisecond) // later than the refusals
				}
			}
			ctx := as(t, "o")
			got, err := f.TryLock(ctx, 0, 10*time.Second)
			require.Equal(t, v.got, got)
			require.ErrorIs(t, err, v.err)
			if v.err != nil {
				var e *rlock.Error
				require.ErrorAs(t, err, &e)
				require.Equal(t, rlock.Error{Op: "trylock", Lock: "fake", Owner: "o", Err: e.Err}, *e)
				require.ErrorContains(t, err, " of 5: broken")
			}
			if !got {
				time.Sleep(10 * time.Millisecond)
				require.Equal(t, []int{0, 0, 0, 0, 0}, f.held("o"), "all is given back")
				require.ErrorIs(t, f.Unlock(ctx), rlock.ErrNotHeld)
			}
		}))
	}
}

// MULTI-4: nodes that hang cost NodeTimeout at most, and nothing once the majority has
// answered. They are asked by one call at a time.
func TestMULTI4_Hung(t *testing.T) {
	for _, deaf := range []bool{false, true} {
		t.Run(fmt.Sprint("deaf: ", deaf), inBubble(func(t *testing.T) {
			f := redlockOn(t, "a", servers(5), WithNodeTimeout(20*time.Millisecond))
			for i := range 2 {
				f.locks[i].deaf = deaf
				f.servers[i].hang()
			}
			ctx := as(t, "o")
			took := func(f func()) time.Duration {
				begin := time.Now()
				f()
				return time.Since(begin)
			}
			require.Equal(t, 20*time.Millisecond, took(func() { require.NoError(t, f.Lock(ctx)) }), "the first looks at all")
			require.Equal(t, time.Millisecond, took(func() { require.NoError(t, f.Extend(ctx, time.Minute)) }))
			require.Equal(t, time.Millisecond, took(func() { require.NoError(t, f.Unlock(ctx)) }))
			for range 50 {
				require.Equal(t, time.Millisecond, took(func() { require.NoError(t, f.Lock(ctx)) }))
				require.Equal(t, time.Millisecond, took(func() { require.NoError(t, f.Unlock(ctx)) }))
			}
			f.servers[2].take("other", time.Hour)
			for range 50 {
				require.Equal(t, 20*time.Millisecond, took(func() {
					got, err := f.TryLock(ctx, 0, 0)
					require.NoError(t, err)
					require.False(t, got, "two failed, and one is taken")
				}))
			}
			synctest.Wait()
			for i := range 2 {
				require.Equal(t, 1, f.locks[i].most)
				f.mu.Lock()
				require.LessOrEqual(t, len(f.members[i].turns), 1, "a hung node costs a goroutine, not one for each attempt")
				f.mu.Unlock()
			}
			f.servers[2].empty()
			f.servers[2].hang()
			f.locks[2].deaf = deaf
			require.Equal(t, 20*time.Millisecond, took(func() {
				err := f.Lock(ctx)
				require.ErrorIs(t, err, rlock.ErrUnsettled)
				require.ErrorContains(t, err, "node 3 of 5")
			}), "three of five: it fails at once")
			for i := range 3 {
				f.servers[i].wake()
			}
			time.Sleep(time.Second)
			require.Equal(t, []int{0, 0, 0, 0, 0}, f.held("o"), "what was granted late is given back")
			require.NoError(t, f.Lock(ctx))
			time.Sleep(time.Second)
			require.Equal(t, []int{1, 1, 1, 1, 1}, f.held("o"), "and the nodes are asked again")
			require.NoError(t, f.Unlock(ctx))
		}))
	}
}

// A grant that comes when the majority is in already joins the hold, and counts.
func TestLateGrant(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := redlockOn(t, "a", servers(5), WithNodeTimeout(time.Second))
		ctx := as(t, "o")
		require.NoError(t, f.Lock(ctx))
		require.NoError(t, f.Unlock(ctx)) // the first Lock waits for all
		f.servers[3].delay(100 * time.Millisecond)
		f.servers[4].delay(200 * time.Millisecond)
		begin := time.Now()
		require.NoError(t, f.Lock(ctx))
		require.Less(t, time.Since(begin), 100*time.Millisecond)
		lost := f.Lost(ctx)
		time.Sleep(time.Second)
		f.locks[0].lose("o")
		f.locks[1].lose("o")
		synctest.Wait()
		require.Positive(t, f.Validity(ctx), "three of five")
		f.locks[4].lose("o") // which came late, and is watched too
		synctest.Wait()
		require.True(t, closed(lost))
		require.Zero(t, f.Validity(ctx))
		require.ErrorIs(t, f.Unlock(ctx), rlock.ErrLost)
	})
}

// A grant that comes when the hold is over already is given back, and does not revive one
// that was lost.
func TestLateGrantAfterTheEnd(t *testing.T) {
	t.Run("given back", inBubble(func(t *testing.T) {
		f := redlockOn(t, "a", servers(3), WithNodeTimeout(time.Second))
		ctx := as(t, "o")
		require.NoError(t, f.Lock(ctx))
		require.NoError(t, f.Unlock(ctx))
		time.Sleep(time.Second)
		f.servers[2].delay(100 * time.Millisecond)
		require.NoError(t, f.Lock(ctx))
		require.NoError(t, f.Unlock(ctx))
		time.Sleep(time.Second)
		require.Equal(t, []int{0, 0, 0}, f.held("o"))
	}))
	t.Run("lost", inBubble(func(t *testing.T) {
		f := redlockOn(t, "a", servers(3), WithNodeTimeout(time.Second))
		ctx := as(t, "o")
		require.NoError(t, f.Lock(ctx))
		require.NoError(t, f.Unlock(ctx))
		time.Sleep(time.Second)
		f.servers[2].delay(100 * time.Millisecond)
		require.NoError(t, f.Lock(ctx))
		f.locks[0].lose("o") // nobody looks
		time.Sleep(time.Second)
		require.Zero(t, f.Validity(ctx))
		require.Zero(t, f.servers[2].has("a2", "o"))
		require.ErrorIs(t, f.Unlock(ctx), rlock.ErrLost)
	}))
}

// A caller that leaves holds nothing, and what was granted is given back.
func TestCancelled(t *testing.T) {
	for _, after := range []time.Duration{0, 1, 499 * time.Microsecond, 700 * time.Microsecond, 5 * time.Millisecond} {
		t.Run(after.String(), inBubble(func(t *testing.T) {
			f := redlockOn(t, "a", servers(3), WithNodeTimeout(time.Second))
			f.servers[2].delay(10 * time.Millisecond)
			cause := errors.New("enough")
			ctx, cancel := context.WithCancelCause(as(t, "o"))
			if after == 0 {
				cancel(cause)
			}
			time.AfterFunc(after, func() { cancel(cause) })
			begin := time.Now()
			err := f.Lock(ctx)
			require.ErrorIs(t, err, context.Canceled)
			require.ErrorIs(t, err, cause)
			require.Equal(t, after, time.Since(begin))
			if after > 0 {
				require.ErrorIs(t, err, rlock.ErrUnsettled)
			} else {
				require.Zero(t, f.count("trylock"))
			}
			time.Sleep(time.Second)
			require.Equal(t, []int{0, 0, 0}, f.held("o"))
			require.Zero(t, f.Validity(ctx))
		}))
	}
}

// The wait is bounded; attempts go on until it is over.
func TestWait(t *testing.T) {
	bubble(t, func(t *testing.T) {
		all := servers(3)
		f, g := redlockOn(t, "a", all), redlockOn(t, "b", all)
		require.NoError(t, f.Lock(as(t, "o")))
		begin := time.Now()
		got, err := g.TryLock(as(t, "o"), time.Second, 0)
		require.NoError(t, err)
		require.False(t, got)
		require.Equal(t, time.Second, time.Since(begin))
		n := g.count("trylock")
		require.GreaterOrEqual(t, n, 3*6)
		require.LessOrEqual(t, n, 3*20)

		ctx, cancel := context.WithTimeout(as(t, "o"), time.Second)
		defer cancel()
		err = g.Lock(ctx)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.NotErrorIs(t, err, rlock.ErrUnsettled)

		time.AfterFunc(time.Second, func() { require.NoError(t, f.Unlock(as(t, "o"))) })
		begin = time.Now()
		require.NoError(t, g.Lock(as(t, "o")))
		require.Less(t, time.Since(begin), time.Second+200*time.Millisecond)
		require.Positive(t, g.Validity(as(t, "o")))
		require.NoError(t, g.Unlock(as(t, "o")))
	})
}

// An attempt that is unanswered when the wait is over is an error, and undone.
func TestUnanswered(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := redlockOn(t, "a", servers(3), WithNodeTimeout(time.Second))
		for _, s := range f.servers {
			s.delay(100 * time.Millisecond)
		}
		got, err := f.TryLock(as(t, "o"), 10*time.Millisecond, 0)
		require.False(t, got)
		require.ErrorIs(t, err, rlock.ErrUnsettled)
		require.NotErrorIs(t, err, context.DeadlineExceeded)
		time.Sleep(time.Second)
		require.Equal(t, []int{0, 0, 0}, f.held("o"))
	})
}

// Goroutines of one process do not split the nodes among them: somebody always gets in,
// and they ask together.
func TestTogether(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := redlockOn(t, "a", servers(5))
		got := make(chan bool)
		for i := range 20 {
			go func() {
				ok, err := f.TryLock(as(t, rlock.Owner(fmt.Sprint("o", i))), 0, 0)
				if err != nil {
					t.Error(err)
				}
				got <- ok
			}()
		}
		in := 0
		for range 20 {
			if <-got {
				in++
			}
		}
		require.Equal(t, 1, in)
		require.Equal(t, 5, f.count("trylock"))
	})
}

// One owner in two goroutines is inside twice, whoever asks.
func TestOneOwnerTwice(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := redlockOn(t, "a", servers(3))
		done := make(chan error)
		for range 2 {
			go func() { done <- f.Lock(as(t, "o")) }()
		}
		require.NoError(t, <-done)
		require.NoError(t, <-done)
		require.Equal(t, []int{1, 1, 1}, f.held("o"))
		require.NoError(t, f.Unlock(as(t, "o")))
		require.Positive(t, f.Validity(as(t, "o")))
		require.NoError(t, f.Unlock(as(t, "o")))
		require.Zero(t, f.Validity(as(t, "o")))
	})
}

// Who holds it as itself would wait for itself as another owner.
func TestWaitsForItself(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := redlockOn(t, "a", servers(3))
		require.NoError(t, f.Lock(t.Context()))
		require.ErrorIs(t, f.Lock(as(t, "o")), rlock.ErrReentry)
		require.NoError(t, f.Lock(t.Context()))
		require.NoError(t, f.Unlock(t.Context()))
		require.NoError(t, f.Unlock(t.Context()))
		require.NoError(t, f.Lock(as(t, "o")))
		require.NoError(t, f.Unlock(as(t, "o")))
	})
}

// Restart guards are waited for, like holders; a single attempt says what it was.
func TestYoungServers(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := redlockOn(t, "a", servers(5))
		for _, s := range f.servers[:3] {
			s.fail(rlock.ErrRestarted)
		}
		ctx := as(t, "o")
		for _, wait := range []time.Duration{0, time.Second} {
			got, err := f.TryLock(ctx, wait, 0)
			require.False(t, got)
			require.ErrorIs(t, err, rlock.ErrRestarted)
		}
		short, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		err := f.Lock(short)
		require.ErrorIs(t, err, rlock.ErrRestarted)
		require.ErrorIs(t, err, context.DeadlineExceeded)

		time.AfterFunc(10*time.Second, func() { f.servers[0].fail(nil) })
		begin := time.Now()
		require.NoError(t, f.Lock(ctx))
		require.GreaterOrEqual(t, time.Since(begin), 10*time.Second)
		require.NoError(t, f.Unlock(ctx))
	})
}

// It is an error at once if so many servers fail otherwise that the guard makes no
// difference, whichever answer comes first. ErrRestarted is not in its chain then: a group
// around the lock would take it for a reason to wait.
func TestNotTheGuard(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := redlockOn(t, "a", servers(5))
		broken := errors.New("broken")
		for i, s := range f.servers[:4] {
			s.fail(broken)
			s.delay(time.Duration(2+i) * time.Millisecond)
		}
		f.servers[4].fail(rlock.ErrRestarted)
		group, err := multilock.New(f.RedLock)
		require.NoError(t, err)
		for _, l := range []rlock.Locker{f.RedLock, group} {
			begin := time.Now()
			short, cancel := context.WithTimeout(as(t, "o"), time.Minute)
			err := l.Lock(short)
			cancel()
			require.ErrorIs(t, err, broken)
			require.NotErrorIs(t, err, rlock.ErrRestarted)
			require.ErrorContains(t, err, "node 5 of 5: "+rlock.ErrRestarted.Error())
			require.Less(t, time.Since(begin), 50*time.Millisecond, "it waits for the answers only")
			time.Sleep(time.Second)
		}
	})
}

// MULTI-5: what nodes granted in an attempt that failed is given back, also at those
// whose answer was late, and at those of another make that said that they failed.
func TestMULTI5_Undone(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := redlockOn(t, "a", servers(5), WithNodeTimeout(20*time.Millisecond))
		for _, s := range f.servers[:2] {
			s.take("other", time.Hour)
		}
		f.servers[2].delay(50 * time.Millisecond) // grants, too late
		ctx := as(t, "o")
		got, err := f.TryLock(ctx, 0, 0)
		require.NoError(t, err)
		require.False(t, got)
		time.Sleep(time.Second)
		require.Equal(t, []int{0, 0, 0, 0, 0}, f.held("o"))
		require.True(t, f.servers[2].free() && f.servers[3].free() && f.servers[4].free())
		require.Equal(t, 1, f.locks[2].count("unlock"))
	})
}

// A release waits for the call before it, however long that takes, and Unlock does not.
func TestMULTI5_ReleaseBehindAHungCall(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := redlockOn(t, "a", servers(3))
		ctx := as(t, "o")
		require.NoError(t, f.Lock(ctx))
		f.locks[2].deaf = true
		f.servers[2].hang()
		require.NoError(t, f.Extend(ctx, time.Hour))
		require.NoError(t, f.Unlock(ctx))
		time.Sleep(time.Second)
		require.Equal(t, []int{0, 0, 1}, f.held("o"))
		f.servers[2].wake()
		time.Sleep(time.Second)
		require.Equal(t, []int{0, 0, 0}, f.held("o"))
	})
}

// Others' locks may hold something after an error; they are released.
func TestMULTI5_AfterAnError(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := redlockOn(t, "a", servers(3))
		f.servers[1].lies = true
		f.servers[1].fail(errors.New("it did not work"))
		require.NoError(t, f.Lock(as(t, "o")))
		time.Sleep(time.Second)
		require.Equal(t, []int{1, 0, 1}, f.held("o"))
		require.NoError(t, f.Unlock(as(t, "o")))
	})
}

// A wait never ends in the middle of an attempt, however long that takes.
func TestWaitWithHungServers(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := redlockOn(t, "a", servers(3))
		f.servers[0].hang()
		f.servers[1].take("other", 0)
		for range 30 {
			begin := time.Now()
			got, err := f.TryLock(as(t, "o"), 300*time.Millisecond, 0)
			require.NoError(t, err)
			require.False(t, got)
			require.Equal(t, 300*time.Millisecond, time.Since(begin))
		}
		f.servers[0].wake()
	})
}

func TestNodeTimeout(t *testing.T) {
	o := defaults()
	for lease, want := range map[time.Duration]time.Duration{
		0: 50 * time.Millisecond, time.Hour: 50 * time.Millisecond, 500 * time.Millisecond: 50 * time.Millisecond,
		100 * time.Millisecond: 10 * time.Millisecond, 20 * time.Millisecond: 5 * time.Millisecond,
	} {
		require.Equal(t, want, o.limit(lease), lease)
	}
	require.NoError(t, WithNodeTimeout(time.Second)(&o))
	require.Equal(t, time.Second, o.limit(20*time.Millisecond))
}
