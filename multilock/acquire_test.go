package multilock

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/rlock"
)

func TestNew_Refuses(t *testing.T) {
	_, err := New()
	require.ErrorContains(t, err, "at least one")
	var typed *rlock.Lock
	one, _ := fakes("a")
	for _, l := range []rlock.Locker{nil, typed} {
		_, err = New(one[0], l)
		require.ErrorContains(t, err, "lock 2 of 2 is nil")
	}
}

func TestOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, log := fakes("b", "c", "a")
		g := group(t, l[0], l[1], l[2], l[0])
		require.Equal(t, "b, c, a", g.Name())
		require.NoError(t, g.Lock(as(t, alice)))
		require.Equal(t, []string{"lock a", "lock b", "lock c"}, log.take())
		require.Equal(t, []int{1, 1, 1}, depths(l))
		require.Equal(t, forever, g.Validity(as(t, alice)))
		require.Zero(t, g.Validity(as(t, bob)))
		require.NoError(t, g.Unlock(as(t, alice)))
		require.Len(t, log.take(), 3)
		require.Equal(t, []int{0, 0, 0}, depths(l))
		require.ErrorIs(t, g.Unlock(as(t, alice)), rlock.ErrNotHeld)
		require.Empty(t, log.take())
	})
}

func TestLease_OutOfRange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, log := fakes("a", "b")
		g := group(t, l...)
		for _, lease := range []time.Duration{-1, 1, time.Millisecond - 1, longestLease + 1} {
			require.ErrorIs(t, g.LockLease(as(t, alice), lease), rlock.ErrInvalidLease)
			_, err := g.TryLock(as(t, alice), 0, lease)
			require.ErrorIs(t, err, rlock.ErrInvalidLease)
			require.ErrorIs(t, g.Extend(as(t, alice), lease), rlock.ErrInvalidLease)
		}
		require.Empty(t, log.take(), "nothing is asked")
	})
}

// failure is a way in which a member fails.
type failure struct {
	name string
	hook func(ctx context.Context, op string) error // of the member
	call func(t *testing.T, g *MultiLock) error     // what the group's user does
}

var errServer = errors.New("the server says no")

// try is one attempt by alice.
func try(t *testing.T, g *MultiLock) error {
	got, err := g.TryLock(as(t, alice), 0, 0)
	require.False(t, got)
	return err
}

var failures = []failure{
	{"held", nil, func(t *testing.T, g *MultiLock) error {
		require.NoError(t, try(t, g))
		began := time.Now()
		got, err := g.TryLock(as(t, alice), time.Second, time.Minute)
		require.NoError(t, err)
		require.False(t, got)
		require.GreaterOrEqual(t, time.Since(began), time.Second, "it does not give up early")
		require.LessOrEqual(t, time.Since(began), time.Second+5*trip, "nor late")
		return nil
	}},
	{"error", func(context.Context, string) error { return errServer }, func(t *testing.T, g *MultiLock) error {
		err := try(t, g)
		require.ErrorIs(t, err, errServer)
		require.ErrorIs(t, g.Lock(as(t, alice)), errServer)
		return err
	}},
	{"silent", func(ctx context.Context, _ string) error { return sleep(ctx, time.Hour) }, func(t *testing.T, g *MultiLock) error {
		began := time.Now()
		got, err := g.TryLock(as(t, alice), time.Second, 0)
		require.False(t, got)
		require.ErrorIs(t, err, rlock.ErrUnsettled)
		require.NotErrorIs(t, err, context.DeadlineExceeded, "the caller's ctx has not ended")
		require.LessOrEqual(t, time.Since(began), time.Second+5*trip)
		return err
	}},
	{"silent until the deadline", func(ctx context.Context, _ string) error { return sleep(ctx, time.Hour) }, func(t *testing.T, g *MultiLock) error {
		ctx, cancel := context.WithTimeout(as(t, alice), time.Second)
		defer cancel()
		err := g.Lock(ctx)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		return err
	}},
	{"cancelled", nil, func(t *testing.T, g *MultiLock) error {
		cause := errors.New("the user left")
		ctx, cancel := context.WithCancelCause(as(t, alice))
		time.AfterFunc(time.Second, func() { cancel(cause) })
		err := g.Lock(ctx)
		require.ErrorIs(t, err, context.Canceled)
		return nil
	}},
	{"panic", func(context.Context, string) error { panic(errServer) }, func(t *testing.T, g *MultiLock) error {
		require.PanicsWithValue(t, errServer, func() { _ = g.Lock(as(t, alice)) })
		return nil
	}},
	{"goexit", func(context.Context, string) error { runtime.Goexit(); return nil }, func(t *testing.T, g *MultiLock) error {
		var wg sync.WaitGroup
		wg.Go(func() { _ = g.Lock(as(t, alice)) })
		wg.Wait()
		return nil
	}},
}

