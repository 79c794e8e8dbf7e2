package redlock

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/rlock"
)

func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// A lease ends by itself, before it ends at any of the servers, and whether or not they
// can be reached.
func TestLeaseRunsOut(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := redlockOn(t, "a", servers(3))
		ctx := as(t, "o")
		require.True(t, closed(f.Lost(ctx)), "nothing is held")
		begin := time.Now()
		require.NoError(t, f.LockLease(ctx, time.Second))
		lost := f.Lost(ctx)
		for _, s := range f.servers {
			s.hang()
		}
		<-lost
		require.Equal(t, time.Second-12*time.Millisecond, time.Since(begin), "1 % and 2 ms are drift")
		require.Equal(t, []int{1, 1, 1}, f.held("o"))
		require.Zero(t, f.Validity(ctx))
		for _, s := range f.servers {
			s.wake()
		}

		require.ErrorIs(t, f.Extend(ctx, time.Second), rlock.ErrLost)
		require.ErrorIs(t, f.Unlock(ctx), rlock.ErrLost)
		require.ErrorIs(t, f.Unlock(ctx), rlock.ErrNotHeld)
	})
}

// A lease that ran out was agreed: the owner's next Lock is a new hold, and at each node
// it is inside once.
func TestLeaseRanOutAndAgain(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := redlockOn(t, "a", servers(3))
		ctx := as(t, "o")
		for range 3 {
			require.NoError(t, f.LockLease(ctx, time.Second))
			time.Sleep(time.Second - 11*time.Millisecond) // at the nodes it is there still
		}
		require.NoError(t, f.LockLease(ctx, time.Second))
		require.Equal(t, []int{1, 1, 1}, f.held("o"))
		require.NoError(t, f.Unlock(ctx))
		synctest.Wait()
		require.Equal(t, []int{0, 0, 0}, f.held("o"))
	})
}

// Under the watchdog the members' own validity decides: what the best majority has left,
// without the drift.
func TestValidityUnderTheWatchdog(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := redlockOn(t, "a", servers(5))
		ctx := as(t, "o")
		require.NoError(t, f.Lock(ctx))
		lost := f.Lost(ctx)
		full := watchdogTimeout - watchdogTimeout/100 // as a node proves it
		drift := (full-time.Millisecond)/100 + 2*time.Millisecond
		require.Equal(t, full-time.Millisecond-drift, f.Validity(ctx))

		time.Sleep(10 * time.Second)
		f.locks[0].renew("o")
		f.locks[1].renew("o")
		require.Equal(t, full-time.Millisecond-10*time.Second-drift, f.Validity(ctx), "two are not a majority")
		time.Sleep(time.Second)
		f.locks[2].renew("o")
		require.Equal(t, full-time.Second-drift, f.Validity(ctx), "three are: the smallest of them")

		time.Sleep(f.Validity(ctx) - time.Nanosecond)
		require.False(t, closed(lost))
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		require.True(t, closed(lost), "its end is told by a timer")
		f.locks[3].renew("o")
		f.locks[2].renew("o")
		require.Zero(t, f.Validity(ctx), "and it stays lost")
		require.ErrorIs(t, f.Lock(ctx), rlock.ErrLost, "until its Unlocks are made")
		require.ErrorIs(t, f.Unlock(ctx), rlock.ErrLost)
		require.NoError(t, f.Lock(ctx))
		require.NoError(t, f.Unlock(ctx))
	})
}

