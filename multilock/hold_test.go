package multilock

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/rlock"
)

// MULTI-8: a nested Lock asks nobody, and one Unlock frees nothing.
func TestNesting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, log := fakes("a", "b")
		g := group(t, l...)
		require.NoError(t, g.Lock(as(t, alice)))
		log.take()
		require.NoError(t, g.Lock(as(t, alice)))
		require.NoError(t, g.LockLease(as(t, alice), time.Second), "which the watchdog outlasts")
		got, err := g.TryLock(as(t, alice), 0, 0)
		require.NoError(t, err)
		require.True(t, got)
		require.Equal(t, []int{1, 1}, depths(l))
		for range 3 {
			require.NoError(t, g.Unlock(as(t, alice)))
			require.Equal(t, forever, g.Validity(as(t, alice)))
		}
		require.Empty(t, log.take())
		require.NoError(t, g.Unlock(as(t, alice)))
		require.Equal(t, []int{0, 0}, depths(l))
		require.ErrorIs(t, g.Unlock(as(t, alice)), rlock.ErrNotHeld)
	})
}

// A nested Lock lengthens the lease and never shortens it.
func TestNesting_Lease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, log := fakes("a", "b")
		g := group(t, l...)
		ctx := as(t, alice)
		require.NoError(t, g.LockLease(ctx, time.Minute))
		log.take()
		require.NoError(t, g.LockLease(ctx, time.Second))
		require.Empty(t, log.take())
		require.Equal(t, time.Minute, g.Validity(ctx))
		require.NoError(t, g.LockLease(ctx, time.Hour))
		require.Equal(t, []int{1, 1}, depths(l))
		require.Greater(t, g.Validity(ctx), 59*time.Minute)
		require.NoError(t, g.Lock(ctx))
		require.Equal(t, forever, g.Validity(ctx))
		log.take()
		require.NoError(t, g.LockLease(ctx, time.Hour))
		require.Empty(t, log.take(), "the watchdog keeps it until the last Unlock")
		for range 5 {
			require.NoError(t, g.Unlock(ctx))
		}
		require.Equal(t, []int{0, 0}, depths(l))
	})
}

// What the owner holds of a member by itself is not shortened by the group's lease,
// is still there after the group's Unlock, and after a group that failed.
func TestOuterHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, _ := fakes("a", "b", "c")
		g := group(t, l...)
		ctx := as(t, alice)
		l[2].hook = func(ctx context.Context, op string) error { // long enough for the keeper
			if op == "lock" {
				return sleep(ctx, time.Second)
			}
			return nil
		}
		require.NoError(t, l[0].Lock(ctx))
		require.NoError(t, l[1].LockLease(ctx, time.Hour))
		require.NoError(t, g.LockLease(ctx, 300*time.Millisecond))
		require.Equal(t, []int{2, 2, 1}, depths(l))
		require.Equal(t, time.Duration(0), l[0].lease())
		require.Equal(t, time.Hour, l[1].lease())
		require.Equal(t, 300*time.Millisecond, l[2].lease())
		l[2].hook = nil
		require.NoError(t, g.LockLease(ctx, time.Minute))
		require.Equal(t, time.Duration(0), l[0].lease())
		require.Equal(t, time.Hour, l[1].lease())
		require.NoError(t, g.Unlock(ctx))
		require.NoError(t, g.Unlock(ctx))
		require.Equal(t, []int{1, 1, 0}, depths(l))
		require.Equal(t, time.Duration(0), l[0].lease())

		require.NoError(t, l[2].Lock(as(t, bob)))
		require.NoError(t, try(t, g))
		require.Equal(t, []int{1, 1, 1}, depths(l))

		// The lease of the group runs out; what it had of a and b goes back then.
		require.NoError(t, l[2].Unlock(as(t, bob)))
		require.NoError(t, g.LockLease(ctx, 300*time.Millisecond))
		time.Sleep(time.Second)
		require.Zero(t, g.Validity(ctx))
		require.Equal(t, []int{1, 1, 0}, depths(l))
		require.NoError(t, g.Lock(ctx))
		require.Equal(t, []int{2, 2, 1}, depths(l))
		require.NoError(t, g.Unlock(ctx))
		require.Equal(t, []int{1, 1, 0}, depths(l))
	})
}

