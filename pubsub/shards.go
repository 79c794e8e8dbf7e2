package pubsub

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"maps"
	"time"
)

const (
	// maxLocators is how many calls of Locate there are at a time.
	maxLocators = 4

	// locateTimeout ends a Locate that has no timeout of its own.
	locateTimeout = connectTimeout

	// defaultRecheck is that of ShardsConfig.Recheck.
	defaultRecheck = 15 * time.Second

	// pauseClasses is how many backOff knows.
	pauseClasses = 8
)

// Node is a server that serves channels.
type Node struct {
	ID   string                         // equal for equal connections, say the address
	Open func(ctx context.Context) Conn // as Config.Open; the newest one of an ID counts
}

// ShardsConfig says how a [Shards] connects. Locate is required.
type ShardsConfig struct {
	Config // Open is nil: the nodes have their own

	// Locate says which node serves a channel now. wrong tells that what it said
	// last time for this channel proved wrong, or that the connection failed, so
	// a cached answer should be refreshed. After the loss of a node that comes
	// for each of its channels, so calls had better share a refresh.
	//
	// It may block, until its ctx ends, and it may be wrong, which costs a pause.
	// A few calls run at the same time, in goroutines of the Shards. It may use
	// the Shards.
	Locate func(ctx context.Context, channel string, wrong bool) (Node, error)

	// Recheck is how often Locate is asked for a channel that is subscribed, with
	// wrong = false. A channel that should be elsewhere moves. A server need not
	// tell that: a demoted master goes on as a replica that messages may not
	// reach, and the shards of a Ring know nothing of each other. 0 means 15 s.
	Recheck time.Duration
}

// Shards is a Hub with a connection for each node that serves a channel. It is
// for the sharded channels of a cluster, each of which lives on the node of its
// slot, and for other clients that spread channels over servers. Make it with
// [NewShards]; its methods are safe for concurrent use.
//
// It has a [Hub] for each node, and moves the topics between them. A topic is
// of one hub, or it is being located: it stands in ready or paused, or is in a
// call of Locate. One that is rechecked is so as well, but stays subscribed. The
// hubs share one core, and so one mutex.
type Shards struct {
	*core
	cfg    ShardsConfig    // without Open
	ctx    context.Context // of the calls of Locate; ends with Close
	cancel context.CancelFunc
	kick   chan struct{} // tells the waiter to look again; capacity one

	// Guarded by core.mu.
	hubs     map[string]*Hub         // by Node.ID
	ready    list.List               // topics to be located, or to be rechecked if they have a hub
	paused   [pauseClasses]list.List // topics to be located at topic.due, by how often that was in vain
	locators int                     // goroutines that call Locate
	waiting  bool                    // a goroutine waits for the paused ones
	planned  time.Time               // when it looks next of its own accord
}

// NewShards returns a Shards. It connects to a node when the first channel is
// located there. It panics if cfg.Locate is nil or cfg.Open is not.
func NewShards(cfg ShardsConfig) *Shards {
	if cfg.Locate == nil {
		panic("pubsub: ShardsConfig.Locate is nil")
	}
	if cfg.Open != nil {
		panic("pubsub: ShardsConfig.Open is not used: Locate names the nodes, which have their own")
	}
	cfg.Config = cfg.withDefaults()
	if cfg.Recheck <= 0 {
		cfg.Recheck = defaultRecheck
	}
	s := &Shards{core: newCore(), cfg: cfg, kick: make(chan struct{}, 1), hubs: make(map[string]*Hub)}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	return s
}

// Subscribe is like [Hub.Subscribe]. When the channel moves to another node,
// the Subscription moves with it.
func (s *Shards) Subscribe(channel string) *Subscription { return s.subscribe(channel, s.locateLocked) }

// Close is like [Hub.Close], for all connections.
func (s *Shards) Close(ctx context.Context) error { return s.close(ctx, s.stop) }

func (s *Shards) stop() {
	for _, h := range s.hubs {
		h.stop()
	}
	s.cancel()
	signal(s.kick)
}

// relocate has t located after it was lost. The first time that comes at once,
// if soon, and then after pauses that grow until t stays where it is.
func (s *Shards) relocate(t *topic, soon bool) {
	if !t.confirmed.IsZero() && time.Since(t.confirmed) >= maxPause {
		t.tries = 0
	}
	t.state, t.request, t.confirmed, t.wrong = absent, nil, time.Time{}, true
	s.retry(t, soon)
}

