package rlock

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/relock-go/relock/internal/record"
)

// release is one Unlock of who. It returns when Redis has answered, or when
// the release timeout is over; the release goes on then.
func (e *entry) release(ctx context.Context, names *keys, who caller, half record.Half) error {
	e.lockAs(names)
	defer e.unlock()
	h := e.hold(who.owner, half)
	if h == nil || who.left != nil && e.c.start.Add(h.rec.Granted).After(*who.left) {
		return e.notHeld(who.owner)
	}
	if now := e.c.clock(); h.rec.Left(now) == 0 {
		e.expire(h, now)
	}
	if h.rec.Lost() {
		return e.leaveLost(h)
	}
	if h.leaving >= h.rec.Depth {
		return e.notHeld(who.owner)
	}
	h.leaving++
	f := &flight{kind: leaving, h: h, queue: e.sending}
	e.sending = true
	// The caller's ctx does not bound the call, so the release timeout does.
	k := call{ctx: detached(ctx), until: time.Now().Add(e.c.opt.release), timers: &e.c.timers}
	defer k.stop()
	over := f.over()
	e.launch(&k, f)
	e.unlock()
	err := k.wait(over)
	e.lock()
	if f.settled {
		return f.err
	}
	f.orphan = true
	return fmt.Errorf("%w: no answer within %v (%w); the release goes on", ErrUnsettled, e.c.opt.release, err)
}

// leave is the Unlock of f, which has its turn. It settles f and ends the turn.
func (e *entry) leave(f *flight) {
	h, now := f.h, e.c.clock()
	h.leaving--
	if h.rec.Left(now) == 0 {
		e.expire(h, now)
	}
	if h.rec.Lost() {
		f.err = e.leaveLost(h)
		e.endTurn()
		f.settle()
		return
	}
	if e.rec.Leave(h.rec) > 0 {
		f.q = e.rec.Mend(h.rec, now)
		until := e.c.start.Add(h.rec.Deadline.Mono)
		e.mu.Unlock() // callbacks wait for the end of the turn: they may want one too
		r := e.exchange(f.ctx, f.q, until)
		e.mu.Lock()
		e.kept(f, r)
		if h.rec.Lost() {
			f.err = both(h.lostError(), f.err)
		}
		f.settle()
		return
	}
	e.remove(h) // the watchdog is off from here on
	e.c.counters.held.Add(-1)
	e.handOn(f.ctx, h.rec, true, f)
}

// handOn gives the lock of from to the first in line, or to all. It has the turn
// and ends it. f, unless nil, is the Unlock that it settles with what became of
// from; what happens to the lock after that is no concern of its caller.
func (e *entry) handOn(ctx context.Context, from *record.Hold, pass bool, f *flight) {
	defer e.endTurn()
	for {
		c := e.c
		w := e.next(from, pass)
		own := pass && w == nil && !from.Fair && e.gate.First() != nil // it will ask at once
		limited := own && !e.gate.MayPass(c.opt.handoffPasses, c.opt.handoffTime, time.Now())
		var q *record.Request
		if w != nil {
			q = e.rec.Pass(from, w.want(), c.clock())
			e.passing.to, e.passing.q = w, q
		} else {
			from.Fair = from.Fair || e.fairs.First() != nil
			q = e.rec.Release(from, c.clock())
		}
		until := time.Now().Add(max(c.opt.watchdog, from.Lease))
		e.mu.Unlock()
		r := e.exchange(ctx, q, until)
		e.mu.Lock()
		e.passing.to, e.passing.q = nil, nil

		now := c.clock()
		if w != nil && c.isClosing() {
			e.rec.Abandon(q) // the holders were told already; nobody may enter
		}
		if r.err == nil && w != nil {
			if w.err = c.confirmed(r); w.err != nil {
				e.rec.Abandon(q)
				w.place.Ring()
			}
		}
		if r.err != nil {
			e.rec.Close(q, now)
			if w != nil && w.stand != nil { // what it stands under may be in the lock now
				e.leaveQueue(w)
			}
			if w != nil && r.final && !errors.Is(r.err, ErrUnsettled) {
				pass = false // what is wrong may be w's, which asks for itself then
				continue
			}
			e.sweepLater()
			e.left(f, nil, r.err)
			e.wakeHead()
			return
		}
		e.finds(from.Half) // until this answer it was ours
		var verdict record.Verdict
		if r.freed {
			verdict = e.rec.Freed(q, now)
		} else {
			verdict, _ = e.rec.Answer(q, r.yes, now)
		}
		if e.rec.Strays(now) {
			e.sweepLater()
		}
		switch verdict {
		case record.Released:
			e.left(f, nil, nil)
			switch {
			case r.others: // the last of those tells them
			case limited:
				e.yield(r.told) // those of this process had their share
			case from.Fair: // those who queue in Redis were told there
				e.wakeGate()
			default:
				if own { // a run of readers after a writer, say, is a pass like any other
					e.gate.Passed()
					e.again = true
				}
				e.wakeHead()
			}
			e.unfollow()
			return
		case record.Granted:
			e.line(w).Leave(&w.place)
			e.gate.Passed()
			c.counters.handedOff.Add(1)
			w.hold = e.enter(q.Hold, w, r.token)
			w.place.Ring()
			e.left(f, w, nil)
			return
		case record.Undo: // w has left, or the answer came too late for it
			if w.stand != nil { // what it stands under goes
				e.leaveQueue(w)
			}
			if w.late++; w.late >= mostLate && w.err == nil {
				w.err = tooShort(w.lease)
				w.place.Ring()
			}
			e.left(f, nil, nil)
			if f != nil {
				f.orphan = true // its caller may be gone before this is over
			}
			f, from, pass = nil, q.Hold, q.Abandoned() && w.err == nil
		default:
			if f != nil {
				f.h.tellLost(errRemoved)
			}
			e.left(f, nil, errRemoved)
			e.wakeHead()
			return
		}
	}
}

