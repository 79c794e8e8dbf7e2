package rlock

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/relock-go/relock/internal/script"
)

// WithReplicaAcks has a fresh acquisition count only when n replicas have it, which they
// get timeout to say: 1 to 16 of them, and 1 ms to 1 minute, less than the Redis client's
// ReadTimeout. If they are fewer the acquisition is undone and the call returns
// ErrReplicas. Re-entries, renewals and releases do not wait. The default is none.
//
// It narrows the window in which a failover loses a lock, and does not close it: a
// replica that has not acknowledged may be promoted. While fewer replicas answer, each
// attempt takes the whole timeout.
//
// The script and its WAIT go over one connection of the server's own client. So New
// refuses the option for a *redis.AutoPipeliner and for implementations of one's own;
// with WithAutoPipeline acquisitions go past the pipeliner.
func WithReplicaAcks(n int, timeout time.Duration) Option {
	return func(o *options) error {
		switch {
		case n < 1 || n > 16:
			return fmt.Errorf("WithReplicaAcks: %d replicas; use 1 to 16, or leave the option out", n)
		case timeout < time.Millisecond || timeout > time.Minute:
			return fmt.Errorf("WithReplicaAcks: a timeout of %v; use 1ms to 1m", timeout)
		}
		o.acks, o.acksTimeout = n, timeout
		return nil
	}
}

// checkAcks refuses what cannot work.
func (b *backend) checkAcks(o *options) error {
	switch {
	case o.acks == 0:
		return nil
	case !b.oneServer && b.node == nil:
		return fmt.Errorf("WithReplicaAcks: a %T does not keep a script and its WAIT on one connection; "+
			"use a *redis.Client, a *redis.ClusterClient or a *redis.Ring", b.rdb)
	case b.readTimeout > 0 && o.acksTimeout >= b.readTimeout:
		return fmt.Errorf("WithReplicaAcks: a timeout of %v is not shorter than the Redis client's ReadTimeout of %v, "+
			"which would end the wait first", o.acksTimeout, b.readTimeout)
	}
	return nil
}

// sendAcked sends a script that is to wait for replicas.
func (c *Client) sendAcked(ctx context.Context, key string, s *script.Script, numKeys int, words []any) script.Answer {
	node, err := c.redis.master(ctx, key)
	if err != nil {
		return script.Answer{Fate: script.NotRun, Err: err}
	}
	send := func(node *redis.Client, ask bool) script.Answer {
		return c.runner.SendAcked(ctx, node, ask, c.opt.acks, c.opt.acksTimeout, s, numKeys, words...)
	}
	a := send(node, false)
	for range 3 { // as often as go-redis follows a command
		addr, ask, ok := script.Redirect(a.Err)
		if !ok {
			break
		}
		c.redis.failed(ctx, a.Err)
		if node = c.redis.at(ctx, addr); node == nil {
			break // not known yet; another attempt follows
		}
		a = send(node, ask)
	}
	return a
}

// master is the client of the server that has key.
func (b *backend) master(ctx context.Context, key string) (*redis.Client, error) {
	if node, ok := b.rdb.(*redis.Client); ok {
		return node, nil
	}
	return b.node(ctx, key)
}

// at is the client of a cluster's master, nil if there is none that is known.
func (b *backend) at(ctx context.Context, addr string) *redis.Client {
	cluster, ok := b.rdb.(*redis.ClusterClient)
	if !ok {
		return nil
	}
	found := make(chan *redis.Client, 1)
	_ = cluster.ForEachMaster(ctx, func(_ context.Context, node *redis.Client) error {
		if node.Options().Addr == addr {
			found <- node
		}
		return nil
	})
	select {
	case node := <-found:
		return node
	default:
		return nil
	}
}

// confirmed tells whether enough replicas have what r grants.
func (c *Client) confirmed(r reply) error {
	if !r.yes || r.acks >= c.opt.acks {
		return nil
	}
	err := fmt.Errorf("%w: %d of %d within %v", ErrReplicas, r.acks, c.opt.acks, c.opt.acksTimeout)
	return errors.Join(err, r.ackErr)
}
