package integration

import (
	"context"
	"crypto/sha1"
	"encoding/hex"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/redistest"
	"github.com/relock-go/relock/internal/script"
)

// find fills in where a key is. backend is nil when the servers are shared.
func (r *rig) find(ps *redistest.Proxies, at func(key string) *redistest.Server, own func(*redistest.Server) backend) *rig {
	r.proxy = func(key string) *redistest.Proxy { return ps.For(at(key).Addr) }
	r.server = func(key string) *Server {
		node := at(key)
		s := &Server{Addr: node.Addr, Kind: "process"}
		if own != nil {
			s.backend = own(node)
		}
		return s
	}
	return r
}

// openCluster makes a rig of a Redis Cluster of three masters.
func openCluster(t testing.TB, silence time.Duration, own bool) *rig {
	t.Helper()
	c := deploy(t, own, &sharedCluster, startCluster)
	ps := c.Proxies(t)
	client := func(t testing.TB) redis.UniversalClient {
		return c.Client(t, func(o *redis.ClusterOptions) { o.Dialer, o.ReadTimeout = ps.Dialer(), silence })
	}
	direct := c.Client(t)
	r := &rig{through: client(t), direct: direct, client: client, each: direct.ForEachMaster, sharded: true}
	return r.find(ps, c.Master, backends(own, func(s *redistest.Server) backend { return clusterNode{ownProcess{s}, c} }))
}

// backends is b where servers may be stopped.
func backends(own bool, b func(*redistest.Server) backend) func(*redistest.Server) backend {
	if own {
		return b
	}
	return nil
}

func process(s *redistest.Server) backend { return ownProcess{s} }

// openSlots makes a rig of three servers that only the client takes for a cluster.
func openSlots(t testing.TB, silence time.Duration, own bool) *rig {
	t.Helper()
	servers := deploy(t, own, &sharedPlain, startPlain)
	ps := redistest.NewProxies(t, servers.addrs()...)
	open := func(t testing.TB, opts ...func(*redis.ClusterOptions)) *redis.ClusterClient {
		o := &redis.ClusterOptions{ClusterSlots: servers.slots}
		for _, opt := range opts {
			opt(o)
		}
		rdb := redis.NewClusterClient(o)
		t.Cleanup(func() { _ = rdb.Close() }) // the test may have closed it already
		return rdb
	}
	client := func(t testing.TB) redis.UniversalClient {
		return open(t, func(o *redis.ClusterOptions) { o.Dialer, o.ReadTimeout = ps.Dialer(), silence })
	}
	direct := open(t)
	at := func(key string) *redistest.Server {
		rdb, err := direct.MasterForKey(context.Background(), key)
		require.NoError(t, err)
		return servers.at(rdb.Options().Addr)
	}
	r := &rig{
		through: client(t), direct: direct, client: client, each: direct.ForEachMaster,
		home: func(key string) redis.UniversalClient {
			rdb, err := direct.MasterForKey(context.Background(), key)
			require.NoError(t, err)
			return rdb
		},
	}
	return r.find(ps, at, backends(own, process))
}

func (p plain) addrs() (list []string) {
	for _, s := range p {
		list = append(list, s.Addr)
	}
	return list
}

// slots shares the slots out evenly.
func (p plain) slots(context.Context) (all []redis.ClusterSlot, _ error) {
	const slots = 16384
	for i, s := range p {
		all = append(all, redis.ClusterSlot{
			Start: i * slots / len(p), End: (i+1)*slots/len(p) - 1,
			Nodes: []redis.ClusterNode{{Addr: s.Addr}},
		})
	}
	return all, nil
}

// openFailover makes a rig of a master that sentinels watch.
func openFailover(t testing.TB, silence time.Duration, own bool) *rig {
	t.Helper()
	s := deploy(t, own, &sharedSentinel, startSentinel)
	ps := s.Proxies(t)
	client := func(t testing.TB) redis.UniversalClient {
		return s.Client(t, func(o *redis.FailoverOptions) { o.Dialer, o.ReadTimeout = ps.Dialer(), silence })
	}
	r := &rig{through: client(t), direct: s.Client(t), client: client}
	return r.find(ps, func(string) *redistest.Server { return s.Master() }, backends(own, process))
}