// left settles the Unlock f, if there is one: err is nil when Redis still had the
// hold. to is who has the lock now, if it is one of ours.
func (e *entry) left(f *flight, to *waiter, err error) {
	if f == nil {
		return
	}
	f.err = err
	f.settle()
	if err != nil {
		return
	}
	e.c.counters.released.Add(1)
	h := f.h
	if t := e.c.opt.trace.Released; t != nil {
		held := e.c.clock().Mono - h.rec.Granted
		e.later(func() { t(h.name, h.owner(), held) })
	}
	if t := e.c.opt.trace.HandedOff; t != nil && to != nil {
		e.later(func() { t(h.name, h.owner(), to.owner) })
	}
}

// next is the waiter that the lock of from may pass to, or nil. Owners that have lost a
// hold and were not told yet are passed over; they leave with ErrLost.
func (e *entry) next(from *record.Hold, pass bool) *waiter {
	o := &e.c.opt
	switch {
	case !pass || e.c.isClosing() || from.Half == record.Read:
		return nil
	case from.Fair: // in the order of the queue, which also bounds how long it stays here
		if o.handoffPasses == 0 {
			return nil
		}
		return e.nextInQueue()
	case !e.gate.MayPass(o.handoffPasses, o.handoffTime, time.Now()):
		return nil
	case from.Half == record.Write && e.hold(Owner(from.Owner), record.Read) != nil:
		return nil // it goes on as a reader
	}
	var next *waiter
	e.gate.All(func(p *place) bool {
		if e.stuck(p) {
			return true
		}
		if p.For.kind.half() == from.Half {
			next = p.For
		}
		return false
	})
	return next
}

// stuck tells whether the owner that waits at p is to hear of a loss first, and has it
// look.
func (e *entry) stuck(p *place) bool {
	h := e.hold(p.For.owner, p.For.kind.half())
	if h == nil || !h.rec.Stuck(e.c.clock()) {
		return false
	}
	p.Ring()
	return true
}

// leaveLost is one Unlock of a lost hold.
func (e *entry) leaveLost(h *hold) error {
	err := h.lostError()
	if e.rec.Leave(h.rec) == 0 {
		e.remove(h)
		if e.rec.Strays(e.c.clock()) { // Redis may have it still; nobody is inside now
			e.sweepLater()
		}
	}
	return err
}

func (e *entry) notHeld(owner Owner) error {
	for h := range e.eachHold {
		if h.left() > 0 && h.owner() != owner {
			return fmt.Errorf("%w: owner %s holds nothing here; owner %s of this client does", ErrNotHeld, owner, h.owner())
		}
	}
	if h := e.find(func(h *hold) bool { return h.left() > 0 && h.owner() == owner }); h != nil {
		return fmt.Errorf("%w: owner %s holds the other half of this read-write lock", ErrNotHeld, owner)
	}
	return fmt.Errorf("%w: owner %s holds nothing here; a goroutine cannot unlock what another one locked, "+
		"unless both carry one owner (WithOwner)", ErrNotHeld, owner)
}
