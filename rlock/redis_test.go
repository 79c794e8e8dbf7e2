package rlock

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestRedis_WhatStands(t *testing.T) {
	t.Parallel()
	c := onShared(t)
	ctx := t.Context()
	l := c.NewLock(unique("stands"))
	field := c.ID() + ":" + goroutineID()

	for depth, want := range []string{"1", "2", "3"} {
		require.NoError(t, l.Lock(ctx))
		require.Equal(t, map[string]string{field: want}, fields(t, l.Key()), "after %d Locks", depth+1)
		between(t, 20*time.Second, 30*time.Second, pttl(t, l.Key()), "PTTL within the lease")
	}
	for _, want := range []string{"2", "1"} {
		require.NoError(t, l.Unlock(ctx))
		require.Equal(t, map[string]string{field: want}, fields(t, l.Key()))
		between(t, 20*time.Second, 30*time.Second, pttl(t, l.Key()), "PTTL within the lease")
	}
	require.NoError(t, l.Unlock(ctx))
	require.False(t, exists(t, l.Key()))
}

func TestRedis_AnOwnerInCtxStandsAsItIs(t *testing.T) {
	t.Parallel()
	c := onShared(t, WithID("my-client"))
	ctx := WithOwner(t.Context(), "order_7.worker-A")
	l := c.NewLock(unique("stands"))
	require.NoError(t, l.LockLease(ctx, 7*time.Second))
	require.Equal(t, map[string]string{"my-client:order_7.worker-A": "1"}, fields(t, l.Key()))
	between(t, time.Second, 7*time.Second, pttl(t, l.Key()), "PTTL within the lease")
	require.NoError(t, l.Unlock(ctx))
}

// TestACQ16_NoScriptLeavesAKeyWithoutTTL looks at the PTTL after every script.
func TestACQ16_NoScriptLeavesAKeyWithoutTTL(t *testing.T) {
	t.Parallel()
	c := onShared(t, WithHandoffLimit(64, time.Hour))
	ctx := t.Context()
	l := c.NewLock(unique("ttl"))
	lives := func(after string) {
		t.Helper()
		between(t, 0, 40*time.Second, pttl(t, l.Key()), after)
	}
	require.NoError(t, l.Lock(ctx))
	lives("acquire")
	require.NoError(t, l.Lock(ctx))
	lives("re-entry")
	require.NoError(t, l.Extend(ctx, 40*time.Second))
	lives("extend")
	require.NoError(t, l.Unlock(ctx))
	lives("inner unlock")

	other := WithOwner(t.Context(), bystander)
	got := async(func() error { return l.LockLease(other, 20*time.Second) })
	waitForWaiters(t, c, 1)
	require.NoError(t, l.Unlock(ctx))
	require.NoError(t, recv(t, got, "the hand-over"))
	require.EqualValues(t, 1, c.Stats().HandedOff)
	between(t, 10*time.Second, 20*time.Second, pttl(t, l.Key()), "exactly the new lease after the hand-over")
	require.Equal(t, map[string]string{c.ID() + ":" + string(bystander): "1"}, fields(t, l.Key()))
	require.NoError(t, l.Unlock(other))
	require.False(t, exists(t, l.Key()))
}

// messages follows the lock's channel. The function that it returns delivers
// what came since it was called last.
func messages(t *testing.T, key string) func() []string {
	t.Helper()
	channel := "redisson_lock__channel:{" + key + "}"
	ctx := context.Background()
	sub := look(t).Subscribe(ctx, channel)
	t.Cleanup(func() { _ = sub.Close() })
	_, err := sub.Receive(ctx) // the confirmation
	require.NoError(t, err)
	return func() (all []string) {
		t.Helper()
		// What was published before this mark comes before it.
		require.NoError(t, shared.rdb.Publish(ctx, channel, "mark").Err())
		for {
			m, err := sub.ReceiveMessage(ctx)
			require.NoError(t, err)
			if m.Payload == "mark" {
				return all
			}
			all = append(all, m.Payload)
		}
	}
}

// TestPEER1_EveryReleaseThatFreesIsToldOnce: "0", once per transition to free,
// and nothing else.
func TestPEER1_EveryReleaseThatFreesIsToldOnce(t *testing.T) {
	t.Parallel()
	c := onShared(t, WithHandoffLimit(64, time.Hour))
	ctx := t.Context()
	l := c.NewLock(unique("message"))
	told := messages(t, l.Key())

	require.NoError(t, l.Lock(ctx))
	require.NoError(t, l.Lock(ctx))
	require.NoError(t, l.Unlock(ctx))
	require.Empty(t, told(), "an inner Unlock tells nobody")
	require.NoError(t, l.Unlock(ctx))
	require.Equal(t, []string{"0"}, told(), "the last Unlock")

	require.NoError(t, l.Lock(ctx))
	other := WithOwner(ctx, bystander)
	got := async(func() error { return l.Lock(other) })
	waitForWaiters(t, c, 1)
	require.NoError(t, l.Unlock(ctx))
	require.NoError(t, recv(t, got, "the hand-over"))
	require.EqualValues(t, 1, c.Stats().HandedOff)
	require.Empty(t, told(), "a hand-over tells nobody")
	require.NoError(t, l.Unlock(other))
	require.Equal(t, []string{"0"}, told(), "the last one")

	require.NoError(t, l.Lock(ctx))
	removed, err := l.ForceUnlock(ctx)
	require.NoError(t, err)
	require.True(t, removed)
	require.Equal(t, []string{"0"}, told(), "ForceUnlock")
	require.ErrorIs(t, l.Unlock(ctx), ErrLost)

	removed, err = l.ForceUnlock(ctx)
	require.NoError(t, err)
	require.False(t, removed)
	require.ErrorIs(t, l.Unlock(ctx), ErrNotHeld)
	require.Empty(t, told(), "nothing was released")

	require.NoError(t, l.Lock(ctx))
	require.NoError(t, c.Close(ctx))
	require.Equal(t, []string{"0"}, told(), "Close")
}

func TestRedis_NoHandoverWhenTheLimitIsZero(t *testing.T) {
	t.Parallel()
	c := onShared(t, WithHandoffLimit(0, 0))
	ctx := t.Context()
	l := c.NewLock(unique("limit"))
	told := messages(t, l.Key())
	require.NoError(t, l.Lock(ctx))
	other := WithOwner(ctx, bystander)
	got := async(func() error { return l.Lock(other) })
	waitForWaiters(t, c, 1)
	require.NoError(t, l.Unlock(ctx))
	require.NoError(t, recv(t, got, "the waiter"))
	require.Equal(t, []string{"0"}, told(), "released to all")
	require.Zero(t, c.Stats().HandedOff)
	require.NoError(t, l.Unlock(other))
}
