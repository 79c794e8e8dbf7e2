package rlock

import (
	"context"
	"strconv"
	"strings"
	"time"

	"github.com/relock-go/relock/internal/record"
	"github.com/relock-go/relock/internal/script"
)

// stand is how a FairLock's waiter that waits for so long stands in Redis's queue.
func (l *lock) stand(wait time.Duration) *record.Stand {
	if wait >= 0 {
		return &record.Stand{Wait: min(wait, l.c.opt.fairWait)}
	}
	return &record.Stand{Wait: l.c.opt.fairWait}
}

// heartbeat is how often those in the queue say that they live, and the first one of
// them asks.
func (o *options) heartbeat() time.Duration { return min(time.Second, o.fairWait/4) }

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

// appendStand adds what the scripts want to know of one who stands in the queue.
func appendStand(words []any, s *record.Stand, now time.Duration) []any {
	passed := time.Duration(0)
	if s.Beat > 0 {
		passed = now - s.Beat
	}
	return append(words, millis(s.Wait), millis(passed), millis(s.Ahead))
}

// inQueue notes the answer to what was sent then: that w stands in the queue, and is
// waited for for so long.
func (e *entry) inQueue(w *waiter, sent, ahead time.Duration) {
	w.queued = true
	w.stand.Beat, w.stand.Ahead = sent, max(w.stand.Ahead, ahead)
	if now := time.Now(); e.fairs.First() == &w.place && now.After(e.beaten.Add(e.c.opt.heartbeat())) {
		e.beaten = now
		e.beat(w)
	}
}

// beat says of all but w who stand in the queue that they live. They need not ask for
// themselves: w is before them.
func (e *entry) beat(w *waiter) {
	sent := e.c.clock().Mono
	words := []any{e.key, script.QueueKey(e.key), script.ScoresKey(e.key)}
	var all []*waiter
	e.fairs.All(func(p *place) bool {
		if other := p.For; other != w && other.queued {
			words = appendStand(append(words, other.stand.Field), other.stand, sent)
			all = append(all, other)
		}
		return true
	})
	if len(all) == 0 {
		return
	}
	e.c.spawn(func() { // beside the turn: it grants nothing
		a := e.c.runner.SendApart(context.Background(), script.FairBeat, 3, words...)
		if a.Fate != script.Ran {
			return // the next one adds what this one should have
		}
		found, next, _ := strings.Cut(a.Text, ":")
		e.lock()
		defer e.unlock()
		for _, other := range all {
			other.stand.Beat = max(other.stand.Beat, sent)
			// Some have left, or were left out, and see for themselves. One that was may
			// stand behind others of this process now, of which one is the head.
			if found != strconv.Itoa(len(all)) || next != "" && next == other.stand.Field {
				other.own.asked = time.Time{}
				other.place.Ring()
			}
		}
	})
}

// leaveQueue has w out of Redis's queue, soon. One that got the lock is out already. One
// that still waits asks anew, under another field.
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
		e.sweepNow()
	}
	w.stand.Field, w.stand.Beat, w.stand.Ahead, w.queued = "", 0, 0, false
	w.own.asked = time.Time{}
	w.place.Ring()
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
