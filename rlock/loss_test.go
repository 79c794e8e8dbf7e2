package rlock

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// lossCtx is ctx with an owner of its own, so that one goroutine plays several.
func lossCtx(t *testing.T) context.Context { return WithOwner(t.Context(), NewOwner()) }

// gone checks that l's hold of depth is lost in every way, and ends it.
func gone(t *testing.T, ctx context.Context, l *Lock, depth int) {
	t.Helper()
	require.Zero(t, l.Validity(ctx))
	require.True(t, isClosed(l.Lost(ctx)))
	for range depth {
		require.ErrorIs(t, l.Lock(ctx), ErrLost, "Lock")
		require.ErrorIs(t, l.LockLease(ctx, time.Minute), ErrLost, "LockLease")
		got, err := l.TryLock(ctx, 0, 0)
		require.False(t, got)
		require.ErrorIs(t, err, ErrLost, "TryLock")
		got, err = l.TryLock(ctx, time.Second, time.Second)
		require.False(t, got)
		require.ErrorIs(t, err, ErrLost, "TryLock")
		require.ErrorIs(t, l.Extend(ctx, time.Minute), ErrLost, "Extend")
		require.ErrorIs(t, l.Extend(ctx, 0), ErrLost, "Extend")
		require.ErrorIs(t, l.Do(ctx, func(context.Context) error { t.Error("fn ran"); return nil }), ErrLost, "Do")
		require.Zero(t, l.Validity(ctx))

		require.ErrorIs(t, l.Unlock(ctx), ErrLost, "Unlock")
	}
	require.ErrorIs(t, l.Unlock(ctx), ErrNotHeld, "one Unlock too many")
	require.ErrorIs(t, l.Extend(ctx, time.Minute), ErrNotHeld)
}

// TestREN13_AKeyThatWasRemoved is told within a renewal period.
func TestREN13_AKeyThatWasRemoved(t *testing.T) {
	t.Parallel()
	for depth := 1; depth <= 3; depth++ {
		c := onShared(t, WithWatchdogTimeout(1200*time.Millisecond))
		l := c.NewLock(unique("removed"))
		ctx := lossCtx(t)
		for range depth {
			require.NoError(t, l.Lock(ctx))
		}
		lost := l.Lost(ctx)
		remove(t, l.Key())
		recv(t, lost, "the loss")
		gone(t, ctx, l, depth)
		require.False(t, exists(t, l.Key()), "nothing brings it back")
		require.NoError(t, l.Lock(ctx), "a new hold")
		require.Equal(t, "1", onlyDepth(t, l))
		require.NoError(t, l.Unlock(ctx))
	}
}

// TestREN13_AFixedLeaseIsCheckedToo when it is longer than a renewal period.
func TestREN13_AFixedLeaseIsCheckedToo(t *testing.T) {
	t.Parallel()
	l := onShared(t, WithWatchdogTimeout(1200*time.Millisecond)).NewLock(unique("checked"))
	ctx := lossCtx(t)
	require.NoError(t, l.LockLease(ctx, time.Hour))
	lost := l.Lost(ctx)
	remove(t, l.Key())
	recv(t, lost, "the loss")
	require.ErrorIs(t, l.Unlock(ctx), ErrLost)
}

// TestACQ4_ANestedLockNeverStartsAgain: whatever the owner does first after the
// key has gone finds the loss.
func TestACQ4_ANestedLockNeverStartsAgain(t *testing.T) {
	t.Parallel()
	for name, first := range map[string]func(context.Context, *Lock) error{
		"Lock":      func(ctx context.Context, l *Lock) error { return l.Lock(ctx) },
		"LockLease": func(ctx context.Context, l *Lock) error { return l.LockLease(ctx, time.Minute) },
		"TryLock":   func(ctx context.Context, l *Lock) error { _, err := l.TryLock(ctx, 0, 0); return err },
		"Extend":    func(ctx context.Context, l *Lock) error { return l.Extend(ctx, time.Minute) },
		"Extend 0":  func(ctx context.Context, l *Lock) error { return l.Extend(ctx, 0) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := onShared(t).NewLock(unique("nested")) // the watchdog comes in ten seconds only
			ctx := lossCtx(t)
			require.NoError(t, l.Lock(ctx))
			require.NoError(t, l.Lock(ctx))
			lost := l.Lost(ctx)
			remove(t, l.Key())
			require.ErrorIs(t, first(ctx, l), ErrLost)
			require.True(t, isClosed(lost))
			require.False(t, exists(t, l.Key()))
			gone(t, ctx, l, 2)
		})
	}
}