// It is lost with the third of five, and not before; each Unlock hears of it. Then it is
// free at all nodes.
func TestLost(t *testing.T) {
	for _, lease := range []time.Duration{0, time.Hour} {
		t.Run(lease.String(), inBubble(func(t *testing.T) {
			f := redlockOn(t, "a", servers(5))
			ctx := as(t, "o")
			require.NoError(t, f.LockLease(ctx, lease))
			require.NoError(t, f.Lock(ctx))
			lost := f.Lost(ctx)
			for i := range 3 {
				require.False(t, closed(lost))
				require.Positive(t, f.Validity(ctx))
				f.servers[i].empty()
				f.locks[i].lose("o")
				synctest.Wait()
			}
			require.True(t, closed(lost))
			require.Zero(t, f.Validity(ctx))
			require.True(t, closed(f.Lost(ctx)))
			require.ErrorIs(t, f.Lock(ctx), rlock.ErrLost)
			require.ErrorIs(t, f.Extend(ctx, time.Hour), rlock.ErrLost)
			require.ErrorIs(t, f.Unlock(ctx), rlock.ErrLost)
			require.ErrorIs(t, f.Unlock(ctx), rlock.ErrLost)
			require.ErrorIs(t, f.Unlock(ctx), rlock.ErrNotHeld)
			synctest.Wait()
			time.Sleep(time.Millisecond)
			require.Equal(t, []int{0, 0, 0, 0, 0}, f.held("o"))
		}))
	}
}

// A lost hold that nobody gives back is not kept by the watchdogs of the nodes that have
// it still, and is forgotten after a while.
func TestLostAndLeft(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := redlockOn(t, "a", servers(3))
		ctx := as(t, "o")
		require.NoError(t, f.Lock(ctx))
		lost := f.Lost(ctx)
		f.locks[0].lose("o")
		f.locks[1].lose("o")
		<-lost
		f.locks[2].renew("o")
		time.Sleep(watchdogTimeout * 9 / 10)
		f.locks[2].renew("o")
		require.Equal(t, 1, f.servers[2].has("a2", "o"), "the holder may need a moment to stop")
		time.Sleep(watchdogTimeout / 10)
		f.locks[2].renew("o")
		require.Zero(t, f.servers[2].has("a2", "o"), "no watchdog keeps it")
		require.ErrorIs(t, f.Lock(ctx), rlock.ErrLost, "its Unlock may come")
		time.Sleep(remembered)
		require.ErrorIs(t, f.Unlock(ctx), rlock.ErrNotHeld)
		require.NoError(t, f.Lock(ctx))
		require.NoError(t, f.Unlock(ctx))
	})
}

// What lets a lost hold end must not touch the next one.
func TestLostAndTakenAgain(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := redlockOn(t, "a", servers(3), WithNodeTimeout(time.Second))
		ctx := as(t, "o")
		require.NoError(t, f.Lock(ctx))
		lost := f.Lost(ctx)
		f.servers[2].delay(400 * time.Millisecond)
		f.locks[0].lose("o")
		f.locks[1].lose("o")
		<-lost
		require.ErrorIs(t, f.Unlock(ctx), rlock.ErrLost)
		require.NoError(t, f.Lock(ctx))
		time.Sleep(2 * time.Second)
		f.locks[2].mu.Lock()
		require.Zero(t, f.locks[2].holds["o"].lease, "the watchdog keeps it")
		f.locks[2].mu.Unlock()
		require.NoError(t, f.Unlock(ctx))
	})
}