func TestTwoGroups(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, _ := fakes("a", "b", "c")
		one, two := group(t, l[0], l[1]), group(t, l[1], l[2])
		ctx := as(t, alice)
		require.NoError(t, one.Lock(ctx))
		require.NoError(t, two.LockLease(ctx, time.Second))
		require.Equal(t, []int{1, 2, 1}, depths(l))
		require.NoError(t, one.Unlock(ctx))
		require.Equal(t, []int{0, 1, 1}, depths(l))
		require.NoError(t, two.Unlock(ctx))
		require.Equal(t, []int{0, 0, 0}, depths(l))

		// A group is a Locker.
		both, err := New(two, one)
		require.NoError(t, err)
		require.NoError(t, both.LockLease(ctx, time.Second))
		require.InDelta(t, time.Second, both.Validity(ctx), float64(2*trip))
		require.Equal(t, []int{1, 2, 1}, depths(l))
		require.NoError(t, both.Unlock(ctx))
		require.Equal(t, []int{0, 0, 0}, depths(l))
	})
}

// Lost is the first, and each due Unlock says so.
func TestLost(t *testing.T) {
	for k := range 3 {
		synctest.Test(t, func(t *testing.T) {
			l, _ := fakes("a", "b", "c")
			g := group(t, l...)
			ctx := as(t, alice)
			require.True(t, isClosed(g.Lost(ctx)), "it holds nothing")
			require.NoError(t, g.Lock(ctx))
			require.NoError(t, g.Lock(ctx))
			lost := g.Lost(ctx)
			require.Equal(t, lost, g.Lost(ctx))
			synctest.Wait()
			require.False(t, isClosed(lost))
			l[k].remove()
			require.Zero(t, g.Validity(ctx), "at once")
			synctest.Wait()
			require.True(t, isClosed(lost))
			require.True(t, isClosed(g.Lost(ctx)))

			time.Sleep(remembered - time.Second) // it does not come to be forgotten before its time
			left := []int{1, 1, 1}
			left[k] = 0
			require.ErrorIs(t, g.Lock(ctx), rlock.ErrLost)
			require.Equal(t, left, depths(l))
			name := fmt.Sprintf("member %d", k+1)
			for _, err := range []error{g.Lock(ctx), g.Extend(ctx, time.Second), g.Unlock(ctx), g.Unlock(ctx)} {
				require.ErrorIs(t, err, rlock.ErrLost)
				require.ErrorContains(t, err, name)
			}
			require.ErrorIs(t, g.Unlock(ctx), rlock.ErrNotHeld)
			require.Equal(t, []int{0, 0, 0}, depths(l), "the others are released")
			require.NoError(t, g.Lock(ctx))
		})
	}
}

// A process that was stopped has no time left before any channel says so.
func TestLost_ByTheClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, _ := fakes("a", "b")
		g := group(t, l...)
		ctx := as(t, alice)
		require.NoError(t, g.Lock(ctx))
		require.NoError(t, g.Lock(ctx))
		l[1].over = true
		require.Zero(t, g.Validity(ctx))
		require.True(t, isClosed(g.Lost(ctx)))
		for _, err := range []error{g.Lock(ctx), g.Extend(ctx, time.Second), g.Unlock(ctx), g.Unlock(ctx)} {
			require.ErrorIs(t, err, rlock.ErrLost)
			require.ErrorContains(t, err, `member 2 ("b")`)
		}
	})
}

func TestLost_NotByUnlock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, _ := fakes("a", "b")
		g := group(t, l...)
		require.NoError(t, g.Lock(as(t, alice)))
		lost := g.Lost(as(t, alice))
		require.NoError(t, g.Unlock(as(t, alice)))
		synctest.Wait() // its goroutine has ended: the bubble would not, else
		require.False(t, isClosed(lost))
	})
}