// TestLoss_UnlockFindsIt: the inner one, then the outer one.
func TestLoss_UnlockFindsIt(t *testing.T) {
	t.Parallel()
	l := onShared(t).NewLock(unique("unlock"))
	ctx := lossCtx(t)
	for depth := 1; depth <= 3; depth++ {
		for range depth {
			require.NoError(t, l.Lock(ctx))
		}
		lost := l.Lost(ctx)
		remove(t, l.Key())
		occupy(t, l.Key(), time.Minute)
		for range depth {
			require.ErrorIs(t, l.Unlock(ctx), ErrLost)
		}
		if depth > 1 {
			require.True(t, isClosed(lost), "an inner Unlock tells")
		}
		require.ErrorIs(t, l.Unlock(ctx), ErrNotHeld)
		require.Equal(t, map[string]string{"foreign:1": "1"}, fields(t, l.Key()), "the stranger's is not touched")
		remove(t, l.Key())
	}
}

// TestLoss_WhileOthersGoOn: the lost owner's debt is not others'.
func TestLoss_WhileOthersGoOn(t *testing.T) {
	t.Parallel()
	l := onShared(t).NewLock(unique("others"))
	ctx, other := lossCtx(t), lossCtx(t)
	require.NoError(t, l.Lock(ctx))
	remove(t, l.Key())
	require.NoError(t, l.Lock(other))
	require.ErrorIs(t, l.Lock(ctx), ErrLost)
	require.ErrorIs(t, l.Unlock(ctx), ErrLost)
	got, err := l.TryLock(ctx, 0, 0)
	require.NoError(t, err)
	require.False(t, got, "it is the other's now")
	require.NotZero(t, l.Validity(other))
	require.NoError(t, l.Unlock(other))
	free(t, l.Key())
}

// TestLoss_ForceUnlockTellsHoldersOfThisClientAtOnce.
func TestLoss_ForceUnlockTellsHoldersOfThisClientAtOnce(t *testing.T) {
	t.Parallel()
	c := onShared(t)
	l := c.NewLock(unique("force"))
	ctx := lossCtx(t)
	require.NoError(t, l.Lock(ctx))
	lost := l.Lost(ctx)
	removed, err := c.NewLock(l.Name()).ForceUnlock(lossCtx(t))
	require.NoError(t, err)
	require.True(t, removed)
	require.True(t, isClosed(lost))
	gone(t, ctx, l, 1)
}

// TestLoss_AForeignForceUnlockIsToldWithinAPeriod.
func TestLoss_AForeignForceUnlockIsToldWithinAPeriod(t *testing.T) {
	t.Parallel()
	l := onShared(t, WithWatchdogTimeout(1200*time.Millisecond)).NewLock(unique("force"))
	ctx := lossCtx(t)
	require.NoError(t, l.Lock(ctx))
	lost := l.Lost(ctx)
	removed, err := onShared(t).NewLock(l.Name()).ForceUnlock(t.Context())
	require.NoError(t, err)
	require.True(t, removed)
	recv(t, lost, "the loss")
	gone(t, ctx, l, 1)
}

// TestLoss_AFixedLeaseThatRanOutWasAgreed.
func TestLoss_AFixedLeaseThatRanOutWasAgreed(t *testing.T) {
	t.Parallel()
	const lease = 500 * time.Millisecond
	l := onShared(t).NewLock(unique("ranout"))
	ctx := lossCtx(t)
	ranOut := func(depth int) {
		t.Helper()
		for range depth {
			require.NoError(t, l.LockLease(ctx, lease))
		}
		recv(t, l.Lost(ctx), "the end")
	}

	ranOut(2)
	require.ErrorIs(t, l.Extend(ctx, time.Minute), ErrLost)
	require.ErrorIs(t, l.Unlock(ctx), ErrLost)
	require.ErrorIs(t, l.Unlock(ctx), ErrLost)
	require.ErrorIs(t, l.Unlock(ctx), ErrNotHeld)

	ranOut(2)
	require.NoError(t, l.Lock(ctx), "a new hold")
	require.NoError(t, l.Unlock(ctx), "of depth one")
	free(t, l.Key())
	require.ErrorIs(t, l.Unlock(ctx), ErrNotHeld)

	ranOut(1)
	require.NoError(t, l.Do(ctx, func(context.Context) error { return nil }))
	ranOut(1)
	occupy(t, l.Key(), time.Minute)
	got, err := l.TryLock(ctx, 0, lease)
	require.NoError(t, err)
	require.False(t, got)
	require.ErrorIs(t, l.Unlock(ctx), ErrLost, "the old one is not forgotten by an attempt that failed")
}

// TestLoss_TheCronPattern: take it and let it run out, from one goroutine.
func TestLoss_TheCronPattern(t *testing.T) {
	t.Parallel()
	a, b := onShared(t), onShared(t)
	name := unique("cron")
	ctx := t.Context()
	for range 4 {
		require.NoError(t, a.NewLock(name).LockLease(ctx, 60*time.Millisecond))
		require.NoError(t, b.NewLock(name).LockLease(ctx, 60*time.Millisecond))
	}
}