// MULTI-3: whichever member fails, and however, nothing is left.
func TestFailure_LeavesNothing(t *testing.T) {
	for _, f := range failures {
		for k := range 3 {
			t.Run(fmt.Sprintf("%s/%d", f.name, k), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					l, log := fakes("a", "b", "c")
					g := group(t, l...)
					if f.hook == nil {
						require.NoError(t, l[k].Lock(as(t, bob)))
					} else {
						l[k].hook = func(ctx context.Context, op string) error {
							if op == "lock" {
								return f.hook(ctx, op)
							}
							return nil
						}
					}
					err := f.call(t, g)
					if err != nil {
						require.ErrorContains(t, err, fmt.Sprintf("member %d (%q)", k+1, l[k].name))
						var e *rlock.Error
						require.ErrorAs(t, err, &e)
						require.Equal(t, "a, b, c", e.Lock)
						require.Equal(t, alice, e.Owner)
					}
					for i := range l {
						require.Zero(t, l[i].Validity(as(t, alice)), "member %d", i)
						require.Empty(t, l[i].lost)
					}
					require.Zero(t, g.Validity(as(t, alice)))
					require.True(t, isClosed(g.Lost(as(t, alice))))
					require.ErrorIs(t, g.Unlock(as(t, alice)), rlock.ErrNotHeld)
					require.Empty(t, g.seats)

					l[k].hook = nil
					if f.hook == nil {
						require.NoError(t, l[k].Unlock(as(t, bob)))
					}
					require.NoError(t, g.Lock(as(t, bob)), "anybody can have it")
					log.take()
				})
			})
		}
	}
}

// A member may have been taken when it panics.
func TestPanic_AfterTheGrant(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, _ := fakes("a", "b", "c")
		g := group(t, l...)
		l[1].after = func(op string) {
			if op == "lock" {
				panic(errServer)
			}
		}
		require.PanicsWithValue(t, errServer, func() { _ = g.Lock(as(t, alice)) })
		require.Equal(t, []int{0, 0, 0}, depths(l))

		// Nor does it take away what the owner had.
		l[1].after = nil
		require.NoError(t, l[1].Lock(as(t, alice)))
		l[1].hook = func(_ context.Context, op string) error {
			if op == "lock" {
				panic(errServer)
			}
			return nil
		}
		require.PanicsWithValue(t, errServer, func() { _ = g.Lock(as(t, alice)) })
		require.Equal(t, []int{0, 1, 0}, depths(l))
	})
}

func TestUndo_NamesWhatItCannot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, _ := fakes("a", "b", "c")
		g := group(t, l...)
		require.NoError(t, l[2].Lock(as(t, bob)))
		l[0].hook = func(_ context.Context, op string) error {
			if op == "unlock" {
				return rlock.ErrUnsettled
			}
			return nil
		}
		for _, wait := range []time.Duration{0, time.Second, -1} {
			got, err := g.TryLock(as(t, alice), wait, 0)
			require.False(t, got)
			require.ErrorIs(t, err, rlock.ErrUnsettled)
			require.ErrorContains(t, err, `not undone: member 1 ("a")`)
			require.NotContains(t, err.Error(), `"b"`)
			require.Zero(t, l[1].depth(), "the others are")
			l[0].hold.depth = 1 // as it was
		}
	})
}

// A loss does not hide that another part of an inner group was not undone.
func TestUndo_OfAGroup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, _ := fakes("a", "b", "c")
		inner := group(t, l[0], l[1])
		g, err := New(inner, l[2])
		require.NoError(t, err)
		l[1].hook = func(_ context.Context, op string) error {
			if op == "unlock" {
				return rlock.ErrUnsettled
			}
			return nil
		}
		l[2].hook = func(_ context.Context, op string) error {
			l[0].remove()
			return errServer
		}
		err = g.Lock(as(t, alice))
		require.ErrorIs(t, err, errServer)
		require.ErrorContains(t, err, "not undone")
		require.ErrorIs(t, err, rlock.ErrUnsettled)
	})
}

