package redisson

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/integration"
	"github.com/relock-go/relock/internal/redistest"
	"github.com/relock-go/relock/rlock"
)

// mode is how clients tell of releases, and hear of them, on a cluster.
type mode struct {
	java   string         // Redisson's ShardedSubscriptionMode
	golang []rlock.Option // beside the harness's own
}

var (
	// automatic is what clients do that are told nothing about it.
	automatic = mode{java: "AUTO"}
	// plain is without sharded channels.
	plain = mode{"OFF", []rlock.Option{rlock.WithShardedPubSub(false)}}
)

// deployment is what both languages are clients of: a single server, or a cluster.
type deployment struct {
	addrs   []string
	rdb     redis.UniversalClient // the tests look with it
	nodes   []*redis.Client       // one for each master, or for the server
	cluster *redistest.Cluster    // nil: a single server
	single  *integration.Server   // nil: a cluster

	names atomic.Int64
}

// singleServer is the server that tests share.
func singleServer(t testing.TB) *deployment {
	t.Helper()
	s := integration.Redis(t)
	rdb := s.Client(t)
	return &deployment{addrs: []string{s.Addr}, rdb: rdb, nodes: []*redis.Client{rdb}, single: s}
}

// threeMasters is a cluster of its own.
func threeMasters(t testing.TB) *deployment {
	t.Helper()
	// A busy machine may stop a node for a while. Nobody could take its place.
	c := redistest.StartCluster(t, 3, 0, "--cluster-node-timeout", "30000")
	d := &deployment{addrs: c.Addrs(), rdb: c.Client(t), cluster: c}
	for _, n := range c.Nodes {
		d.nodes = append(d.nodes, n.Client(t))
	}
	return d
}

func (d *deployment) String() string {
	if d.cluster != nil {
		return "cluster"
	}
	return "single server"
}

// client is for a relock client of its own.
func (d *deployment) client(t testing.TB) redis.UniversalClient {
	t.Helper()
	if d.cluster != nil {
		return d.cluster.Client(t)
	}
	return d.single.Client(t)
}

// name returns a fresh name that begins so. On a cluster, the masters take turns.
func (d *deployment) name(begin string) string {
	turn := int(d.names.Add(1)) % len(d.nodes)
	for {
		name := begin + ":" + uuid.NewString()
		if d.cluster == nil || d.cluster.Slot(name)*len(d.nodes)/16384 == turn {
			return name
		}
	}
}

// flaky is a client whose way to the server of key is that proxy, with little
// patience.
func (d *deployment) flaky(t testing.TB, key string) (redis.UniversalClient, *redistest.Proxy) {
	t.Helper()
	const patience = 200 * time.Millisecond
	if d.cluster == nil {
		proxy := d.single.Proxy(t)
		return redistest.NewClient(t, proxy.Addr, func(o *redis.Options) { o.ReadTimeout = patience }), proxy
	}
	proxies := d.cluster.Proxies(t)
	rdb := d.cluster.Client(t, func(o *redis.ClusterOptions) {
		o.ReadTimeout, o.Dialer = patience, proxies.Dialer()
	})
	return rdb, proxies.For(d.cluster.Master(key).Addr)
}

// publish tells those who listen as a default client of the deployment does.
func (d *deployment) publish(ctx context.Context, channel, message string) error {
	if d.cluster != nil {
		return d.rdb.SPublish(ctx, channel, message).Err()
	}
	return d.rdb.Publish(ctx, channel, message).Err()
}

// subscribe listens as a default client of the deployment does.
func (d *deployment) subscribe(ctx context.Context, t testing.TB, channel string) *redis.PubSub {
	t.Helper()
	listen := d.rdb.Subscribe
	if d.cluster != nil {
		listen = d.rdb.SSubscribe
	}
	sub := listen(ctx, channel)
	t.Cleanup(func() { _ = sub.Close() }) // the server may be gone
	_, err := sub.Receive(ctx)            // the confirmation
	require.NoError(t, err)
	return sub
}

// listeners is how many clients listen on channel, of either kind.
func (d *deployment) listeners(ctx context.Context, channel string) (plain, sharded int64, err error) {
	for _, node := range d.nodes {
		n, err := node.PubSubNumSub(ctx, channel).Result()
		if err != nil {
			return 0, 0, err
		}
		plain += n[channel]
		if d.cluster == nil {
			continue // a server before Redis 7 knows no other kind
		}
		if n, err = node.PubSubShardNumSub(ctx, channel).Result(); err != nil {
			return 0, 0, err
		}
		sharded += n[channel]
	}
	return plain, sharded, nil
}

// heard are the channels with that text in them that somebody listens to, of either
// kind.
func (d *deployment) heard(ctx context.Context, text string) (all []string, err error) {
	for _, node := range d.nodes {
		channels, failed := node.PubSubChannels(ctx, "*"+text+"*").Result()
		all, err = append(all, channels...), errors.Join(err, failed)
		if d.cluster != nil {
			channels, failed = node.PubSubShardChannels(ctx, "*"+text+"*").Result()
			all, err = append(all, channels...), errors.Join(err, failed)
		}
	}
	return all, err
}

// keys are those with that text in them: a few hundred stand there at most.
func (d *deployment) keys(ctx context.Context, text string) (all []string, err error) {
	for _, node := range d.nodes {
		keys, _, failed := node.Scan(ctx, 0, "*"+text+"*", 1_000_000).Result()
		all, err = append(all, keys...), errors.Join(err, failed)
	}
	return all, err
}
