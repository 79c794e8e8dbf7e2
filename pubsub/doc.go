// Package pubsub wakes sleepers when a message arrives on a Redis channel.
//
// A [Hub] shares one subscription connection among any number of
// subscriptions. It opens the connection with the first [Hub.Subscribe] and
// closes it a while after the last [Subscription.Close]; in between it reads
// the connection itself, so that it sees what go-redis's own channels hide:
// confirmations, repeated confirmations and Pongs. A [Shards] is a Hub with a
// connection for each node, and a function that says which node serves a
// channel.
//
// # Wake-ups
//
// A wake-up says "look again", and nothing else. It carries no payload, and it
// may come without a reason. A subscription gets one
//
//   - when the server has confirmed the channel, or at once if it had already;
//   - when a message arrives and it is this subscription's turn: a message
//     wakes one subscription of its channel, the oldest without a wake-up
//     pending, unless [Config.Broadcast] says that it is for all of them;
//   - when messages may have been lost: the connection went away or was
//     replaced, or the server ended the subscription.
//
// At most one wake-up is pending per subscription. So the loop that never
// misses an event is
//
//	sub := hub.Subscribe(channel)
//	defer sub.Close()
//	for !tryIt() {
//		select {
//		case <-sub.C():
//		case <-recheck: // pub/sub delivers at most once, or not at all
//		case <-ctx.Done():
//			return ctx.Err()
//		}
//	}
//
// A subscription that is closed with its wake-up unused hands it on to the
// next one of its channel. One that has taken its wake-up and leaves without
// looking again has used it up; it should look first, or see to it that
// somebody else does.
//
// # Liveness
//
// A connection that has been silent for [Config.Probe] is sent a PING. If then
// nothing at all arrives within [Config.ProbeTimeout], it is replaced. A
// connection that fails is replaced at once and, while that fails too, after
// pauses that grow to one second. The Hub tries for as long as anybody is
// subscribed, also after its Redis client was closed; a caller that wants an
// end to it closes its subscriptions or the Hub.
//
// A channel that the server refuses (an ACL, say) is logged and asked for again
// every ten seconds. Its subscriptions get no wake-ups meanwhile.
//
// # Nodes
//
// A subscription of a [Shards] keeps its C when its channel moves to another
// node. It is woken when the server ends the old subscription or the connection
// is lost, and when the channel is confirmed anew, so a gap between two nodes is
// like the loss of a connection.
//
// The nodes of channels are asked for again when they say MOVED, end a
// subscription or are lost, when they are not ready (CLUSTERDOWN, TRYAGAIN,
// LOADING, MASTERDOWN), and from time to time anyway. What proves wrong again
// and again is tried after pauses that grow to one second.
//
// For the sharded channels of a cluster, where rdb is a *redis.ClusterClient:
//
//	shards := pubsub.NewShards(pubsub.ShardsConfig{
//		Config: pubsub.Config{OneByOne: true},
//		Locate: func(ctx context.Context, channel string, wrong bool) (pubsub.Node, error) {
//			if wrong {
//				rdb.ReloadState(ctx) // in the background; many calls share one
//			}
//			node, err := rdb.MasterForKey(ctx, channel)
//			if err != nil {
//				return pubsub.Node{}, err
//			}
//			return pubsub.Node{
//				ID:   node.Options().Addr,
//				Open: func(ctx context.Context) pubsub.Conn { return pubsub.Sharded(node.SSubscribe(ctx)) },
//			}, nil
//		},
//	})
package pubsub
