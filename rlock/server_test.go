package rlock

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/redistest"
)

// Tests that do a server harm: each starts its own.

// TestACQ9_MemoryIsFull: what is held is renewed, re-entered, handed over and
// released; a new lock is refused with a clear error.
func TestACQ9_MemoryIsFull(t *testing.T) {
	t.Parallel()
	s := redistest.StartServer(t)
	rdb := s.Client(t)
	trace, renewed := renewals()
	c := newClient(t, s.Client(t), WithWatchdogTimeout(3*time.Second), WithTrace(trace), WithHandoffLimit(64, time.Hour))
	a, b := WithOwner(t.Context(), "a"), WithOwner(t.Context(), "b")
	l, fresh := c.NewLock("held"), c.NewLock("fresh")
	require.NoError(t, l.Lock(a))
	require.NoError(t, l.Lock(a))
	require.NoError(t, rdb.Set(a, "filler", strings.Repeat("x", 1<<20), 0).Err())
	require.NoError(t, rdb.ConfigSet(a, "maxmemory", "1").Err())
	require.ErrorContains(t, rdb.Set(a, "more", "x", 0).Err(), "OOM")

	for len(renewed) > 0 {
		<-renewed
	}
	recv(t, renewed, "a renewal")
	require.NoError(t, l.Lock(a), "a re-entry")
	require.NoError(t, l.Extend(a, 0))
	require.NoError(t, l.Unlock(a))
	require.NoError(t, l.Unlock(a))
	got := async(func() error { return l.Lock(b) })
	waitForWaiters(t, c, 1)
	require.NoError(t, l.Unlock(a))
	require.NoError(t, recv(t, got, "a hand-over"))
	require.NoError(t, l.Unlock(b))
	require.Zero(t, rdb.Exists(a, "held").Val())
	require.Zero(t, c.Stats().Lost)

	if err := fresh.Lock(a); err != nil {
		require.ErrorContains(t, err, "OOM")
		require.Zero(t, rdb.Exists(a, "fresh").Val())
	} else {
		require.Greater(t, rdb.PTTL(a, "fresh").Val(), time.Duration(0))
		require.NoError(t, fresh.Unlock(a))
	}
}

// TestACQ10_NoRightToTheChannel: the release works, and a waiter finds it.
func TestACQ10_NoRightToTheChannel(t *testing.T) {
	t.Parallel()
	s := redistest.StartServer(t)
	admin := s.Client(t)
	require.NoError(t, admin.ACLSetUser(t.Context(), "mute", "on", ">pw", "~*", "+@all", "resetchannels").Err())
	mute := s.Client(t, func(o *redis.Options) { o.Username, o.Password = "mute", "pw" })
	c, other := newClient(t, mute), newClient(t, mute, WithRecheck(200*time.Millisecond))
	l := c.NewLock("a")
	require.NoError(t, l.Lock(t.Context()))
	got := async(func() error { return other.NewLock("a").Lock(WithOwner(context.Background(), bystander)) })
	waitForWaiters(t, other, 1)
	require.NoError(t, l.Unlock(t.Context()))
	require.NoError(t, recv(t, got, "the lock"))
	require.NoError(t, other.NewLock("a").Unlock(WithOwner(t.Context(), bystander)))
	require.Zero(t, admin.Exists(t.Context(), "a").Val())
	removed, err := l.ForceUnlock(t.Context())
	require.NoError(t, err)
	require.False(t, removed)
}

func TestServer_NoRightToScripts(t *testing.T) {
	t.Parallel()
	s := redistest.StartServer(t)
	admin := s.Client(t)
	require.NoError(t, admin.ACLSetUser(t.Context(), "plain", "on", ">pw", "~*", "&*", "+@all", "-@scripting").Err())
	l := newClient(t, s.Client(t, func(o *redis.Options) { o.Username, o.Password = "plain", "pw" })).NewLock("a")
	err := l.Lock(t.Context())
	require.ErrorContains(t, err, "NOPERM")
	require.NotErrorIs(t, err, ErrUnsettled, "it did not run")
	got, err := l.TryLock(t.Context(), time.Second, 0)
	require.False(t, got)
	require.ErrorContains(t, err, "NOPERM")
	require.Zero(t, admin.Exists(t.Context(), "a").Val())
}