// Unlock needs a majority that still had it.
func TestUnlockOutcomes(t *testing.T) {
	for _, v := range []struct {
		gone, hung int
		err        error
	}{
		{0, 0, nil}, {2, 0, nil}, {0, 2, nil}, {1, 1, nil},
		{3, 0, rlock.ErrLost}, {5, 0, rlock.ErrLost}, {3, 2, rlock.ErrLost},
		{0, 3, rlock.ErrUnsettled}, {1, 2, rlock.ErrUnsettled}, {0, 5, rlock.ErrUnsettled}, {2, 3, rlock.ErrUnsettled},
	} {
		t.Run(fmt.Sprintf("%d gone, %d hung", v.gone, v.hung), inBubble(func(t *testing.T) {
			f := redlockOn(t, "a", servers(5), WithNodeTimeout(20*time.Millisecond))
			ctx, cancel := context.WithCancel(as(t, "o"))
			require.NoError(t, f.Lock(ctx))
			for i, s := range f.servers {
				switch {
				case i < v.gone:
					s.empty()
				case i < v.gone+v.hung:
					s.hang()
				}
			}
			cancel() // it works with a ctx that has ended
			begin := time.Now()
			err := f.Unlock(ctx)
			require.ErrorIs(t, err, v.err)
			if v.err != nil {
				require.ErrorContains(t, err, " of 5: ")
				require.Equal(t, v.err == rlock.ErrLost, strings.Contains(err.Error(), "a majority of the servers does not have it"))
				for _, other := range []error{rlock.ErrLost, rlock.ErrUnsettled, rlock.ErrNotHeld} {
					require.Equal(t, v.err == other, errors.Is(err, other), "one outcome, whatever single servers say: %v", err)
				}
			}
			require.LessOrEqual(t, time.Since(begin), 20*time.Millisecond)
			for _, s := range f.servers[v.gone : v.gone+v.hung] {
				s.wake()
			}
			time.Sleep(time.Second)
			require.Equal(t, []int{0, 0, 0, 0, 0}, f.held("o"), "the release goes on")
		}))
	}
}

// An Extend counts from before its requests, and only when a majority has done it.
func TestExtend(t *testing.T) {
	broken := errors.New("broken")
	for failing := range 6 {
		t.Run(fmt.Sprint(failing, " fail"), inBubble(func(t *testing.T) {
			f := redlockOn(t, "a", servers(5))
			ctx := as(t, "o")
			require.ErrorIs(t, f.Extend(ctx, time.Minute), rlock.ErrNotHeld)
			require.NoError(t, f.LockLease(ctx, 10*time.Second))
			time.Sleep(5 * time.Second)
			before := f.Validity(ctx)
			for _, s := range f.servers[:failing] {
				s.fail(broken)
			}
			err := f.Extend(ctx, time.Minute)
			if failing <= 2 {
				require.NoError(t, err)
				require.Equal(t, time.Minute-time.Millisecond-602*time.Millisecond, f.Validity(ctx))
			} else {
				require.ErrorIs(t, err, broken)
				require.Equal(t, before-time.Millisecond, f.Validity(ctx))
			}
			lost := f.Lost(ctx)
			time.Sleep(f.Validity(ctx))
			synctest.Wait()
			require.True(t, closed(lost), "the end moves with the lease")
		}))
	}
}

// The end comes sooner after a shorter Extend, also where the watchdog kept it.
func TestExtendShorter(t *testing.T) {
	for _, lease := range []time.Duration{0, time.Hour} {
		t.Run(lease.String(), inBubble(func(t *testing.T) {
			f := redlockOn(t, "a", servers(3))
			ctx := as(t, "o")
			require.NoError(t, f.LockLease(ctx, lease))
			lost := f.Lost(ctx)
			begin := time.Now()
			require.NoError(t, f.Extend(ctx, time.Second))
			<-lost
			require.Equal(t, 988*time.Millisecond, time.Since(begin))
			require.ErrorIs(t, f.Unlock(ctx), rlock.ErrLost)
		}))
	}
}

// Extend(0) hands it to the watchdogs.
func TestExtendToTheWatchdog(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := redlockOn(t, "a", servers(3))
		ctx := as(t, "o")
		require.NoError(t, f.LockLease(ctx, time.Second))
		require.NoError(t, f.Extend(ctx, 0))
		for range 10 {
			time.Sleep(watchdogTimeout / 3)
			for _, l := range f.locks {
				l.renew("o")
			}
		}
		require.Greater(t, f.Validity(ctx), watchdogTimeout*9/10)
		require.NoError(t, f.Unlock(ctx))
	})
}

