package rlock

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/relock-go/relock/internal/record"
	"github.com/relock-go/relock/internal/script"
	"github.com/relock-go/relock/pubsub"
	"github.com/relock-go/relock/watchdog"
)

// Client makes locks on one Redis and keeps what they hold. It is safe for
// concurrent use. It starts goroutines with the first hold and the first waiter,
// none per hold; a few stay idle for the next requests. Close ends them all.
type Client struct {
	redis   backend
	runner  script.Runner
	opt     options
	rules   record.Rules
	dog     *watchdog.Watchdog[kept]
	sharded *sharding
	hub     channels

	counters    counters
	serial      atomic.Uint64 // numbers of fields after burned ones
	singly      atomic.Bool   // a call may name one key only
	guarded     atomic.Int64  // the restart guard refused something until then, in ms since 1970
	numbered    atomic.Bool   // too many keys have burned fields: every new field takes a number
	readTimeout time.Duration // of redis, or 3 s when it has none
	start       time.Time     // origin of record.Instant.Mono
	clock       func() record.Instant

	closing chan struct{}  // closed when Close begins
	work    sync.WaitGroup // operations, and the jobs that outlive them
	crew    crew           // runs the jobs
	timers  timers
	lanes   lanes
	traffic sync.Pool // of *traffic

	watchdogWord any // opt.watchdog in milliseconds, boxed once

	// mu guards the fields below. It is held for moments only, and before an
	// entry's mutex when both are needed.
	mu      sync.Mutex
	closed  bool
	closer  chan struct{} // closed when Close is done; nil before it began
	entries map[string]*entry
}

// kept is what the client's timing wheel carries: a hold, or the sweep of a key.
type kept interface{ due() }

// New returns a client that keeps its locks on rdb, which stays the caller's:
// Close does not close it. It sends nothing.
//
// rdb is a *redis.Client, for one server or behind Sentinel, a *redis.ClusterClient,
// a *redis.AutoPipeliner, or a *redis.Ring, which excludes others only as long as
// all its clients agree on which shards are up: see LIMITATIONS. An implementation
// of one's own has to send a script to the server of its first key. Behind an
// AutoPipeliner New cannot see a cluster: give it the ClusterClient and
// WithAutoPipeline instead.
//
// rdb's pool serves the locks: a request waits for a free connection as any other
// command does. Renewals use the connections that go-redis keeps for pipelines.
// MaxRetries does not matter, requests are repeated by this package.
func New(rdb redis.UniversalClient, opts ...Option) (*Client, error) {
	node, err := backendOf(rdb)
	if err != nil {
		return nil, fmt.Errorf("rlock: New: %w", err)
	}
	opt := defaults()
	for _, o := range opts {
		if o == nil {
			return nil, errors.New("rlock: New: an option is nil")
		}
		if err := o(&opt); err != nil {
			return nil, fmt.Errorf("rlock: New: %w", err)
		}
	}
	c := &Client{
		redis:       node,
		opt:         opt,
		readTimeout: node.readTimeout,
		start:       time.Now(),
		closing:     make(chan struct{}),
		entries:     map[string]*entry{},
		lanes:       lanes{by: map[*redis.Client]*lane{}},
	}
	if c.readTimeout <= 0 {
		c.readTimeout = leastPatience
	}
	if c.runner.Client, err = node.sender(opt.autoPipeline); err != nil {
		return nil, fmt.Errorf("rlock: New: %w", err)
	}
	if err := node.checkAcks(&opt); err != nil {
		return nil, fmt.Errorf("rlock: New: %w", err)
	}
	c.runner.Pipes = rdb
	c.singly.Store(!node.oneServer)
	if node.ring() {
		opt.logger.Warn("rlock: a Ring moves the names of a shard that it finds down to others, " +
			"and other clients may see that differently: then two owners hold one lock")
	}
	c.traffic.New = func() any { return &traffic{} }
	c.watchdogWord = millis(opt.watchdog)
	c.clock = func() record.Instant {
		now := time.Now()
		return record.Instant{Mono: now.Sub(c.start), Wall: time.Duration(now.UnixNano())}
	}
	c.rules = record.Rules{
		Client:   opt.id,
		Watchdog: opt.watchdog,
		Serial:   func() uint64 { return c.serial.Add(1) },
		Numbered: c.numbered.Load,
	}
	period := opt.watchdog / 3
	c.dog = watchdog.New(watchdog.Config[kept]{
		Period:  period,
		Attempt: period / 2,
		Renew:   c.renew,
		Expired: func(l *watchdog.Lease[kept]) { l.Hold.due() },
		Logger:  opt.logger,
	})
	c.sharded = newSharding(&c.redis, opt.sharded)
	c.hub = newChannels(&c.redis, c.sharded, pubsub.Config{
		// A key has one subscription here, its head's. But "x" and "{x}" have one
		// channel, as in Redisson: the message is for either.
		Broadcast:   func(string) bool { return true },
		Reconnected: func() { c.counters.reconnects.Add(1) },
		Logger:      opt.logger,
	})
	return c, nil
}

