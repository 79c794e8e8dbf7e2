package rlock

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/relock-go/relock/internal/record"
	"github.com/relock-go/relock/watchdog"
)

// hold is one owner's hold, live or lost, with what this package adds to the
// record's. entry.mu guards it.
type hold struct {
	e     *entry
	rec   *record.Hold
	name  string // of the lock object that took it
	lease watchdog.Lease[kept]

	next    *hold // of the entry's
	leaving int32 // Unlocks that were called and have not had their turn

	*ties // nil: it was not lost, and nobody asked to be told
}

// ties are those who are to hear of a hold's loss, and what came of it.
type ties struct {
	kept   time.Duration // a lost hold is remembered until then, by record.Instant.Mono
	cause  error         // why it was lost
	num    uint64        // its fencing token; 0: it has none
	lost   chan struct{} // closed with the loss; made when somebody asks for it
	scopes []*scope      // of the Do calls inside it
}

// tied is h's ties, made if need be.
func (h *hold) tied() *ties {
	if h.ties == nil {
		h.ties = &ties{}
	}
	return h.ties
}

// lostBy is why h was lost; nil: it was not.
func (h *hold) lostBy() error {
	if h.ties == nil {
		return nil
	}
	return h.ties.cause
}

// token is h's fencing token, 0 if it has none.
func (h *hold) token() uint64 {
	if h.ties == nil {
		return 0
	}
	return h.num
}

func (h *hold) owner() Owner { return Owner(h.rec.Owner) }

// left is for how long h is proven. An owner whose last Unlock was called holds
// nothing, though the release may have to wait for its turn.
func (h *hold) left() time.Duration {
	if h.leaving >= h.rec.Depth {
		return 0
	}
	return h.rec.Left(h.e.c.clock())
}

// enter makes the hold of a grant. mu is held.
func (e *entry) enter(r *record.Hold, w *waiter, token uint64) *hold {
	if old := e.hold(w.owner, r.Half); old != nil {
		e.forget(old) // a lease that ran out
	}
	h := &hold{e: e, rec: r, name: w.name}
	if token > 0 {
		h.tied().num = token
	}
	h.lease.Hold = h
	end := &e.holds
	for *end != nil {
		end = &(*end).next
	}
	*end = h
	e.c.counters.held.Add(1)
	e.c.counters.acquired.Add(1)
	h.schedule()
	if f := e.c.opt.trace.Acquired; f != nil {
		waited := time.Since(w.began)
		e.later(func() { f(w.name, w.owner, waited) })
	}
	e.finds(h.rec.Half)
	e.asked, e.yields = time.Now().Add(e.c.opt.recheck), false
	if next := e.gate.First(); next != nil && !r.Bars(string(next.For.owner), next.For.kind.half()) {
		e.asked = time.Time{} // a run of readers goes together
	}
	again := func(other *place) bool { // one owner may wait twice: it is inside now
		if other.For.owner == w.owner {
			other.Ring()
		}
		return true
	}
	e.gate.All(again)
	e.fairs.All(again)
	return h
}

// schedule tells the watchdog when h is due.
func (h *hold) schedule() {
	c := h.e.c
	var renewAt time.Time
	period := c.opt.watchdog / 3
	if h.rec.Lease == 0 || h.rec.Lease > period {
		renewAt = c.start.Add(h.rec.Proven + period)
	}
	c.dog.Keep(&h.lease, renewAt, c.start.Add(h.rec.Deadline.Mono))
}

// due is called by the wheel at h's deadline, or when a lost hold has been
// remembered long enough.
func (h *hold) due() {
	e := h.e
	defer e.c.tidy(e)
	e.lock()
	defer e.unlockAside()
	switch now := e.c.clock(); {
	case e.holdOf(h.rec) == nil: // given back meanwhile
	case h.rec.Lost() && now.Mono < h.kept: // it was told since the wheel came to it
		e.remember(h)
	case h.rec.Lost():
		e.forget(h)
		if e.rec.Strays(now) { // its owner had its time
			e.sweepLater()
		}
	case h.rec.Left(now) > 0: // prolonged meanwhile
		h.schedule()
	default:
		e.expire(h, now)
	}
}

// expire ends a hold whose deadline has come. mu is held.
func (e *entry) expire(h *hold, now record.Instant) {
	if h.rec.Lost() {
		return
	}
	e.rec.Lose(h.rec, now)
	e.lose(h, h.overdue(now))
}

// overdue is why a hold ends whose deadline has come.
func (h *hold) overdue(now record.Instant) error {
	switch limit := h.rec.Limit; {
	case limit != nil && (limit.Mono <= now.Mono || limit.Wall <= now.Wall):
		return ErrMaxHold
	case h.rec.Lease > 0:
		return fmt.Errorf("%w: its lease is over", ErrLost)
	}
	return fmt.Errorf("%w: it could not be renewed in time", ErrLost)
}

// lose ends a hold that the record knows to be lost. mu is held.
func (e *entry) lose(h *hold, cause error) {
	if h.lostBy() != nil {
		return
	}
	h.tellLost(cause)
	e.c.counters.held.Add(-1)
	// Its Unlocks may still come; without them it is remembered for a while.
	now := e.c.clock()
	h.kept = now.Mono + 10*e.c.opt.watchdog
	e.remember(h)
	e.wakeHead()
	if e.rec.Strays(now) && e.rec.Live(now) != nil { // of a read-write lock: others would keep what is left of it
		e.sweepLater()
	}
}

// remember keeps a lost hold for as long as its owner may come to hear of it.
func (e *entry) remember(h *hold) {
	e.c.dog.Keep(&h.lease, time.Time{}, e.c.start.Add(h.kept))
}

// tellLost tells all who asked that h is lost. mu is held.
func (h *hold) tellLost(cause error) {
	h.tied().cause = cause
	if h.lost != nil {
		close(h.lost)
	}
	e, c := h.e, h.e.c
	for _, s := range h.scopes {
		s.cancel(cause) // at once, as the channel: it runs nothing of the user's
	}
	c.counters.lost.Add(1)
	name, owner, held := h.name, h.owner(), c.clock().Mono-h.rec.Granted
	level := slog.LevelWarn
	if h.rec.Lease > 0 && !errors.Is(cause, errRemoved) {
		level = slog.LevelInfo // that it ends was agreed
	}
	e.later(func() {
		c.opt.logger.Log(context.Background(), level, "rlock: lock lost",
			"lock", name, "owner", string(owner), "held", held, "cause", cause)
	})
	if f := c.opt.trace.Lost; f != nil {
		e.later(func() { f(name, owner, held, cause) })
	}
}

// remove takes h out of the entry. mu is held.
func (e *entry) remove(h *hold) {
	for at := &e.holds; *at != nil; at = &(*at).next {
		if *at == h {
			*at, h.next = h.next, nil
			break
		}
	}
	e.c.dog.Drop(&h.lease)
	e.unfollow()
}

// forget drops a lost hold. mu is held.
func (e *entry) forget(h *hold) {
	e.rec.Drop(h.rec)
	e.remove(h)
}

// lostError is what an operation of a lost hold's owner returns.
func (h *hold) lostError() error { return both(ErrLost, h.lostBy()) }

// lostChan returns the channel that the loss of h closes. mu is held.
func (h *hold) lostChan() <-chan struct{} {
	if h.tied().lost == nil {
		h.lost = make(chan struct{})
		if h.cause != nil {
			close(h.lost)
		}
	}
	return h.lost
}

// scope is one Do: the ctx that its function gets.
type scope struct {
	carried carried
	cancel  context.CancelCauseFunc
}