// An Extend that a majority has done only when the old validity is over is a loss: others
// may have been inside.
func TestExtendTooLate(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := redlockOn(t, "a", servers(3), WithNodeTimeout(time.Minute))
		ctx := as(t, "o")
		require.NoError(t, f.LockLease(ctx, time.Second))
		for _, s := range f.servers { // it takes so long there and half of it back
			s.delay(1500 * time.Millisecond)
		}
		require.ErrorIs(t, f.Extend(ctx, time.Minute), rlock.ErrLost)
		require.ErrorIs(t, f.Unlock(ctx), rlock.ErrLost)
		time.Sleep(10 * time.Second)
		require.Equal(t, []int{0, 0, 0}, f.held("o"))
	})
}

// An Extend whose caller left does not count, whatever the nodes did.
func TestExtendCancelled(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := redlockOn(t, "a", servers(3))
		ctx := as(t, "o")
		require.NoError(t, f.LockLease(ctx, time.Second))
		before := f.Validity(ctx)
		short, cancel := context.WithTimeout(ctx, 300*time.Microsecond)
		defer cancel()
		err := f.Extend(short, time.Minute)
		require.ErrorIs(t, err, rlock.ErrUnsettled)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		time.Sleep(100 * time.Millisecond)
		require.Equal(t, before-100*time.Millisecond-300*time.Microsecond, f.Validity(ctx))
		require.ErrorIs(t, f.Extend(short, time.Minute), context.DeadlineExceeded)
		require.NoError(t, f.Unlock(ctx))
	})
}

// An Extend that waits for an earlier one, or looks at the hold, while another goroutine
// of the owner gives that back, has extended nothing.
func TestExtendOfWhatWasGivenBack(t *testing.T) {
	t.Run("looking", inBubble(func(t *testing.T) {
		f := redlockOn(t, "a", servers(3))
		ctx := as(t, "o")
		require.NoError(t, f.Lock(ctx))
		f.locks[0].onLook(func() { require.NoError(t, f.Unlock(ctx)) })
		require.ErrorIs(t, f.Extend(ctx, time.Minute), rlock.ErrNotHeld)
		require.Zero(t, f.count("extend"))
	}))
	t.Run("waiting", inBubble(func(t *testing.T) {
		f := redlockOn(t, "a", servers(3))
		ctx := as(t, "o")
		require.NoError(t, f.Lock(ctx))
		for _, s := range f.servers {
			s.delay(20 * time.Millisecond)
		}
		extended := make(chan error, 2)
		for range 2 {
			go func() { extended <- f.Extend(ctx, time.Minute) }()
			synctest.Wait()
		}
		require.NoError(t, f.Unlock(ctx))
		require.ErrorIs(t, <-extended, rlock.ErrNotHeld)
		require.ErrorIs(t, <-extended, rlock.ErrNotHeld)
		require.Equal(t, 3, f.count("extend"), "the second was never sent")
	}))
}

// WithMaxHold ends it whatever renews or extends it, and the watchdogs let go.
func TestMaxHold(t *testing.T) {
	for _, lease := range []time.Duration{0, time.Hour} {
		t.Run(lease.String(), inBubble(func(t *testing.T) {
			f := redlockOn(t, "a", servers(3), WithMaxHold(10*time.Second))
			ctx := as(t, "o")
			begin := time.Now()
			require.NoError(t, f.LockLease(ctx, lease))
			lost := f.Lost(ctx)
			require.Equal(t, 10*time.Second-time.Millisecond, f.Validity(ctx))
			require.NoError(t, f.Extend(ctx, lease))
			require.NoError(t, f.Lock(ctx))
			<-lost
			require.Equal(t, 10*time.Second, time.Since(begin))
			time.Sleep(2 * watchdogTimeout)
			for _, l := range f.locks {
				l.renew("o")
			}
			if lease == 0 {
				require.Equal(t, []int{0, 0, 0}, f.held("o"), "the watchdogs are off")
			}
			for range 2 {
				err := f.Unlock(ctx)
				require.ErrorIs(t, err, rlock.ErrLost)
				require.ErrorIs(t, err, rlock.ErrMaxHold)
			}
		}))
	}
}

