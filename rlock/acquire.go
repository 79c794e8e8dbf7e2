package rlock

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/relock-go/relock/internal/gate"
	"github.com/relock-go/relock/internal/record"
)

// place is where a waiter stands in the gate.
type place = gate.Waiter[*waiter]

// waiter is one Lock or TryLock on its way. entry.mu guards hold and waiting.
type waiter struct {
	place        place
	name         string
	owner, self  Owner // self: the goroutine, where that is another owner
	lease, limit time.Duration
	nonReentrant bool
	began        time.Time

	hold    *hold  // granted by the releaser
	waiting bool   // it found the lock taken, and waits
	found   uint64 // entry.found when it came
}

// acquire gets the lock for w within the bounds of k. once makes one attempt
// instead of standing in line. (false, nil): others had it until the wait was over.
func (e *entry) acquire(k *call, w *waiter, once bool) (bool, error) {
	e.lock()
	defer e.unlock()
	got, err := e.wait(k, w, once)
	if w.waiting {
		e.c.counters.waiting.Add(-1)
	}
	if got {
		return true, nil
	}
	e.c.counters.failed.Add(1)
	if f := e.c.opt.trace.Failed; f != nil {
		waited := time.Since(w.began)
		e.later(func() { f(w.name, w.owner, waited, err) })
	}
	return false, err
}

func (e *entry) wait(k *call, w *waiter, once bool) (bool, error) {
	if in, err := e.reenter(k, w); in || err != nil {
		return in, err
	}
	if once {
		return e.try(k, w)
	}
	w.found = e.found
	e.gate.Join(&w.place)
	defer e.quit(w)
	late, tried := 0, false
	for {
		if w.hold != nil {
			return true, nil
		}
		if in, err := e.reenter(k, w); in || err != nil {
			return in, err
		}
		head := e.gate.First() == &w.place
		// However short the wait is, a head that nobody has asked for yet asks once.
		if err := k.past(); err != nil && (tried || !head || !errors.Is(err, errOver)) {
			return false, e.verdictOn(w, err)
		}
		sleep := e.c.opt.recheck
		if head {
			sleep = time.Until(e.asked)
		}
		if head && sleep <= 0 {
			e.yields, tried = false, true
			f, err := e.ask(k, w)
			switch {
			case err != nil:
				return false, e.verdictOn(w, err)
			case f == nil:
				continue // somebody entered while the turn was waited for
			case f.verdict == record.Granted:
				return true, nil
			case f.verdict == record.Undo:
				if late++; late >= mostLate {
					return false, tooShort(w.lease)
				}
				continue
			}
			late = 0
			e.refused(w, f.left)
			continue
		}
		e.contended(w)
		if err := e.sleep(k, w, head, sleep); err != nil && w.hold == nil {
			return false, e.verdictOn(w, err)
		}
	}
}

// mostLate is how many grants in a row may come too late before the lease is
// called shorter than the round trip.
const mostLate = 3

func tooShort(lease time.Duration) error {
	if lease == 0 {
		return fmt.Errorf("%w: the watchdog timeout is shorter than the round trip to Redis", ErrInvalidLease)
	}
	return fmt.Errorf("%w: %v is shorter than the round trip to Redis and a safety margin of %v",
		ErrInvalidLease, lease, record.Margin(lease))
}

// verdictOn is the error of a wait that ended with err. When its time was over and
// others had the lock, that is none. When nobody knows who had it, it is.
func (e *entry) verdictOn(w *waiter, err error) error {
	switch {
	case !errors.Is(err, errOver) || errors.Is(err, ErrUnsettled):
		return err
	case e.found != w.found || e.rec.Live(e.c.clock()) != nil:
		return nil
	}
	return fmt.Errorf("%w: no attempt on this key was answered in time", ErrUnsettled)
}

// sleep waits until w is to look again. The head also listens to messages.
func (e *entry) sleep(k *call, w *waiter, head bool, d time.Duration) error {
	var messages <-chan struct{}
	var timer *time.Timer
	var wake <-chan time.Time
	if head {
		if e.follow(); !e.yields {
			messages = e.sub.C()
		}
		timer = time.NewTimer(d)
		defer timer.Stop()
		wake = timer.C
	}
	bell := w.place.Bell()
	e.unlock()
	message, err := k.waitAny(bell, messages, wake)
	e.lock()
	if message {
		e.asked = time.Time{}
	}
	return err
}

// refused notes that others have the lock, for left at least. The head sleeps
// until that is over, and never longer than the recheck bound.
func (e *entry) refused(w *waiter, left time.Duration) {
	e.found++
	sleep := e.c.opt.recheck
	switch {
	case left < 0:
		e.later(func() {
			e.c.opt.logger.Warn("rlock: the lock's key has no expiry; its holder may never end", "lock", w.name)
		})
	case left < sleep:
		// The key is there for this millisecond still; and not all processes
		// should ask at once.
		sleep = max(left, time.Millisecond) + time.Millisecond + rand.N(2*time.Millisecond)
	}
	// A release may have asked this head to yield while it waited for its turn. It
	// has asked since, so it listens again.
	e.asked, e.yields = time.Now().Add(sleep), false
}

