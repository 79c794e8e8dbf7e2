package rlock

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/redistest"
)

// threeNodes is a cluster of which nobody takes a silent node for dead, the node that
// the tests stop, and a name at that and at another one.
func threeNodes(t *testing.T) (cluster *redistest.Cluster, hung *redistest.Server, bad, good string) {
	t.Helper()
	cluster = redistest.StartCluster(t, 3, 0, "--cluster-node-timeout", "60000")
	hung = cluster.Nodes[0]
	for i := 0; bad == "" || good == ""; i++ {
		if name := fmt.Sprintf("name%d", i); cluster.Master(name) == hung {
			bad = name
		} else {
			good = name
		}
	}
	return cluster, hung, bad, good
}

// primed is a client for which go-redis has asked, of a node that is well, what it
// asks once.
func primed(t *testing.T, cluster *redistest.Cluster, good string, opts ...func(*redis.ClusterOptions)) *redis.ClusterClient {
	t.Helper()
	rdb := cluster.Client(t, append(opts, func(o *redis.ClusterOptions) { o.Addrs = []string{cluster.Nodes[1].Addr} })...)
	require.NoError(t, rdb.Eval(t.Context(), "return 1", []string{good}).Err())
	return rdb
}

func stop(t *testing.T, s *redistest.Server) {
	t.Helper()
	require.NoError(t, s.Stop())
	t.Cleanup(func() { _ = s.Cont() })
}

// homes is the server of each lock.
func homes(t *testing.T, rdb *redis.ClusterClient, locks []*Lock) []string {
	t.Helper()
	addrs := make([]string, len(locks))
	for i, l := range locks {
		node, err := rdb.MasterForKey(t.Context(), l.Key())
		require.NoError(t, err)
		addrs[i] = node.Options().Addr
	}
	return addrs
}

