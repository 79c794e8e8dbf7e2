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
	absent        state = iota // not subscribed; in Hub.wanted, Shards.ready or Shards.paused
	locating                   // in a Locate that has not returned
	subscribing                // in a SUBSCRIBE that is not answered
	subscribed                 // confirmed; in Hub.lingering or Hub.leaving if nobody wants it
	unsubscribing              // in an UNSUBSCRIBE that is not answered
	refused                    // answered with an error; in Hub.refused
)

// topic is one channel and its subscriptions. core.mu guards it.
type topic struct {
	name  string
	state state
	subs  list.List // of *Subscription, oldest first
	hub   *Hub      // whose topic it is; nil while a Shards locates it

	in    *list.List    // the list that the topic stands in, or nil
	place *list.Element // in that list
	due   time.Time     // when it may leave Hub.lingering, Hub.refused or Shards.paused

	request *request // that is under way for it, or nil
	alone   bool     // goes in a SUBSCRIBE of its own: it was in one that was refused
	repeats int      // see session.repeats
	outage  *outage  // that it was hit by, until it is confirmed again

	// For a Shards.
	confirmed time.Time // when it was; zero if it is not
	tries     int       // nodes in a row that did not serve it for long
	wrong     bool      // the node that was located last does not serve it
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

// leave takes t from its hub, if it has one. A hub without topics has nothing
// more to do.
func (t *topic) leave() {
	t.move(nil)
	if h := t.hub; h != nil {
		t.hub = nil
		if h.here--; h.here == 0 {
			signal(h.kick)
		}
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

// lose is want for a topic that another node may have to serve from now on.
// Unless soon, that takes a pause at least.
func (h *Hub) lose(t *topic, soon bool) {
	if h.shards == nil {
		h.want(t)
		return
	}
	t.leave()
	h.shards.relocate(t, soon)
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
	next = drain(&h.refused, now, h.want)
	return earlier(next, drain(&h.lingering, now, func(t *topic) {
		t.move(&h.leaving)
		signal(h.session.work)
	}))
}

// drain calls then, which takes it out of l, for each topic in front that is
// due at now. It returns when the first of the others is, zero if there is none.
func drain(l *list.List, now time.Time, then func(*topic)) time.Time {
	for e := l.Front(); e != nil; e = l.Front() {
		t := e.Value.(*topic)
		if now.Before(t.due) {
			return t.due
		}
		then(t)
	}
	return time.Time{}
}

// earlier returns the earlier of two times, of which zero ones do not count.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}
