package pubsub

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// core is what a [Hub] has by itself, and what all hubs of a [Shards] share:
// the topics, and the goroutines that Close waits for.
//
// mu guards everything below it, the fields of the hubs and of the Shards that
// say so, the topics, the sessions' fields marked so, and the subscriptions. It
// is never held across I/O, user code or a send that may block, and no other
// lock is taken under it.
type core struct {
	mu     sync.Mutex
	topics map[string]*topic // by channel name: subscribed, wanted, or with a request under way

	complained time.Time // when a channel was last logged as one that cannot be subscribed

	closed  bool
	running int           // goroutines
	ended   chan struct{} // closed when closed and no goroutine is left
}

func newCore() *core {
	return &core{topics: make(map[string]*topic), ended: make(chan struct{})}
}

// subscribe is the Subscribe of a Hub or a Shards. begin is called for a topic
// that is new.
func (c *core) subscribe(channel string, begin func(*topic)) *Subscription {
	c.mu.Lock()
	defer c.mu.Unlock()

	sub := &Subscription{core: c, c: make(chan struct{}, 1)}
	if c.closed {
		sub.closed = true
		return sub
	}
	t, known := c.topics[channel]
	if !known {
		t = &topic{name: channel}
		c.topics[channel] = t
	}
	t.add(sub)
	switch {
	case !known:
		begin(t)
	case t.state == subscribed:
		t.move(nil) // if it was lingering or leaving, or about to be rechecked
		sub.wake()
	}
	return sub
}

// deserted is called when the last subscription of t was closed. A topic with a
// request under way stays until the answer, a refused one until its pause is
// over, lest every newcomer ask the server again.
func (c *core) deserted(t *topic) {
	switch t.state {
	case absent:
		c.forget(t)
	case subscribed:
		t.hub.delay(t, &t.hub.lingering, t.hub.cfg.Linger)
	}
}

// forget removes t.
func (c *core) forget(t *topic) {
	t.leave()
	delete(c.topics, t.name)
}

// complain reports whether it is time to log that a channel cannot be
// subscribed: one line in a pause stands for all of them.
func (c *core) complain() bool {
	now := time.Now()
	if now.Sub(c.complained) < refusedPause {
		return false
	}
	c.complained = now
	return true
}

// close is the Close of a Hub or a Shards. stop ends the connections.
func (c *core) close(ctx context.Context, stop func()) error {
	c.mu.Lock()
	if !c.closed {
		c.closed = true
		for _, t := range c.topics {
			t.leave()
			t.wakeAll()
		}
		clear(c.topics)
		stop()
		if c.running == 0 {
			close(c.ended)
		}
	}
	c.mu.Unlock()

	select {
	case <-c.ended: // also if ctx is over as well
		return nil
	default:
	}
	select {
	case <-c.ended:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("pubsub: the connection is still closing: %w", context.Cause(ctx))
	}
}

// goLocked runs f in a goroutine that close waits for.
func (c *core) goLocked(f func()) {
	c.running++
	go func() {
		defer c.exit()
		f()
	}()
}

func (c *core) exit() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.running--
	if c.closed && c.running == 0 {
		close(c.ended)
	}
}
