package integration

import (
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/redistest"
)

// Two processes increment one counter on each deployment, with each client of
// go-redis, and with clients that differ.
func TestCounterEverywhere(t *testing.T) {
	t.Parallel()
	single := func(t *testing.T) []string { return []string{Redis(t).Addr} }
	cluster := func(t *testing.T) []string { return deploy(t, false, &sharedCluster, startCluster).Addrs() }
	servers := func(t *testing.T) []string { return deploy(t, false, &sharedPlain, startPlain).addrs() }
	sentinels := func(t *testing.T) (addrs []string) {
		for _, s := range deploy(t, false, &sharedSentinel, startSentinel).Sentinels {
			addrs = append(addrs, s.Addr)
		}
		return addrs
	}
	for _, c := range []struct {
		name      string
		addrs     func(t *testing.T) []string
		processes []deployment
	}{
		{"cluster", cluster, []deployment{{Kind: "cluster"}, {Kind: "cluster"}}},
		{"slots", servers, []deployment{{Kind: "slots"}, {Kind: "slots"}}},
		{"failover", sentinels, []deployment{{Kind: "failover"}, {Kind: "failover"}}},
		{"ring", servers, []deployment{{Kind: "ring"}, {Kind: "ring"}}},
		{"AutoPipeliner", single, []deployment{{Kind: "autopipeline"}, {Kind: "autopipeline"}}},
		{"WithAutoPipeline", single, []deployment{{Auto: true}, {Auto: true}}},
		{"WithAutoPipeline on a cluster", cluster, []deployment{{Kind: "cluster", Auto: true}, {Kind: "cluster", Auto: true}}},
		{"one server, three clients", single, []deployment{{}, {Auto: true}, {Kind: "autopipeline"}}},
		{"cluster, two clients", cluster, []deployment{{Kind: "cluster"}, {Kind: "cluster", Auto: true}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			lock, data := name(t), Redis(t).Addr
			addrs := c.addrs(t)
			var processes []settings
			for _, d := range c.processes {
				d.Addrs = addrs
				processes = append(processes, settings{Deployed: d, Count: counting{Lock: lock, Data: data, Goroutines: 8, For: counted(), Least: 2}})
			}
			countCalmly(t, processes, nothing, nothing)
		})
	}
}

// progress waits until n increments more are done.
func progress(t *testing.T, data *redis.Client, lock string, n int) {
	t.Helper()
	now := func() int {
		v, _ := data.Get(t.Context(), lock+":counter").Int() // none yet is 0
		return v
	}
	before := now()
	require.Eventually(t, func() bool { return now() >= before+n }, faultLimit, 5*time.Millisecond, "the counting goes on")
}

// followed waits until all nodes have heard that master has a replica: they give no
// vote to a node that they take for a master still.
func followed(t *testing.T, c *redistest.Cluster, master *redistest.Server) {
	t.Helper()
	id, err := master.Client(t).ClusterMyID(t.Context()).Result()
	require.NoError(t, err)
	for _, node := range c.Nodes {
		rdb := node.Client(t)
		require.Eventually(t, func() bool {
			all, err := rdb.Do(t.Context(), "cluster", "replicas", id).StringSlice()
			return err == nil && len(all) > 0
		}, faultLimit, 5*time.Millisecond)
	}
}

// Nodes change their places while two processes count on a cluster, and nothing is
// lost by that: the slot moves to and fro, and replicas take over by CLUSTER
// FAILOVER, which has the old master wait until they have all that it has.
func TestCounterWhileAClusterMoves(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t, 3, 1)
	r := Redis(t)
	data := r.Client(t)
	const steps = 20 // increments between two changes
	for _, move := range []struct {
		name string
		do   func(t *testing.T, lock string)
	}{
		{"slot", func(t *testing.T, lock string) {
			home := cluster.Master(lock)
			there := cluster.Nodes[0]
			if there == home {
				there = cluster.Nodes[1]
			}
			for _, to := range []*redistest.Server{there, home} {
				m := cluster.StartMigration(t, cluster.Slot(lock), to)
				progress(t, data, lock, steps)
				m.MoveKeys()
				progress(t, data, lock, steps)
				m.Finish()
				progress(t, data, lock, steps)
			}
		}},
		{"failover", func(t *testing.T, lock string) {
			for range 2 {
				before := cluster.Master(lock)
				followed(t, cluster, before)
				cluster.Failover(t, cluster.Replica(before))
				require.NotSame(t, before, cluster.Master(lock))
				progress(t, data, lock, steps)
			}
		}},
	} {
		t.Run(move.name, func(t *testing.T) {
			lock := name(t)
			s := settings{
				Deployed: deployment{Kind: "cluster", Addrs: cluster.Addrs()}, Recheck: time.Second,
				Read: 10 * time.Second, // so long a Lock goes on when it gets no answer
			}
			c := counting{Lock: lock, Data: r.Addr, Goroutines: 8, Least: 2, Word: true}
			countCalmly(t, counters(s, c), func() {
				for range soaked() {
					progress(t, data, lock, steps)
					move.do(t, lock)
				}
			}, nothing)
		})
	}
}

