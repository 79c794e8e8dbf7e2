package rlock

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestREN14_MaxHoldEndsWhatTheWatchdogWouldKeep(t *testing.T) {
	t.Parallel()
	const most = 1700 * time.Millisecond // between two renewals
	traced := make(chan error, 1)
	c := onShared(t, WithWatchdogTimeout(1200*time.Millisecond), WithTrace(&Trace{
		Lost: func(_ string, _ Owner, _ time.Duration, cause error) { traced <- cause },
	}))
	l := c.NewLock(unique("max"), WithMaxHold(most))
	ctx := WithOwner(t.Context(), NewOwner())
	before := time.Now()
	require.NoError(t, l.Lock(ctx))
	lost := l.Lost(ctx)
	require.LessOrEqual(t, l.Validity(ctx), most)
	recv(t, lost, "the end")
	require.GreaterOrEqual(t, time.Since(before), most-50*time.Millisecond)
	require.Zero(t, l.Validity(ctx))
	require.ErrorIs(t, recv(t, traced, "Trace.Lost"), ErrMaxHold)
	for _, err := range []error{l.Lock(ctx), l.Extend(ctx, time.Minute), l.Unlock(ctx)} {
		require.ErrorIs(t, err, ErrLost)
		require.ErrorIs(t, err, ErrMaxHold)
	}
	eventually(t, func() bool { return !exists(t, l.Key()) }, "the end of the key")
	require.NoError(t, l.Lock(ctx), "a new hold")
	between(t, 0, most, l.Validity(ctx), "with a limit of its own")
	require.NoError(t, l.Unlock(ctx))
}

// TestREN14_TheKeyEndsByItself when the owner's goroutine is gone.
func TestREN14_TheKeyEndsByItself(t *testing.T) {
	t.Parallel()
	l := onShared(t, WithWatchdogTimeout(300*time.Millisecond)).NewLock(unique("max"), WithMaxHold(500*time.Millisecond))
	require.NoError(t, elsewhere(t, func() error { return l.Lock(t.Context()) }))
	eventually(t, func() bool { return !exists(t, l.Key()) }, "the end of the key")
}

func TestMaxHold_ExtendAndReentryDoNotMoveTheEnd(t *testing.T) {
	t.Parallel()
	const most = 800 * time.Millisecond
	c := onShared(t)
	name := unique("max")
	l, plain := c.NewLock(name, WithMaxHold(most)), c.NewLock(name)
	ctx := WithOwner(t.Context(), NewOwner())
	for call, op := range map[string]func() error{
		"Extend":              func() error { return l.Extend(ctx, time.Hour) },
		"Extend 0":            func() error { return l.Extend(ctx, 0) },
		"Lock":                func() error { return l.Lock(ctx) },
		"LockLease":           func() error { return l.LockLease(ctx, time.Hour) },
		"plain object Lock":   func() error { return plain.Lock(ctx) },
		"plain object Extend": func() error { return plain.Extend(ctx, time.Hour) },
	} {
		began := time.Now()
		require.NoError(t, l.LockLease(ctx, 5*time.Second), call)
		require.NoError(t, op(), call)
		between(t, 0, most, l.Validity(ctx), call)
		recv(t, l.Lost(ctx), call)
		require.GreaterOrEqual(t, time.Since(began), most-50*time.Millisecond, call)
		for errors.Is(l.Unlock(ctx), ErrLost) { // until all of its depth is gone
		}
	}
}

func TestMaxHold_DoIsTold(t *testing.T) {
	t.Parallel()
	l := onShared(t).NewLock(unique("max"), WithMaxHold(100*time.Millisecond))
	err := l.Do(t.Context(), func(ctx context.Context) error {
		recv(t, ctx.Done(), "the end")
		require.ErrorIs(t, context.Cause(ctx), ErrMaxHold)
		return nil
	})
	require.ErrorIs(t, err, ErrMaxHold)
	require.ErrorIs(t, err, ErrLost)
}

// TestMaxHold_AShorterLeaseEndsAsALease.
func TestMaxHold_AShorterLeaseEndsAsALease(t *testing.T) {
	t.Parallel()
	l := onShared(t).NewLock(unique("max"), WithMaxHold(time.Minute))
	ctx := t.Context()
	require.NoError(t, l.LockLease(ctx, 50*time.Millisecond))
	recv(t, l.Lost(ctx), "the end")
	err := l.Unlock(ctx)
	require.ErrorIs(t, err, ErrLost)
	require.NotErrorIs(t, err, ErrMaxHold)
}
