package pubsub

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"time"
)

// maxBatch is how many channels go into one command. It bounds the command's
// size and, with it, how long the server is busy with it.
const maxBatch = 500

// session is the life of one connection, from Open to its first failure.
//
// go-redis repairs a connection by itself and subscribes everything again, but
// keeps to itself which requests got lost on the way. So a session never
// outlives an error; a new one, with a new connection, begins from nothing.
type session struct {
	hub    *Hub
	open   func(ctx context.Context) Conn
	ctx    context.Context // ends when the session is detached
	cancel context.CancelFunc
	work   chan struct{} // tells the writer to look again; capacity one
	conn   Conn          // set by the writer before it starts the reader

	// Guarded by core.mu.
	opened      time.Time
	established time.Time  // when the first command was written; zero before
	heard       time.Time  // when the last thing arrived
	probed      time.Time  // when the answer to a silence was asked for; zero if it is not
	ping, fence bool       // for the writer to send one: see request.fenced
	inflight    []*request // sent or being sent, not answered, oldest first
	confirmed   bool       // a channel was confirmed
	repeats     int        // how often go-redis subscribed everything again by itself
	err         error      // why it ended; nil if nothing was left to do
}

type kind int

const (
	subscribe kind = iota
	unsubscribe
	ping
)

// request is one command and the answers that it still lacks. The server
// answers a command with one message per channel, or with one error for all.
type request struct {
	kind   kind
	topics []*topic // none for a ping
	left   int      // answers to come
	sent   time.Time

	// An UNSUBSCRIBE of a sharded channel may come just after the server has
	// ended the subscription itself. It then seems to be answered, and the error
	// that follows would pass for the answer to another request. So a ping is
	// sent right behind it, and only the Pong completes it.
	fenced bool
}

func (r *request) channels() []string {
	names := make([]string, len(r.topics))
	for i, t := range r.topics {
		names[i] = t.name
	}
	return names
}

// unanswered returns the topics that still wait for r.
func (r *request) unanswered() []*topic {
	var rest []*topic
	for _, t := range r.topics {
		if t.request == r {
			rest = append(rest, t)
		}
	}
	return rest
}

// write owns the connection: it opens it, sends what there is to send until the
// session ends, and closes it, which ends the reader.
func (s *session) write() {
	s.conn = s.open(s.ctx)
	if s.conn == nil {
		s.hub.fail(s, errors.New("open: no connection"))
		return
	}
	defer s.conn.Close() // nothing to do about an error

	for s.ctx.Err() == nil {
		r := s.hub.next(s)
		if r == nil {
			select {
			case <-s.work:
			case <-s.ctx.Done():
			}
			continue
		}
		if err := s.send(r); err != nil {
			s.hub.fail(s, fmt.Errorf("send: %w", err))
			return
		}
		s.hub.sent(s, r)
	}
}

func (s *session) send(r *request) error {
	switch r.kind {
	case subscribe:
		return s.conn.Subscribe(s.ctx, r.channels()...)
	case unsubscribe:
		return s.conn.Unsubscribe(s.ctx, r.channels()...)
	default:
		return s.conn.Ping(s.ctx)
	}
}

// read hands over what arrives until the session ends.
//
// go-redis drops what it has read of a reply when the time is up, and keeps the
// connection. So the time is longer than the supervisor lets a connection be
// silent, and runs out on a dead one only.
func (s *session) read() {
	patience := s.hub.cfg.Probe + 2*s.hub.cfg.ProbeTimeout
	for {
		began := time.Now()
		v, err := s.conn.ReceiveTimeout(s.ctx, patience)
		if isTimeout(err) && time.Since(began) > patience/2 {
			continue // silence, which the supervisor judges
		}
		if !s.hub.receive(s, v, err) {
			return
		}
	}
}

// next takes the next command to send, nil if there is none. Its topics count
// as asked for from here on: the answer may be read before the send returns.
func (h *Hub) next(s *session) *request {
	h.mu.Lock()
	defer h.mu.Unlock()

	if h.session != s {
		return nil
	}
	var r *request
	switch {
	case s.ping || s.fence:
		s.ping, s.fence = false, false
		r = &request{kind: ping, left: 1}
	case h.wanted.Len() > 0: // before the leaving ones: somebody waits for it
		r = h.gather(&h.wanted, subscribe, subscribing)
	case h.leaving.Len() > 0:
		r = h.gather(&h.leaving, unsubscribe, unsubscribing)
		if h.cfg.OneByOne {
			r.fenced, s.fence = true, true
			r.left++
		}
	default:
		return nil
	}
	r.sent = time.Now()
	s.inflight = append(s.inflight, r)
	return r
}

// gather moves topics from a list into a request.
func (h *Hub) gather(from *list.List, k kind, to state) *request {
	r := &request{kind: k}
	for e := from.Front(); e != nil && len(r.topics) < maxBatch; e = from.Front() {
		t := e.Value.(*topic)
		alone := t.alone || h.cfg.OneByOne
		if alone && len(r.topics) > 0 {
			break
		}
		t.move(nil)
		t.state, t.request = to, r
		r.topics = append(r.topics, t)
		if alone {
			break
		}
	}
	r.left = len(r.topics)
	return r
}

// sent notes that r was written. The reader starts with the first: a reader
// that came earlier would dial itself, without a channel to choose the node by.
func (h *Hub) sent(s *session, r *request) {
	h.mu.Lock()
	defer h.mu.Unlock()

	if h.session != s {
		return
	}
	r.sent = time.Now()
	if s.established.IsZero() {
		s.established, s.heard = r.sent, r.sent
		h.goLocked(s.read)
		signal(h.kick)
	}
}

// fail ends s because of err.
func (h *Hub) fail(s *session, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.failLocked(s, err)
}

// failLocked ends s because of err and makes its topics wanted again, be it
// here or elsewhere. Messages
// may have been lost on those that were subscribed, so these are woken now, and
// all of them when they are confirmed again. During an outage nobody is woken a
// second time.
func (h *Hub) failLocked(s *session, err error) {
	if h.session != s {
		return
	}
	h.detachLocked(s)
	s.err = err
	if s.confirmed {
		h.outage = new(outage)
	}
	h.backOffLocked(s)
	for _, t := range h.topics {
		if t.hub != h {
			continue
		}
		if s.confirmed {
			t.outage = h.outage
		}
		if t.state == subscribed {
			t.wakeAll()
		}
		h.lose(t, true)
	}
	signal(h.kick)
}

// detachLocked makes s, the present session, a past one: nothing that its
// goroutines still read or send counts any more.
func (h *Hub) detachLocked(s *session) {
	h.session = nil
	s.cancel()
}
