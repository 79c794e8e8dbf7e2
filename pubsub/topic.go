package pubsub

import (
	"container/list"
	"time"
)

// refusedPause is how long a channel that the server refused is left alone.
const refusedPause = 10 * time.Second

// state is what a topic's channel is to the server.
//
// A channel has at most one request under way: whoever subscribes while it is
// being unsubscribed waits for that answer before the SUBSCRIBE is sent. So an
// answer never has to be told from one to an earlier request.
type state int

const (
	absent        state = iota // not subscribed; in Hub.wanted
	subscribing                // in a SUBSCRIBE that is not answered
	subscribed                 // confirmed; in Hub.lingering or Hub.leaving if nobody wants it
	unsubscribing              // in an UNSUBSCRIBE that is not answered
	refused                    // answered with an error; in Hub.refused
)

// topic is one channel and its subscriptions. hub.mu guards it.
type topic struct {
	name  string
	state state
	subs  list.List // of *Subscription, oldest first

	in    *list.List    // the list of the hub that the topic stands in, or nil
	place *list.Element // in that list
	due   time.Time     // when it may leave Hub.lingering or Hub.refused

	request *request // that is under way for it, or nil
	alone   bool     // goes in a SUBSCRIBE of its own: it was in one that was refused
	repeats int      // see session.repeats
}

// move puts t at the end of to, out of the list that it stood in. nil: nowhere.
func (t *topic) move(to *list.List) {
	if t.in != nil {
		t.in.Remove(t.place)
	}
	t.in, t.place = to, nil
	if to != nil {
		t.place = to.PushBack(t)
	}
}

func (t *topic) add(s *Subscription) {
	s.topic, s.place = t, t.subs.PushBack(s)
}

// wakeOne wakes the oldest subscription without a wake-up pending. If all have
// one, they will all look after this moment anyway.
func (t *topic) wakeOne() {
	for e := t.subs.Front(); e != nil; e = e.Next() {
		if e.Value.(*Subscription).wake() {
			return
		}
	}
}

func (t *topic) wakeAll() {
	for e := t.subs.Front(); e != nil; e = e.Next() {
		e.Value.(*Subscription).wake()
	}
}

// want makes t, which is not subscribed, one for the writer to subscribe. If
// nobody wants it, t is forgotten instead.
func (h *Hub) want(t *topic) {
	t.state, t.request = absent, nil
	if t.subs.Len() == 0 {
		h.forget(t)
		return
	}
	t.move(&h.wanted)
	if h.session != nil {
		signal(h.session.work)
	}
}

// forget removes t. With the last one the session has nothing more to do.
func (h *Hub) forget(t *topic) {
	t.move(nil)
	delete(h.topics, t.name)
	if len(h.topics) == 0 {
		signal(h.kick)
	}
}

// deserted is called when the last subscription of t was closed. A topic with a
// request under way stays until the answer, a refused one until its pause is
// over, lest every newcomer ask the server again.
func (h *Hub) deserted(t *topic) {
	switch t.state {
	case absent:
		h.forget(t)
	case subscribed:
		h.delay(t, &h.lingering, h.cfg.Linger)
	}
}

// delay puts t into a list whose topics all stay for the time d, so that the
// first is always the first to be due.
func (h *Hub) delay(t *topic, in *list.List, d time.Duration) {
	t.due = time.Now().Add(d)
	t.move(in)
	if t.due.Before(h.planned) {
		signal(h.kick)
	}
}

// dueLocked takes out the topics whose delay is over at now, and returns when
// the next one's is, zero if there is none.
func (h *Hub) dueLocked(now time.Time) (next time.Time) {
	drain := func(l *list.List, then func(*topic)) {
		for e := l.Front(); e != nil; e = l.Front() {
			t := e.Value.(*topic)
			if now.Before(t.due) {
				next = earlier(next, t.due)
				return
			}
			then(t)
		}
	}
	drain(&h.refused, h.want)
	drain(&h.lingering, func(t *topic) {
		t.move(&h.leaving)
		signal(h.session.work)
	})
	return next
}

// earlier returns the earlier of two times, of which zero ones do not count.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}
