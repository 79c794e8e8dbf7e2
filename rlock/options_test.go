package rlock

import (
	"bytes"
	"context"
	"log/slog"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/redistest"
)

// nowhere is a client of a server that nobody may ask.
func nowhere(t *testing.T) *redis.Client { return redistest.NewClient(t, "127.0.0.1:1") }

func TestNew_RefusesWhatIsOutOfRange(t *testing.T) {
	t.Parallel()
	rdb := nowhere(t)
	for _, tc := range []struct {
		name string
		bad  []Option
		good []Option
	}{
		{
			"WithID",
			[]Option{WithID(""), WithID("a b"), WithID("a:b"), WithID("ä"), WithID(strings.Repeat("x", 129))},
			[]Option{WithID("x"), WithID("A-z_0.9"), WithID(strings.Repeat("x", 128))},
		},
		{
			"WithWatchdogTimeout",
			[]Option{WithWatchdogTimeout(0), WithWatchdogTimeout(-1), WithWatchdogTimeout(100*time.Millisecond - 1), WithWatchdogTimeout(longestLease + 1), WithWatchdogTimeout(math.MaxInt64)},
			[]Option{WithWatchdogTimeout(100 * time.Millisecond), WithWatchdogTimeout(longestLease)},
		},
		{"WithNameMapper", []Option{WithNameMapper(nil)}, []Option{WithNameMapper(strings.ToUpper)}},
		{
			"WithHandoffLimit",
			[]Option{WithHandoffLimit(-1, time.Second), WithHandoffLimit(1_000_001, time.Second), WithHandoffLimit(1, 0), WithHandoffLimit(1, -1), WithHandoffLimit(1, time.Hour+1)},
			[]Option{WithHandoffLimit(0, 0), WithHandoffLimit(0, time.Hour), WithHandoffLimit(1_000_000, time.Hour), WithHandoffLimit(1, 1)},
		},
		{
			"WithRecheck",
			[]Option{WithRecheck(0), WithRecheck(-1), WithRecheck(10*time.Millisecond - 1), WithRecheck(time.Hour + 1)},
			[]Option{WithRecheck(10 * time.Millisecond), WithRecheck(time.Hour)},
		},
		{
			"WithReleaseTimeout",
			[]Option{WithReleaseTimeout(0), WithReleaseTimeout(-1), WithReleaseTimeout(10*time.Millisecond - 1), WithReleaseTimeout(time.Hour + 1)},
			[]Option{WithReleaseTimeout(10 * time.Millisecond), WithReleaseTimeout(time.Hour)},
		},
		{"WithLogger", []Option{WithLogger(nil)}, nil},
		{"WithTrace", []Option{WithTrace(nil)}, []Option{WithTrace(&Trace{})}},
	} {
		for i, o := range tc.bad {
			c, err := New(rdb, o)
			require.Nil(t, c)
			require.ErrorContains(t, err, tc.name, "bad %d", i)
		}
		for i, o := range tc.good {
			c, err := New(rdb, o)
			require.NoError(t, err, "%s, good %d", tc.name, i)
			require.NoError(t, c.Close(t.Context()))
		}
	}
	_, err := New(rdb, nil)
	require.ErrorContains(t, err, "option")
}

func TestNew_RefusesWhatIsNoClient(t *testing.T) {
	t.Parallel()
	_, err := New(nil)
	require.ErrorContains(t, err, "nil")
	var none *redis.Client
	_, err = New(none)
	require.ErrorContains(t, err, "nil")
	var cluster *redis.ClusterClient
	_, err = New(cluster)
	require.ErrorContains(t, err, "nil")
}

func TestNew_Ring(t *testing.T) {
	t.Parallel()
	ring := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"a": "127.0.0.1:1"}})
	defer ring.Close()
	var log bytes.Buffer
	c, err := New(ring, WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
	require.NoError(t, err)
	require.Contains(t, log.String(), "Ring", "the danger is told")
	require.NoError(t, c.Close(t.Context()))

	_, err = New(ring, WithAutoPipeline())
	require.ErrorContains(t, err, "WithAutoPipeline")
}

func TestNew_SendsNothing(t *testing.T) {
	t.Parallel()
	look(t)
	p := redistest.NewProxy(t, shared.server.Addr)
	c, err := New(redistest.NewClient(t, p.Addr))
	require.NoError(t, err)
	l := c.NewLock(unique("quiet"), NonReentrant(), WithMaxHold(time.Second))
	require.Zero(t, l.Validity(t.Context()))
	_ = l.Lost(t.Context())
	require.NoError(t, c.Close(t.Context()))
	require.Empty(t, p.Counts())
}