// The ctx of Do carries the owner, and ends with the hold and with Do.
func TestDo(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := redlockOn(t, "a", servers(3))
		var inner context.Context
		mine := errors.New("mine")
		err := f.Do(t.Context(), func(ctx context.Context) error {
			inner = ctx
			done := make(chan error)
			go func() { done <- errors.Join(f.Lock(ctx), f.Unlock(ctx)) }() // another goroutine, the same owner
			require.NoError(t, <-done)
			require.NoError(t, ctx.Err())
			require.Positive(t, f.Validity(t.Context()), "the owner is the goroutine")
			return mine
		})
		require.ErrorIs(t, err, mine)
		require.NotErrorIs(t, err, rlock.ErrLost)
		require.ErrorIs(t, inner.Err(), context.Canceled)
		require.ErrorIs(t, f.Lock(inner), context.Canceled)
		require.True(t, f.servers[0].free())

		err = f.Do(as(t, "o"), func(ctx context.Context) error {
			f.locks[0].lose("o")
			f.locks[2].lose("o")
			<-ctx.Done()
			require.ErrorIs(t, context.Cause(ctx), rlock.ErrLost)
			return mine
		})
		require.ErrorIs(t, err, mine)
		require.ErrorIs(t, err, rlock.ErrLost)

		require.ErrorIs(t, f.Do(as(t, "o"), func(ctx context.Context) error {
			f.locks[0].lose("o")
			f.locks[2].lose("o")
			<-ctx.Done()
			require.ErrorIs(t, f.Unlock(ctx), rlock.ErrLost)
			return f.Lock(as(t, "o"))
		}), rlock.ErrLost, "the hold that it began with")

		f.servers[0].fail(mine)
		f.servers[1].fail(mine)
		err = f.Do(as(t, "o"), func(context.Context) error { panic("not reached") })
		require.ErrorIs(t, err, mine)
	})
}

// Do unlocks on panic and Goexit too.
func TestDoPanics(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := redlockOn(t, "a", servers(3))
		ctx := as(t, "o")
		require.PanicsWithValue(t, "oh", func() { _ = f.Do(ctx, func(context.Context) error { panic("oh") }) })
		synctest.Wait()
		require.Equal(t, []int{0, 0, 0}, f.held("o"))
		done := make(chan struct{})
		go func() {
			defer close(done)
			_ = f.Do(ctx, func(context.Context) error { runtime.Goexit(); return nil })
		}()
		<-done
		synctest.Wait()
		require.Equal(t, []int{0, 0, 0}, f.held("o"))
	})
}

// Those who listen cost a goroutine for each node, which ends with the hold: the bubble
// waits for them.
func TestListenersEnd(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := redlockOn(t, "a", servers(5))
		ctx := as(t, "o")
		require.NoError(t, f.Lock(ctx))
		synctest.Wait()
		require.Zero(t, goroutines("watchLocked"), "nobody listens")
		lost := f.Lost(ctx)
		require.Equal(t, lost, f.Lost(ctx))
		synctest.Wait()
		require.Equal(t, 5, goroutines("watchLocked"))
		require.NoError(t, f.Unlock(ctx))
		synctest.Wait()
		require.Zero(t, goroutines("watchLocked"))
		require.False(t, closed(lost), "an Unlock does not close it")
	})
}

// Who looks at a hold while it is extended does not judge it by its old lease.
func TestExtendedMeanwhile(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := redlockOn(t, "a", servers(3))
		ctx := as(t, "o")
		require.NoError(t, f.LockLease(ctx, time.Second))
		f.locks[0].onLook(func() {
			require.NoError(t, f.Extend(ctx, time.Minute))
			time.Sleep(2 * time.Second)
		})
		require.Greater(t, f.Validity(ctx), 50*time.Second)
		require.NoError(t, f.Unlock(ctx))
	})
}