// When the wait is over the errors of members stay to be found.
func TestWait_OverKeepsTheErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, _ := fakes("a", "b")
		g := group(t, l...)
		l[0].refuse("unlock")
		l[1].hook = func(ctx context.Context, _ string) error { return sleep(ctx, time.Hour) }
		got, err := g.TryLock(as(t, alice), time.Second, 0)
		require.False(t, got)
		require.ErrorIs(t, err, rlock.ErrUnsettled)
		require.ErrorIs(t, err, errServer, "of the Unlock")
		require.NotErrorIs(t, err, context.DeadlineExceeded)
	})
}

// MULTI-6: members that are there are kept alive while another is waited for.
func TestKeeper(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context() // its owner is this goroutine, and not the keeper
		const lease = 300 * time.Millisecond
		l, _ := fakes("a", "b", "c")
		g := group(t, l...)
		l[1].hook = func(ctx context.Context, op string) error { // it takes its time
			if op == "lock" {
				return sleep(ctx, 5*lease)
			}
			return nil
		}
		l[0].hook = func(ctx context.Context, op string) error {
			if op == "extend" && l[0].Validity(ctx) == 0 {
				t.Error("it is extended too late")
			}
			return nil
		}
		require.NoError(t, g.LockLease(ctx, lease))
		require.Equal(t, lease, g.Validity(ctx), "it counts from when the last was in")
		lost := g.Lost(ctx)
		synctest.Wait()
		require.False(t, isClosed(lost))
		time.Sleep(lease - trip)
		require.False(t, isClosed(lost), "nobody extends it any more, but until then it holds")
		time.Sleep(trip)
		synctest.Wait()
		require.True(t, isClosed(lost))
		require.Equal(t, []int{0, 0, 0}, depths(l))
	})
}

// One silent server does not keep the others from being kept alive.
func TestKeeper_OneIsSilent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const lease = 300 * time.Millisecond
		l, _ := fakes("a", "b", "c")
		g := group(t, l...)
		l[0].hook = func(ctx context.Context, op string) error {
			if op == "extend" {
				return sleep(ctx, time.Minute)
			}
			return nil
		}
		l[2].hook = func(ctx context.Context, op string) error {
			if op == "lock" {
				time.Sleep(5 * lease)
				require.Equal(t, []int{0, 1, 0}, depths(l), "b is kept, a is not")
				return errServer
			}
			return nil
		}
		require.ErrorIs(t, g.LockLease(as(t, alice), lease), errServer)
		require.Equal(t, []int{0, 0, 0}, depths(l))
	})
}

func TestKeeper_PanicGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const lease = 300 * time.Millisecond
		l, _ := fakes("a", "b")
		g := group(t, l...)
		var once sync.Once // later ones, of the caller's, are well
		l[0].hook = func(_ context.Context, op string) error {
			if op == "extend" {
				once.Do(func() { panic(errServer) })
			}
			return nil
		}
		l[1].hook = func(ctx context.Context, _ string) error { return sleep(ctx, lease/2) }
		require.PanicsWithValue(t, errServer, func() { _ = g.LockLease(as(t, alice), lease) })
		require.Equal(t, []int{0, 0}, depths(l))
	})
}

// A lease that cannot be kept until all are in is not tried for ever.
func TestLease_ShorterThanTheRoundTrip(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, _ := fakes("a", "b")
		g := group(t, l...)
		l[0].hook = func(ctx context.Context, op string) error {
			if op == "extend" {
				return sleep(ctx, time.Second)
			}
			return nil
		}
		err := g.LockLease(as(t, alice), 50*time.Millisecond)
		require.ErrorIs(t, err, rlock.ErrInvalidLease)
		require.ErrorContains(t, err, `member 1 ("a")`)
		require.Equal(t, []int{0, 0}, depths(l))
		require.Equal(t, mostLost, l[0].count("unlock"))
	})
}

func (f *fake) count(op string) (n int) {
	f.log.mu.Lock()
	defer f.log.mu.Unlock()
	for _, line := range f.log.lines {
		if line == op+" "+f.name {
			n++
		}
	}
	return n
}

