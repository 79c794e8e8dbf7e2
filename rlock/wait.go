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
	kind         kind
	name         string
	keys         *keys
	owner, self  Owner // self: the goroutine, where that is another owner
	lease, limit time.Duration
	nonReentrant bool
	backoff      *Backoff // of a SpinLock; nil: the default
	began        time.Time

	hold    *hold  // granted by the releaser
	err     error  // why it was not, though it was its turn
	waiting bool   // it found the lock taken, and waits
	found   uint64 // entry.seen when it came
	tries   int    // attempts of a SpinLock
	late    int    // hand-overs to it in a row that came too late

	stand    *record.Stand // in Redis's queue, of a FairLock
	queued   bool          // it stands there, as far as the last answer said
	own      ears          // of one that stands there
	answered time.Time     // when it was last told how it stands
}

// want is the hold that w wants. mu is held; what it returns does not change.
func (w *waiter) want() record.Want {
	want := record.Want{
		Owner: string(w.owner), Half: w.kind.half(), Lease: w.lease, Limit: w.limit, Token: w.kind == fenced,
	}
	if w.stand != nil {
		stand := *w.stand
		want.Stand = &stand
	}
	return want
}

// line is where w stands in this process.
func (e *entry) line(w *waiter) *gate.Gate[*waiter] {
	if w.stand != nil {
		return &e.fairs
	}
	return &e.gate
}

// leads tells whether w is to ask Redis: the head of the line does so for all, but
// whoever stands in a queue there does so for itself.
func (e *entry) leads(w *waiter) bool { return w.stand != nil || e.gate.First() == &w.place }

// hears is how w sleeps when it leads.
func (e *entry) hears(w *waiter) *ears {
	if w.stand != nil {
		return &w.own
	}
	return &e.ears
}

// barred tells whether a hold of this client keeps w out.
func (e *entry) barred(w *waiter) bool {
	return e.rec.Barring(string(w.owner), w.kind.half(), e.c.clock()) != nil
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
	w.found = e.seen(w)
	taken := e.barred(w)
	if taken || w.stand == nil && e.gate.First() != nil && time.Now().Before(e.asked) {
		w.found-- // one of ours has it, or the head was told that others do, or leaves it to them: it counts as found taken
	}
	if w.kind == reading && !taken && e.rec.Live(e.c.clock()) != nil {
		if in, _, err := e.readBeside(k, w); in || err != nil { // what its own owner may do does not stand in line
			return in, err
		}
		if e.gate.First() == nil {
			e.asked = time.Time{} // readers are inside
		}
	}
	e.line(w).Join(&w.place)
	defer e.quit(w)
	late, tried := 0, false
	for {
		if w.hold != nil || w.err != nil {
			return w.hold != nil, w.err
		}
		if in, err := e.reenter(k, w); in || err != nil {
			return in, err
		}
		young := false
		if !e.leads(w) { // its owner may write by now
			var in bool
			var err error
			if in, young, err = e.readBeside(k, w); in || err != nil {
				return in, err
			}
		}
		leads := e.leads(w)
		// However short the wait is, a head that nobody has asked for yet asks once:
		// (false, nil) would be a guess.
		if err := k.past(); err != nil && (tried || !leads || !errors.Is(err, errOver)) {
			return false, e.verdictOn(k, w, err)
		}
		sleep := e.c.opt.recheck
		if young {
			sleep = min(sleep, max(time.Until(e.young), time.Millisecond))
		}
		if leads {
			sleep = time.Until(e.hears(w).asked)
		}
		if w.stand != nil && e.fairs.First() == &w.place {
			sleep = min(sleep, time.Until(w.answered.Add(e.c.opt.heartbeat())))
		}
		if leads && sleep <= 0 {
			e.hears(w).yields, tried = false, true
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
		if err := e.sleep(k, w, leads, sleep); err != nil && w.hold == nil {
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
	case e.seen(w) != w.found && e.restarted() != nil && (errors.Is(err, errOver) || k.ctx.Err() != nil):
		return both(e.restarted(), err)
	case !errors.Is(err, errOver) || errors.Is(err, ErrUnsettled):
		return err
	case e.passing.to == w: // it may have the lock this moment
	case e.seen(w) != w.found || e.barred(w):
		return nil
	}
	return fmt.Errorf("%w: no attempt on this key was answered in time", ErrUnsettled)
}

// sleep waits until w is to look again. One that leads also listens to messages, or
// polls.
func (e *entry) sleep(k *call, w *waiter, leads bool, d time.Duration) error {
	var messages <-chan struct{}
	var timer *time.Timer
	var wake <-chan time.Time
	if leads {
		at := e.hears(w)
		switch {
		case w.kind == spin && at.yields: // for as long as d says
		case w.kind == spin:
			d = min(d, e.pause(w))
		default:
			if e.follow(at, e.channel(w.kind, w.field())); !at.yields {
				messages = at.sub.C()
			}
		}
	}
	if leads || e.beside(w) {
		timer = time.NewTimer(d)
		defer timer.Stop()
		wake = timer.C
	}
	bell := w.place.Bell()
	e.unlock()
	came, err := k.waitAny(bell, messages, wake)
	e.lock()
	// If it has the lock by now, what it slept by is others'. If it is to yield, what it
	// heard is older than that.
	if at := e.hears(w); w.hold == nil && e.leads(w) && !at.yields && (came == 'b' || came == 'w' && w.kind == spin) {
		at.asked = time.Time{}
	}
	return err
}

// finds notes that a hold of that half is there, or was until now.
func (e *entry) finds(half record.Half) {
	e.found++
	if half == record.Read {
		e.shared++
	}
}

// seen counts what kept w out, or would have.
func (e *entry) seen(w *waiter) uint64 {
	if w.kind == reading {
		return e.found - e.shared
	}
	return e.found
}

// pause is how long a SpinLock's waiter sleeps. Its Backoff may be the user's.
func (e *entry) pause(w *waiter) time.Duration {
	var b Backoff = ExponentialBackoff{}
	if w.backoff != nil {
		b = *w.backoff
	}
	w.tries++
	e.unlock()
	defer e.lock()
	return max(b.Next(w.tries), time.Millisecond)
}

// refused notes that others have the lock, for left at least. Whoever leads sleeps
// until that is over, and never longer than the recheck bound.
func (e *entry) refused(w *waiter, left time.Duration) {
	e.found++
	e.again = false
	at, sleep := e.hears(w), e.c.opt.recheck
	if w.stand != nil {
		w.answered = time.Now()
	}
	switch {
	case w.stand != nil && e.fairs.First() != &w.place:
		sleep = e.c.opt.fairWait // those before it ask
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
	at.asked, at.yields = time.Now().Add(sleep), false
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
	led := e.gate.First() == &w.place
	e.line(w).Leave(&w.place)
	if w.hold == nil {
		if next := e.gate.First(); led && (next == nil && e.rec.Live(e.c.clock()) == nil || next != nil && !e.barred(next.For)) {
			e.wakeHead()
		}
		if e.passing.to == w { // whoever is next gets it instead
			e.rec.Abandon(e.passing.q)
		}
	}
	if w.stand != nil {
		e.leaveQueue(w)
	}
	e.unfollow()
}