// ID is the client's id: the first half of every owner field that it writes.
func (c *Client) ID() string { return c.opt.id }

// leastPatience is for how long requests that fail are repeated, and others on
// the key waited for, before a call without a bound of its own fails.
const leastPatience = 3 * time.Second

// call is an operation bounded by ctx and by the end of the client.
func (c *Client) call(ctx context.Context) *call {
	patience := max(leastPatience, c.readTimeout)
	return &call{ctx: ctx, patience: patience, persist: patience, closing: c.closing, timers: &c.timers}
}

// begin counts an operation in, so that Close waits for what it leaves behind.
// Every nil must be followed by c.work.Done.
func (c *Client) begin() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return ErrClosed
	}
	c.work.Add(1)
	return nil
}

// isClosing tells whether Close has begun. Whoever holds an entry's mutex and
// finds it so came after Close has told that key's holders, or Close will.
func (c *Client) isClosing() bool {
	select {
	case <-c.closing:
		return true
	default:
		return false
	}
}

// spawn runs f in a goroutine that Close waits for. Only an operation, or what
// one has begun, may call it.
func (c *Client) spawn(f func()) {
	c.work.Add(1)
	c.crew.do(spawned{c, f})
}

type spawned struct {
	c *Client
	f func()
}

func (s spawned) run() {
	defer s.c.work.Done()
	s.f()
}

// mostKept bounds how many keys are remembered only because their fields are
// burned. Beyond it every new field of the client takes a number, and none need
// be remembered.
const mostKept = 4096

// entry returns key's entry, made if need be. Every call is followed by leave.
func (c *Client) entry(key string) *entry {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.entries[key]
	if e == nil {
		e = &entry{c: c, key: key, rec: record.New(&c.rules)}
		c.entries[key] = e
	}
	e.refs++
	return e
}

// find is entry for those who only look: nil when there is none.
func (c *Client) find(key string) *entry {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.entries[key]
	if e != nil {
		e.refs++
	}
	return e
}

// leave gives up a reference to e. It must not be called with e.mu held.
func (c *Client) leave(e *entry) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e.refs--
	c.tidyLocked(e)
}

// tidy forgets e when nothing is to be remembered of it.
func (c *Client) tidy(e *entry) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.tidyLocked(e)
}

func (c *Client) tidyLocked(e *entry) {
	if e.refs > 0 || c.entries[e.key] != e {
		return
	}
	e.mu.Lock()
	idle, burned := e.idle()
	e.mu.Unlock()
	switch {
	case !idle:
	case !burned:
		delete(c.entries, e.key)
	case len(c.entries) > mostKept:
		c.numbered.Store(true)
		delete(c.entries, e.key)
	}
}

// entriesNow is a snapshot of all entries, each with a reference.
func (c *Client) entriesNow() []*entry {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := make([]*entry, 0, len(c.entries))
	for _, e := range c.entries {
		e.refs++
		all = append(all, e)
	}
	return all
}
