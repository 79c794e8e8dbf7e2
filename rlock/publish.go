package rlock

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/redis/go-redis/v9"

	"github.com/relock-go/relock/pubsub"
)

// The commands that tell of a release, boxed once for go-redis. Both is for as long
// as it is not known which of them the others listen to: it does no harm.
var publishPlain, publishSharded, publishBoth any = "publish", "spublish", "both"

// sharding finds out, once, whether releases are told on sharded channels. Redisson
// decides in the same way: if the servers are a cluster's and have them.
type sharding struct {
	b      *backend
	forced bool // the user says that they are

	// mu guards the fields below.
	mu      sync.Mutex
	word    any           // what a release says
	decided bool          // word is final
	asking  chan struct{} // closed when the question under way is answered; nil: none is
	err     error         // of the last question
}

// newSharding begins with what the kind of client and the user's word tell.
func newSharding(b *backend, say switched) *sharding {
	s := &sharding{b: b, word: publishPlain, decided: true, forced: say == switchedOn}
	if s.forced || say == unset && b.slots {
		s.word, s.decided = publishBoth, false
	}
	return s
}

// publish is the command for a release now.
func (s *sharding) publish() any {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.word
}

// heardByAll tells whether the server that publishes knows all who hear of it. On a
// cluster a plain message goes on to subscribers at other nodes.
func (s *sharding) heardByAll() bool { return !s.b.slots || s.publish() == publishSharded }

// settled tells whether nothing is left to find out.
func (s *sharding) settled() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.decided
}

// decide asks the server of key, unless that is done, or under way already: then
// it waits for that.
func (s *sharding) decide(ctx context.Context, key string) (sharded bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for first := true; !s.decided; first = false {
		if !first && s.asking == nil {
			return false, s.err
		}
		if s.asking == nil {
			s.asking = make(chan struct{})
			s.mu.Unlock()
			word, err := s.ask(ctx, key)
			s.mu.Lock()
			s.err, s.decided = err, err == nil
			if err == nil {
				s.word = word
			}
			close(s.asking)
			s.asking = nil
			continue
		}
		answered := s.asking
		s.mu.Unlock()
		select {
		case <-answered:
		case <-ctx.Done():
		}
		s.mu.Lock()
		if ctx.Err() != nil {
			return false, ended(ctx)
		}
	}
	return s.word == publishSharded, nil
}

// errNoSharded: the user wants what the server does not have.
var errNoSharded = errors.New("rlock: WithShardedPubSub(true): the server has no sharded pub/sub; use Redis 7.0 or newer, or leave the option out")

// ask puts the question to a server.
func (s *sharding) ask(ctx context.Context, key string) (any, error) {
	var rdb redis.UniversalClient = s.b.rdb
	if s.b.node != nil {
		node, err := s.b.node(ctx, key)
		if err != nil {
			return nil, err
		}
		rdb = node
	}
	var cluster, sharded *redis.Cmd
	_, _ = rdb.Pipelined(ctx, func(p redis.Pipeliner) error { // each has an error of its own
		cluster, sharded = p.Do(ctx, "cluster", "keyslot", key), p.Do(ctx, "pubsub", "shardnumsub")
		return nil
	})
	for _, err := range []error{cluster.Err(), sharded.Err()} {
		if err != nil && !definite(err) {
			return nil, fmt.Errorf("ask whether there is sharded pub/sub: %w", err)
		}
	}
	switch {
	case s.forced && sharded.Err() != nil:
		return nil, both(errNoSharded, sharded.Err())
	case s.forced:
		return publishSharded, nil
	case sharded.Err() != nil:
		return publishPlain, nil
	case cluster.Err() == nil:
		return publishSharded, nil
	case s.b.apart || strings.Contains(cluster.Err().Error(), "cluster support disabled"):
		return publishPlain, nil
	}
	return publishSharded, nil // go-redis has found a cluster; this user may not ask it
}

// begin has the question asked before releases need the answer. An operation waits
// for it only if the user has set what the server may not have.
func (s *sharding) begin(c *Client, k *call, key string) error {
	s.mu.Lock()
	idle := !s.decided && s.asking == nil
	wait := !s.decided && s.forced
	s.mu.Unlock()
	if !idle && !wait {
		return nil
	}
	answered := make(chan struct{})
	var err error
	ctx := detached(k.ctx)
	c.spawn(func() {
		_, err = s.decide(ctx, key)
		close(answered)
	})
	if !wait {
		return nil
	}
	if bound := k.wait(answered); bound != nil {
		return both(ErrUnsettled, bound)
	}
	return err
}

// definite tells whether a server that answers so does not know the command, or
// refuses it to this user. Anything else it may say now and not later.
func definite(err error) bool {
	var reply redis.Error
	return errors.As(err, &reply) &&
		(strings.HasPrefix(reply.Error(), "ERR ") || strings.HasPrefix(reply.Error(), "NOPERM "))
}

// channels is what wakes waiters: a subscription connection, or one for each node.
type channels interface {
	Subscribe(channel string) *pubsub.Subscription
	Close(ctx context.Context) error
}

// newChannels makes the subscriptions of c, which connect when they are needed.
func newChannels(b *backend, s *sharding, cfg pubsub.Config) channels {
	if b.node == nil && s.settled() {
		cfg.Open = func(ctx context.Context) pubsub.Conn { return b.rdb.Subscribe(ctx) }
		return pubsub.New(cfg)
	}
	cfg.OneByOne = true // channels of several slots in one command are refused
	return pubsub.NewShards(pubsub.ShardsConfig{
		Config: cfg,
		Locate: func(ctx context.Context, channel string, wrong bool) (pubsub.Node, error) {
			return locate(ctx, b, s, channel, wrong)
		},
	})
}

// locate finds the connection for a channel, which is placed as its lock's key.
func locate(ctx context.Context, b *backend, s *sharding, channel string, wrong bool) (pubsub.Node, error) {
	sharded, err := s.decide(ctx, channel)
	if err != nil {
		return pubsub.Node{}, err
	}
	if wrong && b.refresh != nil {
		b.refresh(ctx)
	}
	if b.node == nil || !sharded && !b.apart {
		return pubsub.Node{Open: func(ctx context.Context) pubsub.Conn {
			if sharded {
				return pubsub.Sharded(b.rdb.SSubscribe(ctx))
			}
			return b.rdb.Subscribe(ctx)
		}}, nil
	}
	node, err := b.node(ctx, channel)
	if err != nil {
		return pubsub.Node{}, err
	}
	return pubsub.Node{ID: node.Options().Addr, Open: func(ctx context.Context) pubsub.Conn {
		if sharded {
			return pubsub.Sharded(node.SSubscribe(ctx))
		}
		return node.Subscribe(ctx)
	}}, nil
}
