package redlock

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/rlock"
)

// A nested Lock may only lengthen the hold: the watchdog replaces any lease, and a longer
// lease a shorter one.
func TestNestedLockLengthens(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := redlockOn(t, "a", servers(3))
		ctx := as(t, "o")
		require.NoError(t, f.LockLease(ctx, 500*time.Millisecond))
		lost := f.Lost(ctx)
		require.NoError(t, f.LockLease(ctx, 10*time.Second))
		time.Sleep(time.Second)
		require.Greater(t, f.Validity(ctx), 8*time.Second)
		require.NoError(t, f.LockLease(ctx, time.Second), "never shorter")
		require.Greater(t, f.Validity(ctx), 8*time.Second)
		require.Equal(t, 3, f.count("extend"))

		require.NoError(t, f.Lock(ctx))
		require.Equal(t, 6, f.count("extend"))
		for range 3 {
			time.Sleep(watchdogTimeout / 2)
			for _, l := range f.locks {
				l.renew("o")
			}
		}
		require.False(t, closed(lost))
		require.NoError(t, f.LockLease(ctx, time.Second))
		require.Greater(t, f.Validity(ctx), watchdogTimeout/2, "the watchdog keeps it")
		require.Equal(t, 6, f.count("extend"))
		for range 5 {
			require.NoError(t, f.Unlock(ctx))
		}
		synctest.Wait()
		require.Equal(t, []int{0, 0, 0}, f.held("o"))
	})
}

// It does not enter with less than it asked for.
func TestNestedLockThatCannotLengthen(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := redlockOn(t, "a", servers(3))
		ctx := as(t, "o")
		require.NoError(t, f.LockLease(ctx, time.Second))
		time.Sleep(10 * time.Millisecond)
		before := f.Validity(ctx)
		broken := errors.New("broken")
		for _, s := range f.servers[:2] {
			s.fail(broken)
		}
		require.ErrorIs(t, f.Lock(ctx), broken)
		require.Equal(t, before-time.Millisecond, f.Validity(ctx))
		for _, s := range f.servers[:2] {
			s.hang()
		}
		got, err := f.TryLock(ctx, 10*time.Millisecond, 0)
		require.False(t, got)
		require.ErrorIs(t, err, rlock.ErrUnsettled)
		require.NotErrorIs(t, err, context.DeadlineExceeded)
		for _, s := range f.servers[:2] {
			s.wake()
		}
		require.NoError(t, f.Unlock(ctx))
		require.ErrorIs(t, f.Unlock(ctx), rlock.ErrNotHeld)
	})
}

// Goroutines of one owner may lengthen it at the same time; none shortens it.
func TestNestedLocksTogether(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := redlockOn(t, "a", servers(3))
		ctx := as(t, "o")
		require.NoError(t, f.LockLease(ctx, time.Second))
		done := make(chan error)
		const n = 10
		for i := range n {
			go func() { done <- f.LockLease(ctx, time.Duration(2+i)*time.Second) }()
		}
		for range n {
			require.NoError(t, <-done)
		}
		require.Greater(t, f.Validity(ctx), 10*time.Second)
		for range n + 1 {
			require.NoError(t, f.Unlock(ctx))
		}
	})
}

// WithMaxHold ends it at the same moment; there is nothing to ask.
func TestNestedLockAtMaxHold(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := redlockOn(t, "a", servers(3), WithMaxHold(time.Second))
		ctx := as(t, "o")
		require.NoError(t, f.LockLease(ctx, time.Hour))
		require.NoError(t, f.Lock(ctx))
		require.Zero(t, f.count("extend"))
		require.NoError(t, f.Unlock(ctx))
		require.NoError(t, f.Unlock(ctx))
	})
}
