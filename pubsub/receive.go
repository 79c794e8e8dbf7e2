package pubsub

import (
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// receive takes what the reader of s got. It flips flags and nothing else, so
// the connection is always drained. It reports whether s goes on.
func (h *Hub) receive(s *session, v any, err error) bool {
	m, _ := v.(*redis.Message)
	all := m != nil && h.cfg.Broadcast(m.Payload)

	h.mu.Lock()
	defer h.mu.Unlock()

	if h.session != s {
		return false
	}
	if err != nil && !isReply(err) {
		h.failLocked(s, fmt.Errorf("receive: %w", err))
		return false
	}
	if !s.probed.IsZero() {
		signal(h.kick) // the supervisor waits for this, and not for the next silence
	}
	s.heard, s.probed, s.ping = time.Now(), time.Time{}, false

	if err != nil {
		h.rejected(s, err)
		return h.session == s
	}
	switch v := v.(type) {
	case *redis.Message:
		if t := h.topic(v.Channel); t != nil && all {
			t.wakeAll()
		} else if t != nil {
			t.wakeOne()
		}
	case *redis.Subscription:
		h.answered(s, v)
	case *redis.Pong:
		s.ponged()
	}
	return true
}

// topic returns the topic of h with this name, or nil.
func (h *Hub) topic(name string) *topic {
	if t := h.topics[name]; t != nil && t.hub == h {
		return t
	}
	return nil
}

// answered takes the server's word on one channel. The kinds of sharded
// channels mean the same.
func (h *Hub) answered(s *session, v *redis.Subscription) {
	t := h.topic(v.Channel)
	if t == nil {
		return
	}
	switch v.Kind {
	case "subscribe", "ssubscribe":
		switch t.state {
		case subscribing:
			s.done(t)
			h.confirmed(s, t)
		case subscribed:
			h.repeated(s, t)
		}
	case "unsubscribe", "sunsubscribe":
		switch t.state {
		case unsubscribing:
			s.done(t)
			if t.wrong {
				h.lose(t, true)
			} else {
				h.want(t)
			}
		case subscribed:
			// Not asked for: the server ended it, because the slot moved say.
			t.wakeAll()
			h.lose(t, true)
		}
	}
}

// confirmed makes t a subscribed topic.
func (h *Hub) confirmed(s *session, t *topic) {
	t.state, t.alone, t.repeats, t.confirmed = subscribed, false, s.repeats, time.Now()
	t.wakeAll()
	if t.subs.Len() == 0 {
		h.deserted(t)
	}
	s.confirmed = true
	if t.outage != nil && !t.outage.over {
		t.outage.over = true
		h.news.reconnects++
		signal(h.kick)
	}
	t.outage = nil
}

// repeated is called when t, subscribed, is confirmed once more: go-redis has
// moved the connection without an error. That comes once for every channel, but
// it is one event: the first topic to have seen more of them than the session
// tells. Requests that got lost on the way are found overdue by the supervisor.
func (h *Hub) repeated(s *session, t *topic) {
	t.wakeAll()
	t.repeats++
	if t.repeats > s.repeats {
		s.repeats = t.repeats
		h.news.reconnects++
		signal(h.kick)
	}
}

// rejected is called for an error reply. It names no channel, but replies come
// in the order of the requests, so it belongs to the oldest one.
func (h *Hub) rejected(s *session, err error) {
	v := judge(err)
	if h.shards == nil && v == unready {
		v = refusal
	}
	if len(s.inflight) == 0 || v == moved && h.shards == nil || v == crossed && len(s.inflight[0].topics) <= 1 {
		// A reply to nothing we asked, or the wrong server for a sharded
		// channel: begin anew.
		h.failLocked(s, fmt.Errorf("error reply: %w", err))
		return
	}
	r := s.inflight[0]
	s.inflight = s.inflight[1:]

	for _, t := range r.unanswered() {
		switch {
		case v == moved:
			h.lose(t, true)
		case v == unready:
			h.lose(t, false)
			h.complain(t, err)
		case r.kind == unsubscribe:
			h.want(t) // messages that still come wake nobody, or harmlessly
		case len(r.topics) > 1:
			t.alone = true // one of them is to blame: ask for each by itself
			h.want(t)
		default:
			h.refuse(t, err)
		}
	}
}

// verdict is what an error reply says about a channel.
type verdict int

const (
	refusal verdict = iota // not to be had for now
	moved                  // another node serves it
	unready                // no node serves it at the moment, or this one not yet
	crossed                // several slots in one command
)

func judge(err error) verdict {
	code, _, _ := strings.Cut(err.Error(), " ")
	switch code {
	case "MOVED":
		return moved
	case "CLUSTERDOWN", "TRYAGAIN", "LOADING", "MASTERDOWN":
		return unready
	case "CROSSSLOT":
		return crossed
	default:
		return refusal
	}
}

// refuse leaves t alone for a while. Its subscriptions are not woken: they
// would look, find nothing changed, and come back.
func (h *Hub) refuse(t *topic, err error) {
	t.state, t.request = refused, nil
	h.delay(t, &h.refused, refusedPause)
	h.complain(t, err)
}

// complain has err logged, if it is time to.
func (h *Hub) complain(t *topic, err error) {
	if h.core.complain() {
		h.news.refusal = fmt.Errorf("channel %q: %w", t.name, err)
		signal(h.kick)
	}
}

// done counts the answer for t.
func (s *session) done(t *topic) {
	t.request.left--
	t.request = nil
	s.trim()
}

// ponged counts the answer to the oldest ping, and to what it was the fence of.
func (s *session) ponged() {
	for _, r := range s.inflight {
		if r.kind == ping {
			r.left = 0
			break
		}
		if r.fenced && len(r.unanswered()) == 0 {
			r.left = 0
		}
	}
	s.trim()
}

// trim drops the requests in front that lack no answer.
func (s *session) trim() {
	for len(s.inflight) > 0 && s.inflight[0].left <= 0 {
		s.inflight = s.inflight[1:]
	}
}

// isReply tells an error that the server sent from one of the connection.
func isReply(err error) bool {
	var reply redis.Error
	return errors.As(err, &reply)
}

func isTimeout(err error) bool {
	var timeout net.Error
	return errors.As(err, &timeout) && timeout.Timeout()
}
