package rlock

import (
	"context"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/redistest"
	"github.com/relock-go/relock/internal/script"
)

// Somebody has put another type in place of a fair lock's queue, or of its scores. That is
// no loss to the holder, and its Unlock frees the lock. Those who wait hear what is wrong.
func TestACQ14_FairPassWithABadQueue(t *testing.T) {
	t.Parallel()
	for what, keyOf := range map[string]func(string) string{"queue": script.QueueKey, "scores": script.ScoresKey} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			c := onShared(t)
			l := c.NewFairLock(unique("bad"))
			require.NoError(t, l.Lock(as("a")))
			waiter := async(func() error { return l.Lock(as("b")) })
			eventually(t, func() bool { return queued(t, l) == 1 }, "b queues")
			spoil(t, keyOf(l.Key()))
			t.Cleanup(func() { look(t).Del(context.Background(), script.QueueKey(l.Key()), script.ScoresKey(l.Key())) })
			require.NoError(t, l.Unlock(as("a")))
			require.Zero(t, c.Stats().Lost)
			require.Empty(t, fields(t, l.Key()))
			require.ErrorIs(t, recv(t, waiter, "b"), ErrWrongType)
			eventually(t, func() bool { return !exists(t, l.Key()) }, "nothing is left")
		})
	}
}

// A waiter that leaves while its acquire is on its way may have the lock. It is freed,
// whatever stands in place of the queue.
func TestACQ14_FairLeaveWithABadQueue(t *testing.T) {
	t.Parallel()
	for what, keyOf := range map[string]func(string) string{"queue": script.QueueKey, "scores": script.ScoresKey} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			c, p := onProxy(t)
			l := c.NewFairLock(unique("bad"))
			held := p.On(redistest.And(redistest.Command("evalsha"), redistest.HasArg(script.FairAcquire.SHA), redistest.HasArg(l.Key())), redistest.HoldReply).Times(1)
			ctx, cancel := context.WithCancel(as("a"))
			defer cancel()
			waiter := async(func() error { return l.Lock(ctx) })
			held.Wait(t)
			eventually(t, func() bool { return len(fields(t, l.Key())) == 1 }, "Redis has granted it")
			spoil(t, keyOf(l.Key()))
			t.Cleanup(func() { look(t).Del(context.Background(), keyOf(l.Key())) })
			cancel()
			require.ErrorIs(t, recv(t, waiter, "the one that left"), context.Canceled)
			p.CutAll() // the answer is lost: it may have been granted
			eventually(t, func() bool { return !exists(t, l.Key()) }, "it is undone")
		})
	}
}

// spoil puts a set in place of what stands at key.
func spoil(t *testing.T, key string) {
	t.Helper()
	ctx := context.Background()
	_, err := look(t).TxPipelined(ctx, func(p redis.Pipeliner) error {
		p.Del(ctx, key)
		p.SAdd(ctx, key, "x")
		return nil
	})
	require.NoError(t, err)
}
