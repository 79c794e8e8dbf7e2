package rlock

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/redistest"
)

// TestCTX2_UnlockWorksWithACtxThatHasEnded, inner and last, and with one that
// ends meanwhile.
func TestCTX2_UnlockWorksWithACtxThatHasEnded(t *testing.T) {
	t.Parallel()
	c, p := onProxy(t)
	l := c.NewLock(unique("ended"))
	ctx, cancel := context.WithCancel(WithOwner(t.Context(), NewOwner()))
	require.NoError(t, l.Lock(ctx))
	require.NoError(t, l.Lock(ctx))
	cancel()
	require.NoError(t, l.Unlock(ctx))
	require.Equal(t, "1", fields(t, l.Key())[c.ID()+":"+string(OwnerOf(ctx))])
	require.NoError(t, l.Unlock(ctx))
	free(t, l.Key())

	ctx, cancel = context.WithCancel(t.Context())
	require.NoError(t, l.Lock(ctx))
	rule := p.On(redistest.HasArg(l.Key()), redistest.HoldRequest)
	o := OwnerOf(ctx)
	unlocked := async(func() error { return l.Unlock(WithOwner(ctx, o)) })
	rule.Wait(t)
	cancel()
	select {
	case err := <-unlocked:
		require.Fail(t, "Unlock did not wait for its answer", "%v", err)
	case <-time.After(50 * time.Millisecond):
	}
	rule.Release()
	require.NoError(t, recv(t, unlocked, "Unlock"))
	free(t, l.Key())
}

// TestCTX5_UnlockThatCannotSettle returns in time, goes on behind, and the key is
// gone when Redis is back.
func TestCTX5_UnlockThatCannotSettle(t *testing.T) {
	t.Parallel()
	const timeout = time.Second
	c, p := onProxy(t, WithReleaseTimeout(timeout))
	l := c.NewLock(unique("open"))
	ctx := WithOwner(t.Context(), NewOwner())
	require.NoError(t, l.Lock(ctx))
	lost := l.Lost(ctx)
	p.BlackHole(true)
	began := time.Now()
	err := l.Unlock(ctx)
	require.ErrorIs(t, err, ErrUnsettled)
	require.NotErrorIs(t, err, ErrLost)
	require.GreaterOrEqual(t, time.Since(began), timeout)
	require.Less(t, time.Since(began), limit/2)
	require.True(t, exists(t, l.Key()), "nobody released it yet")
	require.Zero(t, l.Validity(ctx), "what was given back is not held")
	require.ErrorIs(t, l.Unlock(ctx), ErrNotHeld, "it was given back")
	_ = lost
	p.BlackHole(false)
	eventually(t, func() bool { return !exists(t, l.Key()) }, "the release goes on behind it")
	require.NoError(t, l.Lock(ctx))
	require.Equal(t, "1", onlyDepth(t, l))
	require.NoError(t, l.Unlock(ctx))
	free(t, l.Key())
}

// onlyDepth is the depth of the one field that stands there.
func onlyDepth(t *testing.T, l *Lock) string {
	t.Helper()
	m := fields(t, l.Key())
	require.Len(t, m, 1)
	for _, depth := range m {
		return depth
	}
	return ""
}

// TestCTX5_AnInnerUnlockThatCannotSettle: the depth is right in the end.
func TestCTX5_AnInnerUnlockThatCannotSettle(t *testing.T) {
	t.Parallel()
	c, p := onProxy(t, WithReleaseTimeout(time.Second))
	l := c.NewLock(unique("open"))
	ctx := WithOwner(t.Context(), NewOwner())
	require.NoError(t, l.Lock(ctx))
	require.NoError(t, l.Lock(ctx))
	p.BlackHole(true)
	require.ErrorIs(t, l.Unlock(ctx), ErrUnsettled)
	require.NotZero(t, l.Validity(ctx), "still inside, once")
	p.BlackHole(false)
	eventually(t, func() bool { return onlyDepth(t, l) == "1" }, "the right depth")
	require.NoError(t, l.Unlock(ctx))
	free(t, l.Key())
	require.ErrorIs(t, l.Unlock(ctx), ErrNotHeld)
}

