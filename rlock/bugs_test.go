package rlock

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/redistest"
	"github.com/relock-go/relock/internal/script"
)

// One test for each bug that another lock library shipped, or that we had.

// CURATOR-498, etcd#11456: a later Lock adopts what a failed Unlock left behind,
// and is one too deep.
func TestACQ5_CURATOR498(t *testing.T) {
	t.Parallel()
	c, p := onProxy(t, WithReleaseTimeout(100*time.Millisecond))
	l := c.NewLock(unique("bug"))
	ctx := WithOwner(t.Context(), NewOwner())
	require.NoError(t, l.Lock(ctx))
	p.BlackHole(true)
	require.ErrorIs(t, l.Unlock(ctx), ErrUnsettled)
	p.CutAll()
	p.BlackHole(false)
	eventually(t, func() bool { return l.Lock(ctx) == nil }, "Lock again, before the TTL")
	require.NoError(t, l.Unlock(ctx))
	eventually(t, func() bool { return !exists(t, l.Key()) }, "free")
	require.ErrorIs(t, l.Unlock(ctx), ErrNotHeld)
}

// https://github.com/redisson/redisson/issues/7272: a renewal that outlives Unlock
// holds the lock for ever.
func TestREN6_Redisson7272(t *testing.T) {
	t.Parallel()
	c, p := onProxy(t, WithWatchdogTimeout(900*time.Millisecond))
	p.Latency(2 * time.Millisecond)
	ctx := t.Context()
	var wg sync.WaitGroup
	var names []string
	for range 8 {
		l := c.NewLock(unique("bug"))
		names = append(names, l.Key())
		wg.Go(func() {
			for range 40 {
				if err := l.Lock(ctx); err != nil {
					t.Error(err)
				}
				if err := l.Unlock(ctx); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	for _, name := range names {
		require.False(t, exists(t, name))
	}
	renew := redistest.And(redistest.Command("evalsha"), redistest.HasArg(script.Renew.SHA))
	p.ResetCounts()
	time.Sleep(1200 * time.Millisecond)
	require.Empty(t, matching(p, renew), "no renewal traffic")
	require.Zero(t, c.Stats().Lost)
}

// https://github.com/redisson/redisson/issues/2714: an acquire whose caller has
// left is renewed for ever.
func TestREN7_Redisson2714(t *testing.T) {
	t.Parallel()
	c, p := onProxy(t, WithWatchdogTimeout(600*time.Millisecond))
	l := c.NewLock(unique("bug"))
	rule := p.On(sends(script.Acquire, l), redistest.HoldReply)
	ctx, cancel := context.WithCancel(t.Context())
	err := async(func() error { return l.Lock(ctx) })
	rule.WaitExecuted(t, 0)
	rule.Wait(t)
	cancel()
	require.ErrorIs(t, recv(t, err, "Lock"), context.Canceled)
	rule.Off()
	eventually(t, func() bool { return !exists(t, l.Key()) }, "undone")
	require.Zero(t, c.Stats().Held)
	require.Zero(t, c.Stats().Renewals)
}

// A waiter of the process that held the lock slept on when its lease ran out, as
// no message comes then (PITFALLS WAIT-4).
func TestWAIT4_ALeaseThatRunsOutInThisProcess(t *testing.T) {
	t.Parallel()
	for name, opt := range map[string]LockOption{"lease": WithMaxHold(time.Hour), "max hold": WithMaxHold(200 * time.Millisecond)} {
		c := onShared(t, WithRecheck(time.Hour))
		key := unique("bug")
		a, b := WithOwner(t.Context(), "a"), WithOwner(context.Background(), "b")
		l := c.NewLock(key, opt)
		require.NoError(t, l.Lock(a))
		if name == "lease" {
			require.NoError(t, l.Extend(a, 200*time.Millisecond))
		}
		require.NoError(t, recv(t, async(func() error { return c.NewLock(key).Lock(b) }), name))
		require.ErrorIs(t, l.Unlock(a), ErrLost)
		require.NotZero(t, c.NewLock(key).Validity(b), "the old owner's Unlock changes nothing")
		require.Len(t, fields(t, key), 1)
		require.NoError(t, c.NewLock(key).Unlock(b))
		free(t, key)
	}
}
