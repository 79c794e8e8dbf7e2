package rlock

import (
	"context"
	"time"

	"github.com/relock-go/relock/internal/record"
	"github.com/relock-go/relock/watchdog"
)

// sweep removes own fields that no hold uses, and mends depths that Redis may
// have wrong. It begins at once and goes on at growing intervals for as long as
// a late request may still make such a field.
type sweep struct {
	e     *entry
	lease watchdog.Lease[kept]
	pause time.Duration
	at    time.Time // when it is due
}

const longestPause = 5 * time.Second

// sweepLater has the key swept soon. mu is held.
func (e *entry) sweepLater() {
	if s := e.sweeps; s != nil {
		s.pause = shortPause
		if time.Until(s.at) > shortPause { // else those that come again and again would put it off
			s.schedule()
		}
		return
	}
	s := &sweep{e: e, pause: shortPause}
	s.lease.Hold = s
	e.sweeps = s
	s.schedule()
}

// sweepNow has the key swept by the next request of this client on it: others stand
// behind what is to go. Only an operation, or what one has begun, may call it.
func (e *entry) sweepNow() {
	e.sweepLater() // should this one fail
	if e.sweeping {
		return
	}
	first := !e.sending
	e.sweeping, e.sending = true, true
	e.c.spawn(func() {
		e.lock()
		defer e.unlock()
		e.clean(first)
	})
}

const shortPause = 5 * time.Millisecond

func (s *sweep) schedule() {
	s.at = time.Now().Add(s.pause)
	s.e.c.dog.Keep(&s.lease, time.Time{}, s.at)
}

// due is called by the wheel.
func (s *sweep) due() {
	if s.e.c.begin() != nil {
		return // Close sweeps
	}
	s.e.c.crew.do(s)
}

// run is one look at the key.
func (s *sweep) run() {
	e := s.e
	defer e.c.work.Done()
	defer e.c.tidy(e)
	e.lock()
	defer e.unlock()
	if e.sweeps != s {
		return
	}
	if e.dirty() == nil && !e.rec.Strays(e.c.clock()) {
		e.sweeps = nil
		return
	}
	if !e.sweeping {
		first := !e.sending
		e.sweeping, e.sending = true, true
		e.clean(first)
	}
	if e.sweeps == s {
		s.pause = min(2*s.pause, longestPause)
		s.schedule()
	}
}

// dirty is a hold whose depth Redis may have wrong, if there is one.
func (e *entry) dirty() *hold {
	var dirty *hold
	for h := range e.eachHold {
		if h.rec.Dirty() && h.left() > 0 {
			dirty = h
		}
	}
	return dirty
}

// clean mends one hold, or removes what may be removed. It waits for the turn unless the
// caller has it: on a key that many ask for, no pause would come by itself.
func (e *entry) clean(turn bool) {
	if !turn {
		_ = e.takeTurn(&call{}, true) // every request ends, so the turn comes
	}
	e.sweeping = false
	now := e.c.clock()
	switch dirty := e.dirty(); {
	case dirty != nil:
		f := &flight{q: e.rec.Mend(dirty.rec, now), h: dirty}
		e.kept(f, e.exchangeUnlocked(context.Background(), f.q))
	case e.rec.Strays(now) && e.rec.Sweepable(now):
		_, _ = e.sweepOnce(context.Background())
	default:
		e.endTurn()
	}
}

// sweepOnce asks once to remove the strays. It has the turn and ends it. Its first
// result tells whether it is worth to ask again after an error.
func (e *entry) sweepOnce(ctx context.Context) (again bool, err error) {
	defer e.endTurn()
	q := e.rec.Sweep(e.c.clock())
	r := e.exchangeUnlocked(ctx, q)
	if r.err != nil {
		e.rec.Close(q, e.c.clock())
		return !r.final, r.err
	}
	if verdict, _ := e.rec.Answer(q, r.yes, e.c.clock()); verdict == record.Released && r.yes {
		e.wakeHead()
	}
	return false, nil
}

// exchangeUnlocked is one attempt at q, with mu released meanwhile.
func (e *entry) exchangeUnlocked(ctx context.Context, q *record.Request) reply {
	e.mu.Unlock()
	defer e.mu.Lock()
	return e.exchange(ctx, q, time.Time{})
}
