package redistest

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// impatient makes a client say at once that nobody answers.
func impatient(o *redis.Options) {
	o.MaxRetries = -1
	o.DialTimeout = 100 * time.Millisecond
	o.ReadTimeout = 100 * time.Millisecond
	o.ContextTimeoutEnabled = true
}

func TestServerStopContKillRestart(t *testing.T) {
	t.Parallel()
	s := StartServer(t)
	rdb := s.Client(t, impatient)
	ctx := t.Context()
	require.NoError(t, rdb.Set(ctx, "k", "v", 0).Err())

	require.NoError(t, s.Stop())
	require.Error(t, rdb.Ping(ctx).Err())
	require.NoError(t, s.Cont())
	require.Eventually(t, func() bool { return rdb.Get(ctx, "k").Val() == "v" }, 5*time.Second, time.Millisecond)

	s.Kill()
	require.Error(t, rdb.Ping(ctx).Err())
	require.ErrorIs(t, s.Stop(), os.ErrProcessDone)
	addr := s.Addr
	require.NoError(t, s.Restart())
	require.Equal(t, addr, s.Addr)
	require.Eventually(t, func() bool { return rdb.Ping(ctx).Err() == nil }, 5*time.Second, time.Millisecond)
	require.ErrorIs(t, rdb.Get(ctx, "k").Err(), redis.Nil, "it comes back empty")
}

func TestServerArgs(t *testing.T) {
	t.Parallel()
	s := StartServer(t, "--requirepass", "secret", "--maxmemory", "12mb")
	got, err := s.Client(t).ConfigGet(t.Context(), "maxmemory").Result()
	require.NoError(t, err)
	require.Equal(t, "12582912", got["maxmemory"])
	require.Error(t, s.Client(t, func(o *redis.Options) { o.Password = "" }).Ping(t.Context()).Err())
}

func TestServerSentinelAndCluster(t *testing.T) {
	t.Parallel()
	conf := filepath.Join(t.TempDir(), "sentinel.conf")
	require.NoError(t, os.WriteFile(conf, nil, 0o600))
	sentinel := StartServer(t, conf, "--sentinel")
	require.NoError(t, sentinel.Client(t).Ping(t.Context()).Err())
	node := StartServer(t, "--cluster-enabled", "yes")
	info, err := node.Client(t).ClusterInfo(t.Context()).Result()
	require.NoError(t, err)
	require.Contains(t, info, "cluster_state")
}

func TestServerThatCannotStart(t *testing.T) {
	t.Parallel()
	_, err := Start("--no-such-option", "1")
	if errors.Is(err, ErrNoServer) {
		t.Skip(err)
	}
	require.ErrorContains(t, err, "ended while starting")
}

func TestCountCommands(t *testing.T) {
	t.Parallel()
	s := StartServer(t)
	rdb := s.Client(t)
	ctx := t.Context()
	require.NoError(t, rdb.Ping(ctx).Err())
	count := CountCommands(t, rdb)
	require.Empty(t, count())
	require.NoError(t, rdb.Set(ctx, "k", "v", 0).Err())
	require.NoError(t, rdb.Eval(ctx, "return redis.call('get', KEYS[1])", []string{"k"}).Err())
	require.NoError(t, rdb.ClientID(ctx).Err())
	require.Equal(t, map[string]int{"set": 1, "eval": 1, "get": 1, "client|id": 1}, count())
}
