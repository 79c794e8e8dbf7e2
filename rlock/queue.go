package rlock

import (
	"time"

	"github.com/relock-go/relock/internal/record"
)

// stand is how a FairLock's waiter that waits for so long stands in Redis's queue.
func (l *lock) stand(wait time.Duration) *record.Stand {
	if wait >= 0 {
		return &record.Stand{Wait: min(wait, l.c.opt.fairWait)}
	}
	return &record.Stand{Wait: l.c.opt.fairWait}
}

// heartbeat is how often a waiter in the queue says that it lives.
func (o *options) heartbeat(s *record.Stand) time.Duration {
	return max(min(time.Second, s.Wait/4), 10*time.Millisecond)
}

// field is what w stands under in Redis's queue, empty if it does not.
func (w *waiter) field() string {
	if w.stand == nil {
		return ""
	}
	return w.stand.Field
}

// stands notes under which field w asks: it may stand in the queue from now on.
func (e *entry) stands(w *waiter, q *record.Request) {
	if w.stand.Field == "" && w.stand.Wait > 0 {
		w.stand.Field = q.Hold.Field
		e.rec.Queue(w.stand.Field)
	}
}

// inQueue notes the answer that w stands in the queue.
func (e *entry) inQueue(w *waiter, q *record.Request, ahead time.Duration) {
	w.queued = true
	w.stand.Beat = q.SentAt()
	w.stand.Ahead = max(w.stand.Ahead, ahead)
}

// leaveQueue has w out of Redis's queue, soon. One that got the lock is out already.
func (e *entry) leaveQueue(w *waiter) {
	if w.own.sub != nil {
		w.own.sub.Close()
		w.own.sub = nil
	}
	if w.stand.Field == "" {
		return
	}
	if w.hold != nil && w.hold.rec.Field == w.stand.Field {
		e.rec.Quit(w.stand.Field, nil, e.c.clock())
	} else {
		e.rec.Quit(w.stand.Field, w.stand, e.c.clock())
		e.sweepLater()
	}
	w.stand.Field, w.queued = "", false
}

// nextInQueue is the first of this client's in Redis's queue: they came there in the
// order in which they stand here.
func (e *entry) nextInQueue() *waiter {
	var next *waiter
	e.fairs.All(func(p *place) bool {
		if p.For.queued && !e.stuck(p) {
			next = p.For
		}
		return next == nil
	})
	return next
}
