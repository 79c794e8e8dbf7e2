package rlock

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/relock-go/relock/internal/record"
	"github.com/relock-go/relock/internal/script"
	"github.com/relock-go/relock/watchdog"
)

// renewal is one hold in a batch that is under way.
type renewal struct {
	h *hold
	n record.Renewal
}

// renew renews a batch of holds for the watchdog. Those that it gets no valid
// answer for are due again by themselves.
func (c *Client) renew(ctx context.Context, batch []*watchdog.Lease[kept]) {
	holds := make([]*hold, 0, len(batch))
	for _, l := range batch {
		if h, ok := l.Hold.(*hold); ok { // a sweep has no renewals
			holds = append(holds, h)
		}
	}
	if c.singly.Load() {
		c.renewApart(ctx, holds)
		return
	}
	var due, apart []renewal
	for _, h := range holds {
		n, ok := h.beginRenewal()
		switch {
		case !ok:
		case h.rec.Half != record.Whole:
			apart = append(apart, renewal{h, n})
		default:
			due = append(due, renewal{h, n})
		}
	}
	if len(due) > 0 {
		c.renewTogether(ctx, due)
	}
	if len(apart) > 0 {
		c.renewEach(ctx, apart)
	}
}

// renewTogether sends one call for all of due.
func (c *Client) renewTogether(ctx context.Context, due []renewal) {
	answer, fate, err := c.sendRenewal(ctx, due)
	if len(due) > 1 && script.CrossSlot(err) {
		// A cluster behind a proxy looks like one server until now.
		c.singly.Store(true)
		c.renewEach(ctx, due)
		return
	}
	if err != nil {
		for _, r := range due {
			r.h.renewFailed(r.n, err, fate == script.Unknown)
		}
		return
	}
	var again []renewal
	for i, r := range due {
		switch {
		case answer[i] == 'k':
			r.h.renewed(r.n, true)
		case len(due) == 1:
			r.h.renewed(r.n, false)
		default:
			// Whoever routes a call by its first key may have asked the wrong
			// server for this one. Alone it is asked for certain.
			if n, ok := r.h.renewAgain(r.n); ok {
				again = append(again, renewal{r.h, n})
			}
		}
	}
	if len(again) > 0 {
		c.renewEach(ctx, again)
	}
}

// renewApart has each of some renewed at its server.
func (c *Client) renewApart(ctx context.Context, some []*hold) {
	nodes := map[*redis.Client][]*hold{}
	for _, h := range some {
		var node *redis.Client
		if c.redis.node != nil {
			var err error
			if node, err = c.redis.node(ctx, h.e.key); err != nil {
				if n, ok := h.beginRenewal(); ok {
					h.renewFailed(n, err, false)
				}
				continue
			}
		}
		nodes[node] = append(nodes[node], h)
	}
	for node, some := range nodes {
		c.renewAt(node, some)
	}
}

// renewEach sends a call for each of due, in one pipeline.
func (c *Client) renewEach(ctx context.Context, due []renewal) {
	calls := make([]script.Call, len(due))
	for i, r := range due {
		calls[i] = script.Call{Script: script.Renew, Words: []any{r.h.e.key, c.ttlWord(r.n.TTL), r.n.Hold.Field}}
		if r.n.Hold.Half != record.Whole {
			calls[i] = script.Call{Script: script.RWRenew, Words: append(calls[i].Words, script.HoldBase(r.h.e.key))}
		}
	}
	for i, a := range c.runner.SendEach(ctx, calls) {
		r := due[i]
		if a = checkRenewal(a, 1); a.Err != nil {
			c.redis.failed(ctx, a.Err)
			r.h.renewFailed(r.n, a.Err, a.Fate == script.Unknown)
			continue
		}
		r.h.renewed(r.n, a.Text == "k")
	}
}

// sendRenewal sends one call for all of due. Without an error its answer has a
// letter for each.
func (c *Client) sendRenewal(ctx context.Context, due []renewal) (string, script.Fate, error) {
	words := make([]any, 0, 3*len(due))
	for _, r := range due {
		words = append(words, r.h.e.key)
	}
	for _, r := range due {
		words = append(words, c.ttlWord(r.n.TTL), r.n.Hold.Field)
	}
	a := checkRenewal(c.runner.SendApart(ctx, script.Renew, len(due), words...), len(due))
	return a.Text, a.Fate, a.Err
}

// checkRenewal makes a reply that is none to n keys an error.
func checkRenewal(a script.Answer, n int) script.Answer {
	if a.Fate == script.Ran && (len(a.Text) != n || strings.Trim(a.Text, "kg") != "") {
		return script.BadReply(script.Renew, a.Text)
	}
	return a
}

func (h *hold) beginRenewal() (record.Renewal, bool) { return h.renewSince(-1) }

// renewSince begins a renewal, unless Redis was found to have h since then.
func (h *hold) renewSince(then time.Duration) (record.Renewal, bool) {
	e := h.e
	e.lock()
	defer e.unlockAside()
	now := e.c.clock()
	if e.holdOf(h.rec) == nil || then >= 0 && h.rec.Proven > then {
		return record.Renewal{}, false
	}
	n, ok := e.rec.Renew(h.rec, now)
	if !ok {
		e.expire(h, now)
	}
	return n, ok
}

// renewAgain closes n, whose answer does not count, and begins another one.
func (h *hold) renewAgain(n record.Renewal) (record.Renewal, bool) {
	h.e.lock()
	h.e.rec.Unrenewed(n, false)
	h.e.unlock()
	return h.beginRenewal()
}

// renewed deals with the answer to n.
func (h *hold) renewed(n record.Renewal, yes bool) {
	e := h.e
	e.lock()
	defer e.unlockAside()
	now := e.c.clock()
	verdict := e.rec.Renewed(n, yes, now)
	if e.holdOf(h.rec) == nil {
		return // given back meanwhile
	}
	switch {
	case h.rec.Left(now) == 0 && !h.rec.Lost(): // the wall clock says so
		e.expire(h, now)
	case verdict == record.Kept:
		e.c.counters.renewals.Add(1)
		h.schedule()
		if f := e.c.opt.trace.Renewed; f != nil {
			left := h.rec.Left(now)
			e.later(func() { f(h.name, h.owner(), left) })
		}
	case h.rec.Lost() && h.lostBy() == nil && (h.rec.Deadline.Mono <= now.Mono || h.rec.Deadline.Wall <= now.Wall):
		e.lose(h, h.overdue(now))
	case h.rec.Lost() && h.lostBy() == nil:
		e.lose(h, errRemoved)
	}
}

// renewFailed deals with a renewal that got no answer.
func (h *hold) renewFailed(n record.Renewal, err error, mayRun bool) {
	e := h.e
	e.lock()
	defer e.unlockAside()
	e.rec.Unrenewed(n, mayRun)
	if e.holdOf(h.rec) == nil || h.rec.Lost() || errors.Is(err, context.Canceled) {
		return
	}
	c := e.c
	c.counters.renewFailures.Add(1)
	left := h.rec.Left(c.clock())
	e.later(func() {
		c.opt.logger.Warn("rlock: renewal failed", "lock", h.name, "owner", string(h.owner()), "left", left.Round(time.Millisecond), "err", err)
	})
	if f := c.opt.trace.RenewFailed; f != nil {
		e.later(func() { f(h.name, h.owner(), left, err) })
	}
}
