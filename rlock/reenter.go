package rlock

import (
	"fmt"
	"time"

	"github.com/relock-go/relock/internal/record"
)

// reenter lets w in if its owner is inside. It reports an error if the owner may
// not enter, and false if it has to acquire the lock.
func (e *entry) reenter(k *call, w *waiter) (bool, error) {
	for {
		h := e.hold(w.owner, w.kind.half())
		switch {
		case w.hold != nil:
			return true, nil // it was passed to w while w waited for its turn
		case h == nil:
			return false, e.waitsForItself(w)
		case h.rec.Left(e.c.clock()) == 0 && !h.rec.Lost():
			e.expire(h, e.c.clock())
			continue
		case h.rec.Lost():
			if h.rec.Stuck(e.c.clock()) {
				return false, fmt.Errorf("%w; this owner can lock again when its Unlocks are made, %d of them", h.lostError(), h.rec.Depth)
			}
			return false, e.waitsForItself(w)
		case w.nonReentrant && h.left() > 0:
			return false, fmt.Errorf("%w: the lock object is NonReentrant", ErrReentry)
		}
		again, err := e.enterAgain(k, h, w)
		if !again {
			return err == nil, err
		}
	}
}

// waitsForItself is the error of an owner whose own hold keeps it out, as a reader that
// asks to write, and of a goroutine that holds the key as itself and asks for it as
// another owner.
func (e *entry) waitsForItself(w *waiter) error {
	if h := e.hold(w.owner, record.Read); w.kind == writing && h != nil && h.left() > 0 {
		return ErrUpgrade
	}
	if w.self == "" || w.self == w.owner {
		return nil
	}
	own := e.find(func(h *hold) bool {
		return h.owner() == w.self && h.left() > 0 && h.rec.Bars(string(w.owner), w.kind.half())
	})
	if own == nil {
		return nil
	}
	return fmt.Errorf("%w: this goroutine holds it as owner %s and would wait for itself as owner %s",
		ErrReentry, w.self, w.owner)
}

// enterAgain takes h one deeper. It reports true when h was given back before
// the turn came.
func (e *entry) enterAgain(k *call, h *hold, w *waiter) (again bool, err error) {
	if err := e.turn(k, true); err != nil {
		return false, err
	}
	if e.hold(w.owner, w.kind.half()) != h || h.rec.Left(e.c.clock()) == 0 {
		e.endTurn()
		return true, nil
	}
	q := e.rec.Enter(h.rec, w.lease)
	q.Want.Token = w.kind == fenced && h.token() == 0
	if w.kind == fair {
		h.rec.Fair = true
	}
	f := e.launch(k, &flight{kind: keeping, q: q, until: time.Now().Add(k.persist), h: h})
	if err := e.await(k, f); err != nil {
		return false, err
	}
	if f.verdict == record.Lost {
		return false, h.lostError()
	}
	return false, nil
}

// kept deals with the answer to a request that keeps f's hold, and ends the turn.
func (e *entry) kept(f *flight, r reply) {
	defer e.endTurn()
	h, now := f.h, e.c.clock()
	if r.err != nil {
		e.rec.Close(f.q, now)
		f.err = r.err
	} else {
		f.verdict, _ = e.rec.Answer(f.q, r.yes, now)
	}
	if r.token > 0 {
		h.tied().num = r.token
	}
	switch {
	case h.rec.Lost() && r.err == nil && !r.yes:
		e.lose(h, errRemoved)
	case h.rec.Lost():
		e.lose(h, h.overdue(now))
	case r.err == nil: // without an answer it is due when it was
		h.schedule()
	}
	if h.rec.Dirty() {
		e.sweepLater()
	}
}