// manyHolds takes n locks on all nodes.
func manyHolds(ctx context.Context, t *testing.T, c *Client, n int) []*Lock {
	t.Helper()
	locks := make([]*Lock, n)
	var all sync.WaitGroup
	for g := range 16 {
		all.Go(func() {
			for i := g; i < n; i += 16 {
				locks[i] = c.NewLock(fmt.Sprintf("many:%d", i))
				if err := locks[i].Lock(ctx); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	return locks
}

// TestNodes_HungOneTakesNoOthersAlong: so many holds that their renewals fill every
// batch of the watchdog go on at the nodes that are well.
func TestNodes_HungOneTakesNoOthersAlong(t *testing.T) {
	t.Parallel()
	const watchdog = 6 * time.Second
	cluster, hung, _, good := threeNodes(t)
	rdb := primed(t, cluster, good, func(o *redis.ClusterOptions) { o.ReadTimeout = watchdog })
	c := newClient(t, rdb, WithWatchdogTimeout(watchdog))
	ctx := WithOwner(t.Context(), "mine")
	locks := manyHolds(ctx, t, c, 4000)
	at := map[bool][]*Lock{} // by whether their node hangs
	for i, addr := range homes(t, rdb, locks) {
		at[addr == hung.Addr] = append(at[addr == hung.Addr], locks[i])
	}
	stop(t, hung)
	before := c.Stats()
	// Three periods: by then whoever is not renewed is lost.
	eventually(t, func() bool {
		now := c.Stats()
		return now.Lost >= uint64(len(at[true])) && now.Renewals >= before.Renewals+3*uint64(len(at[false]))
	}, "the others are renewed")
	require.EqualValues(t, len(at[true]), c.Stats().Lost)
	for _, l := range at[true] {
		require.Zero(t, l.Validity(ctx), "told in time")
	}
	for _, l := range at[false] {
		require.Positive(t, l.Validity(ctx), "at a node that is well")
	}
}

// TestNodes_CloseReleasesWhatItCan while one node does not answer.
func TestNodes_CloseReleasesWhatItCan(t *testing.T) {
	t.Parallel()
	cluster, hung, _, good := threeNodes(t)
	rdb := primed(t, cluster, good)
	c, err := New(rdb)
	require.NoError(t, err)
	locks := manyHolds(WithOwner(t.Context(), "mine"), t, c, 600)
	addrs := homes(t, rdb, locks)
	stop(t, hung)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	require.ErrorContains(t, c.Close(ctx), "not released")
	for i, l := range locks {
		if addrs[i] != hung.Addr {
			n, err := rdb.Exists(t.Context(), l.Key()).Result()
			require.NoError(t, err)
			require.Zero(t, n, "%s could have been deleted", l.Key())
		}
	}
}

// TestNodes_QuestionAtAHungOne: whether channels are sharded is asked of the node
// of whichever name comes first. Others find it out by themselves.
func TestNodes_QuestionAtAHungOne(t *testing.T) {
	t.Parallel()
	cluster, hung, bad, good := threeNodes(t)
	theirs := newClient(t, primed(t, cluster, good)).NewLock(good)
	their := WithOwner(t.Context(), "theirs")
	require.NoError(t, theirs.LockLease(their, time.Hour))
	waits := make(chan struct{})
	c := newClient(t, primed(t, cluster, good), WithRecheck(time.Hour), WithTrace(&Trace{Waiting: func(lock string, _ Owner) {
		if lock == good {
			close(waits)
		}
	}}))
	stop(t, hung)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	for range 2 * mostEager { // who try for what the hung one has
		go func() { _ = c.NewLock(bad).Lock(WithOwner(ctx, NewOwner())) }()
	}
	eventually(t, func() bool {
		c.sharded.mu.Lock()
		defer c.sharded.mu.Unlock()
		return c.sharded.eager == mostEager
	}, "the hung one is asked")
	l := c.NewLock(good)
	got := async(func() error { return l.Lock(WithOwner(t.Context(), "mine")) })
	eventually(t, c.sharded.settled, "another node was asked")
	recv(t, waits, "it waits")
	require.NoError(t, theirs.Unlock(their))
	require.NoError(t, recv(t, got, "the waiter is told"))
}

// TestNodes_ForcedErrorOfAnother: that one node cannot be asked is no error for a
// lock at another.
func TestNodes_ForcedErrorOfAnother(t *testing.T) {
	t.Parallel()
	cluster, hung, bad, good := threeNodes(t)
	c := newClient(t, primed(t, cluster, good), WithShardedPubSub(true))
	stop(t, hung)
	go func() { _ = c.NewLock(bad).Lock(WithOwner(context.Background(), "other")) }()
	ctx, cancel := context.WithTimeout(WithOwner(t.Context(), "mine"), 2*time.Second)
	defer cancel()
	require.NoError(t, c.NewLock(good).Lock(ctx))
}

// TestNodes_DemotedOneThatAnswersReaders: connections that may read from replicas are
// not redirected by a master that is one now. Its refusals lead to the new one: CLU-4.
func TestNodes_DemotedOneThatAnswersReaders(t *testing.T) {
	t.Parallel()
	for name, opt := range map[string]func(*redis.ClusterOptions){
		"read only": func(o *redis.ClusterOptions) { o.ReadOnly = true },
		// RouteByLatency, too; but there go-redis 9.23 races with itself.
		"any": func(o *redis.ClusterOptions) { o.RouteRandomly = true },
	} {
		t.Run(name, func(t *testing.T) {
			cluster := redistest.StartCluster(t, 3, 1)
			c := newClient(t, cluster.Client(t, opt), WithWatchdogTimeout(3*time.Second))
			l, ctx := c.NewLock("held"), WithOwner(t.Context(), "mine")
			require.NoError(t, l.Lock(ctx))
			_, err := cluster.Master("held").Client(t).Wait(t.Context(), 1, 5*time.Second).Result()
			require.NoError(t, err)
			cluster.Failover(t, cluster.Replica(cluster.Master("held")))
			renewals := c.Stats().Renewals
			eventually(t, func() bool { return c.Stats().Renewals > renewals+3 || c.Stats().Lost > 0 }, "renewals go on")
			require.Positive(t, l.Validity(ctx))
			require.NoError(t, l.Unlock(ctx))
		})
	}
}