// Nobody is inside with a lease of which not all members know.
func TestLease_NotExtended(t *testing.T) {
	for k := range 3 {
		synctest.Test(t, func(t *testing.T) {
			l, _ := fakes("a", "b", "c")
			g := group(t, l...)
			l[k].hook = func(_ context.Context, op string) error {
				if op == "extend" {
					return errServer
				}
				return nil
			}
			err := g.LockLease(as(t, alice), time.Minute)
			require.ErrorIs(t, err, errServer)
			require.ErrorContains(t, err, fmt.Sprintf("member %d", k+1))
			require.Equal(t, []int{0, 0, 0}, depths(l))
		})
	}
}

// A member that is lost while others are waited for is no hold: it begins anew.
func TestLostMeanwhile(t *testing.T) {
	for _, lease := range []time.Duration{0, time.Minute} {
		synctest.Test(t, func(t *testing.T) {
			l, _ := fakes("a", "b")
			g := group(t, l...)
			times := 2
			l[1].hook = func(_ context.Context, op string) error {
				if op == "lock" && times > 0 {
					times--
					l[0].remove()
				}
				return nil
			}
			require.NoError(t, g.LockLease(as(t, alice), lease))
			require.Positive(t, g.Validity(as(t, alice)))
			require.Equal(t, []int{1, 1}, depths(l))
			require.NoError(t, g.Unlock(as(t, alice)))

			// Three times in a row are too many, but not three in all.
			l[1].hook = func(_ context.Context, op string) error {
				if op == "lock" && times < 12 { // two attempts that others spoil, one that is granted
					if times++; times%3 == 0 {
						l[0].remove()
					} else {
						return rlock.ErrRestarted
					}
				}
				return nil
			}
			require.NoError(t, g.LockLease(as(t, alice), lease))
			require.Equal(t, 12, times)
			require.NoError(t, g.Unlock(as(t, alice)))

			l[1].hook = func(context.Context, string) error {
				if l[0].depth() > 0 {
					l[0].remove()
				}
				return nil
			}
			err := g.LockLease(as(t, alice), lease)
			require.ErrorIs(t, err, rlock.ErrLost)
			require.Equal(t, lease > 0, errors.Is(err, rlock.ErrInvalidLease))
			require.Equal(t, []int{0, 0}, depths(l))
			require.Empty(t, l[0].lost, "its Unlock is made")
		})
	}
}

// MULTI-6: names that repeat over servers have no order that both groups know.
func TestOppositeOrders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, _ := fakes("x", "x", "y")
		one, two := group(t, l[0], l[1], l[2]), group(t, l[2], l[1], l[0])
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		began := time.Now()
		inside := 0
		var all sync.WaitGroup
		for i, g := range []*MultiLock{one, two, one, two} {
			all.Go(func() {
				ctx := rlock.WithOwner(ctx, rlock.Owner(fmt.Sprint("owner-", i)))
				for range 25 {
					if err := g.Lock(ctx); err != nil {
						t.Errorf("owner %d: %v", i, err)
						return
					}
					inside++ // the race detector sees whether two are inside
					time.Sleep(10 * time.Millisecond)
					if err := g.Unlock(ctx); err != nil {
						t.Errorf("owner %d: %v", i, err)
					}
				}
			})
		}
		all.Wait()
		require.Equal(t, 100, inside)
		require.Equal(t, []int{0, 0, 0}, depths(l))
		t.Logf("100 stays of 10 ms each took %v", time.Since(began))
		require.Less(t, time.Since(began), 10*time.Second, "they chase each other")
	})
}

// Where a circle can close, nothing of the key is held while one of it is waited for.
func TestTie(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, log := fakes("w", "x", "x", "x", "y")
		g := group(t, l...)
		require.NoError(t, l[3].Lock(as(t, bob)))
		log.take()
		got := make(chan error, 1)
		go func() { got <- g.Lock(as(t, alice)) }()
		time.Sleep(longestTie + longestPause + 20*trip)
		lines := log.take()
		require.Equal(t, []string{"lock w", "lock x", "lock x", "lock x", "lock x"}, lines[:5], "a second, short, wait")
		for range 100 {
			time.Sleep(10 * trip)
			require.Equal(t, []int{0, 0, 1, 0}, depths(l[1:]))
		}
		require.NoError(t, l[3].Unlock(as(t, bob)))
		require.NoError(t, <-got)
		require.NoError(t, g.Unlock(as(t, alice)))

		// With nothing before it, the wait is not bounded at all.
		g = group(t, l[1:]...)
		require.NoError(t, l[3].Lock(as(t, bob)))
		log.take()
		go func() { got <- g.Lock(as(t, alice)) }()
		time.Sleep(time.Hour)
		require.Len(t, log.take(), 7, "three, a second wait, two given back, and the wait for the one")
		require.NoError(t, l[3].Unlock(as(t, bob)))
		require.NoError(t, <-got)
		require.Equal(t, []int{1, 1, 1, 1}, depths(l[1:]))
	})
}

