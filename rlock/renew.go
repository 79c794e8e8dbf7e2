package rlock

import (
	"context"
	"errors"
	"strings"
	"time"

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
	due := make([]renewal, 0, len(batch))
	for _, l := range batch {
		h, ok := l.Hold.(*hold)
		if !ok {
			continue // a sweep has no renewals
		}
		if n, ok := h.beginRenewal(); ok {
			due = append(due, renewal{h, n})
		}
	}
	if len(due) == 0 {
		return
	}
	if c.singly.Load() {
		for _, r := range due {
			r.h.ask(ctx, r.n)
		}
		return
	}
	answer, fate, err := c.sendRenewal(ctx, due)
	if len(due) > 1 && script.CrossSlot(err) {
		// A cluster behind a proxy looks like one server until now.
		c.singly.Store(true)
		for _, r := range due {
			r.h.ask(ctx, r.n)
		}
		return
	}
	if err != nil {
		for _, r := range due {
			r.h.renewFailed(r.n, err, fate == script.Unknown)
		}
		return
	}
	for i, r := range due {
		switch {
		case answer[i] == 'k':
			r.h.renewed(r.n, true)
		case len(due) == 1:
			r.h.renewed(r.n, false)
		default:
			// Whoever routes a call by its first key may have asked the wrong
			// server for this one. Alone it is asked for certain.
			r.h.askAlone(ctx, r.n)
		}
	}
}

// sendRenewal sends one call for all of due. Without an error its answer has a
// letter for each.
func (c *Client) sendRenewal(ctx context.Context, due []renewal) (string, script.Fate, error) {
	words := make([]any, 0, 3*len(due))
	for _, r := range due {
		words = append(words, r.h.e.keys.key)
	}
	for _, r := range due {
		words = append(words, c.ttlWord(r.n.TTL), r.n.Hold.Word)
	}
	a := c.runner.SendApart(ctx, script.Renew, len(due), words...)
	if a.Fate == script.Ran && (len(a.Text) != len(due) || strings.Trim(a.Text, "kg") != "") {
		a = script.BadReply(script.Renew, a.Text)
	}
	return a.Text, a.Fate, a.Err
}

func (h *hold) beginRenewal() (record.Renewal, bool) {
	e := h.e
	e.lock()
	defer e.unlockAside()
	now := e.c.clock()
	if e.holdOf(h.rec) == nil {
		return record.Renewal{}, false
	}
	n, ok := e.rec.Renew(h.rec, now)
	if !ok {
		e.expire(h, now)
	}
	return n, ok
}

// askAlone closes n, whose answer does not count, and asks for h alone.
func (h *hold) askAlone(ctx context.Context, n record.Renewal) {
	h.e.lock()
	h.e.rec.Unrenewed(n, false)
	h.e.unlock()
	if n, ok := h.beginRenewal(); ok {
		h.ask(ctx, n)
	}
}

// ask sends n in a call of its own.
func (h *hold) ask(ctx context.Context, n record.Renewal) {
	answer, fate, err := h.e.c.sendRenewal(ctx, []renewal{{h, n}})
	if err != nil {
		h.renewFailed(n, err, fate == script.Unknown)
		return
	}
	h.renewed(n, answer == "k")
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
	case h.rec.Lost() && h.cause == nil && h.rec.Deadline.Mono <= now.Mono:
		e.lose(h, h.overdue(now))
	case h.rec.Lost() && h.cause == nil:
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
