package rlock

import (
	"errors"
	"fmt"
	"time"

	"github.com/relock-go/relock/internal/record"
)

// ask makes one attempt for w: a request that Redis grants or refuses. Without a
// flight and an error, something happened while the turn was waited for: w or its owner
// entered, its owner has lost a hold and is to hear of it, or w is to let others go first.
func (e *entry) ask(k *call, w *waiter) (*flight, error) {
	if err := e.turn(k, false); err != nil {
		return nil, err
	}
	if e.c.isClosing() {
		e.endTurn()
		return nil, ErrClosed // Close has taken those who queue out
	}
	if h := e.hold(w.owner, w.kind.half()); w.hold != nil || h != nil && (!h.rec.Lost() || h.rec.Stuck(e.c.clock())) {
		e.endTurn()
		return nil, nil
	}
	if e.yields && e.gate.First() == &w.place && !e.beside(w) && time.Now().Before(e.asked) {
		e.endTurn() // a release has left the lock to others while w waited for its turn
		return nil, nil
	}
	until := time.Now().Add(k.persist)
	if !k.until.IsZero() && k.until.Before(until) {
		until = k.until
	}
	q := e.rec.Acquire(w.want(), e.c.clock())
	if w.stand != nil {
		e.stands(w, q)
	}
	e.asking = &flight{kind: acquiring, q: q, until: until, w: w, woken: e.woken}
	f := e.launch(k, e.asking)
	return f, e.await(k, f)
}

// turn waits for the turn to send, for as long as k waits for a request of others to be
// answered. What an owner asks for that is inside goes before those who want to come in.
func (e *entry) turn(k *call, inside bool) error {
	if !e.sending {
		e.sending = true
		return nil
	}
	patient := *k
	patient.timer, patient.each, patient.last = nil, k.patience, k.until
	patient.more()
	defer patient.stop()
	err := e.takeTurn(&patient, inside)
	if errors.Is(err, errOver) && patient.until != k.until {
		return fmt.Errorf("%w: an earlier request on this key is not answered yet", ErrUnsettled)
	}
	return err
}

// answered deals with the answer to the acquire that f sent for w.
func (e *entry) answered(f *flight, r reply) {
	e.asking = nil
	w := f.w
	now := e.c.clock()
	if e.c.isClosing() {
		e.rec.Abandon(f.q) // the holders were told already; nobody may enter
	}
	if r.err != nil {
		e.rec.Close(f.q, now)
		e.endTurn()
		e.sweepLater()
		f.err = r.err
		f.settle()
		return
	}
	e.guard(w, r)
	f.guarded = e.restarted()
	if f.err = e.c.confirmed(r); f.err != nil {
		e.rec.Abandon(f.q)
	}
	var gone []*record.Hold
	f.q.Deep = r.deep
	f.verdict, gone = e.rec.Answer(f.q, r.yes, now)
	for _, h := range gone {
		e.lose(e.holdOf(h), errRemoved)
	}
	switch f.verdict {
	case record.Granted:
		e.line(w).Leave(&w.place)
		if !e.again {
			e.gate.Taken(time.Now())
		}
		e.again = false
		w.hold = e.enter(f.q.Hold, w, r.token)
		if r.deep {
			e.sweepLater()
		}
		e.endTurn()
	case record.Undo:
		f.settle()
		f.orphan = true     // its caller may be gone before this is over
		if w.stand != nil { // what it stands under goes
			e.leaveQueue(w)
		}
		e.gate.Taken(time.Now())
		e.handOn(f.ctx, f.q.Hold, f.q.Abandoned() && f.err == nil, nil)
		return
	default:
		if r.queued {
			e.inQueue(w, f.q.SentAt(), r.ahead)
		}
		if e.leads(w) { // noted at once: a release may come next
			e.refused(w, r.left)
			switch { // the answer may be older than what woke it
			case f.woken == e.woken:
			case w.stand == nil:
				e.wakeGate()
			case e.fairs.First() == &w.place:
				w.own.asked = time.Time{}
			}
		}
		e.endTurn()
	}
	if e.rec.Strays(now) {
		e.sweepLater()
	}
	f.settle()
}

var errRemoved = fmt.Errorf("%w: it was removed from Redis", ErrLost)

// beside tells whether w asks to read for an owner that is the writer: others are kept
// out where it is not.
func (e *entry) beside(w *waiter) bool {
	return w.kind == reading && e.hold(w.owner, record.Write) != nil
}

// readBeside lets w in out of line if its owner writes. What the restart guard refuses
// has to wait, as others do: young tells of it.
func (e *entry) readBeside(k *call, w *waiter) (in, young bool, err error) {
	if h := e.hold(w.owner, record.Write); w.kind != reading || h == nil || h.left() == 0 {
		return false, false, nil
	}
	in, err = e.try(k, w)
	switch {
	case in || err == nil:
		return in, false, nil
	case errors.Is(err, ErrRestarted):
		return false, true, nil
	case errors.Is(err, errOver):
		err = both(ErrUnsettled, err)
	}
	return false, false, e.verdictOn(k, w, err)
}

// try makes one attempt without standing in line. It takes part in the one that
// is under way, if that finds the lock taken and would do so for w.
func (e *entry) try(k *call, w *waiter) (bool, error) {
	if f := e.asking; f != nil && f.w.kind.half() == w.kind.half() && f.w.kind != fair && !e.beside(w) {
		over := f.over()
		patient := *k
		patient.timer, patient.until = nil, time.Now().Add(k.patience)
		e.unlock()
		err := patient.wait(over)
		e.lock()
		patient.stop()
		switch {
		case errors.Is(err, errOver):
			return false, fmt.Errorf("%w: the attempt that is under way is not answered yet", ErrUnsettled)
		case err != nil:
			return false, err
		case f.err == nil && f.verdict == record.Held:
			e.c.counters.contended.Add(1)
			return false, f.guarded
		}
	}
	for late := 0; ; {
		f, err := e.ask(k, w)
		switch {
		case err != nil:
			return false, err
		case f == nil:
			if in, err := e.reenter(k, w); in || err != nil {
				return in, err
			}
		case f.verdict == record.Granted:
			return true, nil
		case f.verdict == record.Undo:
			if late++; late >= mostLate {
				return false, tooShort(w.lease)
			}
			if err := k.past(); err != nil {
				return false, err
			}
		default:
			e.c.counters.contended.Add(1)
			return false, f.guarded
		}
	}
}