// While it waits for a later member it holds the others for a bounded time only.
func TestWait_IsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, log := fakes("a", "b")
		g := group(t, l...)
		require.NoError(t, l[1].Lock(as(t, bob)))
		got := make(chan error, 1)
		go func() { got <- g.Lock(as(t, alice)) }()
		for range 5 {
			for l[0].depth() == 0 {
				time.Sleep(trip)
			}
			began := time.Now()
			for l[0].depth() > 0 {
				time.Sleep(trip)
			}
			require.GreaterOrEqual(t, time.Since(began), shortestWait)
			require.LessOrEqual(t, time.Since(began), longestWait+10*trip)
		}
		require.Contains(t, log.take(), "unlock a")
		require.NoError(t, l[1].Unlock(as(t, bob)))
		require.NoError(t, <-got)
		require.Equal(t, []int{1, 1}, depths(l))
	})
}

// A wait takes its time, and no more, wherever its end falls.
func TestWait_Budget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, log := fakes("a", "b")
		g := group(t, l...)
		require.NoError(t, l[1].Lock(as(t, bob)))
		for wait := 5 * trip / 2; wait < time.Second; wait += 7 * trip / 2 {
			began := time.Now()
			got, err := g.TryLock(as(t, alice), wait, 0)
			require.False(t, got)
			require.NoError(t, err, "it is not asked so late that there is no time for an answer")
			require.GreaterOrEqual(t, time.Since(began), wait-trip)
			require.LessOrEqual(t, time.Since(began), wait+3*trip)
		}

		// Nor is it asked again when the refusal came with the end of the wait.
		l[1].after = func(string) { time.Sleep(100 * time.Millisecond) }
		log.take()
		got, err := g.TryLock(as(t, alice), 90*time.Millisecond, 0)
		require.False(t, got)
		require.NoError(t, err)
		require.Equal(t, []string{"lock a", "lock b", "unlock a"}, log.take())
		l[1].after = nil

		// Nobody is asked when it is over; what is known then is told.
		slow := 0
		l[0].after = func(op string) {
			if op == "lock" {
				if slow--; slow < 0 {
					time.Sleep(time.Second)
				}
			}
		}
		log.take()
		got, err = g.TryLock(as(t, alice), time.Second, 0)
		require.False(t, got)
		require.ErrorIs(t, err, rlock.ErrUnsettled)
		require.ErrorContains(t, err, "before it was asked")
		require.NotContains(t, log.take(), "lock b")
		slow = 1
		got, err = g.TryLock(as(t, alice), time.Second, 0)
		require.False(t, got)
		require.NoError(t, err)
	})
}

// One slow answer does not end the trying.
func TestWait_AfterASlowAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, _ := fakes("a", "b", "c", "d")
		g := group(t, l...)
		require.NoError(t, l[1].Lock(as(t, bob)))
		slow := true
		l[1].hook = func(_ context.Context, op string) error {
			if slow && op == "lock" {
				slow = false
				time.Sleep(time.Second)
			}
			return nil
		}
		time.AfterFunc(2*time.Second, func() { _ = l[1].Unlock(as(t, bob)) })
		began := time.Now()
		got, err := g.TryLock(as(t, alice), 9*time.Second, 0)
		require.NoError(t, err)
		require.True(t, got)
		require.Less(t, time.Since(began), 3*time.Second, "it was free after two")
	})
}

// A server that is slow, and a holder of a later member, are two things: the answer
// may take longer than the wait for the holder.
func TestSlowServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, _ := fakes("a", "b")
		g := group(t, l...)
		l[1].hook = func(ctx context.Context, _ string) error { return sleep(ctx, 2*longestWait) }
		require.NoError(t, l[1].Lock(as(t, bob)))
		got := make(chan error, 1)
		go func() { got <- g.Lock(as(t, alice)) }()
		time.Sleep(10 * longestWait)
		require.NoError(t, l[1].Unlock(as(t, bob)))
		require.NoError(t, <-got)
	})
}