// TestCTX5_TheKeyIsGoneWithItsLease when Redis never hears of the release.
func TestCTX5_TheKeyIsGoneWithItsLease(t *testing.T) {
	t.Parallel()
	c, p := onProxy(t, WithReleaseTimeout(500*time.Millisecond), WithWatchdogTimeout(2*time.Second))
	l := c.NewLock(unique("lease"))
	ctx := WithOwner(t.Context(), NewOwner())
	require.NoError(t, l.Lock(ctx))
	p.BlackHole(true)
	defer p.BlackHole(false)
	require.ErrorIs(t, l.Unlock(ctx), ErrUnsettled)
	eventually(t, func() bool { return !exists(t, l.Key()) }, "the end of its lease")
}

// TestACQ8_ALostReplyOfTheLastUnlock is no loss: the second send finds nothing,
// and waiters are woken once.
func TestACQ8_ALostReplyOfTheLastUnlock(t *testing.T) {
	t.Parallel()
	for name, action := range map[string]redistest.Action{
		"closed": redistest.LoseReplyAndClose, "silent": redistest.LoseReplyAndHang,
	} {
		c, p := onProxy(t)
		l := c.NewLock(unique("reply"))
		told := messages(t, l.Key())
		ctx := WithOwner(t.Context(), NewOwner())
		require.NoError(t, l.Lock(ctx))
		p.On(redistest.HasArg(l.Key()), action)
		require.NoError(t, l.Unlock(ctx), name)
		free(t, l.Key())
		require.Equal(t, []string{"0"}, told(), name)
		require.EqualValues(t, 1, c.Stats().Released-1, "the warm-up's and this one")
	}
}

// TestACQ1_LostRepliesKeepTheDepthExact: of the acquire, a re-entry, an Extend
// and an inner Unlock.
func TestACQ1_LostRepliesKeepTheDepthExact(t *testing.T) {
	t.Parallel()
	for name, action := range map[string]redistest.Action{
		"closed": redistest.LoseReplyAndClose, "silent": redistest.LoseReplyAndHang, "dropped": redistest.DropRequest,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, p := onProxy(t)
			l := c.NewLock(unique("reply"))
			ctx := WithOwner(t.Context(), NewOwner())
			for i, step := range []struct {
				op    func() error
				depth string
			}{
				{func() error { return l.Lock(ctx) }, "1"},
				{func() error { return l.Lock(ctx) }, "2"},
				{func() error { return l.Extend(ctx, time.Minute) }, "2"},
				{func() error { return l.LockLease(ctx, 2*time.Minute) }, "3"},
				{func() error { return l.Unlock(ctx) }, "2"},
				{func() error { return l.Unlock(ctx) }, "1"},
			} {
				p.On(redistest.HasArg(l.Key()), action)
				require.NoError(t, step.op(), "step %d", i)
				require.Equal(t, step.depth, onlyDepth(t, l), "step %d", i)
			}
			require.NoError(t, l.Unlock(ctx))
			free(t, l.Key())
			require.ErrorIs(t, l.Unlock(ctx), ErrNotHeld)
		})
	}
}

// TestUnlock_NilMeansThatRedisHadIt: a hand-over of a lock that is gone is none.
func TestUnlock_NilMeansThatRedisHadIt(t *testing.T) {
	t.Parallel()
	c := onShared(t, WithHandoffLimit(64, time.Hour))
	l := c.NewLock(unique("had"))
	ctx, other := WithOwner(t.Context(), NewOwner()), WithOwner(t.Context(), NewOwner())
	require.NoError(t, l.Lock(ctx))
	got := async(func() error { return l.Lock(other) })
	waitForWaiters(t, c, 1)
	remove(t, l.Key())
	require.ErrorIs(t, l.Unlock(ctx), ErrLost)
	require.NoError(t, recv(t, got, "the waiter gets a lock of its own"))
	require.NoError(t, l.Unlock(other))
	free(t, l.Key())
}

// TestUnlock_ConcurrentOnes of one owner: exactly as many work as there were Locks.
func TestUnlock_ConcurrentOnes(t *testing.T) {
	t.Parallel()
	l := onShared(t).NewLock(unique("many"))
	ctx := WithOwner(t.Context(), NewOwner())
	for range 5 {
		require.NoError(t, l.Lock(ctx))
	}
	all := make(chan error, 8)
	for range cap(all) {
		go func() { all <- l.Unlock(ctx) }()
	}
	worked := 0
	for range cap(all) {
		err := recv(t, all, "Unlock")
		if err == nil {
			worked++
			continue
		}
		require.True(t, errors.Is(err, ErrNotHeld), "%v", err)
	}
	require.Equal(t, 5, worked)
	free(t, l.Key())
}
