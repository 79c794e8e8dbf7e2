package rlock

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/redistest"
	"github.com/relock-go/relock/internal/script"
)

// One test for each bug that another lock library shipped, or that we had.

// CURATOR-498, etcd#11456: a later Lock adopts what a failed Unlock left behind,
// and is one too deep.
func TestACQ5_CURATOR498(t *testing.T) {
	t.Parallel()
	c, p := onProxy(t, WithReleaseTimeout(time.Second))
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
	c, p := onProxy(t, WithWatchdogTimeout(1500*time.Millisecond))
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
	c, p := onProxy(t, WithWatchdogTimeout(1200*time.Millisecond))
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

// Those that these tests found in this package.

// TestACQ3_ReplyOfAnotherScript: a reply that means success to another script is
// no grant.
func TestACQ3_ReplyOfAnotherScript(t *testing.T) {
	t.Parallel()
	for _, reply := range []string{":202", ":203", ":204", ":205", ":210", ":250", "+released", "+kept", "+gone"} {
		c, p := onProxy(t)
		l := c.NewLock(unique("reply"))
		rule := p.On(redistest.HasArg(l.Key()), redistest.Reply(reply+"\r\n")).Times(0)
		got, err := l.TryLock(t.Context(), 50*time.Millisecond, 0)
		rule.Off()
		require.False(t, got, reply)
		require.Error(t, err, reply)
	}
}

// TestTryLock_BehindAnUnansweredAttempt: nobody has the lock, the server is
// silent, and the second in line must not be told that others had it.
func TestTryLock_BehindAnUnansweredAttempt(t *testing.T) {
	t.Parallel()
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
	t.Parallel()
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
	t.Parallel()
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
	t.Parallel()
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
	t.Parallel()
	c := onShared(t, WithWatchdogTimeout(1200*time.Millisecond))
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
	t.Parallel()
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
	t.Parallel()
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

// TestMaxHold_CauseWhenAnAnswerComesAtTheEnd: a request is answered after the end
// that WithMaxHold sets, before the wheel has come to it. The cause is the same.
func TestMaxHold_CauseWhenAnAnswerComesAtTheEnd(t *testing.T) {
	t.Parallel()
	for name, s := range map[string]*script.Script{"renewal": script.Renew, "extend": script.Keep} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.NoError(t, look(t).ScriptLoad(t.Context(), s.Text).Err())
			p := redistest.NewProxy(t, shared.server.Addr)
			c := newClient(t, redistest.NewClient(t, p.Addr), WithWatchdogTimeout(6*time.Second))
			k := steppable(c)
			l := c.NewLock(unique("max"), WithMaxHold(time.Hour))
			ctx := WithOwner(t.Context(), NewOwner())
			require.NoError(t, l.Lock(ctx))
			rule := p.On(sends(s, l), redistest.HoldReply)
			var extended <-chan error
			if s == script.Keep {
				extended = async(func() error { return l.Extend(ctx, 2*time.Hour) })
			}
			rule.Wait(t)
			k.mono.Add(int64(2 * time.Hour))
			k.wall.Add(int64(2 * time.Hour))
			rule.Off()
			if extended != nil {
				require.ErrorIs(t, recv(t, extended, "Extend"), ErrMaxHold)
			}
			eventually(t, func() bool { return c.Stats().Lost == 1 }, "the loss")
			require.ErrorIs(t, l.Unlock(ctx), ErrMaxHold)
		})
	}
}