func TestOWN5_ClientIDs(t *testing.T) {
	t.Parallel()
	rdb := nowhere(t)
	seen := map[string]bool{}
	for range 100 {
		c, err := New(rdb)
		require.NoError(t, err)
		_, err = uuid.Parse(c.ID())
		require.NoError(t, err)
		require.False(t, seen[c.ID()])
		seen[c.ID()] = true
	}
	c, err := New(rdb, WithID("mine"))
	require.NoError(t, err)
	require.Equal(t, "mine", c.ID())
}

func TestLockOptions_AreReportedByTheFirstOperation(t *testing.T) {
	t.Parallel()
	c, p := onProxy(t)
	for name, o := range map[string]LockOption{
		"WithMaxHold(0s)": WithMaxHold(0), "WithMaxHold(-1ns)": WithMaxHold(-1),
		"WithMaxHold(999µs)": WithMaxHold(999 * time.Microsecond), "WithMaxHold(87600": WithMaxHold(longestLease + 1),
		"LockOption is nil": nil,
	} {
		l := c.NewLock(unique("option"), o)
		for op, f := range operations(l) {
			require.ErrorContains(t, f(t.Context()), name, op)
		}
		require.Zero(t, l.Validity(t.Context()))
		require.True(t, isClosed(l.Lost(t.Context())))
	}
	require.Empty(t, p.Counts(), "nothing is sent")
}

func TestLock_NameKeyClient(t *testing.T) {
	t.Parallel()
	rdb := nowhere(t)
	c, err := New(rdb, WithNameMapper(func(s string) string { return "prefix:" + s }))
	require.NoError(t, err)
	l := c.NewLock("orders")
	require.Equal(t, "orders", l.Name())
	require.Equal(t, "prefix:orders", l.Key())
	require.Same(t, c, l.Client())
}

func TestNames_BadOnesAreReportedByTheFirstOperation(t *testing.T) {
	t.Parallel()
	mapper := func(s string) string {
		switch {
		case s == "to nothing":
			return ""
		case s == "to much":
			return strings.Repeat("x", 1025)
		}
		return s
	}
	c, p := onProxy(t, WithNameMapper(mapper))
	for _, name := range []string{"", strings.Repeat("x", 1025), strings.Repeat("ä", 513), "to nothing", "to much"} {
		l := c.NewLock(name)
		for op, f := range operations(l) {
			err := f(t.Context())
			require.ErrorIs(t, err, ErrInvalidName, op)
			var e *Error
			require.ErrorAs(t, err, &e)
			require.Equal(t, name, e.Lock)
		}
		require.Zero(t, l.Validity(t.Context()))
		require.True(t, isClosed(l.Lost(t.Context())))
	}
	require.Empty(t, p.Counts(), "nothing is sent")
}

func TestNames_TheLongestAndTheStrange(t *testing.T) {
	t.Parallel()
	c := onShared(t)
	long := unique("long")
	for _, name := range []string{long + strings.Repeat("x", 1024-len(long)), unique("\x00\n\"'"), unique("{}"), unique("}{")} {
		l := c.NewLock(name)
		told := messages1(t, name)
		require.NoError(t, l.Lock(t.Context()))
		require.True(t, exists(t, name))
		require.NoError(t, l.Unlock(t.Context()))
		free(t, name)
		require.Equal(t, "0", told())
	}
}

// messages1 waits for one message on the channel of a name that may have braces.
func messages1(t *testing.T, key string) func() string {
	t.Helper()
	channel := "redisson_lock__channel:{" + key + "}"
	if strings.Contains(key, "{") {
		channel = "redisson_lock__channel:" + key
	}
	sub := look(t).Subscribe(context.Background(), channel)
	t.Cleanup(func() { _ = sub.Close() })
	_, err := sub.Receive(context.Background())
	require.NoError(t, err)
	return func() string {
		m, err := sub.ReceiveMessage(context.Background())
		require.NoError(t, err)
		return m.Payload
	}
}

// TestNameMapper_TwoNamesToOneKey are one lock.
func TestNameMapper_TwoNamesToOneKey(t *testing.T) {
	t.Parallel()
	key := unique("one")
	c := onShared(t, WithNameMapper(func(string) string { return key }))
	a, b := c.NewLock("a"), c.NewLock("b")
	mine, other := WithOwner(t.Context(), "mine"), WithOwner(t.Context(), "other")
	require.NoError(t, a.Lock(mine))
	require.NoError(t, b.Lock(mine), "a re-entry")
	require.Equal(t, map[string]string{c.ID() + ":mine": "2"}, fields(t, key))
	got, err := b.TryLock(other, 0, 0)
	require.NoError(t, err)
	require.False(t, got)
	require.NoError(t, a.Unlock(mine))
	require.NotZero(t, a.Validity(mine))
	require.NoError(t, a.Unlock(mine))
	free(t, key)
}
