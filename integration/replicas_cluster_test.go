package integration

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/redistest"
	"github.com/relock-go/relock/rlock"
)

// On a cluster with replicas the WAIT goes to the server that has the key, also where the
// client was wrong about which that is.
func TestReplicas_Cluster(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(context.Background(), 3*faultLimit)
	defer cancel()
	ctx = rlock.WithOwner(ctx, alice)
	cluster := redistest.StartCluster(t, 3, 1, "--cluster-node-timeout", patience)
	rdb := cluster.Client(t)
	c := lockClient(t, rdb, rlock.WithReplicaAcks(1, ackTimeout), rlock.WithRecheck(time.Hour))

	// at is whether a server has the key itself.
	at := func(s *redistest.Server, key string) bool {
		keys, err := s.Client(t).Keys(ctx, "*"+key+"*").Result()
		require.NoError(t, err)
		return len(keys) > 0
	}
	servers := map[string]bool{}
	for i := range 12 {
		for _, kind := range eachMember {
			l := members[kind](familyOf(c, fmt.Sprintf("%s%d", kind, i)))
			require.NoError(t, l.Lock(ctx), l.Name())
			master := cluster.Master(l.Key())
			servers[master.Addr] = true
			require.True(t, at(cluster.Replica(master), l.Key()), "%s is at the replica", l.Name())
			require.NoError(t, l.Unlock(ctx))
		}
	}
	require.Len(t, servers, 3, "all masters had some")

	t.Run("a replica is stopped", func(t *testing.T) {
		master := cluster.Nodes[0]
		replica := cluster.Replica(master)
		var locks []*rlock.Lock
		few, there := 0, map[string]bool{}
		for i := range 12 {
			l := c.NewLock(fmt.Sprintf("stopped%d", i))
			locks = append(locks, l)
			there[l.Key()] = cluster.Master(l.Key()) == master // asks all of them, so before one is silent
		}
		require.NoError(t, replica.Stop())
		for _, l := range locks {
			err := l.Lock(ctx)
			if there[l.Key()] {
				few++
				require.ErrorIs(t, err, rlock.ErrReplicas)
				require.Eventually(t, func() bool { return rdb.Exists(ctx, l.Key()).Val() == 0 }, soon, time.Millisecond)
				continue
			}
			require.NoError(t, err, "the other masters have theirs")
			require.NoError(t, l.Unlock(ctx))
		}
		require.NotZero(t, few)
		require.NoError(t, replica.Cont())
	})

	for _, kind := range []string{"lock", "fair", "fenced", "read", "write"} {
		t.Run("MOVED/"+kind, func(t *testing.T) {
			l := members[kind](familyOf(c, "moved"+kind))
			// It knows where the slot was.
			require.NoError(t, l.Lock(ctx))
			require.NoError(t, l.Unlock(ctx))
			from := cluster.Master(l.Key())
			to := cluster.Nodes[0]
			if to == from {
				to = cluster.Nodes[1]
			}
			cluster.Migrate(t, cluster.Slot(l.Key()), to)
			require.NoError(t, l.Lock(ctx), "it follows")
			require.True(t, at(cluster.Replica(to), l.Key()), "it is at the new master's replica")
			n, err := l.HoldCount(ctx)
			require.NoError(t, err)
			require.Equal(t, 1, n)
			require.NoError(t, l.Unlock(ctx))
			require.Zero(t, rdb.Exists(ctx, l.Key()).Val())
		})
		if kind == "fair" || kind == "fenced" {
			continue // they name several keys: TRYAGAIN for as long as the slot migrates
		}
		t.Run("ASK/"+kind, func(t *testing.T) {
			l := members[kind](familyOf(c, "ask"+kind))
			from := cluster.Master(l.Key())
			to := cluster.Nodes[0]
			if to == from {
				to = cluster.Nodes[1]
			}
			m := cluster.StartMigration(t, cluster.Slot(l.Key()), to)
			require.NoError(t, l.Lock(ctx), "what is not there is asked for at the other master")
			require.True(t, at(to, l.Key()), "there it is")
			require.True(t, at(cluster.Replica(to), l.Key()), "and at that one's replica")
			require.NoError(t, l.Unlock(ctx))
			m.Finish()
			require.Zero(t, rdb.Exists(ctx, l.Key()).Val())
		})
	}
}

// Behind Sentinel the WAIT goes to the master of the moment.
func TestReplicas_Failover(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(context.Background(), 3*faultLimit)
	defer cancel()
	ctx = rlock.WithOwner(ctx, alice)
	s := redistest.StartSentinel(t)
	c := lockClient(t, s.Client(t), rlock.WithReplicaAcks(1, ackTimeout))
	l := c.NewLock("acked")
	require.NoError(t, l.Lock(ctx))
	require.NoError(t, l.Unlock(ctx))
	old := s.Master()
	s.Failover(t)
	next := s.WaitMaster(t, old)
	replicated(t, next) // the old one follows it
	var errs atomic.Int64
	require.NoError(t, result(t, faultLimit, insist(ctx, l, &errs), "the lock, at the new master"))
	require.EqualValues(t, 1, next.Client(t).Exists(ctx, l.Key()).Val())
	require.EqualValues(t, 1, old.Client(t).Exists(ctx, l.Key()).Val(), "its replica has it")
	require.NoError(t, l.Unlock(ctx))

	// Without a replica nothing is granted.
	old.Kill()
	require.ErrorIs(t, l.Lock(ctx), rlock.ErrReplicas)
	require.Eventually(t, func() bool { return next.Client(t).Exists(ctx, l.Key()).Val() == 0 }, soon, time.Millisecond)
}