// SENTINEL FAILOVER waits for nothing: what the old master granted last may be
// unknown to the new one, and until it is told of its fall it may grant more. So
// two may be inside around that time, and increments be lost. Before and after no
// two are, the counting goes on, and whoever waits is served.
func TestCounterWhileASentinelPromotes(t *testing.T) {
	t.Parallel()
	sentinel := redistest.StartSentinel(t)
	r := Redis(t)
	data := r.Client(t)
	lock := name(t)
	var addrs []string
	for _, s := range sentinel.Sentinels {
		addrs = append(addrs, s.Addr)
	}
	s := settings{
		Deployed: deployment{Kind: "failover", Addrs: addrs}, Recheck: time.Second,
		// A release that the new master has not heard of leaves the lock taken for so long.
		Watchdog: 3 * time.Second,
	}
	const steps = 100
	type phase struct{ from, to int64 }
	quiet := []phase{{from: Now()}}
	all := countMeanwhile(t, counters(s, counting{Lock: lock, Data: r.Addr, Goroutines: 8, Least: 2, Word: true}), func() {
		for range 2 * soaked() {
			progress(t, data, lock, steps)
			quiet[len(quiet)-1].to = Now()
			sentinel.Failover(t)
			quiet = append(quiet, phase{from: Now()})
		}
		progress(t, data, lock, steps)
	}, nothing)
	quiet[len(quiet)-1].to = 1 << 62

	// A hold is an acquisition, and what ended it.
	type hold struct{ begin, end Op }
	var holds []hold
	total, late := 0, 0
	for i, c := range all {
		total, late = total+c.sum(), late+c.Late
		t.Logf("process %d: %d increments, %d told, %d lost, %d open, %d late, errors %v; %+v", i, c.sum(), c.Told, c.Lost, c.Open, c.Late, c.Errors, c.Stats)
		begun := map[string]Op{}
		for _, op := range c.Ops {
			if op.Kind == Acquired {
				begun[op.Owner] = op
			} else {
				holds = append(holds, hold{begun[op.Owner], op})
			}
		}
	}
	undisturbed := 0
	for i, p := range quiet {
		var history []Op
		for _, h := range holds {
			if h.begin.Call >= p.from && h.end.Return <= p.to {
				history = append(history, h.begin, h.end)
			}
		}
		require.NotEmpty(t, history, "phase %d", i)
		undisturbed += len(history) / 2
		slices.SortStableFunc(history, func(a, b Op) int { return int(min(max(a.Return-b.Return, -1), 1)) })
		oneInside(t, history)
		require.NoError(t, CheckMutex(history, time.Minute))
	}
	n, err := data.Get(t.Context(), lock+":counter").Int()
	require.NoError(t, err)
	slices.SortFunc(holds, func(a, b hold) int { return int(min(max(a.begin.Return-b.begin.Return, -1), 1)) })
	overlaps, last := 0, int64(0)
	for _, h := range holds {
		if h.begin.Return < last {
			overlaps++
		}
		last = max(last, h.end.Call)
	}
	t.Logf("%d of %d increments are there; %d of %d holds lie between the failovers; %d began beside another one", n, total, undisturbed, len(holds), overlaps)
	require.LessOrEqual(t, n, total)
	if overlaps == 0 && late == 0 {
		require.Equal(t, total, n, "no two were inside, so no increment is lost")
	}
}