// contended notes, once, that w has to wait.
func (e *entry) contended(w *waiter) {
	if w.waiting {
		return
	}
	w.waiting = true
	e.c.counters.waiting.Add(1)
	e.c.counters.contended.Add(1)
	if f := e.c.opt.trace.Waiting; f != nil {
		e.later(func() { f(w.name, w.owner) })
	}
}

// quit takes w out of the line. Who follows asks at once if w was to ask: its
// wake-up may have been for w.
func (e *entry) quit(w *waiter) {
	head := e.gate.First() == &w.place
	e.gate.Leave(&w.place)
	if w.hold == nil {
		if head && e.rec.Live(e.c.clock()) == nil {
			e.wakeHead()
		}
		if e.passing.to == w { // whoever is next gets it instead
			e.rec.Abandon(e.passing.q)
		}
	}
	e.unfollow()
}

// ask makes one attempt for w: a request that Redis grants or refuses. Without a
// flight and an error, w or its owner entered while the turn was waited for.
func (e *entry) ask(k *call, w *waiter) (*flight, error) {
	if err := e.turn(k); err != nil {
		return nil, err
	}
	if w.hold != nil || e.hold(w.owner) != nil && !e.hold(w.owner).rec.Lost() {
		e.endTurn()
		return nil, nil
	}
	until := time.Now().Add(k.persist)
	if !k.until.IsZero() && k.until.Before(until) {
		until = k.until
	}
	q := e.rec.Acquire(string(w.owner), w.lease, w.limit, e.c.clock())
	e.asking = &flight{kind: acquiring, q: q, until: until, w: w}
	f := e.launch(k, e.asking)
	return f, e.await(k, f)
}

// turn waits for the turn to send, for as long as k waits for requests of others
// to be answered.
func (e *entry) turn(k *call) error {
	if !e.sending {
		e.sending = true
		return nil
	}
	patient := *k
	patient.timer = nil
	until := time.Now().Add(k.patience)
	if k.until.IsZero() || until.Before(k.until) {
		patient.until = until
	}
	defer patient.stop()
	err := e.takeTurn(&patient)
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
	var gone *record.Hold
	f.verdict, gone = e.rec.Answer(f.q, r.yes, now)
	f.left = r.left
	if gone != nil {
		e.lose(e.holdOf(gone), errRemoved)
	}
	switch f.verdict {
	case record.Granted:
		e.gate.Leave(&w.place)
		e.gate.Taken(time.Now())
		w.hold = e.enter(f.q.Hold, w)
		e.endTurn()
	case record.Undo:
		f.settle()
		e.gate.Taken(time.Now())
		e.handOn(f.ctx, f.q.Hold, f.q.Abandoned(), nil)
		return
	default:
		e.endTurn()
	}
	if e.rec.Strays(now) {
		e.sweepLater()
	}
	f.settle()
}

var errRemoved = fmt.Errorf("%w: it was removed from Redis", ErrLost)

// try makes one attempt without standing in line. It takes part in the one that
// is under way, if that finds the lock taken.
func (e *entry) try(k *call, w *waiter) (bool, error) {
	if f := e.asking; f != nil {
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
			return false, nil
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
		default:
			e.c.counters.contended.Add(1)
			return false, nil
		}
	}
}

// reenter lets w in if its owner is inside. It reports an error if the owner may
// not enter, and false if it has to acquire the lock.
func (e *entry) reenter(k *call, w *waiter) (bool, error) {
	for {
		h := e.hold(w.owner)
		switch {
		case h == nil:
			return false, e.waitsForItself(w)
		case h.rec.Left(e.c.clock()) == 0 && !h.rec.Lost():
			e.expire(h, e.c.clock())
			continue
		case h.rec.Lost():
			if h.rec.Stuck(e.c.clock()) {
				return false, h.lostError()
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

// waitsForItself is the error of a goroutine that holds the key as itself and asks
// for it as another owner.
func (e *entry) waitsForItself(w *waiter) error {
	if w.self == "" || w.self == w.owner {
		return nil
	}
	if h := e.hold(w.self); h == nil || h.left() == 0 {
		return nil
	}
	return fmt.Errorf("%w: this goroutine holds it as owner %s and would wait for itself as owner %s",
		ErrReentry, w.self, w.owner)
}

// enterAgain takes h one deeper. It reports true when h was given back before
// the turn came.
func (e *entry) enterAgain(k *call, h *hold, w *waiter) (again bool, err error) {
	if err := e.turn(k); err != nil {
		return false, err
	}
	if e.hold(w.owner) != h || h.rec.Left(e.c.clock()) == 0 {
		e.endTurn()
		return true, nil
	}
	q := e.rec.Enter(h.rec, w.lease)
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
	switch {
	case h.rec.Lost():
		if r.err == nil && !r.yes {
			e.lose(h, errRemoved)
		} else {
			e.lose(h, fmt.Errorf("%w: the answer came after its deadline", ErrLost))
		}
	case e.holdOf(h.rec) != nil:
		h.schedule()
	}
	if h.rec.Dirty() {
		e.sweepLater()
	}
}
