package rlock

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/redistest"
)

// TestWAIT1_TheReleaseFallsBeforeTheSubscription: SUBSCRIBE is slow, and the lock
// is released before it lands.
func TestWAIT1_TheReleaseFallsBeforeTheSubscription(t *testing.T) {
	t.Parallel()
	holder := onShared(t)
	c, p := onProxy(t, WithRecheck(time.Hour))
	name := unique("slow")
	require.NoError(t, holder.NewLock(name).Lock(t.Context()))
	rule := p.On(redistest.Command("subscribe"), redistest.HoldRequest)
	got := async(func() error { return c.NewLock(name).LockLease(context.Background(), time.Second) })
	rule.Wait(t)
	require.NoError(t, holder.NewLock(name).Unlock(t.Context()))
	rule.Release()
	require.NoError(t, recv(t, got, "the lock"))
}

// TestWAIT1_AMessageWakes long before the TTL and the recheck.
func TestWAIT1_AMessageWakes(t *testing.T) {
	t.Parallel()
	for _, name := range []string{ // WAIT-10: nobody takes names apart
		unique("plain"), unique("a:b: c"), unique("{tag}") + "x", unique("ä€") + "}", unique("%s\n"),
	} {
		holder, waiter := onShared(t), onShared(t, WithRecheck(time.Hour))
		l := holder.NewLock(name)
		require.NoError(t, l.LockLease(t.Context(), time.Hour))
		got := async(func() error { return waiter.NewLock(name).LockLease(context.Background(), time.Minute) })
		waitForWaiters(t, waiter, 1)
		time.Sleep(10 * time.Millisecond) // anywhere between its two looks, or asleep
		require.NoError(t, l.Unlock(t.Context()))
		require.NoError(t, recv(t, got, "the lock"), name)
		require.True(t, exists(t, name))
		remove(t, name)
	}
}

// TestWAIT4_NobodyTellsOfIt: the key expires, is deleted, or its holder is gone.
func TestWAIT4_NobodyTellsOfIt(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]struct {
		ttl time.Duration
		end func(key string)
	}{
		"expired":            {300 * time.Millisecond, func(string) {}},
		"deleted":            {time.Hour, func(key string) { shared.rdb.Del(context.Background(), key) }},
		"expired by force":   {time.Hour, func(key string) { shared.rdb.PExpire(context.Background(), key, time.Millisecond) }},
		"deleted, no expiry": {0, func(key string) { shared.rdb.Del(context.Background(), key) }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := onShared(t, WithRecheck(200*time.Millisecond))
			l := c.NewLock(unique("silent"))
			occupy(t, l.Key(), end.ttl)
			got := async(func() error { return l.LockLease(context.Background(), time.Minute) })
			waitForWaiters(t, c, 1)
			end.end(l.Key())
			require.NoError(t, recv(t, got, "the lock"))
			remove(t, l.Key())
		})
	}
}

// TestWAIT4_TheTTLIsEnough when the recheck is far away.
func TestWAIT4_TheTTLIsEnough(t *testing.T) {
	t.Parallel()
	l := onShared(t, WithRecheck(time.Hour)).NewLock(unique("expiry"))
	occupy(t, l.Key(), 400*time.Millisecond)
	require.NoError(t, l.LockLease(t.Context(), time.Minute))
	require.NoError(t, l.Unlock(t.Context()))
}

// TestWAIT6_NoSpin: a key without expiry is asked at the recheck, and reported.
func TestWAIT6_NoSpin(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var log bytes.Buffer
	h := slog.NewTextHandler(writer(func(b []byte) (int, error) { mu.Lock(); defer mu.Unlock(); return log.Write(b) }), nil)
	c, p := onProxy(t, WithRecheck(200*time.Millisecond), WithLogger(slog.New(h)))
	l := c.NewLock(unique("persist"))
	occupy(t, l.Key(), 0)
	ctx, cancel := context.WithCancel(t.Context())
	began := time.Now()
	waiter := async(func() error { return l.Lock(ctx) })
	eventually(t, func() bool { return p.CountCommand("evalsha") >= 6 }, "asked again and again")
	// One before and one after the subscription, then one each recheck.
	require.GreaterOrEqual(t, time.Since(began), 700*time.Millisecond, "at the recheck only")
	cancel()
	require.ErrorIs(t, recv(t, waiter, "Lock"), context.Canceled)
	mu.Lock()
	defer mu.Unlock()
	require.Contains(t, log.String(), "no expiry")
	require.Contains(t, log.String(), l.Name())
}

// TestWAIT7_OneAttemptUnderWay: 50 waiters of one process cost no more than one.
func TestWAIT7_OneAttemptUnderWay(t *testing.T) {
	t.Parallel()
	c, p := onProxy(t)
	l := c.NewLock(unique("crowd"))
	occupy(t, l.Key(), time.Hour)
	ctx, cancel := context.WithCancel(t.Context())
	all := make(chan error, 50)
	for range cap(all) {
		go func() { all <- l.Lock(ctx) }()
	}
	waitForWaiters(t, c, cap(all))
	eventually(t, func() bool { return p.CountCommand("evalsha") >= 2 }, "the second look")
	require.LessOrEqual(t, p.CountCommand("evalsha"), 3)
	require.Equal(t, 1, p.CountCommand("subscribe"), "WAIT-8: one subscription")
	cancel()
	for range cap(all) {
		require.ErrorIs(t, recv(t, all, "a waiter"), context.Canceled)
	}
	require.Equal(t, map[string]string{"foreign:1": "1"}, fields(t, l.Key()))
}

