package rlock

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"
)

// closers is how many keys of one server Close releases at once.
const closers = 32

// Close ends the client. New calls and those that wait return ErrClosed. Then the
// holders are told: Lost closes, Do's ctx ends with cause ErrClosed, Validity is
// 0. Only then their keys are released, also of holds with a lease, and everything
// that the client started is ended. rdb stays open.
//
// ctx bounds the waiting. What could not be released by then, or because Redis
// does not answer, is named by the error and ends with its lease. A second Close
// waits for the first and returns nil.
func (c *Client) Close(ctx context.Context) error {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		select {
		case <-c.closer:
			return nil
		case <-ctx.Done():
			return ended(ctx)
		}
	}
	c.closed, c.closer = true, make(chan struct{})
	close(c.closing)
	c.mu.Unlock()
	defer close(c.closer)

	all := c.entriesNow()
	for _, e := range all {
		e.tellClosed()
	}
	left := c.releaseAll(ctx, all)
	return errors.Join(left, c.join(ctx))
}

// tellClosed tells the holders of a key that they hold nothing any more.
func (e *entry) tellClosed() {
	e.lock()
	defer e.unlockAside()
	now := e.c.clock()
	for h := range e.eachHold {
		if !h.rec.Lost() {
			e.rec.Lose(h.rec, now)
			e.lose(h, ErrClosed)
		}
	}
	e.fairs.All(func(p *place) bool {
		e.leaveQueue(p.For)
		return true
	})
}

// releaseAll removes every field that the client may have in Redis.
func (c *Client) releaseAll(ctx context.Context, all []*entry) error {
	var mu sync.Mutex
	var failed []error
	release := func(some []*entry) {
		var group errgroup.Group
		group.SetLimit(closers)
		for _, e := range some {
			group.Go(func() error {
				if err := c.releaseKey(ctx, e); err != nil {
					mu.Lock()
					failed = append(failed, fmt.Errorf("rlock: close: key %q not released: %w", e.key, err))
					mu.Unlock()
				}
				return nil
			})
		}
		_ = group.Wait() // the errors are gathered above
	}
	var nodes sync.WaitGroup
	for _, some := range c.byNode(ctx, all) {
		nodes.Go(func() { release(some) })
	}
	nodes.Wait()
	const most = 10
	if n := len(failed); n > most {
		failed = append(failed[:most], fmt.Errorf("rlock: close: and %d more keys", n-most))
	}
	return errors.Join(failed...)
}

// byNode is all by their servers: the keys of one that hangs must not keep those of
// the others waiting.
func (c *Client) byNode(ctx context.Context, all []*entry) map[*redis.Client][]*entry {
	nodes := map[*redis.Client][]*entry{}
	for _, e := range all {
		var node *redis.Client
		if c.redis.node != nil {
			node, _ = c.redis.node(ctx, e.key) // whoever has no server has an error later
		}
		nodes[node] = append(nodes[node], e)
	}
	return nodes
}

// releaseKey removes own fields from e's key, within ctx. The attempt itself goes
// on by itself when ctx ends first.
func (c *Client) releaseKey(ctx context.Context, e *entry) error {
	e.lock()
	defer e.unlock()
	if err := e.takeTurn(&call{ctx: ctx}, true); err != nil {
		return err
	}
	if !e.rec.Strays(c.clock()) {
		e.endTurn()
		return nil
	}
	if ctx.Err() != nil {
		e.endTurn()
		return ended(ctx)
	}
	done := make(chan struct{})
	var err error
	c.spawn(func() {
		e.lock()
		defer e.unlock()
		err = e.sweepAll(ctx, time.Now().Add(c.opt.release))
		close(done)
	})
	e.unlock()
	waitErr := (&call{ctx: ctx}).wait(done)
	e.lock()
	select {
	case <-done:
		return err
	default:
		return waitErr
	}
}

// sweepAll removes the strays for good: it asks again until Redis has answered, or
// ctx or until is over. It has the turn and ends it.
func (e *entry) sweepAll(ctx context.Context, until time.Time) error {
	sorts := 2 // strays of a read-write lock, and others
	for try := 0; ; try++ {
		again, err := e.sweepOnce(context.WithoutCancel(ctx))
		pause := backoff(try)
		if err == nil {
			if sorts--; sorts == 0 || !e.rec.Strays(e.c.clock()) {
				return nil
			}
			again, pause = true, 0
		}
		if !again || ctx.Err() != nil || time.Until(until) < pause {
			return err
		}
		e.unlock()
		_, _ = (&call{ctx: ctx}).waitAny(nil, nil, time.After(pause))
		e.lock()
		_ = e.takeTurn(&call{}, true) // requests that were on their way may go first
	}
}

// join ends and awaits all that runs.
func (c *Client) join(ctx context.Context) error {
	dogErr := c.dog.Close(ctx)
	hubErr := c.hub.Close(ctx)
	done := make(chan struct{})
	go func() {
		c.work.Wait()
		c.crew.close()
		c.crew.wait()
		close(done)
	}()
	select {
	case <-done:
	case <-ctx.Done():
		return fmt.Errorf("rlock: close: requests are still under way: %w", ended(ctx))
	}
	if err := errors.Join(dogErr, hubErr); err != nil {
		return fmt.Errorf("rlock: close: %w", err)
	}
	return nil
}