// The restart guard of a member is waited for like a holder, and told of.
func TestRestartGuard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, _ := fakes("a", "b")
		g := group(t, l...)
		until := time.Now().Add(5 * time.Second)
		l[1].hook = func(_ context.Context, op string) error {
			if op == "lock" && time.Now().Before(until) {
				return rlock.ErrRestarted
			}
			return nil
		}
		require.ErrorIs(t, try(t, g), rlock.ErrRestarted)
		got, err := g.TryLock(as(t, alice), time.Second, 0)
		require.False(t, got)
		require.ErrorIs(t, err, rlock.ErrRestarted)
		require.Equal(t, []int{0, 0}, depths(l))
		ctx, cancel := context.WithTimeout(as(t, alice), time.Second)
		defer cancel()
		err = g.Lock(ctx)
		require.ErrorIs(t, err, rlock.ErrRestarted)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.NoError(t, g.Lock(as(t, alice)))
	})
}

func TestEndedCtx_SendsNothing(t *testing.T) {
	l, log := fakes("a", "b")
	g := group(t, l...)
	ctx, cancel := context.WithCancelCause(as(t, alice))
	cancel(errServer)
	for _, err := range []error{g.Lock(ctx), g.LockLease(ctx, time.Second)} {
		require.ErrorIs(t, err, context.Canceled)
		require.ErrorIs(t, err, errServer)
	}
	_, err := g.TryLock(ctx, 0, 0)
	require.ErrorIs(t, err, context.Canceled)
	require.Empty(t, log.take())
}

// The goroutine is the owner where ctx has none, whatever goroutines the group uses.
func TestGoroutineIsTheOwner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, _ := fakes("a", "b")
		g := group(t, l...)
		require.NoError(t, g.LockLease(t.Context(), time.Minute))
		me := rlock.OwnerOf(t.Context())
		require.Equal(t, me, l[0].hold.owner)
		var wg sync.WaitGroup
		wg.Go(func() {
			got, err := g.TryLock(t.Context(), 0, 0)
			if got || err != nil {
				t.Errorf("another goroutine got in: %v, %v", got, err)
			}
			if err := g.Unlock(t.Context()); !errors.Is(err, rlock.ErrNotHeld) {
				t.Errorf("another goroutine unlocked: %v", err)
			}
		})
		wg.Wait()
		require.NoError(t, g.Extend(t.Context(), time.Hour))
		require.Equal(t, time.Hour, g.Validity(t.Context()))
		require.NoError(t, g.Unlock(t.Context()))
		require.Equal(t, []int{0, 0}, depths(l))
	})
}

// Two goroutines with one owner hold the group together.
func TestOneOwnerTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, log := fakes("a", "b")
		g := group(t, l...)
		require.NoError(t, l[1].Lock(as(t, bob)))
		got := make(chan error, 2)
		for range 2 {
			go func() { got <- g.Lock(as(t, alice)) }()
		}
		time.Sleep(time.Second)
		require.NoError(t, try(t, g), "one attempt does not wait for the other goroutine")
		in, err := g.TryLock(as(t, alice), time.Second, 0)
		require.NoError(t, err)
		require.False(t, in)
		require.ErrorIs(t, g.Unlock(as(t, alice)), rlock.ErrNotHeld)
		require.NoError(t, l[1].Unlock(as(t, bob)))
		require.NoError(t, <-got)
		require.NoError(t, <-got)
		require.Equal(t, []int{1, 1}, depths(l))
		log.take()
		require.NoError(t, g.Unlock(as(t, alice)))
		require.Empty(t, log.take())
		require.NoError(t, g.Unlock(as(t, alice)))
		require.Equal(t, []int{0, 0}, depths(l))
	})
}

// What others hold for a moment is waited for in line, and not asked for again and
// again.
func TestWait_DoesNotPoll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, log := fakes("a", "b")
		g := group(t, l...)
		require.NoError(t, l[0].Lock(as(t, bob)))
		time.AfterFunc(time.Minute, func() { _ = l[0].Unlock(as(t, bob)) })
		log.take()
		require.NoError(t, g.Lock(as(t, alice)))
		lines := log.take()
		require.Equal(t, 1, len(slices.DeleteFunc(lines, func(s string) bool { return s != "lock a" })))
	})
}