// openRing makes a rig of three servers over which a Ring spreads the keys. The
// Ring takes none of them for down: its keys would go to another one, and a lock
// with them, which is no fault of the network.
func openRing(t testing.TB, silence time.Duration, own bool) *rig {
	t.Helper()
	servers := deploy(t, own, &sharedPlain, startPlain)
	ps := redistest.NewProxies(t, servers.addrs()...)
	open := func(t testing.TB, opts ...func(*redis.RingOptions)) *redis.Ring {
		o := &redis.RingOptions{
			Addrs:       make(map[string]string),
			HeartbeatFn: func(context.Context, *redis.Client) bool { return true },
		}
		for i, s := range servers {
			o.Addrs[fmt.Sprint("shard", i)] = s.Addr
		}
		for _, opt := range opts {
			opt(o)
		}
		rdb := redis.NewRing(o)
		t.Cleanup(func() { _ = rdb.Close() }) // the test may have closed it already
		return rdb
	}
	client := func(t testing.TB) redis.UniversalClient {
		return open(t, func(o *redis.RingOptions) { o.Dialer, o.ReadTimeout = ps.Dialer(), silence })
	}
	direct := open(t)
	home := func(key string) *redis.Client {
		rdb, err := direct.GetShardClientForKey(key)
		require.NoError(t, err)
		return rdb
	}
	r := &rig{
		through: client(t), direct: direct, client: client, each: direct.ForEachShard,
		home: func(key string) redis.UniversalClient { return home(key) },
	}
	at := func(key string) *redistest.Server { return servers.at(home(key).Options().Addr) }
	return r.find(ps, at, backends(own, process))
}

// openAutoPipeliner makes a rig of one server, asked by clients that put the
// commands of all callers into pipelines.
func openAutoPipeliner(t testing.TB, silence time.Duration, own bool) *rig {
	t.Helper()
	r := openSingle(t, silence, own)
	auto := func(t testing.TB, rdb redis.UniversalClient) redis.UniversalClient {
		ap, err := rdb.(*redis.Client).AutoPipeline()
		require.NoError(t, err)
		// Before its client, which it does not close.
		t.Cleanup(func() { _ = ap.Close() })
		return ap
	}
	single := r.client
	r.client = func(t testing.TB) redis.UniversalClient { return auto(t, single(t)) }
	r.through, r.direct = auto(t, r.through), auto(t, r.direct)
	return r
}

// TestTopologies checks the rigs, not locks.
func TestTopologies(t *testing.T) {
	t.Parallel()
	const text = "return redis.call('incr', KEYS[1])"
	sum := sha1.Sum([]byte(text))
	sha := hex.EncodeToString(sum[:])
	for _, kind := range topologies {
		t.Run(kind.name, func(t *testing.T) {
			t.Parallel()
			r := kind.open(t, silence, false)
			r.load(t)
			r.loadText(t, text)
			ctx := t.Context()
			for range 4 {
				key := name(t)
				line := r.proxy(key)
				call := redistest.And(redistest.Command("evalsha"), redistest.HasArg(key))
				seen := line.On(call, redistest.Delay(0))
				require.NoError(t, r.through.EvalSha(ctx, sha, []string{key}).Err())
				require.Equal(t, 1, seen.Count())
				require.Equal(t, "1", r.direct.Get(ctx, key).Val())
				require.Equal(t, r.server(key).Addr, r.server(key).Client(t).Options().Addr)
				require.Equal(t, "1", r.server(key).Client(t).Get(ctx, key).Val())

				lost := line.On(call, redistest.LoseReplyAndHang)
				_ = r.client(t).EvalSha(ctx, sha, []string{key}) // go-redis may repeat it
				lost.WaitExecuted(t, 1)
				n, err := r.direct.Get(ctx, key).Int()
				require.NoError(t, err)
				require.Greater(t, n, 1)

				told := r.listen(t, key)
				publish := r.through.Publish
				switch {
				case r.sharded:
					publish = r.through.SPublish
				case r.home != nil:
					publish = r.home(key).Publish
				}
				require.NoError(t, publish(ctx, script.Channel(key), "0").Err())
				require.Equal(t, 1, told())
			}
		})
		t.Run(kind.name+" of one's own", func(t *testing.T) {
			t.Parallel()
			r := kind.open(t, silence, true)
			ctx := t.Context()
			key := name(t)
			s := r.server(key)
			require.NoError(t, r.direct.Set(ctx, key, "v", 0).Err())
			s.Stop(t)
			require.Error(t, r.through.Get(ctx, key).Err())
			require.Equal(t, s.Addr, r.server(key).Addr)
			s.Cont(t)
			require.Equal(t, "v", r.direct.Get(ctx, key).Val())
			s.Kill(t)
			require.Equal(t, s.Addr, r.server(key).Addr)
			require.Error(t, r.through.Get(ctx, key).Err())
			s.Restart(t)
			require.Eventually(t, func() bool { return r.through.Get(ctx, key).Err() == redis.Nil }, 5*time.Second, 10*time.Millisecond)
			require.NoError(t, r.direct.Set(ctx, key, "w", 0).Err())
			require.Equal(t, "w", r.through.Get(ctx, key).Val())
		})
	}
}
