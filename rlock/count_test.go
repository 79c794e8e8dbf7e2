package rlock

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/redistest"
)

func TestCount_UncontendedIsTwoCalls(t *testing.T) {
	t.Parallel()
	c, p := onProxy(t)
	ctx := t.Context()
	l := c.NewLock(unique("count"))
	for i := 1; i <= 3; i++ {
		require.NoError(t, l.Lock(ctx))
		require.NoError(t, l.Unlock(ctx))
		require.Equal(t, map[string]int{"evalsha": 2 * i}, p.Counts(), "and no SUBSCRIBE")
	}
}

func TestCount_ReentryIsTwoCalls(t *testing.T) {
	t.Parallel()
	c, p := onProxy(t)
	ctx := t.Context()
	l := c.NewLock(unique("count"))
	require.NoError(t, l.Lock(ctx))
	p.ResetCounts()
	require.NoError(t, l.Lock(ctx))
	require.NoError(t, l.Unlock(ctx))
	require.Equal(t, map[string]int{"evalsha": 2}, p.Counts())
	require.NoError(t, l.Unlock(ctx))
}

func TestCount_ValidityAndLostAskNobody(t *testing.T) {
	t.Parallel()
	c, p := onProxy(t)
	ctx := t.Context()
	l := c.NewLock(unique("count"))
	require.Zero(t, l.Validity(ctx))
	require.True(t, isClosed(l.Lost(ctx)))
	require.NoError(t, l.Lock(ctx))
	p.ResetCounts()
	require.NotZero(t, l.Validity(ctx))
	require.False(t, isClosed(l.Lost(ctx)))
	require.Empty(t, p.Counts())
	require.NoError(t, l.Unlock(ctx))
}

func TestCount_ARefusedTryLockIsOneCall(t *testing.T) {
	t.Parallel()
	c, p := onProxy(t)
	l := c.NewLock(unique("count"))
	occupy(t, l.Key(), time.Minute)
	for i := 1; i <= 3; i++ {
		got, err := l.TryLock(t.Context(), 0, 0)
		require.NoError(t, err)
		require.False(t, got)
		require.Equal(t, map[string]int{"evalsha": i}, p.Counts())
	}
}

// TestCount_AWaiterAsksTwice: once before it subscribes, once when that is
// confirmed. It sleeps then.
func TestCount_AWaiterAsksTwice(t *testing.T) {
	t.Parallel()
	c, p := onProxy(t)
	l := c.NewLock(unique("count"))
	occupy(t, l.Key(), time.Minute)
	got, err := l.TryLock(t.Context(), 500*time.Millisecond, 0)
	require.NoError(t, err)
	require.False(t, got)
	counts := p.Counts()
	require.Equal(t, 2, counts["evalsha"])
	require.Equal(t, 1, counts["subscribe"])
}

// TestCount_HandoverIsOneCall: the waiter does not ask before its subscription
// stands, as it knows the holder, and once then. The hand-over is the Unlock's call.
func TestCount_HandoverIsOneCall(t *testing.T) {
	t.Parallel()
	c, p := onProxy(t, WithHandoffLimit(64, time.Hour))
	ctx := t.Context()
	other := WithOwner(ctx, bystander)
	for i := 1; i <= 2; i++ { // the first one loads the script
		l := c.NewLock(unique("count"))
		require.NoError(t, l.Lock(ctx))
		p.ResetCounts()
		got := async(func() error { return l.Lock(other) })
		eventually(t, func() bool { return p.CountCommand("evalsha") == 1 && c.Stats().Waiting == 1 }, "the second look")
		p.ResetCounts()
		require.NoError(t, l.Unlock(ctx))
		require.NoError(t, recv(t, got, "the lock"))
		if i == 2 {
			require.Equal(t, map[string]int{"evalsha": 1}, p.Counts())
		}
		require.EqualValues(t, i, c.Stats().HandedOff)
		require.NoError(t, l.Unlock(other))
	}
}

func TestACQ13_ScriptFlush(t *testing.T) {
	t.Parallel()
	s := redistest.StartServer(t)
	rdb := s.Client(t)
	renewed := make(chan struct{}, 100)
	c, p := throughProxy(t, redistest.NewProxy(t, s.Addr), WithWatchdogTimeout(3*time.Second),
		WithTrace(&Trace{Renewed: func(string, Owner, time.Duration) { renewed <- struct{}{} }}))
	ctx := t.Context()
	l := c.NewLock("a")
	flush := func() {
		t.Helper()
		require.NoError(t, rdb.ScriptFlush(ctx).Err())
		p.ResetCounts()
	}

	flush()
	require.NoError(t, l.Lock(ctx))
	require.Equal(t, map[string]int{"evalsha": 1, "eval": 1}, p.Counts())
	flush()
	recv(t, renewed, "a renewal without its script")
	recv(t, renewed, "a renewal")
	flush()
	require.NoError(t, l.Lock(ctx))
	require.Equal(t, "2", rdb.HGet(ctx, "a", c.ID()+":"+goroutineID()).Val())
	flush()
	require.NoError(t, l.Extend(ctx, time.Minute))
	flush()
	require.NoError(t, l.Unlock(ctx))
	flush()
	require.NoError(t, l.Unlock(ctx))
	require.Equal(t, map[string]int{"evalsha": 1, "eval": 1}, p.Counts())
	require.Zero(t, rdb.Exists(ctx, "a").Val())
	require.Zero(t, c.Stats().RenewFailures)
}