// TestWAIT5_AWakeUpIsNotEaten by a waiter that leaves at that moment.
func TestWAIT5_AWakeUpIsNotEaten(t *testing.T) {
	t.Parallel()
	holder, c := onShared(t), onShared(t, WithRecheck(time.Hour))
	name := unique("eaten")
	l := c.NewLock(name)
	for range 30 {
		require.NoError(t, holder.NewLock(name).LockLease(t.Context(), time.Hour))
		ctx, cancel := context.WithCancel(context.Background())
		first := async(func() error { return l.Lock(WithOwner(ctx, "first")) })
		waitForWaiters(t, c, 1)
		second := async(func() error { return l.Lock(WithOwner(context.Background(), "second")) })
		waitForWaiters(t, c, 2)
		go func() {
			time.Sleep(rand.N(2 * time.Millisecond))
			cancel()
		}()
		require.NoError(t, holder.NewLock(name).Unlock(t.Context()))
		if recv(t, first, "the first") == nil {
			require.NoError(t, l.Unlock(WithOwner(t.Context(), "first")))
		}
		require.NoError(t, recv(t, second, "the second"))
		require.NoError(t, l.Unlock(WithOwner(t.Context(), "second")))
		cancel()
	}
}

// TestCTX1_CancelledAtAnyMoment: an error and no hold, or a hold and no error;
// and no key behind it.
func TestCTX1_CancelledAtAnyMoment(t *testing.T) {
	t.Parallel()
	c, p := onProxy(t)
	p.Latency(5 * time.Millisecond)
	for i := range 60 {
		l := c.NewLock(unique("cancel"))
		owner := WithOwner(context.Background(), NewOwner())
		ctx, cancel := context.WithTimeout(owner, time.Duration(i)*250*time.Microsecond)
		err := l.Lock(ctx)
		cancel()
		if err == nil {
			require.NotZero(t, l.Validity(owner))
			require.NoError(t, l.Unlock(owner))
			continue
		}
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Zero(t, l.Validity(owner), "never a hold together with an error")
		require.ErrorIs(t, l.Unlock(owner), ErrNotHeld)
		eventually(t, func() bool { return !exists(t, l.Key()) }, "undone")
	}
	eventually(t, func() bool { return c.Stats().Held == 0 }, "nothing held")
}

// TestCTX1_TheNextLockOfTheSameOwner after one that was cancelled on its way is
// not undone with it.
func TestCTX1_TheNextLockOfTheSameOwner(t *testing.T) {
	t.Parallel()
	c, p := onProxy(t)
	for i := range 20 {
		l := c.NewLock(unique("again"))
		owner := WithOwner(context.Background(), NewOwner())
		rule := p.On(redistest.HasArg(l.Key()), redistest.DelayReply(10*time.Millisecond))
		ctx, cancel := context.WithCancel(owner)
		cancelled := async(func() error { return l.Lock(ctx) })
		rule.Wait(t)
		time.Sleep(time.Duration(i) * time.Millisecond)
		cancel()
		err := recv(t, cancelled, "the first")
		require.NoError(t, l.Lock(owner))
		depth := 1
		if err == nil {
			depth = 2
		}
		require.NotZero(t, l.Validity(owner))
		require.Equal(t, fmt.Sprint(depth), onlyDepth(t, l))
		for range depth {
			require.NoError(t, l.Unlock(owner))
		}
		eventually(t, func() bool { return !exists(t, l.Key()) }, "free")
	}
}

// TestWAIT13_ManyClientsGetTheirTurn: a process that hands over to itself lets go
// after its limit.
func TestWAIT13_ManyClientsGetTheirTurn(t *testing.T) {
	t.Parallel()
	busy, other := onShared(t, WithHandoffLimit(8, time.Hour)), onShared(t)
	name := unique("turns")
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	for range 8 {
		wg.Go(func() {
			for ctx.Err() == nil {
				_ = busy.NewLock(name).Do(ctx, func(context.Context) error { return nil })
			}
		})
	}
	eventually(t, func() bool { return busy.Stats().HandedOff > 20 }, "a busy lock")
	for range 3 {
		got, err := other.NewLock(name).TryLock(t.Context(), limit, time.Minute)
		require.NoError(t, err)
		require.True(t, got)
		require.NoError(t, other.NewLock(name).Unlock(t.Context()))
	}
}

// TestWAIT12_WhatAnOwnerInsideDoesNeverQueues.
func TestWAIT12_WhatAnOwnerInsideDoesNeverQueues(t *testing.T) {
	t.Parallel()
	c := onShared(t, WithHandoffLimit(64, time.Hour))
	l := c.NewLock(unique("inside"))
	ctx := WithOwner(t.Context(), NewOwner())
	require.NoError(t, l.Lock(ctx))
	waiter := async(func() error { return l.LockLease(WithOwner(context.Background(), bystander), time.Minute) })
	waitForWaiters(t, c, 1)
	require.NoError(t, l.Lock(ctx))
	got, err := l.TryLock(ctx, 0, 0)
	require.NoError(t, err)
	require.True(t, got)
	require.NoError(t, l.Extend(ctx, time.Minute))
	require.NoError(t, l.Unlock(ctx))
	require.NoError(t, l.Unlock(ctx))
	require.NoError(t, l.Unlock(ctx))
	require.NoError(t, recv(t, waiter, "the lock"))
	require.NoError(t, l.Unlock(WithOwner(t.Context(), bystander)))
}