// TestLoss_ALossThatNobodyUnlocksIsDropped ten watchdog timeouts later.
func TestLoss_ALossThatNobodyUnlocksIsDropped(t *testing.T) {
	t.Parallel()
	const timeout = 200 * time.Millisecond
	lost := make(chan time.Time, 1)
	c := onShared(t, WithWatchdogTimeout(timeout), WithTrace(&Trace{
		Lost: func(string, Owner, time.Duration, error) { lost <- time.Now() },
	}))
	l := c.NewLock(unique("dropped"))
	ctx := lossCtx(t)
	require.NoError(t, l.Lock(ctx))
	require.NoError(t, l.Lock(ctx))
	remove(t, l.Key())
	began := recv(t, lost, "the loss")
	var err error
	eventually(t, func() bool {
		var got bool
		got, err = l.TryLock(ctx, 0, time.Minute)
		if err != nil {
			require.ErrorIs(t, err, ErrLost)
		}
		return got
	}, "forgotten")
	require.GreaterOrEqual(t, time.Since(began), 9*timeout)
	require.NoError(t, l.Unlock(ctx), "a new hold, of depth one")
	free(t, l.Key())
}

// TestREN8_TheHolderIsTold in three ways that mean one thing, and by Trace.
func TestREN8_TheHolderIsTold(t *testing.T) {
	t.Parallel()
	traced := make(chan error, 1)
	c := onShared(t, WithWatchdogTimeout(1200*time.Millisecond), WithTrace(&Trace{
		Lost: func(_ string, _ Owner, _ time.Duration, cause error) { traced <- cause },
	}))
	l := c.NewLock(unique("told"))
	ctx := lossCtx(t)
	err := l.Do(ctx, func(inner context.Context) error {
		lost := l.Lost(inner)
		remove(t, l.Key())
		recv(t, inner.Done(), "the end of Do's ctx")
		require.ErrorIs(t, context.Cause(inner), ErrLost)
		require.True(t, isClosed(lost))
		require.Zero(t, l.Validity(inner))
		return nil
	})
	require.ErrorIs(t, err, ErrLost)
	require.ErrorIs(t, recv(t, traced, "Trace.Lost"), ErrLost)
	require.EqualValues(t, 1, c.Stats().Lost)
	require.Zero(t, c.Stats().Held)
}

// TestREN2_TheNoticeOfLossWaitsForNobody: every renewal is accepted and never
// answered. The holder is told before its key is gone.
func TestREN2_TheNoticeOfLossWaitsForNobody(t *testing.T) {
	t.Parallel()
	c, p := onProxy(t, WithWatchdogTimeout(900*time.Millisecond))
	l := c.NewLock(unique("hung"))
	ctx := lossCtx(t)
	require.NoError(t, l.Lock(ctx))
	lost := l.Lost(ctx)
	p.BlackHole(true)
	asked := time.Now()
	expiry := asked.Add(pttl(t, l.Key()))
	recv(t, lost, "the loss")
	require.Less(t, time.Since(expiry), 200*time.Millisecond, "a busy machine may run this line late")
	require.Zero(t, l.Validity(ctx))
	require.ErrorIs(t, l.Lock(ctx), ErrLost)
	require.ErrorIs(t, l.Unlock(ctx), ErrLost)
	p.BlackHole(false)
	eventually(t, func() bool { return !exists(t, l.Key()) }, "the end of the key")
	eventually(t, func() bool { return l.Lock(ctx) == nil }, "a new hold")
	require.NoError(t, l.Unlock(ctx))
}

// TestREN3_OneLostRenewalIsNoLoss.
func TestREN3_OneLostRenewalIsNoLoss(t *testing.T) {
	t.Parallel()
	trace, renewed := renewals()
	failed := make(chan error, 100)
	trace.RenewFailed = func(_ string, _ Owner, _ time.Duration, err error) { failed <- err }
	c, p := onProxy(t, WithWatchdogTimeout(3*time.Second), WithTrace(trace))
	l := c.NewLock(unique("renewal"))
	ctx := lossCtx(t)
	require.NoError(t, l.Lock(ctx))
	require.NoError(t, p.Refuse(true))
	p.CutAll()
	recv(t, failed, "a renewal that fails")
	require.NoError(t, p.Refuse(false))
	recv(t, renewed, "the next one")
	require.NotZero(t, l.Validity(ctx))
	require.NotZero(t, c.Stats().RenewFailures)
	require.NoError(t, l.Unlock(ctx))
	free(t, l.Key())
}
