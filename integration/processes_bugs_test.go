package integration

import (
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/redistest"
	"github.com/relock-go/relock/rlock"
)

// ACQ-4: a loss that a call of Validity finds out in the moment in which the
// wheel comes to the deadline is remembered like any other: a nested Lock, and
// the Unlock, of that owner are ErrLost.
//
// The bug: the wheel takes the hold out (watchdog.tell) and calls due, which
// waits for the entry's mutex; Validity has it, finds the deadline over and tells
// the loss; then due goes on, finds a lost hold, took it for one that was
// remembered long enough, and forgot it.
func TestLossIsRemembered(t *testing.T) { // alone: its leases are hardly longer than a round trip
	s := Redis(t)
	p := s.Proxy(t)
	rdb := redistest.NewClient(t, p.Addr, func(o *redis.Options) { o.ReadTimeout = 100 * time.Millisecond })
	c, err := rlock.New(rdb, rlock.WithWatchdogTimeout(200*time.Millisecond))
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close(context.WithoutCancel(t.Context())) })
	over := func(l *rlock.Lock, ctx context.Context) {
		require.NoError(t, until(ctx, func() bool { return l.Validity(ctx) == 0 }))
	}
	ctx := rlock.WithOwner(t.Context(), "me")
	for round := range 100 {
		l := c.NewLock(name(t))
		require.NoError(t, l.LockLease(ctx, 40*time.Millisecond))
		over(l, ctx)
		require.ErrorIs(t, l.Unlock(ctx), rlock.ErrLost, "round %d", round)
	}
	for round := range 10 {
		l := c.NewLock(name(t))
		require.NoError(t, l.Lock(ctx))
		p.BlackHole(true)
		over(l, ctx)
		p.BlackHole(false)
		require.ErrorIs(t, l.Lock(ctx), rlock.ErrLost, "round %d: a nested Lock, its outer section lost", round)
		require.ErrorIs(t, l.Unlock(ctx), rlock.ErrLost, "round %d", round)
	}
}

// Promise 9: Close leaves no key that Redis could be asked to delete before its
// ctx ended. The bug: one attempt per key was made, so one connection that died
// left the key for the rest of its lease, with waiters before it.
func TestCloseTriesAgain(t *testing.T) {
	t.Parallel()
	s := Redis(t)
	p := s.Proxy(t)
	c, err := rlock.New(redistest.NewClient(t, p.Addr))
	require.NoError(t, err)
	l := c.NewLock(name(t))
	require.NoError(t, l.Lock(t.Context()))
	rule := p.On(redistest.Command("evalsha"), redistest.DropRequest)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	require.NoError(t, c.Close(ctx))
	rule.Wait(t)
	require.Zero(t, s.Client(t).Exists(t.Context(), l.Key()).Val(), "the key is gone")
}