// A lease that ran out was agreed: the owner may lock again, and what it has taken
// for itself since stays.
func TestLease_RunsOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, _ := fakes("a", "b")
		g := group(t, l...)
		ctx := as(t, alice)
		for range 3 {
			require.NoError(t, g.LockLease(ctx, time.Second))
			time.Sleep(2 * time.Second)
			require.Zero(t, g.Validity(ctx))
		}
		require.ErrorIs(t, g.Unlock(ctx), rlock.ErrLost)
		require.ErrorIs(t, g.Unlock(ctx), rlock.ErrNotHeld)

		require.NoError(t, g.LockLease(ctx, time.Second))
		time.Sleep(2 * time.Second)
		require.NoError(t, l[0].Lock(ctx))
		require.NoError(t, l[1].Lock(ctx))
		require.Zero(t, g.Validity(ctx), "that is not the group's")
		require.ErrorIs(t, g.Extend(ctx, time.Second), rlock.ErrLost)
		require.ErrorIs(t, g.Unlock(ctx), rlock.ErrLost)
		require.Equal(t, []int{1, 1}, depths(l))
		require.NoError(t, l[0].Unlock(ctx))
		require.NoError(t, l[1].Unlock(ctx))

		require.NoError(t, g.LockLease(ctx, time.Second))
		time.Sleep(2 * time.Second)
		require.NoError(t, l[0].Lock(ctx))
		require.NoError(t, l[1].Lock(ctx))
		require.NoError(t, g.Lock(ctx))
		require.Equal(t, []int{2, 2}, depths(l))
		require.NoError(t, g.Unlock(ctx))
		require.Equal(t, []int{1, 1}, depths(l))
		require.NoError(t, l[0].Unlock(ctx))
		require.NoError(t, l[1].Unlock(ctx))

		// Removed within the lease, it is a loss.
		require.NoError(t, g.LockLease(ctx, time.Second))
		l[0].remove()
		require.ErrorIs(t, g.Lock(ctx), rlock.ErrLost)
		require.Equal(t, []int{0, 1}, depths(l))
	})
}

// Owners that let their lease run out and never come back are forgotten, but not before
// they have had the time to unlock.
func TestSweep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, _ := fakes("a", "b")
		g := group(t, l...)
		runOut := func(o rlock.Owner) {
			require.NoError(t, g.LockLease(as(t, o), time.Second))
			time.Sleep(2 * time.Second)
		}
		for range 100 {
			runOut(rlock.NewOwner())
			time.Sleep(remembered)
		}
		require.LessOrEqual(t, len(g.seats), 17)

		// Also of one who has held a member by itself all along, and keeps that.
		clear(g.seats)
		for range 15 {
			runOut(rlock.NewOwner())
		}
		require.NoError(t, l[0].Lock(as(t, alice)))
		runOut(alice)
		time.Sleep(remembered)
		g.most = 0
		got, err := g.TryLock(as(t, bob), 0, 0)
		require.NoError(t, err)
		require.False(t, got)
		require.Empty(t, g.seats)
		require.ErrorIs(t, g.Unlock(as(t, alice)), rlock.ErrNotHeld)
		require.Equal(t, []int{1, 0}, depths(l))
	})
}

// What the owner held by itself before stays, and not one deeper: the lease ends for all
// members, and the Unlock that may come says so. An Extend puts that off.
func TestLease_EndsWhereAMemberWasHeldBefore(t *testing.T) {
	for name, after := range map[string]func(t *testing.T, g *MultiLock){
		"unlocked": func(t *testing.T, g *MultiLock) {
			require.ErrorIs(t, g.Unlock(as(t, alice)), rlock.ErrLost)
			require.Empty(t, g.seats)
		},
		"left alone": func(*testing.T, *MultiLock) {},
		"locked anew": func(t *testing.T, g *MultiLock) {
			require.NoError(t, g.Lock(as(t, alice)))
			time.Sleep(time.Hour)
			require.NoError(t, g.Unlock(as(t, alice)))
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l, _ := fakes("a", "b")
				g := group(t, l...)
				ctx := as(t, alice)
				require.NoError(t, l[0].Lock(ctx))
				require.NoError(t, g.LockLease(ctx, time.Minute))
				time.Sleep(30 * time.Second)
				require.NoError(t, g.Extend(ctx, time.Minute))
				time.Sleep(45 * time.Second)
				require.Equal(t, []int{2, 1}, depths(l))
				require.Positive(t, g.Validity(ctx))
				time.Sleep(time.Minute)
				require.Equal(t, []int{1, 0}, depths(l))
				require.Zero(t, g.Validity(ctx))
				require.Positive(t, l[0].Validity(ctx))
				after(t, g)
				require.Equal(t, []int{1, 0}, depths(l))
				require.NoError(t, l[0].Unlock(ctx))
			})
		})
	}
}

