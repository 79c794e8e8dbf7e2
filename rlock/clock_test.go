package rlock

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/record"
	"github.com/relock-go/relock/internal/redistest"
)

// clocks lets a test step the clocks of a client that has held nothing yet.
type clocks struct{ mono, wall atomic.Int64 }

func onClocks(t *testing.T, opts ...Option) (*Client, *clocks) {
	t.Helper()
	c := onShared(t, opts...)
	return c, steppable(c)
}

func steppable(c *Client) *clocks {
	var k clocks
	real := c.clock
	c.clock = func() record.Instant {
		now := real()
		return record.Instant{Mono: now.Mono + time.Duration(k.mono.Load()), Wall: now.Wall + time.Duration(k.wall.Load())}
	}
	return &k
}

func (k *clocks) stepWall(d time.Duration) { k.wall.Add(int64(d)) }

// TestCLK3_TheWallClockJumpsForwards, as after a suspend: what it says is over is
// over, at the call.
func TestCLK3_TheWallClockJumpsForwards(t *testing.T) {
	t.Parallel()
	for name, lease := range map[string]time.Duration{"watchdog": 0, "fixed": 30 * time.Second} {
		c, k := onClocks(t)
		l := c.NewLock(unique("wall"))
		ctx := WithOwner(t.Context(), NewOwner())
		require.NoError(t, l.LockLease(ctx, lease))
		lost := l.Lost(ctx)
		between(t, 25*time.Second, 30*time.Second, l.Validity(ctx), name)

		k.stepWall(10 * time.Second)
		between(t, 15*time.Second, 20*time.Second, l.Validity(ctx), "as much less")
		require.False(t, isClosed(lost))

		k.stepWall(time.Hour)
		require.Zero(t, l.Validity(ctx), name)
		require.True(t, isClosed(lost), "channels follow")
		require.True(t, exists(t, l.Key()), "Redis still has it")
		n, err := l.HoldCount(ctx)
		require.NoError(t, err)
		require.Zero(t, n)
		k.stepWall(-time.Hour - 10*time.Second)
		require.Zero(t, l.Validity(ctx), "REN-5: lost is for good")
		require.ErrorIs(t, l.Unlock(ctx), ErrLost)
	}
}

// TestCLK3_EveryCallNoticesAJump, without Validity.
func TestCLK3_EveryCallNoticesAJump(t *testing.T) {
	t.Parallel()
	for name, op := range map[string]func(context.Context, *Lock) error{
		"Lock":   func(ctx context.Context, l *Lock) error { return l.Lock(ctx) },
		"Extend": func(ctx context.Context, l *Lock) error { return l.Extend(ctx, time.Minute) },
		"Unlock": func(ctx context.Context, l *Lock) error { return l.Unlock(ctx) },
	} {
		c, k := onClocks(t)
		l := c.NewLock(unique("wall"))
		ctx := WithOwner(t.Context(), NewOwner())
		require.NoError(t, l.Lock(ctx))
		k.stepWall(time.Hour)
		require.ErrorIs(t, op(ctx, l), ErrLost, name)
	}
	c, k := onClocks(t)
	l := c.NewLock(unique("wall"))
	ctx := WithOwner(t.Context(), NewOwner())
	require.NoError(t, l.Lock(ctx))
	k.stepWall(time.Hour)
	require.True(t, isClosed(l.Lost(ctx)))
}

// TestCLK1_ChannelsAndCtxFollow without any call of the holder's.
func TestCLK1_ChannelsAndCtxFollow(t *testing.T) {
	t.Parallel()
	c, k := onClocks(t, WithWatchdogTimeout(900*time.Millisecond))
	l := c.NewLock(unique("wall"))
	err := l.Do(t.Context(), func(ctx context.Context) error {
		lost := l.Lost(ctx)
		k.stepWall(time.Hour)
		recv(t, lost, "Lost")
		recv(t, ctx.Done(), "the end of ctx")
		require.ErrorIs(t, context.Cause(ctx), ErrLost)
		return nil
	})
	require.ErrorIs(t, err, ErrLost)
}

// TestCLK3_TheWallClockJumpsBackwards: nothing is gained.
func TestCLK3_TheWallClockJumpsBackwards(t *testing.T) {
	t.Parallel()
	c, k := onClocks(t)
	l := c.NewLock(unique("wall"))
	ctx := WithOwner(t.Context(), NewOwner())
	require.NoError(t, l.LockLease(ctx, 400*time.Millisecond))
	k.stepWall(-time.Hour)
	between(t, -1, 400*time.Millisecond, l.Validity(ctx), "not more than it was")
	recv(t, l.Lost(ctx), "the end by the other clock")
	require.Zero(t, l.Validity(ctx))
	require.ErrorIs(t, l.Unlock(ctx), ErrLost)
}

