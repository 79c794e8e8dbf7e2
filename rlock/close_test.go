package rlock

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/relock-go/relock/internal/redistest"
)

// The tests that count goroutines do not run in parallel with others.

func TestEND3_CloseEndsWaitersAtOnce(t *testing.T) {
	t.Parallel()
	const n = 1000
	c := onShared(t)
	l := c.NewLock(unique("waiters"))
	occupy(t, l.Key(), time.Hour)
	all := make(chan error, n)
	for i := range n {
		go func() {
			switch i % 3 {
			case 0:
				all <- l.Lock(context.Background())
			case 1:
				_, err := l.TryLock(context.Background(), time.Hour, time.Second)
				all <- err
			default:
				all <- l.Do(context.Background(), func(context.Context) error { return nil })
			}
		}()
	}
	waitForWaiters(t, c, n)
	began := time.Now()
	require.NoError(t, c.Close(t.Context()))
	for range n {
		require.ErrorIs(t, recv(t, all, "a waiter"), ErrClosed)
	}
	require.Less(t, time.Since(began), limit/2)
	require.Zero(t, c.Stats().Waiting)
	require.Equal(t, map[string]string{"foreign:1": "1"}, fields(t, l.Key()))
}

// TestEND1_HoldersAreToldBeforeTheirKeysGo looks at the moment when the release
// has been sent and has not arrived.
func TestEND1_HoldersAreToldBeforeTheirKeysGo(t *testing.T) {
	t.Parallel()
	traced := make(chan error, 1)
	c, p := onProxy(t, WithTrace(&Trace{Lost: func(_ string, _ Owner, _ time.Duration, cause error) { traced <- cause }}))
	l := c.NewLock(unique("told"))
	ctx := WithOwner(t.Context(), NewOwner())
	rule := p.On(redistest.And(redistest.HasArg(l.Key()), redistest.ArgContains("redisson_lock__channel")), redistest.HoldRequest)
	closed := make(chan error, 1)
	err := l.Do(ctx, func(inner context.Context) error {
		lost := l.Lost(inner)
		go func() { closed <- c.Close(context.Background()) }()
		rule.Wait(t)
		require.True(t, isClosed(lost))
		require.Zero(t, l.Validity(inner))
		recv(t, inner.Done(), "the end of Do's ctx")
		require.ErrorIs(t, context.Cause(inner), ErrClosed)
		require.True(t, exists(t, l.Key()))
		rule.Release()
		return nil
	})
	require.ErrorIs(t, err, ErrClosed)
	require.NoError(t, recv(t, closed, "Close"))
	require.False(t, exists(t, l.Key()))
	require.ErrorIs(t, recv(t, traced, "Trace.Lost"), ErrClosed)
}

func TestClose_AfterIt(t *testing.T) {
	t.Parallel()
	c, p := onProxy(t)
	rdb := look(t)
	l := c.NewLock(unique("after"))
	ctx := t.Context()
	require.NoError(t, l.Lock(ctx))
	require.NoError(t, l.Lock(ctx))
	require.NoError(t, c.Close(ctx))
	free(t, l.Key())
	p.ResetCounts()
	for name, op := range operations(l) {
		require.ErrorIs(t, op(ctx), ErrClosed, name)
		require.ErrorIs(t, op(WithOwner(ctx, bystander)), ErrClosed, name)
	}
	require.Zero(t, l.Validity(ctx))
	require.True(t, isClosed(l.Lost(ctx)))
	require.Empty(t, p.Counts(), "nothing is sent")
	require.NoError(t, c.Close(ctx), "a second Close is harmless")
	require.NoError(t, rdb.Ping(ctx).Err())
	require.NoError(t, c.redis.rdb.Ping(ctx).Err(), "rdb is the caller's")
	require.Zero(t, c.Stats().Held)

	ended, cancel := context.WithCancel(ctx)
	cancel()
	require.ErrorIs(t, c.NewLock("x").Unlock(ended), ErrClosed)
}

