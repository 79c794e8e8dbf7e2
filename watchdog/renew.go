package watchdog

import (
	"context"
	"slices"
	"time"
)

// worker is a goroutine that renews one batch after the other.
//
// It has a place, one of Config.Calls, from its start until its call is as old
// as Attempt. A worker that comes back later takes a free place or ends.
type worker struct {
	since time.Duration // when it took its place, or made its batch
	busy  bool          // it has made a batch
}

// serveLocked starts the workers that the queue has work for and that have a
// place.
func (w *Watchdog[H]) serveLocked(now time.Duration) {
	if w.closed || w.telling {
		return // the ticker serves when all is told
	}
	w.retireLocked(now)
	batches := (w.waiting + w.cfg.Batch - 1) / w.cfg.Batch
	for _, k := range w.young {
		if !k.busy {
			batches--
		}
	}
	for ; batches > 0 && len(w.young) < w.cfg.Calls; batches-- {
		k := &worker{since: now}
		w.young = append(w.young, k)
		w.goLocked(func() { w.work(k) })
	}
}

// retireLocked takes their places from the workers whose calls are too old.
func (w *Watchdog[H]) retireLocked(now time.Duration) {
	w.young = slices.DeleteFunc(w.young, func(k *worker) bool { return now-k.since >= w.cfg.Attempt })
}

func (w *Watchdog[H]) work(k *worker) {
	defer w.leave(k)
	for {
		batch := w.take(k)
		if len(batch) == 0 {
			return
		}
		w.renew(batch)
	}
}

// leave gives back the worker's place. If Renew ended its goroutine, another
// has to go on.
func (w *Watchdog[H]) leave(k *worker) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.young = slices.DeleteFunc(w.young, func(other *worker) bool { return other == k })
	w.serveLocked(w.now())
}

// renew makes one call.
func (w *Watchdog[H]) renew(batch []*Lease[H]) {
	ctx, cancel := context.WithTimeout(w.ctx, w.cfg.Attempt)
	defer cancel()
	w.guard("Renew", len(batch), func() { w.cfg.Renew(ctx, batch) })
}

// take makes the next batch for k. It is empty when k is to end.
//
// Each lease that is handed out is scheduled for its next attempt at once. So
// it makes no difference whether the call fails, hangs or panics.
func (w *Watchdog[H]) take(k *worker) []*Lease[H] {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := w.now()
	if w.closed || w.telling || w.waiting == 0 || !w.placeLocked(k, now) {
		return nil
	}
	batch := make([]*Lease[H], 0, min(w.waiting, w.cfg.Batch))
	retry := w.retries(now)
	for len(batch) < w.cfg.Batch && w.queue.head != nil {
		l := w.queue.head
		w.leaveLineLocked(l)
		if l.overdue(now) {
			continue // the ticker, which has it in the wheel, is about to tell
		}
		batch = append(batch, l)
		w.wheel.remove(l)
		l.renewAt = retry(l.deadline)
		w.scheduleLocked(l)
	}
	return batch
}

// placeLocked reports whether k has a place or could take one, for a call that
// begins now.
func (w *Watchdog[H]) placeLocked(k *worker, now time.Duration) bool {
	k.since, k.busy = now, true // its last call is over, whatever its age
	if slices.Contains(w.young, k) {
		return true
	}
	w.retireLocked(now)
	if len(w.young) >= w.cfg.Calls {
		return false
	}
	w.young = append(w.young, k)
	return true
}
