package pubsub

import (
	"container/list"
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"
)

// Defaults of [Config].
const (
	defaultProbe        = 5 * time.Second
	defaultProbeTimeout = 3 * time.Second
	defaultLinger       = 5 * time.Second
)

// Conn is a subscription connection. *redis.PubSub is one.
//
// Any method may block for long, Close included: go-redis dials and writes
// under one mutex. A Hub calls them from goroutines of its own only, one
// goroutine for ReceiveTimeout and one for everything else. Close has to make a
// ReceiveTimeout that is under way return.
type Conn interface {
	Subscribe(ctx context.Context, channels ...string) error
	Unsubscribe(ctx context.Context, channels ...string) error
	Ping(ctx context.Context, payload ...string) error

	// ReceiveTimeout returns a *redis.Subscription, *redis.Message or
	// *redis.Pong, a redis.Error if the server refused a request, or another
	// error. One whose Timeout method says true means that nothing came.
	ReceiveTimeout(ctx context.Context, timeout time.Duration) (any, error)

	Close() error
}

// Config says how a [Hub] connects. Only Open is required.
type Config struct {
	// Open makes a connection that has no channels yet. It may be called again
	// at any time to replace a connection, also before that one is closed.
	Open func(ctx context.Context) Conn

	// Probe is how long the connection may be silent before a PING is sent.
	// 0 means 5 s.
	Probe time.Duration

	// ProbeTimeout is how long it may then take until anything at all arrives.
	// A dead connection is noticed after Probe + ProbeTimeout. A server that is
	// busy for longer than this, with a script say, counts as dead and is
	// connected to anew, which does no harm. 0 means 3 s.
	ProbeTimeout time.Duration

	// Linger is how long a channel stays subscribed after its last
	// subscription was closed. Whoever subscribes to it in that time costs no
	// traffic and is woken at once. 0 means 5 s.
	Linger time.Duration

	// Broadcast tells whether a message with this payload wakes all
	// subscriptions of its channel instead of one. It runs between messages, so
	// it must be quick, and must not use the Hub. nil: no message does.
	Broadcast func(payload string) bool

	// Reconnected is called each time a connection had to be replaced and the
	// first channel is confirmed on the new one. All affected subscriptions are
	// woken apart from it. It runs in the goroutine that watches the connection,
	// so it must not block; it may use the Hub. nil: nothing is called.
	Reconnected func()

	// Logger gets lost connections and refused channels, rate-limited.
	// nil discards them.
	Logger *slog.Logger
}

// withDefaults returns cfg with its zero values replaced.
func (cfg Config) withDefaults() Config {
	if cfg.Probe <= 0 {
		cfg.Probe = defaultProbe
	}
	if cfg.ProbeTimeout <= 0 {
		cfg.ProbeTimeout = defaultProbeTimeout
	}
	if cfg.Linger <= 0 {
		cfg.Linger = defaultLinger
	}
	if cfg.Broadcast == nil {
		cfg.Broadcast = func(string) bool { return false }
	}
	if cfg.Reconnected == nil {
		cfg.Reconnected = func() {}
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	return cfg
}

// Hub shares one subscription connection among many subscriptions. Make it
// with [New]; its methods are safe for concurrent use.
//
// While something is subscribed three goroutines run: the supervisor, which
// owns the timers and opens one session after the other (watch.go), and the
// writer and the reader of the present session (session.go). All of them work
// on the fields below. A session's connection belongs to its writer, and the
// reader ends when the writer closes it.
//
// mu guards everything below it, the topics, the sessions' fields marked so,
// and the subscriptions. It is never held across I/O, user code or a send that
// may block, and no other lock is taken under it.
type Hub struct {
	cfg  Config
	kick chan struct{} // tells the supervisor to look again; capacity one

	mu     sync.Mutex
	topics map[string]*topic // by channel name: subscribed, wanted, or with a request under way

	// A topic stands in at most one of these lists, each in order of arrival.
	wanted    list.List // to be subscribed
	leaving   list.List // subscribed, to be unsubscribed
	lingering list.List // subscribed without subscriptions, until topic.due
	refused   list.List // refused by the server, asked for again at topic.due

	supervised bool      // a supervisor runs
	session    *session  // the present one; nil between two
	planned    time.Time // when the supervisor looks next of its own accord
	failures   int       // sessions lost in a row
	retryAt    time.Time // no new session before this
	lost       bool      // a session that had confirmed channels was lost and not yet replaced
	news       news      // for the supervisor to tell
	complained time.Time // when a refused channel was last among them

	closed  bool
	running int           // goroutines
	ended   chan struct{} // closed when the Hub is closed and no goroutine is left
}

// New returns a Hub. It connects with the first Subscribe. It panics if
// cfg.Open is nil.
func New(cfg Config) *Hub {
	if cfg.Open == nil {
		panic("pubsub: Config.Open is nil")
	}
	return &Hub{
		cfg:    cfg.withDefaults(),
		kick:   make(chan struct{}, 1),
		topics: make(map[string]*topic),
		ended:  make(chan struct{}),
	}
}

// Subscribe registers interest in a channel and returns at once; it does no
// I/O. A wake-up on C tells when the server has confirmed the channel, so
// whoever waits for C and then looks misses nothing that comes later.
//
// The Subscription holds its channel until it is closed. On a closed Hub it is
// one whose C never delivers.
func (h *Hub) Subscribe(channel string) *Subscription {
	h.mu.Lock()
	defer h.mu.Unlock()

	sub := &Subscription{hub: h, c: make(chan struct{}, 1)}
	if h.closed {
		sub.closed = true
		return sub
	}
	t, known := h.topics[channel]
	if !known {
		t = &topic{name: channel}
		h.topics[channel] = t
	}
	t.add(sub)
	switch {
	case !known:
		h.want(t)
		h.startLocked()
	case t.state == subscribed:
		t.move(nil) // if it was lingering or leaving
		sub.wake()
	}
	return sub
}

// Close ends all subscriptions, with a last wake-up each, and then the
// connection and the goroutines. It returns when they are gone, or when ctx
// ends: then what is left, a dial that hangs say, ends by itself as soon as it
// can. Later calls wait in the same way.
func (h *Hub) Close(ctx context.Context) error {
	h.mu.Lock()
	if !h.closed {
		h.closed = true
		h.closeLocked()
	}
	h.mu.Unlock()

	select {
	case <-h.ended: // also if ctx is over as well
		return nil
	default:
	}
	select {
	case <-h.ended:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("pubsub: the connection is still closing: %w", context.Cause(ctx))
	}
}

func (h *Hub) closeLocked() {
	for _, t := range h.topics {
		t.move(nil)
		t.wakeAll()
	}
	clear(h.topics)
	if s := h.session; s != nil {
		h.detachLocked(s)
	}
	signal(h.kick)
	if h.running == 0 {
		close(h.ended)
	}
}

// goLocked runs f in a goroutine that Close waits for.
func (h *Hub) goLocked(f func()) {
	h.running++
	go func() {
		defer h.leave()
		f()
	}()
}

func (h *Hub) leave() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.running--
	if h.closed && h.running == 0 {
		close(h.ended)
	}
}

// signal sets the flag c, a channel of capacity one.
func signal(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