func TestClose_TwoAtOnce(t *testing.T) {
	t.Parallel()
	c, p := onProxy(t)
	l := c.NewLock(unique("twice"))
	require.NoError(t, l.Lock(t.Context()))
	rule := p.On(redistest.HasArg(l.Key()), redistest.HoldRequest)
	first := async(func() error { return c.Close(context.Background()) })
	rule.Wait(t)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, c.Close(ctx), context.DeadlineExceeded, "it waits for the first, within its ctx")
	second := async(func() error { return c.Close(context.Background()) })
	rule.Release()
	require.NoError(t, recv(t, first, "the first"))
	require.NoError(t, recv(t, second, "the second"))
	free(t, l.Key())
}

func TestClose_OfAClientThatDidNothing(t *testing.T) {
	c := onShared(t)
	require.NoError(t, c.Close(t.Context()))
}

// TestEND1_TwoHundredHolds.
func TestEND1_TwoHundredHolds(t *testing.T) {
	rdb := look(t)
	ignore := goleak.IgnoreCurrent()
	c, err := New(shared.server.Client(t))
	require.NoError(t, err)
	prefix := unique("holds")
	ctx := WithOwner(t.Context(), NewOwner())
	for i := range 200 {
		require.NoError(t, c.NewLock(fmt.Sprint(prefix, ":", i)).Lock(ctx))
	}
	require.Len(t, rdb.Keys(ctx, prefix+":*").Val(), 200)
	require.Equal(t, 200, c.Stats().Held)
	require.NoError(t, c.Close(ctx))
	require.Empty(t, rdb.Keys(ctx, prefix+":*").Val())
	require.NoError(t, c.redis.rdb.Close())
	goleak.VerifyNone(t, ignore, goredis)
}

// TestEND4_NothingStaysBehind after waiters, holders, a loss and a subscription.
func TestEND4_NothingStaysBehind(t *testing.T) {
	rdb := look(t)
	ignore := goleak.IgnoreCurrent()
	c, err := New(shared.server.Client(t), WithWatchdogTimeout(300*time.Millisecond))
	require.NoError(t, err)
	ctx := WithOwner(t.Context(), NewOwner())
	held, lost, taken := c.NewLock(unique("held")), c.NewLock(unique("lost")), c.NewLock(unique("taken"))
	require.NoError(t, held.Lock(ctx))
	require.NoError(t, lost.Lock(ctx))
	remove(t, lost.Key())
	recv(t, lost.Lost(ctx), "the loss")
	occupy(t, taken.Key(), time.Minute)
	waiter := async(func() error { return taken.Lock(ctx) })
	waitForWaiters(t, c, 1)
	channel := "redisson_lock__channel:{" + taken.Key() + "}"
	eventually(t, func() bool { return rdb.PubSubNumSub(ctx, channel).Val()[channel] == 1 }, "the subscription")
	require.NoError(t, c.Close(ctx))
	require.ErrorIs(t, recv(t, waiter, "the waiter"), ErrClosed)
	eventually(t, func() bool { return rdb.PubSubNumSub(ctx, channel).Val()[channel] == 0 }, "no subscription")
	require.NoError(t, c.redis.rdb.Close())
	goleak.VerifyNone(t, ignore, goredis)
}