// TestCLK3_RenewalsGoOnAfterAJump in either direction.
func TestCLK3_RenewalsGoOnAfterAJump(t *testing.T) {
	t.Parallel()
	const timeout = 3 * time.Second
	for name, step := range map[string]time.Duration{"back": -time.Hour, "a little forward": timeout / 10} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			trace, renewed := renewals()
			c, k := onClocks(t, WithWatchdogTimeout(timeout), WithTrace(trace))
			l := c.NewLock(unique("wall"))
			ctx := WithOwner(t.Context(), NewOwner())
			require.NoError(t, l.Lock(ctx))
			k.stepWall(step)
			for range 3 {
				recv(t, renewed, "a renewal")
			}
			between(t, 0, timeout, l.Validity(ctx), "a whole lease at most")
			require.NoError(t, l.Unlock(ctx))
		})
	}
}

// TestLost_IsOneChannel for as long as the hold is one.
func TestLost_IsOneChannel(t *testing.T) {
	t.Parallel()
	c := onShared(t)
	l := c.NewLock(unique("lost"))
	ctx := WithOwner(t.Context(), NewOwner())
	require.True(t, isClosed(l.Lost(ctx)), "nothing held: closed already")
	require.NoError(t, l.Lock(ctx))
	first := l.Lost(ctx)
	require.False(t, isClosed(first))
	require.NoError(t, l.Lock(ctx))
	require.Equal(t, first, l.Lost(ctx))
	require.Equal(t, first, c.NewLock(l.Name()).Lost(ctx), "another object")
	require.NoError(t, l.Extend(ctx, time.Minute))
	require.Equal(t, first, l.Lost(ctx))
	require.NoError(t, l.Unlock(ctx))
	require.False(t, isClosed(first), "an Unlock does not close it")
	require.NoError(t, l.Unlock(ctx))
	require.False(t, isClosed(first), "an Unlock does not close it")
	require.True(t, isClosed(l.Lost(ctx)), "nothing held")

	require.NoError(t, l.Lock(ctx))
	second := l.Lost(ctx)
	require.False(t, isClosed(second), "a new hold")
	_, err := l.ForceUnlock(ctx)
	require.NoError(t, err)
	require.True(t, isClosed(second))
	require.True(t, isClosed(l.Lost(ctx)))
	require.False(t, isClosed(first), "the old hold was given back, not lost")
	require.ErrorIs(t, l.Unlock(ctx), ErrLost)
}

// TestLost_OfEachOwner.
func TestLost_OfEachOwner(t *testing.T) {
	t.Parallel()
	c := onShared(t)
	l := c.NewLock(unique("lost"))
	a, b := WithOwner(t.Context(), "a"), WithOwner(t.Context(), "b")
	require.NoError(t, l.Lock(a))
	require.False(t, isClosed(l.Lost(a)))
	require.True(t, isClosed(l.Lost(b)))
	require.NotZero(t, l.Validity(a))
	require.Zero(t, l.Validity(b))
	require.NoError(t, l.Unlock(a))
}

// TestCLK3_CauseOfAStepBesideARenewal: Redis says that the key is there, and the wall
// clock that the lease is over. Nobody has removed it.
func TestCLK3_CauseOfAStepBesideARenewal(t *testing.T) {
	for name, lopts := range map[string][]LockOption{"watchdog": nil, "maxhold": {WithMaxHold(time.Hour)}} {
		t.Run(name, func(t *testing.T) {
			c, p := onProxy(t, WithWatchdogTimeout(3*time.Second))
			k := steppable(c)
			l := c.NewLock(unique("cause"), lopts...)
			ctx := WithOwner(context.Background(), "a")
			cause := make(chan error, 1)
			held := p.On(redistest.And(redistest.HasArg(l.Key()), redistest.Not(redistest.HasArg("201"))), redistest.HoldReply).Skip(1)
			err := l.Do(ctx, func(ctx context.Context) error {
				held.Wait(t) // the renewal is on its way
				k.stepWall(2 * time.Hour)
				held.Release()
				<-ctx.Done()
				cause <- context.Cause(ctx)
				return nil
			})
			got := <-cause
			require.NotErrorIs(t, got, errRemoved)
			require.Error(t, err)
			if name == "maxhold" {
				require.ErrorIs(t, got, ErrMaxHold)
			}
		})
	}
}