// However many owners there are, an Unlock soon after the lease ran out is ErrLost.
func TestSweep_NotAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, _ := fakes("a", "b")
		g := group(t, l...)
		var owners []rlock.Owner
		for range 100 {
			o := rlock.NewOwner()
			owners = append(owners, o)
			require.NoError(t, g.LockLease(as(t, o), time.Second))
			time.Sleep(time.Second)
		}
		for _, o := range owners {
			require.ErrorIs(t, g.Unlock(as(t, o)), rlock.ErrLost)
		}
		require.Empty(t, g.seats)
	})
}

func TestExtend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, _ := fakes("a", "b", "c")
		g := group(t, l...)
		ctx := as(t, alice)
		require.ErrorIs(t, g.Extend(ctx, time.Second), rlock.ErrNotHeld)
		require.NoError(t, g.LockLease(ctx, time.Second))
		require.NoError(t, g.Extend(ctx, time.Hour))
		require.Equal(t, time.Hour, g.Validity(ctx))
		require.NoError(t, g.Extend(ctx, time.Minute))
		require.Equal(t, time.Minute, g.Validity(ctx))

		// One fails: the others have what they had.
		fail := true
		l[1].hook = func(context.Context, string) error {
			if fail {
				return errServer
			}
			return nil
		}
		time.Sleep(time.Second)
		for _, lease := range []time.Duration{0, time.Second, time.Hour} {
			err := g.Extend(ctx, lease)
			require.ErrorIs(t, err, errServer)
			require.ErrorContains(t, err, `member 2 ("b")`)
			require.InDelta(t, 59*time.Second, g.Validity(ctx), float64(10*trip))
			require.InDelta(t, 59*time.Second, l[2].lease(), float64(600*time.Millisecond), "and rlock's margin")
		}
		fail = false
		require.NoError(t, g.Extend(ctx, 0))
		require.Equal(t, forever, g.Validity(ctx))
		fail = true
		require.ErrorIs(t, g.Extend(ctx, time.Second), errServer)
		require.Equal(t, forever, g.Validity(ctx))
		fail = false
		require.NoError(t, g.Unlock(ctx))
	})
}

// Unlock asks every member, whatever the others say, and works with a dead ctx.
func TestUnlock_JoinsErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, _ := fakes("a", "b", "c", "d")
		g := group(t, l...)
		ctx, cancel := context.WithCancel(as(t, alice))
		require.NoError(t, g.Lock(ctx))
		cancel()
		l[0].hook = func(context.Context, string) error { return errServer }
		l[1].hook = func(context.Context, string) error { return rlock.ErrUnsettled }
		l[2].remove()
		err := g.Unlock(ctx)
		for _, want := range []error{errServer, rlock.ErrUnsettled, rlock.ErrLost} {
			require.ErrorIs(t, err, want)
		}
		for i, n := range []string{"a", "b", "c"} {
			require.ErrorContains(t, err, fmt.Sprintf("member %d (%q)", i+1, n))
		}
		require.Zero(t, l[3].depth())
		require.ErrorIs(t, g.Unlock(ctx), rlock.ErrNotHeld, "it is given back")
	})
}

// A panic in one member's Unlock does not keep the others from theirs.
func TestUnlock_Panic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, _ := fakes("a", "b")
		g := group(t, l...)
		require.NoError(t, g.Lock(as(t, alice)))
		l[0].hook = func(context.Context, string) error { panic(errServer) }
		require.PanicsWithValue(t, errServer, func() { _ = g.Unlock(as(t, alice)) })
		require.Equal(t, []int{1, 0}, depths(l))
		require.Empty(t, g.seats)
	})
}

