package watchdog

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"runtime/debug"
	"time"
)

// endOfTime is later than every tick.
const endOfTime = math.MaxInt64

// ticker is the goroutine that ticks. It runs while anything is kept, sleeps
// until the next thing that can be due, and ends when it finds nothing to wait
// for.
//
// It is not woken when the last lease is dropped, but looks for that once a
// Period. So a caller that locks and unlocks in a loop neither starts nor wakes
// a goroutine each time.
func (w *Watchdog[H]) ticker() {
	done := false
	defer func() {
		if !done { // Expired ended the goroutine: go on with another
			w.mu.Lock()
			defer w.mu.Unlock()
			w.telling = false
			w.goLocked(w.ticker)
		}
	}()
	timer := time.NewTimer(math.MaxInt64)
	defer timer.Stop()
	for {
		w.collect()
		w.tell()
		sleep, more := w.rest()
		if !more {
			done = true
			return
		}
		timer.Reset(sleep)
		select {
		case <-timer.C:
		case <-w.wake:
		case <-w.ctx.Done():
		}
	}
}

// collect takes what is due out of the wheel, to be told or to be renewed.
func (w *Watchdog[H]) collect() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.wakeAt = 0
	if w.closed {
		return
	}
	now := w.now()
	for {
		l := w.wheel.pop(int64(now / tickLength))
		if l == nil {
			break
		}
		w.leaveLineLocked(l) // it may be its deadline that comes, while it waits to be renewed
		if l.overdue(now) {
			w.joinLineLocked(l, lapsed)
			continue
		}
		w.joinLineLocked(l, queued)
		l.renewAt = 0
		w.scheduleLocked(l) // its deadline
	}
	w.telling = w.lapsed.head != nil
}

func (l *Lease[H]) overdue(now time.Duration) bool {
	return l.deadline != 0 && l.deadline <= now
}

// tell calls Expired for the leases that have lapsed, one by one, as Drop may
// take some of them out meanwhile.
func (w *Watchdog[H]) tell() {
	for {
		w.mu.Lock()
		l := w.lapsed.head
		if l == nil {
			w.telling = false
			w.mu.Unlock()
			return
		}
		w.dropLocked(l)
		w.mu.Unlock()
		w.guard("Expired", 1, func() { w.cfg.Expired(l) })
	}
}

// rest hands out what waits to be renewed and says how long the ticker may
// sleep. more is false if it is not needed any more.
func (w *Watchdog[H]) rest() (sleep time.Duration, more bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed || w.kept == 0 {
		w.ticking = false
		return 0, false
	}
	now := w.now()
	w.serveLocked(now)
	w.wakeAt = w.coarse(now+w.cfg.Period, now) // not after what a Keep from now on brings
	if tick, ok := w.wheel.next(); ok {
		w.wakeAt = min(w.wakeAt, time.Duration(tick)*tickLength)
	}
	if w.waiting > 0 {
		for _, k := range w.young { // a call that hangs until then gives up its place
			w.wakeAt = min(w.wakeAt, k.since+w.cfg.Attempt)
		}
	}
	return w.wakeAt - now, true
}

// guard runs a function of the caller's; the watchdog outlives its panic.
func (w *Watchdog[H]) guard(name string, leases int, f func()) {
	defer func() {
		if r := recover(); r != nil {
			w.cfg.Logger.LogAttrs(context.Background(), slog.LevelError, "watchdog: "+name+" panicked",
				slog.String("panic", fmt.Sprint(r)), slog.Int("leases", leases), slog.String("stack", string(debug.Stack())))
		}
	}()
	f()
}
