package pubsub

import "container/list"

// Subscription is one party's interest in a channel. Make it with
// [Hub.Subscribe] or [Shards.Subscribe].
type Subscription struct {
	core *core
	c    chan struct{} // sent to under core.mu, received from by anybody

	// Guarded by core.mu.
	topic  *topic
	place  *list.Element // in topic.subs
	closed bool
}

// C delivers the wake-ups. Its capacity is one: a receive takes the wake-up,
// and one that comes while another is pending adds nothing. It is never closed.
func (s *Subscription) C() <-chan struct{} { return s.c }

// Close drops the interest. A wake-up that is still pending goes on to the next
// subscription of the channel; afterwards C delivers nothing. Close never
// blocks on I/O, and closing again does nothing.
func (s *Subscription) Close() {
	c := s.core
	c.mu.Lock()
	defer c.mu.Unlock()

	if s.closed {
		return
	}
	s.closed = true
	s.topic.subs.Remove(s.place)
	select {
	case <-s.c:
		s.topic.wakeOne()
	default:
	}
	if !c.closed && s.topic.subs.Len() == 0 {
		c.deserted(s.topic)
	}
}

// wake makes a wake-up pending. It reports false if one was pending already.
func (s *Subscription) wake() bool {
	select {
	case s.c <- struct{}{}:
		return true
	default:
		return false
	}
}