func TestDo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, _ := fakes("a", "b")
		g := group(t, l...)
		var leaked context.Context
		err := g.Do(t.Context(), func(ctx context.Context) error {
			leaked = ctx
			require.Equal(t, rlock.OwnerOf(t.Context()), rlock.OwnerOf(ctx))
			var wg sync.WaitGroup
			wg.Go(func() { // shares the hold
				if g.Validity(ctx) == 0 || g.Lock(ctx) != nil || g.Unlock(ctx) != nil {
					t.Error("a goroutine of fn's is not inside")
				}
			})
			wg.Wait()
			return errServer
		})
		require.ErrorIs(t, err, errServer)
		require.NotErrorIs(t, err, rlock.ErrLost)
		require.Equal(t, []int{0, 0}, depths(l))
		require.ErrorIs(t, leaked.Err(), context.Canceled)
		require.ErrorIs(t, g.Lock(leaked), context.Canceled)

		require.PanicsWithValue(t, errServer, func() {
			_ = g.Do(as(t, alice), func(context.Context) error { panic(errServer) })
		})
		require.Equal(t, []int{0, 0}, depths(l))
		var wg sync.WaitGroup
		wg.Go(func() { _ = g.Do(as(t, alice), func(context.Context) error { runtime.Goexit(); return nil }) })
		wg.Wait()
		require.Equal(t, []int{0, 0}, depths(l))

		require.NoError(t, l[1].Lock(as(t, bob)))
		ctx, cancel := context.WithTimeout(as(t, alice), time.Second)
		defer cancel()
		err = g.Do(ctx, func(context.Context) error { t.Error("fn was run"); return nil })
		require.ErrorIs(t, err, context.DeadlineExceeded)
	})
}

func TestDo_Loss(t *testing.T) {
	for k := range 2 {
		synctest.Test(t, func(t *testing.T) {
			l, _ := fakes("a", "b")
			g := group(t, l...)
			err := g.Do(as(t, alice), func(ctx context.Context) error {
				l[k].remove()
				<-ctx.Done()
				require.ErrorIs(t, context.Cause(ctx), rlock.ErrLost)
				require.ErrorContains(t, context.Cause(ctx), fmt.Sprintf("member %d", k+1))
				return errServer
			})
			require.ErrorIs(t, err, rlock.ErrLost)
			require.ErrorIs(t, err, errServer)
			require.Equal(t, []int{0, 0}, depths(l))

			// fn makes the Unlock of the lost hold itself, and locks anew.
			err = g.Do(as(t, alice), func(ctx context.Context) error {
				l[k].remove()
				<-ctx.Done()
				require.ErrorIs(t, g.Unlock(ctx), rlock.ErrLost)
				return g.Lock(as(t, alice))
			})
			require.ErrorIs(t, err, rlock.ErrLost)
			require.Equal(t, []int{0, 0}, depths(l))

			// A loss around it is none of the group's.
			outer, cancel := context.WithCancelCause(as(t, alice))
			err = g.Do(outer, func(ctx context.Context) error {
				cancel(rlock.ErrLost)
				<-ctx.Done()
				return nil
			})
			require.NoError(t, err)
		})
	}
}

// A member may be lost just as a nested Lock lengthens its lease.
func TestNesting_LostMeanwhile(t *testing.T) {
	for k := range 2 {
		synctest.Test(t, func(t *testing.T) {
			l, _ := fakes("a", "b")
			g := group(t, l...)
			ctx := as(t, alice)
			require.NoError(t, g.LockLease(ctx, time.Second))
			time.Sleep(time.Second - trip)
			l[k].hook = func(_ context.Context, op string) error { // its lease is over when it is asked
				if op == "lock" {
					time.Sleep(2 * trip)
				}
				return nil
			}
			require.ErrorIs(t, g.LockLease(ctx, time.Minute), rlock.ErrLost)
			l[k].hook = nil
			require.Zero(t, l[k].depth())
			require.ErrorIs(t, g.Unlock(ctx), rlock.ErrLost)
			require.Equal(t, []int{0, 0}, depths(l))
		})
	}
}
