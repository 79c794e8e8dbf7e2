package multilock

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/rlock"
)

// queued runs call in a group of a and b, which alice holds with a lease. An Extend has the turn
// until the lease is over; behind it a LockLease waits, and then what the test calls.
// Bob takes b when the lease is over, so the LockLease keeps the turn.
func queued(t *testing.T, call func(g *MultiLock, ctx context.Context) error) (err error) {
	l, _ := fakes("a", "b")
	g := group(t, l...)
	ctx := as(t, alice)
	require.NoError(t, g.LockLease(ctx, time.Second))
	slow := true
	l[0].hook = func(_ context.Context, op string) error {
		if slow && op == "extend" {
			slow = false
			time.Sleep(2 * time.Second)
			return errServer
		}
		return nil
	}
	go func() { _ = g.Extend(ctx, time.Second) }()
	time.Sleep(trip)
	locked := make(chan error, 1)
	go func() { locked <- g.LockLease(ctx, time.Minute) }()
	time.Sleep(trip)
	called := make(chan error, 1)
	go func() { called <- call(g, ctx) }()
	time.Sleep(1500 * time.Millisecond)
	require.NoError(t, l[1].Lock(as(t, bob)))
	time.Sleep(10 * time.Second)
	select {
	case err = <-called:
	default:
		t.Error("it waits for bob")
	}
	require.NoError(t, l[1].Unlock(as(t, bob)))
	require.NoError(t, <-locked)
	require.Equal(t, []int{1, 1}, depths(l), "what the LockLease got is held")
	require.Greater(t, g.Validity(ctx), 50*time.Second)
	require.NoError(t, g.Unlock(ctx))
	require.Equal(t, []int{0, 0}, depths(l))
	return err
}

// Unlock and Extend mean the hold that the owner has when they are called. They do not
// wait for a member that others have, and leave a later hold alone.
func TestTurn_OfAHoldThatIsOver(t *testing.T) {
	calls := map[string]func(g *MultiLock, ctx context.Context) error{
		"unlock": func(g *MultiLock, ctx context.Context) error {
			ended, cancel := context.WithCancel(ctx)
			cancel()
			return g.Unlock(ended)
		},
		"extend": func(g *MultiLock, ctx context.Context) error { return g.Extend(ctx, time.Second) },
	}
	for name, call := range calls {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { require.ErrorIs(t, queued(t, call), rlock.ErrLost) })
		})
	}
}

// What waits for the last Unlock finds nothing held.
func TestTurn_OfAHoldThatWasUnlocked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, _ := fakes("a", "b")
		g := group(t, l...)
		ctx := as(t, alice)
		require.NoError(t, g.Lock(ctx))
		unlocked, extended := make(chan error, 1), make(chan error, 1)
		l[0].hook = func(context.Context, string) error { // the other one comes meanwhile
			l[0].hook = nil
			go func() { extended <- g.Extend(ctx, time.Minute) }()
			return sleep(ctx, time.Second)
		}
		go func() { unlocked <- g.Unlock(ctx) }()
		require.ErrorIs(t, <-extended, rlock.ErrNotHeld)
		require.NoError(t, <-unlocked)
		require.Equal(t, []int{0, 0}, depths(l))
	})
}

// Who holds the group is inside, also while another goroutine of its owner has the turn
// for long.
func TestTurn_NotNeededInside(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, _ := fakes("a", "b")
		g := group(t, l...)
		ctx := as(t, alice)
		require.NoError(t, g.Lock(ctx))
		l[0].hook = func(ctx context.Context, op string) error {
			if op == "extend" {
				return sleep(ctx, 2*time.Second)
			}
			return nil
		}
		extended := make(chan error, 1)
		go func() { extended <- g.Extend(ctx, time.Minute) }()
		time.Sleep(trip)
		began := time.Now()
		got, err := g.TryLock(ctx, 0, 0)
		require.NoError(t, err)
		require.True(t, got)
		require.NoError(t, g.LockLease(ctx, time.Second))
		require.Zero(t, time.Since(began))
		require.NoError(t, <-extended)

		// One attempt that needs another lease waits for the turn.
		go func() { extended <- g.Extend(ctx, time.Minute) }()
		time.Sleep(trip)
		got, err = g.TryLock(ctx, 0, time.Hour)
		require.NoError(t, err)
		require.True(t, got)
		require.NoError(t, <-extended)
		require.Greater(t, g.Validity(ctx), 30*time.Minute)
		for range 4 {
			require.Positive(t, g.Validity(ctx))
			require.NoError(t, g.Unlock(ctx))
		}
		require.Equal(t, []int{0, 0}, depths(l))
	})
}

// Goroutines of one owner that enter and leave, and extend, all at once: as many Unlocks
// are due as there were Locks.
func TestTurn_ManyInside(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, _ := fakes("a", "b")
		g := group(t, l...)
		ctx := as(t, alice)
		var all sync.WaitGroup
		for i := range 8 {
			all.Go(func() {
				for range 50 {
					if err := g.Lock(ctx); err != nil {
						t.Errorf("lock: %v", err)
						return
					}
					if i%4 == 0 {
						if err := g.Extend(ctx, time.Duration(i)*time.Hour); err != nil {
							t.Errorf("extend: %v", err)
						}
					}
					if err := g.Unlock(ctx); err != nil {
						t.Errorf("unlock: %v", err)
					}
				}
			})
		}
		all.Wait()
		require.Equal(t, []int{0, 0}, depths(l))
		require.Empty(t, g.seats)
		require.ErrorIs(t, g.Unlock(ctx), rlock.ErrNotHeld)
	})
}