// retry has t located once more, or forgets it if nobody is there.
func (s *Shards) retry(t *topic, soon bool) {
	n := t.tries
	t.tries++
	switch {
	case t.subs.Len() == 0:
		s.forget(t)
	case soon && n == 0:
		s.locateLocked(t)
	default:
		s.pause(t, min(max(n, 1), pauseClasses)-1)
	}
}

// pause lets t wait. As the pauses are random, the first topic of a list is not
// always the first to be due; those behind it wait no longer than the longest
// pause of their class for that.
func (s *Shards) pause(t *topic, class int) {
	t.due = time.Now().Add(backOff(class))
	t.move(&s.paused[class])
	if !s.waiting {
		s.waiting = true
		s.goLocked(s.wait)
	} else if t.due.Before(s.planned) {
		signal(s.kick)
	}
}

// wait has the paused topics located when they are due, until there are none.
func (s *Shards) wait() {
	for {
		next := s.look()
		if next.IsZero() {
			return
		}
		sleep(time.Until(next), s.kick)
	}
}

func (s *Shards) look() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()

	s.planned = time.Time{}
	now := time.Now()
	for i := range s.paused {
		s.planned = earlier(s.planned, drain(&s.paused[i], now, s.locateLocked))
	}
	s.waiting = !s.planned.IsZero()
	return s.planned
}

// locateLocked has t located without a pause.
func (s *Shards) locateLocked(t *topic) {
	t.move(&s.ready)
	if s.locators < maxLocators {
		s.locators++
		s.goLocked(s.locate)
	}
}

// locate asks for the nodes of the ready topics, until there are none.
func (s *Shards) locate() {
	for {
		t, at, wrong := s.next()
		if t == nil {
			return
		}
		ctx, cancel := context.WithTimeout(s.ctx, locateTimeout)
		node, err := s.cfg.Locate(ctx, t.name, wrong)
		cancel()
		if err == nil && node.Open == nil {
			err = errors.New("a node without Open")
		}
		if at != nil {
			s.rechecked(t, at, node, err)
		} else if s.located(t, node, err) {
			s.cfg.Logger.Warn("pubsub: no node for a channel", "error", fmt.Errorf("channel %q: %w", t.name, err))
		}
	}
}

// next takes a topic to be located, or to be rechecked at a hub.
func (s *Shards) next() (t *topic, at *Hub, wrong bool) {
	s.mu.Lock()
	defer s.mu.Unlock()

	e := s.ready.Front()
	if e == nil {
		s.locators--
		return nil, nil, false
	}
	t = e.Value.(*topic)
	t.move(nil)
	if t.hub == nil {
		t.state = locating
	}
	return t, t.hub, t.wrong
}

// located hands t over to the hub of its node. It reports whether to log err.
func (s *Shards) located(t *topic, node Node, err error) (complain bool) {
	s.mu.Lock()
	defer s.mu.Unlock()

	if s.closed {
		return false
	}
	t.state = absent
	if err != nil {
		s.retry(t, false)
		return s.complain()
	}
	t.wrong = false
	s.hub(node).take(t)
	return false
}

// recheck has the topics located that are subscribed on h and wanted.
func (s *Shards) recheck(h *Hub) {
	for _, t := range s.topics {
		if t.hub == h && t.state == subscribed && t.in == nil {
			s.locateLocked(t)
		}
	}
}

// rechecked lets t leave at, if that is not its node any more and t has not
// changed meanwhile: the UNSUBSCRIBE comes first, and when that is answered t is
// located once more.
func (s *Shards) rechecked(t *topic, at *Hub, node Node, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()

	if err == nil && node.ID != at.id && t.hub == at && t.state == subscribed && t.in == nil {
		t.wrong = true
		t.move(&at.leaving)
		signal(at.session.work)
	}
}

// hub returns the hub of a node.
func (s *Shards) hub(node Node) *Hub {
	h := s.hubs[node.ID]
	if h == nil {
		// Nodes come and go. A hub at rest is kept while it says when to try again.
		maps.DeleteFunc(s.hubs, func(_ string, h *Hub) bool {
			return !h.supervised && h.here == 0 && time.Since(h.retryAt) > maxPause
		})
		cfg := s.cfg.Config
		cfg.Logger = cfg.Logger.With("node", node.ID)
		h = newHub(s.core, cfg)
		h.shards, h.id = s, node.ID
		s.hubs[node.ID] = h
	}
	h.open = node.Open
	return h
}