// TestACQ14_TheServerIsBusy with a script: held locks survive it, and calls go on
// when it is over.
func TestACQ14_TheServerIsBusy(t *testing.T) {
	t.Parallel()
	s := redistest.StartServer(t, "--lua-time-limit", "20")
	rdb := s.Client(t, func(o *redis.Options) { o.MaxRetries = -1; o.ReadTimeout = limit })
	c := newClient(t, s.Client(t), WithWatchdogTimeout(6*time.Second))
	l, next := c.NewLock("held"), c.NewLock("next")
	ctx := WithOwner(t.Context(), NewOwner())
	require.NoError(t, l.Lock(ctx))
	busy := func() <-chan error {
		t.Helper()
		ended := async(func() error { return rdb.Eval(context.Background(), "while true do end", nil).Err() })
		eventually(t, func() bool { return redis.HasErrorPrefix(rdb.Ping(ctx).Err(), "BUSY") }, "BUSY")
		return ended
	}

	ended := busy()
	got, err := next.TryLock(ctx, 300*time.Millisecond, 0)
	require.False(t, got)
	require.ErrorContains(t, err, "BUSY")
	locked := async(func() error { return next.Lock(ctx) })
	unlocked := async(func() error { return l.Unlock(ctx) })
	time.Sleep(50 * time.Millisecond) // let them meet it
	require.NoError(t, rdb.ScriptKill(ctx).Err())
	require.Error(t, recv(t, ended, "the script"))
	require.NoError(t, recv(t, locked, "Lock"))
	require.NoError(t, recv(t, unlocked, "Unlock"))
	require.Zero(t, rdb.Exists(ctx, "held").Val())
	require.NoError(t, next.Unlock(ctx))
}

// TestCLU4_AReplicaGrantsNothing, and a master that became one loses nothing that
// it gets back in time.
func TestCLU4_AReplicaGrantsNothing(t *testing.T) {
	t.Parallel()
	s := redistest.StartServer(t)
	admin := s.Client(t)
	c := newClient(t, s.Client(t))
	l, next := c.NewLock("held"), c.NewLock("next")
	ctx := WithOwner(t.Context(), NewOwner())
	require.NoError(t, l.Lock(ctx))
	require.NoError(t, admin.ReplicaOf(ctx, "127.0.0.1", "1").Err())
	got, err := next.TryLock(ctx, 200*time.Millisecond, 0)
	require.False(t, got)
	require.ErrorContains(t, err, "READONLY")
	unlocked := async(func() error { return l.Unlock(ctx) })
	time.Sleep(20 * time.Millisecond)
	require.NoError(t, admin.ReplicaOf(ctx, "NO", "ONE").Err())
	require.NoError(t, recv(t, unlocked, "Unlock"))
	require.Zero(t, admin.Exists(ctx, "held").Val())
}

func TestServer_Loading(t *testing.T) {
	t.Parallel()
	c, p := onProxy(t)
	l := c.NewLock(unique("loading"))
	p.On(redistest.HasArg(l.Key()), redistest.Reply("-LOADING Redis is loading the dataset in memory\r\n")).Times(3)
	require.NoError(t, l.Lock(t.Context()), "it answers soon")
	require.NoError(t, l.Unlock(t.Context()))
	p.On(redistest.HasArg(l.Key()), redistest.Reply("-LOADING Redis is loading the dataset in memory\r\n")).Times(0)
	got, err := l.TryLock(t.Context(), 200*time.Millisecond, 0)
	require.False(t, got)
	require.ErrorContains(t, err, "LOADING")
	got, err = l.TryLock(t.Context(), 0, 0)
	require.False(t, got)
	require.ErrorContains(t, err, "LOADING")
	require.NotErrorIs(t, err, ErrUnsettled, "it did not run")
}

// TestREN13_FlushAllAndRestart: losses are told, waiters do not hang.
func TestREN13_FlushAllAndRestart(t *testing.T) {
	t.Parallel()
	s := redistest.StartServer(t)
	admin := s.Client(t)
	for name, harm := range map[string]func(){
		"FLUSHALL": func() { admin.FlushAll(context.Background()) },
		"restart":  func() { require.NoError(t, s.Restart()) },
	} {
		c := newClient(t, s.Client(t), WithWatchdogTimeout(time.Second))
		other := newClient(t, s.Client(t), WithRecheck(200*time.Millisecond))
		ctx := WithOwner(t.Context(), NewOwner())
		l := c.NewLock("a")
		require.NoError(t, l.Lock(ctx))
		lost := l.Lost(ctx)
		got := async(func() error { return other.NewLock("a").Lock(WithOwner(context.Background(), bystander)) })
		waitForWaiters(t, other, 1)
		harm()
		recv(t, lost, name)
		require.NoError(t, recv(t, got, "the waiter"), name)
		require.ErrorIs(t, l.Unlock(ctx), ErrLost)
		require.NoError(t, other.NewLock("a").Unlock(WithOwner(t.Context(), bystander)))
	}
}