// TestEND4_RedisIsUnreachable: Close ends with ctx, or before, and names the keys
// that are left; they end with their leases.
func TestEND4_RedisIsUnreachable(t *testing.T) {
	look(t)
	for name, cut := range map[string]func(*redistest.Proxy){
		"refused":    func(p *redistest.Proxy) { _ = p.Refuse(true); p.CutAll() },
		"black hole": func(p *redistest.Proxy) { p.BlackHole(true) },
	} {
		t.Run(name, func(t *testing.T) {
			ignore := goleak.IgnoreCurrent()
			p, err := redistest.OpenProxy(shared.server.Addr)
			require.NoError(t, err)
			rdb := redis.NewClient(&redis.Options{Addr: p.Addr, ReadTimeout: 300 * time.Millisecond, DialTimeout: 300 * time.Millisecond})
			c, err := New(rdb, WithWatchdogTimeout(2*time.Second))
			require.NoError(t, err)
			ctx := WithOwner(t.Context(), NewOwner())
			a, b := c.NewLock(unique("left")), c.NewLock(unique("left"))
			require.NoError(t, a.Lock(ctx))
			require.NoError(t, b.Lock(ctx))
			lost := a.Lost(ctx)
			waiter := async(func() error { return a.Lock(WithOwner(ctx, bystander)) })
			waitForWaiters(t, c, 1)
			cut(p)

			bounded, cancel := context.WithTimeout(ctx, 10*time.Second)
			defer cancel()
			began := time.Now()
			err = c.Close(bounded)
			require.ErrorContains(t, err, a.Key())
			require.ErrorContains(t, err, b.Key())
			require.Less(t, time.Since(began), limit)
			require.True(t, isClosed(lost))
			require.Zero(t, a.Validity(ctx))
			require.ErrorIs(t, recv(t, waiter, "the waiter"), ErrClosed)
			require.NoError(t, rdb.Close())
			p.Close()
			goleak.VerifyNone(t, ignore, goredis)
			eventually(t, func() bool { return !exists(t, a.Key()) && !exists(t, b.Key()) }, "the end of the leases")
		})
	}
}

// TestClose_ReturnsWhenCtxEnds, and what it left behind ends by itself.
func TestClose_ReturnsWhenCtxEnds(t *testing.T) {
	look(t)
	ignore := goleak.IgnoreCurrent()
	p, err := redistest.OpenProxy(shared.server.Addr)
	require.NoError(t, err)
	rdb := redis.NewClient(&redis.Options{Addr: p.Addr, ReadTimeout: 2 * time.Second})
	c, err := New(rdb, WithWatchdogTimeout(time.Second))
	require.NoError(t, err)
	l := c.NewLock(unique("ctx"))
	require.NoError(t, l.Lock(t.Context()))
	p.BlackHole(true)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	began := time.Now()
	err = c.Close(ctx)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorContains(t, err, l.Key())
	require.Less(t, time.Since(began), 1900*time.Millisecond, "before go-redis gave up")
	require.Zero(t, l.Validity(t.Context()))
	p.BlackHole(false)
	eventually(t, func() bool { return !exists(t, l.Key()) }, "its end")
	require.NoError(t, c.Close(t.Context()))
	require.NoError(t, rdb.Close())
	p.Close()
	goleak.VerifyNone(t, ignore, goredis)
}

// TestEND2_TheUserClosesRdbFirst: errors, losses in time, no panic, no goroutine.
func TestEND2_TheUserClosesRdbFirst(t *testing.T) {
	look(t)
	ignore := goleak.IgnoreCurrent()
	rdb := redis.NewClient(&redis.Options{Addr: shared.server.Addr})
	c, err := New(rdb, WithWatchdogTimeout(1200*time.Millisecond), WithRecheck(100*time.Millisecond))
	require.NoError(t, err)
	ctx := WithOwner(t.Context(), NewOwner())
	held, taken := c.NewLock(unique("held")), c.NewLock(unique("taken"))
	require.NoError(t, held.Lock(ctx))
	occupy(t, taken.Key(), time.Minute)
	waiter := async(func() error { return taken.Lock(ctx) })
	waitForWaiters(t, c, 1)

	require.NoError(t, rdb.Close())
	recv(t, held.Lost(ctx), "the loss")
	require.ErrorIs(t, recv(t, waiter, "the waiter"), redis.ErrClosed)
	require.ErrorIs(t, held.Lock(ctx), ErrLost)
	require.ErrorIs(t, taken.Lock(ctx), redis.ErrClosed)
	_, err = taken.IsLocked(ctx)
	require.ErrorIs(t, err, redis.ErrClosed)
	before := c.Stats().Scripts
	require.ErrorIs(t, held.Unlock(ctx), ErrLost)
	bounded, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	_ = c.Close(bounded) // may name the key that it could not look at
	require.NoError(t, bounded.Err())
	require.Less(t, c.Stats().Scripts-before, uint64(50), "no spin")
	goleak.VerifyNone(t, ignore, goredis)
}
