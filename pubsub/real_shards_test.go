package pubsub_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/redistest"
	"github.com/relock-go/relock/pubsub"
)

// onCluster is a Shards of the sharded channels of a cluster.
func onCluster(t *testing.T, rdb *redis.ClusterClient, cfg pubsub.Config) *pubsub.Shards {
	t.Helper()
	cfg.OneByOne = true
	shards := pubsub.NewShards(pubsub.ShardsConfig{
		Config:  cfg,
		Recheck: 100 * time.Millisecond,
		Locate: func(ctx context.Context, channel string, wrong bool) (pubsub.Node, error) {
			if wrong {
				rdb.ReloadState(ctx)
			}
			node, err := rdb.MasterForKey(ctx, channel)
			if err != nil {
				return pubsub.Node{}, err
			}
			return pubsub.Node{
				ID:   node.Options().Addr,
				Open: func(ctx context.Context) pubsub.Conn { return pubsub.Sharded(node.SSubscribe(ctx)) },
			}, nil
		},
	})
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		assert.NoError(t, shards.Close(ctx))
	})
	return shards
}

// served publishes until sub is woken: a publisher may be late to learn where a
// channel is, as well.
func served(t *testing.T, rdb *redis.ClusterClient, channel string, sub *pubsub.Subscription) {
	t.Helper()
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); {
		_ = rdb.SPublish(t.Context(), channel, "free").Err() // not lasting
		select {
		case <-sub.C():
			return
		case <-time.After(50 * time.Millisecond):
		}
	}
	t.Fatalf("nobody hears %s", channel)
}

// settled takes the wake-ups of a move: those that come until the channel's new
// node has the subscription.
func settled(t *testing.T, rdb *redis.ClusterClient, channel string, sub *pubsub.Subscription) {
	t.Helper()
	await(t, sub.C()) // the end of the old subscription, or the new one
	served(t, rdb, channel, sub)
	for {
		select {
		case <-sub.C():
		case <-time.After(20 * time.Millisecond):
			return
		}
	}
}

func TestReal_ShardsOnCluster(t *testing.T) {
	c := redistest.StartCluster(t, 3, 1)
	for _, protocol := range []int{2, 3} {
		t.Run(fmt.Sprint("RESP", protocol), func(t *testing.T) {
			rdb := c.Client(t, func(o *redis.ClusterOptions) { o.Protocol = protocol })
			shards := onCluster(t, rdb, pubsub.Config{Linger: time.Millisecond})
			subs := make(map[string]*pubsub.Subscription)
			for i := range 300 {
				channel := fmt.Sprint("channel ", i)
				subs[channel] = shards.Subscribe(channel)
			}
			for channel, sub := range subs {
				await(t, sub.C())
				served(t, rdb, channel, sub)
			}

			const moving = "channel 7"
			slot, from := c.Slot(moving), c.Master(moving)
			to := c.Master("channel 8")
			for i := 9; to == from; i++ {
				to = c.Master(fmt.Sprint("channel ", i))
			}
			for _, node := range []*redistest.Server{to, from} {
				c.Migrate(t, slot, node)
				settled(t, rdb, moving, subs[moving])
			}
			for channel, sub := range subs {
				if channel != moving && c.Slot(channel) != slot {
					assert.Empty(t, sub.C(), "%s was woken", channel)
				}
			}

			for _, sub := range subs {
				sub.Close()
			}
			for _, node := range c.Nodes {
				assert.Eventually(t, func() bool { return subscribers(t, node.Addr) == 0 }, patience, 10*time.Millisecond)
			}
		})
	}

	t.Run("failover", func(t *testing.T) {
		rdb := c.Client(t)
		shards := onCluster(t, rdb, pubsub.Config{})
		subs := make(map[string]*pubsub.Subscription)
		for i := range 30 {
			channel := fmt.Sprint("channel ", i)
			subs[channel] = shards.Subscribe(channel)
			await(t, subs[channel].C())
		}
		gone := c.Master("channel 0")
		c.Failover(t, c.Replica(gone)) // the former master lives on
		for channel, sub := range subs {
			served(t, rdb, channel, sub)
			// Replicas take subscriptions too, which a stale Locate leads to.
			assert.Eventually(t, func() bool {
				n, err := rdb.SPublish(t.Context(), channel, "free").Result()
				return err == nil && n == 1
			}, patience, 10*time.Millisecond, "%s stays on a replica", channel)
		}
		gone = c.Master("channel 0")
		gone.Kill()
		c.WaitMaster(t, "channel 0", gone)
		for channel, sub := range subs {
			served(t, rdb, channel, sub)
		}
	})
}

// subscribers counts the connections of a server that have sharded channels.
func subscribers(t *testing.T, addr string) (n int) {
	t.Helper()
	rdb := redis.NewClient(&redis.Options{Addr: addr})
	defer rdb.Close()
	channels, err := rdb.PubSubShardChannels(t.Context(), "*").Result()
	require.NoError(t, err)
	return len(channels)
}

// go-redis would dial again when a server names itself as the one to go to, and
// subscribe to everything at once.
func TestReal_ShardedDialsOnce(t *testing.T) {
	p := redistest.NewProxy(t, redistest.StartServer(t).Addr)
	rdb := redis.NewClient(&redis.Options{Addr: p.Addr})
	defer rdb.Close()
	conn := pubsub.Sharded(rdb.SSubscribe(t.Context()))
	defer conn.Close()
	receive := func() any {
		v, err := conn.ReceiveTimeout(t.Context(), patience)
		require.NoError(t, err)
		return v
	}
	for i, channel := range []string{"a", "b"} {
		require.NoError(t, conn.Subscribe(t.Context(), channel))
		assert.Equal(t, &redis.Subscription{Kind: "ssubscribe", Channel: channel, Count: i + 1}, receive())
	}
	require.NoError(t, rdb.SPublish(t.Context(), "a", "free").Err())
	assert.Equal(t, &redis.Message{Channel: "a", Payload: "free"}, receive())
	require.NoError(t, conn.Unsubscribe(t.Context(), "a"))
	assert.Equal(t, &redis.Subscription{Kind: "sunsubscribe", Channel: "a", Count: 1}, receive())
	require.NoError(t, conn.Ping(t.Context()))
	assert.IsType(t, &redis.Pong{}, receive())

	p.On(redistest.Command("ping"), redistest.Reply("-MOVED 1 "+p.Addr+"\r\n"))
	require.NoError(t, conn.Ping(t.Context()))
	_, err := conn.ReceiveTimeout(t.Context(), patience)
	require.ErrorContains(t, err, "MOVED")
	_, err = conn.ReceiveTimeout(t.Context(), patience)
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorIs(t, conn.Subscribe(t.Context(), "c"), context.Canceled)
	assert.Equal(t, 2, p.CountCommand("ssubscribe"))
}
