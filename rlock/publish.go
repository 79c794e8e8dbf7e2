package rlock

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/relock-go/relock/internal/script"
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

	done chan struct{} // closed when it is decided

	// mu guards the fields below.
	mu     sync.Mutex
	word   any                         // what a release says
	asking map[*redis.Client]*question // under way, one for each server
	eager  int                         // goroutines that have asked before it mattered
}

// question is one to a server.
type question struct {
	answered chan struct{}
	err      error // set before answered is closed
}

// mostEager bounds the goroutines that ask before it matters.
const mostEager = 4

// newSharding begins with what the kind of client and the user's word tell.
func newSharding(b *backend, say switched) *sharding {
	s := &sharding{b: b, word: publishPlain, done: make(chan struct{}), forced: say == switchedOn, asking: map[*redis.Client]*question{}}
	if s.forced || say == unset && b.slots {
		s.word = publishBoth
	} else {
		close(s.done)
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
	select {
	case <-s.done:
		return true
	default:
		return false
	}
}

// decide asks the server of key, unless that is done. Of those that ask one server
// at a time the first one does it for all; another server may be quicker.
func (s *sharding) decide(ctx context.Context, key string) (sharded bool, err error) {
	if s.settled() {
		return s.publish() == publishSharded, nil
	}
	var node *redis.Client
	if s.b.node != nil {
		if node, err = s.b.node(ctx, key); err != nil {
			return false, err
		}
	}
	s.mu.Lock()
	q := s.asking[node]
	if q == nil {
		q = &question{answered: make(chan struct{})}
		s.asking[node] = q
		s.mu.Unlock()
		s.put(ctx, node, q)
	} else {
		s.mu.Unlock()
	}
	select {
	case <-s.done:
	case <-q.answered:
	case <-ctx.Done():
		return false, ended(ctx)
	}
	if s.settled() {
		return s.publish() == publishSharded, nil
	}
	return false, q.err
}

// put asks q.
func (s *sharding) put(ctx context.Context, node *redis.Client, q *question) {
	var rdb redis.UniversalClient = node
	if node == nil {
		rdb = s.b.rdb
	}
	word, err := s.ask(ctx, rdb)
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.asking, node)
	if err == nil && !s.settled() {
		s.word = word
		close(s.done)
	}
	q.err = err
	close(q.answered)
}

// errNoSharded: the user wants what the server does not have.
var errNoSharded = errors.New("rlock: WithShardedPubSub(true): the server has no sharded pub/sub; use Redis 7.0 or newer, or leave the option out")

// ask is what a server says of itself.
func (s *sharding) ask(ctx context.Context, rdb redis.UniversalClient) (any, error) {
	cluster, sharded := script.AskSharded(ctx, rdb)
	for _, err := range []error{cluster, sharded} {
		if err != nil && !definite(err) {
			return nil, fmt.Errorf("ask whether there is sharded pub/sub: %w", err)
		}
	}
	switch {
	case s.forced && (sharded == nil || noRight(sharded)):
		return publishSharded, nil
	case s.forced:
		return nil, both(errNoSharded, sharded)
	case sharded != nil:
		return publishPlain, nil
	case cluster == nil:
		return publishSharded, nil
	case s.b.apart || strings.Contains(cluster.Error(), "cluster support disabled"):
		return publishPlain, nil
	}
	return publishSharded, nil // go-redis has found a cluster; this user may not ask it
}

// begin has the question asked before releases need the answer. An operation waits
// for it only if the user has set what the server may not have.
func (s *sharding) begin(c *Client, k *call, key string) error {
	switch {
	case s.settled():
		return nil
	case s.forced:
		return s.insist(c, k, key)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.eager == mostEager {
		return nil // who has to know asks by himself
	}
	s.eager++
	ctx := detached(k.ctx)
	c.spawn(func() {
		_, _ = s.decide(ctx, key)
		s.mu.Lock()
		defer s.mu.Unlock()
		s.eager--
	})
	return nil
}

// insist asks until there is an answer, within the bounds of k.
func (s *sharding) insist(c *Client, k *call, key string) error {
	answered := make(chan struct{})
	var err error
	ctx, until := detached(k.ctx), time.Now().Add(k.persist)
	c.spawn(func() {
		defer close(answered)
		for try := 0; ; try++ {
			_, err = s.decide(ctx, key)
			pause := backoff(try)
			if err == nil || errors.Is(err, errNoSharded) || time.Until(until) < pause || c.isClosing() {
				return
			}
			time.Sleep(pause)
		}
	})
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

// noRight: the server has the command, and refuses it to this user.
func noRight(err error) bool { return redis.HasErrorPrefix(err, "NOPERM") }

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
