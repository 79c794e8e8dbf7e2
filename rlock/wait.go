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
	keys         *keys
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
	e.lockAs(w.keys)
	defer e.unlock()
	got, err := e.wait(k, w, once)
	if w.hold != nil {
		got, err = true, nil // passed to w as it was about to leave
	}
	if w.waiting {
		e.c.counters.waiting.Add(-1)
	}
	if got {
		return true, nil
	}
	if err != nil && e.c.isClosing() {
		err = both(ErrClosed, err) // that is why it was not tried again
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
	if e.rec.Live(e.c.clock()) != nil || e.gate.First() != nil && !e.yields && time.Now().Before(e.asked) {
		w.found-- // one of ours has it, or the head was told that others do: it counts as found taken
	}
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
		// However short the wait is, a head that nobody has asked for yet asks once:
		// (false, nil) would be a guess.
		if err := k.past(); err != nil && (tried || !head || !errors.Is(err, errOver)) {
			return false, e.verdictOn(k, w, err)
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
				return false, e.verdictOn(k, w, err)
			case f == nil:
				continue // something has come of it while the turn was waited for
			case f.verdict == record.Granted:
				return true, nil
			case f.verdict == record.Undo:
				if late++; late >= mostLate {
					return false, tooShort(w.lease)
				}
				continue
			}
			late = 0
			continue
		}
		e.contended(w)
		if err := e.sleep(k, w, head, sleep); err != nil && w.hold == nil {
			return false, e.verdictOn(k, w, err)
		}
	}
}

// mostLate is how many grants in a row may come too late before the lease is
// called shorter than the round trip.
const mostLate = 3

func tooShort(lease time.Duration) error {
	if lease == 0 {
		return fmt.Errorf("%w: the watchdog timeout, or WithMaxHold, is shorter than the round trip to Redis", ErrInvalidLease)
	}
	return fmt.Errorf("%w: %v is shorter than the round trip to Redis and a safety margin of %v",
		ErrInvalidLease, lease, record.Margin(lease))
}

// verdictOn is the error of a wait that ended with err. When its time was over and
// others had the lock, that is none. When nobody knows who had it, it is, and when
// nobody had it but the restart guard refused.
func (e *entry) verdictOn(k *call, w *waiter, err error) error {
	switch {
	case e.found != w.found && e.restarted() != nil && (errors.Is(err, errOver) || k.ctx.Err() != nil):
		return both(e.restarted(), err)
	case !errors.Is(err, errOver) || errors.Is(err, ErrUnsettled):
		return err
	case e.passing.to == w: // it may have the lock this moment
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
