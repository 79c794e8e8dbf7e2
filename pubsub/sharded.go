package pubsub

import (
	"context"
	"time"

	"github.com/redis/go-redis/v9"
)

// Sharded returns a Conn for sharded channels (SSUBSCRIBE, Redis 7), for a
// Config with OneByOne. ps has no channels yet and belongs to the Conn from here
// on. It is of the node's own client: what a ClusterClient's connects to depends
// on its channels. Subscribe has to come first.
//
// go-redis mends a connection by itself, and then names all channels in one
// SSUBSCRIBE, which a cluster refuses if their slots differ. So ps may dial only
// once, and everything fails when that connection is gone.
func Sharded(ps *redis.PubSub) Conn { return &sharded{ps: ps} }

type sharded struct {
	ps        *redis.PubSub
	connected bool // the writer's
}

// spent is a ctx that has ended. go-redis looks at that when it dials, and not
// when it writes to a connection or reads from one.
var spent = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()

func (c *sharded) Subscribe(ctx context.Context, channels ...string) error {
	if c.connected {
		ctx = spent
	}
	c.connected = true
	return c.ps.SSubscribe(ctx, channels...)
}

func (c *sharded) Unsubscribe(_ context.Context, channels ...string) error {
	return c.ps.SUnsubscribe(spent, channels...)
}

func (c *sharded) Ping(_ context.Context, payload ...string) error {
	return c.ps.Ping(spent, payload...)
}

func (c *sharded) ReceiveTimeout(_ context.Context, timeout time.Duration) (any, error) {
	return c.ps.ReceiveTimeout(spent, timeout)
}

func (c *sharded) Close() error { return c.ps.Close() }
