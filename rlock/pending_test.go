//go:build pending

// Tests of sentences of the contract that the code does not keep yet. Run them
// with go test -tags pending.

package rlock

import (
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/redistest"
)

// TestACQ3_ReplyOfAnotherScript: a reply that means success to another script is
// no grant.
func TestACQ3_ReplyOfAnotherScript(t *testing.T) {
	for _, reply := range []string{"released", "kept", "passed"} {
		c, p := onProxy(t)
		l := c.NewLock(unique("reply"))
		p.On(redistest.HasArg(l.Key()), redistest.Reply("+"+reply+"\r\n")).Times(0)
		got, err := l.TryLock(t.Context(), 50*time.Millisecond, 0)
		require.False(t, got, reply)
		require.Error(t, err, reply)
	}
}

// TestTryLock_BehindAnUnansweredAttempt: nobody has the lock, the server is
// silent, and the second in line must not be told that others had it.
func TestTryLock_BehindAnUnansweredAttempt(t *testing.T) {
	c, p := onProxy(t)
	l := c.NewLock(unique("behind"))
	rule := p.On(redistest.HasArg(l.Key()), redistest.HoldRequest).Times(0)
	first := async(func() error { return l.Lock(context.Background()) })
	rule.Wait(t)
	got, err := l.TryLock(t.Context(), 500*time.Millisecond, 0)
	require.False(t, got)
	require.Error(t, err, "never an error in disguise")
	rule.Off()
	recv(t, first, "the first")
}

// TestTryLock_OnceIsOneAttempt, also when go-redis's ReadTimeout is short.
func TestTryLock_OnceIsOneAttempt(t *testing.T) {
	look(t)
	p := redistest.NewProxy(t, shared.server.Addr)
	rdb := redistest.NewClient(t, p.Addr, func(o *redis.Options) { o.ReadTimeout = 50 * time.Millisecond })
	c := newClient(t, rdb)
	l := c.NewLock(unique("once"))
	require.NoError(t, l.Lock(t.Context()))
	require.NoError(t, l.Unlock(t.Context()))
	p.ResetCounts()
	rule := p.On(redistest.HasArg(l.Key()), redistest.HoldRequest).Times(0)
	defer rule.Off()
	began := time.Now()
	got, err := l.TryLock(t.Context(), 0, 0)
	require.False(t, got)
	require.ErrorIs(t, err, ErrUnsettled)
	t.Log(time.Since(began), p.Counts())
	require.Len(t, asked(p, l), 1)
}

// TestTryLock_OnceBesideAnAttemptThatHangs ends with the ReadTimeout, not with
// the patience of another call.
func TestTryLock_OnceBesideAnAttemptThatHangs(t *testing.T) {
	look(t)
	p := redistest.NewProxy(t, shared.server.Addr)
	rdb := redistest.NewClient(t, p.Addr, func(o *redis.Options) { o.ReadTimeout = 200 * time.Millisecond })
	c := newClient(t, rdb)
	l := c.NewLock(unique("once"))
	p.BlackHole(true)
	defer p.BlackHole(false)
	first := async(func() error { return l.Lock(context.Background()) })
	eventually(t, func() bool { return c.Stats().Attempts > 0 }, "the first")
	began := time.Now()
	got, err := l.TryLock(t.Context(), 0, 0)
	require.False(t, got)
	require.Error(t, err)
	t.Log(time.Since(began))
	require.Less(t, time.Since(began), 1500*time.Millisecond)
	recv(t, first, "the first")
}

// TestTrace_OneAttemptDoesNotWait: "Waiting: o begins to wait".
func TestTrace_OneAttemptDoesNotWait(t *testing.T) {
	var s story
	c := onShared(t, WithTrace(s.trace(t)))
	l := c.NewLock(unique("waiting"))
	occupy(t, l.Key(), time.Minute)
	got, err := l.TryLock(WithOwner(t.Context(), "a"), 0, 0)
	require.NoError(t, err)
	require.False(t, got)
	s.has(t, "failed a false")
	require.Zero(t, s.count("waiting a"))
}

// TestDo_AGoroutineThatOutlivesDo: its Lock was answered while fn ran, and its
// Unlock comes after. The key must not be kept for ever.
func TestDo_AGoroutineThatOutlivesDo(t *testing.T) {
	c := onShared(t, WithWatchdogTimeout(600*time.Millisecond))
	l := c.NewLock(unique("outlives"))
	unlock := make(chan struct{})
	var done <-chan error
	require.NoError(t, l.Do(t.Context(), func(ctx context.Context) error {
		in := make(chan struct{})
		done = async(func() error {
			if err := l.Lock(ctx); err != nil {
				return err
			}
			close(in)
			<-unlock
			return l.Unlock(ctx)
		})
		recv(t, in, "the goroutine")
		return nil
	}))
	close(unlock)
	require.NoError(t, recv(t, done, "its Unlock"))
	free(t, l.Key())
}

// TestDo_ALossThatFnHasPaidFor: fn gives back what is left of the lost hold, and
// takes the lock anew. ErrLost is in the chain whenever the hold was lost.
func TestDo_ALossThatFnHasPaidFor(t *testing.T) {
	l := onShared(t).NewLock(unique("paid"))
	o := NewOwner()
	ctx := WithOwner(t.Context(), o)
	err := l.Do(ctx, func(context.Context) error {
		remove(t, l.Key())
		require.ErrorIs(t, l.Unlock(ctx), ErrLost)
		return l.Lock(ctx)
	})
	require.ErrorIs(t, err, ErrLost)
}

// TestDo_ALeaseThatRanOutAndWasTakenAnew is the same with a fixed lease.
func TestDo_ALeaseThatRanOutAndWasTakenAnew(t *testing.T) {
	l := onShared(t).NewLock(unique("anew"))
	ctx := WithOwner(t.Context(), NewOwner())
	err := l.Do(ctx, func(inner context.Context) error {
		require.NoError(t, l.Extend(inner, 30*time.Millisecond))
		recv(t, inner.Done(), "the end")
		require.NoError(t, l.Lock(ctx))
		return l.Unlock(ctx)
	})
	require.ErrorIs(t, err, ErrLost)
}
