package redistest

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

func TestClusterMigrate(t *testing.T) {
	t.Parallel()
	began := time.Now()
	c := StartCluster(t, 3, 0)
	t.Logf("started in %v", time.Since(began))
	ctx := t.Context()
	rdb := c.Client(t)
	for i := range 20 {
		key := fmt.Sprintf("key%d{%d}x", i, i)
		require.NoError(t, rdb.Set(ctx, key, i, 0).Err())
		at := c.Master(key)
		require.EqualValues(t, 1, at.Client(t).Exists(ctx, key).Val())
		slot, err := at.Client(t).ClusterKeySlot(ctx, key).Result()
		require.NoError(t, err)
		require.EqualValues(t, slot, c.Slot(key))
	}

	const k1, k2 = "a{moved}", "b{moved}"
	require.NoError(t, rdb.MSet(ctx, k1, "1", k2, "2").Err())
	slot := c.Slot(k1)
	from := c.Master(k1)
	to := c.Nodes[0]
	if to == from {
		to = c.Nodes[1]
	}
	m := c.StartMigration(t, slot, to)
	m.MoveKeys()
	require.Same(t, from, c.Master(k1), "it is not given away yet")
	require.ErrorContains(t, from.Client(t).Get(ctx, k1).Err(), "ASK ")
	require.Equal(t, "1", rdb.Get(ctx, k1).Val())
	require.NoError(t, rdb.Set(ctx, "c{moved}", "3", 0).Err())
	m.Finish()
	require.Same(t, to, c.Master(k1))
	require.ErrorContains(t, from.Client(t).Get(ctx, k1).Err(), "MOVED ")
	require.Equal(t, []any{"1", "2", "3"}, rdb.MGet(ctx, k1, k2, "c{moved}").Val())

	c.Migrate(t, slot, from)
	require.Same(t, from, c.Master(k1))
	require.Equal(t, "2", rdb.Get(ctx, k2).Val())

	require.NoError(t, c.Restart(from))
	require.Same(t, from, c.Master(k1))
	require.Eventually(t, func() bool { return rdb.Get(ctx, k1).Err() == redis.Nil }, 5*time.Second, 10*time.Millisecond)
}

func TestClusterFailover(t *testing.T) {
	t.Parallel()
	began := time.Now()
	c := StartCluster(t, 3, 1, "--cluster-node-timeout", "1000")
	t.Logf("started in %v", time.Since(began))
	ctx := t.Context()
	// Without an answer that tells it of the failover, the client asks who serves
	// what only at this interval.
	rdb := c.Client(t, func(o *redis.ClusterOptions) { o.ClusterStateReloadInterval = 100 * time.Millisecond })
	require.NoError(t, rdb.Set(ctx, "k", "v", 0).Err())
	first := c.Master("k")
	second := c.Replica(first)
	require.NotNil(t, second)

	began = time.Now()
	c.Failover(t, second)
	t.Logf("failover in %v", time.Since(began))
	require.Same(t, second, c.Master("k"))
	require.Same(t, first, c.Replica(second))
	require.Equal(t, "v", rdb.Get(ctx, "k").Val())

	began = time.Now()
	second.Kill()
	require.Same(t, first, c.WaitMaster(t, "k", second))
	t.Logf("another one in %v", time.Since(began))
	require.Eventually(t, func() bool { return rdb.Get(ctx, "k").Val() == "v" }, 5*time.Second, 10*time.Millisecond)
	require.NoError(t, c.Restart(second))
	require.Eventually(t, func() bool { return c.Replica(first) == second }, 5*time.Second, 10*time.Millisecond)
}

func TestClusterProxies(t *testing.T) {
	t.Parallel()
	c := StartCluster(t, 3, 0)
	ps := c.Proxies(t)
	ctx := t.Context()
	rdb := c.Client(t, func(o *redis.ClusterOptions) {
		o.Dialer = ps.Dialer()
		o.ReadTimeout = 200 * time.Millisecond
	})
	for i := range 10 {
		key := fmt.Sprint("k", i)
		p := ps.For(c.Master(key).Addr)
		lost := p.On(And(Command("incr"), HasArg(key)), LoseReplyAndClose)
		require.NoError(t, rdb.Incr(ctx, key).Err())
		require.Equal(t, 1, lost.Count())
		require.Equal(t, "2", c.Client(t).Get(ctx, key).Val(), "it was sent twice")
	}
	_, err := ps.Dialer()(context.Background(), "tcp", "127.0.0.1:1")
	require.ErrorContains(t, err, "no proxy")
}
