package pubsub

import (
	"container/list"
	"context"
	"log/slog"
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

// Config says how a [Hub] connects, for which only Open is required, or a [Shards].
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

	// OneByOne says that each command to the server names one channel. Sharded
	// channels need that: a command must not name channels of several slots.
	OneByOne bool

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
	// so it must not block; it may use the Hub. For a Shards, several calls may
	// run at the same time, and a connection also counts as replaced when its
	// channels went to other nodes. nil: nothing is called.
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
type Hub struct {
	*core
	cfg    Config        // without Open
	shards *Shards       // that it is one of, nil if it is by itself
	id     string        // then: of its node
	kick   chan struct{} // tells the supervisor to look again; capacity one

	// Guarded by core.mu.
	open func(ctx context.Context) Conn
	here int // topics of this hub

	// A topic stands in at most one of these lists, each in order of arrival.
	wanted    list.List // to be subscribed
	leaving   list.List // subscribed, to be unsubscribed
	lingering list.List // subscribed without subscriptions, until topic.due
	refused   list.List // refused by the server, asked for again at topic.due

	supervised bool      // a supervisor runs
	session    *session  // the present one; nil between two
	planned    time.Time // when the supervisor looks next of its own accord
	rechecked  time.Time // when the topics were located again, by a Shards
	failures   int       // sessions lost in a row
	retryAt    time.Time // no new session before this
	outage     *outage   // the last one; nil if nothing was subscribed since
	news       news      // for the supervisor to tell
}

// outage is the loss of a session that had confirmed channels. It is over with
// the first of the topics that it hit to be confirmed again.
type outage struct{ over bool }

// New returns a Hub. It connects with the first Subscribe. It panics if
// cfg.Open is nil.
func New(cfg Config) *Hub {
	if cfg.Open == nil {
		panic("pubsub: Config.Open is nil")
	}
	h := newHub(newCore(), cfg.withDefaults())
	h.open = cfg.Open
	return h
}

func newHub(c *core, cfg Config) *Hub {
	return &Hub{core: c, cfg: cfg, kick: make(chan struct{}, 1)}
}

// Subscribe registers interest in a channel and returns at once; it does no
// I/O. A wake-up on C tells when the server has confirmed the channel, so
// whoever waits for C and then looks misses nothing that comes later.
//
// The Subscription holds its channel until it is closed. On a closed Hub it is
// one whose C never delivers.
func (h *Hub) Subscribe(channel string) *Subscription { return h.subscribe(channel, h.take) }

// take makes t, which is nobody's, a topic of h.
func (h *Hub) take(t *topic) {
	t.hub = h
	h.here++
	if t.outage == nil {
		t.outage = h.outage
	}
	h.want(t)
	h.startLocked()
}

// Close ends all subscriptions, with a last wake-up each, and then the
// connection and the goroutines. It returns when they are gone, or when ctx
// ends: then what is left, a dial that hangs say, ends by itself as soon as it
// can. Later calls wait in the same way.
func (h *Hub) Close(ctx context.Context) error { return h.close(ctx, h.stop) }

// stop ends the session of h, whose topics are gone, for good.
func (h *Hub) stop() {
	if s := h.session; s != nil {
		h.detachLocked(s)
	}
	signal(h.kick)
}

// signal sets the flag c, a channel of capacity one.
func signal(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
