package integration

import (
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/redistest"
	"github.com/relock-go/relock/internal/script"
	"github.com/relock-go/relock/rlock"
)

// TestCluster_Names: the key and the channel of a lock lie in one slot, or the
// name is refused before anything is sent. The cluster says what lies where:
// CLU-2.
func TestCluster_Names(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t, 3, 0)
	rdb := cluster.Client(t)
	c := lockClient(t, rdb)
	ctx := context.Background()
	slot := func(key string) int64 {
		n, err := rdb.ClusterKeySlot(ctx, key).Result()
		require.NoError(t, err)
		return n
	}
	fine := 0
	names := []string{
		"a", "{a}b", "a{}b", "}{", "plain", "orders:17", "a{tag}b", "{a}b}", "x{{y}}", "a{b", "}x{y", "{a", "{}", "x}y",
		"a}", "{{}", "{}{a}", "a{b}{c}", "{a}{", " ", "ä{ö}ü", "}{a}", "{a b}", "a:{b:c}:d", "{", "}", "{{", "}}", "{}}", "{}a{b}",
	}
	for _, name := range names {
		l := c.NewLock(name)
		sent := c.Stats().Scripts
		err := l.Lock(ctx)
		if slot(l.Key()) != slot(script.Channel(l.Key())) {
			require.ErrorIs(t, err, rlock.ErrInvalidName, name)
			require.ErrorContains(t, err, "hash tag")
			require.ErrorIs(t, l.Unlock(ctx), rlock.ErrInvalidName, name)
			_, err = l.IsLocked(ctx)
			require.ErrorIs(t, err, rlock.ErrInvalidName, name)
			require.Equal(t, sent, c.Stats().Scripts, name)
			continue
		}
		fine++
		require.NoError(t, err, name)
		require.NoError(t, l.Lock(ctx), name)
		waiting := inBackground(func() error { return l.LockLease(rlock.WithOwner(ctx, bob), time.Minute) })
		require.Eventually(t, func() bool { return c.Stats().Waiting == 1 }, faultLimit, time.Millisecond)
		require.NoError(t, l.Unlock(ctx), name)
		require.NoError(t, l.Unlock(ctx), name)
		require.NoError(t, result(t, soon, waiting, "bob"), name)
		require.NoError(t, l.Unlock(rlock.WithOwner(ctx, bob)), name)
		n, err := rdb.Exists(ctx, l.Key()).Result()
		require.NoError(t, err)
		require.Zero(t, n, name)
	}
	require.Equal(t, 15, fine)

	// What counts is the key, not the name.
	mapped := lockClient(t, rdb, rlock.WithNameMapper(func(name string) string { return "{app}:" + name }))
	l := mapped.NewLock("a{b")
	require.NoError(t, l.Lock(ctx))
	require.NoError(t, l.Unlock(ctx))
	torn := lockClient(t, rdb, rlock.WithNameMapper(func(name string) string { return "{}" + name }))
	require.ErrorIs(t, torn.NewLock("fine").Lock(ctx), rlock.ErrInvalidName)

	// One server does not mind.
	single := lockClient(t, redis.UniversalClient(Redis(t).Client(t)))
	l = single.NewLock("a{b" + name(t))
	require.NoError(t, l.Lock(ctx))
	require.NoError(t, l.Unlock(ctx))
}

// TestCluster_SlotThatNobodyServes is an error that says so, and soon.
func TestCluster_SlotThatNobodyServes(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t, 3, 0, "--cluster-require-full-coverage", "no")
	rdb := cluster.Client(t)
	c := lockClient(t, rdb)
	ctx := context.Background()
	l := c.NewLock("orphan")
	owner := cluster.Master("orphan")
	for _, node := range cluster.Nodes {
		require.NoError(t, node.Client(t).ClusterDelSlots(ctx, cluster.Slot("orphan")).Err())
	}
	_, err := l.TryLock(ctx, 0, 0)
	require.ErrorContains(t, err, "CLUSTERDOWN")
	require.NotErrorIs(t, err, rlock.ErrUnsettled, "nothing ran")
	began := time.Now()
	require.ErrorContains(t, l.Lock(ctx), "CLUSTERDOWN")
	require.Less(t, time.Since(began), soon)
	other := "other"
	for i := byte('a'); cluster.Master(other) != owner || cluster.Slot(other) == cluster.Slot("orphan"); i++ {
		other = "other" + string(i)
	}
	require.NoError(t, c.NewLock(other).Lock(ctx), "the node's other slots are served")
	require.NoError(t, c.NewLock(other).Unlock(ctx))

	// When somebody does again, the same client locks.
	require.NoError(t, owner.Client(t).ClusterAddSlots(ctx, cluster.Slot("orphan")).Err())
	require.NoError(t, l.Lock(ctx))
	require.NoError(t, l.Unlock(ctx))
}
