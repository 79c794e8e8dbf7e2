package rlock

import (
	"context"
	"fmt"
	"time"

	"github.com/relock-go/relock/internal/record"
)

// release is one Unlock of owner. It returns when Redis has answered, or when
// the release timeout is over; the release goes on then.
func (e *entry) release(ctx context.Context, owner Owner) error {
	e.lock()
	defer e.unlock()
	h := e.hold(owner)
	if h == nil {
		return e.notHeld(owner)
	}
	if now := e.c.clock(); h.rec.Left(now) == 0 {
		e.expire(h, now)
	}
	if h.rec.Lost() {
		return e.leaveLost(h)
	}
	if h.leaving >= h.rec.Depth {
		return e.notHeld(owner)
	}
	h.leaving++
	f := &flight{done: make(chan struct{})}
	mine := !e.sending
	e.sending = true
	ctx = context.WithoutCancel(ctx)
	e.c.spawn(func() {
		e.lock()
		defer e.unlock()
		if !mine {
			_ = e.takeTurn(&call{}) // every request ends, so the turn comes
		}
		e.leave(ctx, h, f)
	})

	k := call{until: time.Now().Add(e.c.opt.release)}
	defer k.stop()
	e.unlock()
	err := k.wait(f.done)
	e.lock()
	if f.settled {
		return f.err
	}
	return fmt.Errorf("%w: no answer within %v (%w); the release goes on", ErrUnsettled, e.c.opt.release, err)
}

// leave is one Unlock of h that has its turn. It settles f and ends the turn.
func (e *entry) leave(ctx context.Context, h *hold, f *flight) {
	h.leaving--
	now := e.c.clock()
	if h.rec.Left(now) == 0 {
		e.expire(h, now)
	}
	if h.rec.Lost() {
		f.err = e.leaveLost(h)
		e.endTurn()
		f.settle()
		return
	}
	until := e.c.start.Add(h.rec.Deadline.Mono)
	if e.rec.Leave(h.rec) > 0 {
		f.q = e.rec.Mend(h.rec, now)
		e.unlock()
		r := e.exchange(ctx, f.q, until)
		e.lock()
		e.kept(f, h, r)
		if f.err == nil && f.verdict == record.Lost {
			f.err = h.lostError()
		}
		f.settle()
		return
	}

	e.remove(h) // the watchdog is off from here on
	c := e.c
	c.counters.held.Add(-1)
	held := now.Mono - h.rec.Granted.Mono
	e.handOn(ctx, h.rec, true, func(to *waiter, err error) {
		if f.err = err; err == nil {
			c.counters.released.Add(1)
			if t := c.opt.trace.Released; t != nil {
				e.later(func() { t(h.name, h.owner(), held) })
			}
			if t := c.opt.trace.HandedOff; t != nil && to != nil {
				e.later(func() { t(h.name, h.owner(), to.owner) })
			}
		}
		f.settle()
	})
}

// handOn gives the lock of from to the first in line, or to all. It has the turn
// and ends it. told, unless nil, hears once what became of from's own release,
// and to whom the lock went.
func (e *entry) handOn(ctx context.Context, from *record.Hold, pass bool, told func(*waiter, error)) {
	tell := func(w *waiter, err error) {
		if told != nil {
			told(w, err)
			told = nil
		}
	}
	defer e.endTurn()
	for {
		c := e.c
		w := e.next(pass)
		var q *record.Request
		if w != nil {
			q = e.rec.Pass(from, string(w.owner), w.lease, w.limit, c.clock())
			e.passing.to, e.passing.q = w, q
		} else {
			q = e.rec.Release(from, c.clock())
		}
		e.unlock()
		r := e.exchange(ctx, q, time.Now().Add(max(c.opt.watchdog, from.Lease)))
		e.lock()
		e.passing.to, e.passing.q = nil, nil

		now := c.clock()
		if r.err != nil {
			e.rec.Close(q, now)
			e.sweepLater()
			tell(nil, r.err)
			e.wakeHead()
			return
		}
		verdict, _ := e.rec.Answer(q, r.yes, now)
		if e.rec.Strays(now) {
			e.sweepLater()
		}
		switch verdict {
		case record.Released:
			tell(nil, nil)
			if pass {
				e.yield() // those of this process had their share
			} else {
				e.wakeHead()
			}
			e.unfollow()
			return
		case record.Granted:
			e.gate.Leave(&w.place)
			e.gate.Passed()
			c.counters.handedOff.Add(1)
			w.hold = e.enter(q.Hold, w)
			w.place.Ring()
			tell(w, nil)
			return
		case record.Undo: // w has left, or the answer came too late for it
			tell(nil, nil)
			from, pass = q.Hold, q.Abandoned()
		default:
			tell(nil, errRemoved)
			e.wakeHead()
			return
		}
	}
}

// next is the waiter that the lock may pass to, or nil.
func (e *entry) next(pass bool) *waiter {
	select {
	case <-e.c.closing:
		return nil
	default:
	}
	if !pass || !e.gate.MayPass(e.c.opt.handoffPasses, e.c.opt.handoffTime, time.Now()) {
		return nil
	}
	return e.gate.First().For
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
	for _, h := range e.holds {
		if h.left() > 0 && h.owner() != owner {
			return fmt.Errorf("%w: owner %s holds nothing here; owner %s of this client does", ErrNotHeld, owner, h.owner())
		}
	}
	return fmt.Errorf("%w: owner %s holds nothing here; a goroutine cannot unlock what another one locked, "+
		"unless both carry one owner (WithOwner)", ErrNotHeld, owner)
}
