package rlock

import (
	"context"
	"errors"
	"sync"
	"time"
)

// call bounds one operation: its ctx, the end of its wait, and the end of the
// client.
type call struct {
	ctx      context.Context // nil: not bounded by one
	until    time.Time       // zero: no end
	patience time.Duration   // for how long it waits for others' requests to be answered
	persist  time.Duration   // for how long it repeats a request of its own that fails
	closing  <-chan struct{} // nil: goes on while the client closes
	each     time.Duration   // until is moved on by that as long as things move; 0: it is not
	last     time.Time       // but not beyond that; zero: no end

	timer  *time.Timer // fires at until; made when needed
	over   bool        // it has fired
	timers *timers     // nil: makes its own
}

// timers are used again: an Unlock needs one that never fires.
type timers struct{ pool sync.Pool }

func (t *timers) get(d time.Duration) *time.Timer {
	if t != nil {
		if timer, ok := t.pool.Get().(*time.Timer); ok {
			timer.Reset(d)
			return timer
		}
	}
	return time.NewTimer(d)
}

func (t *timers) put(timer *time.Timer) {
	timer.Stop()
	if t != nil {
		t.pool.Put(timer)
	}
}

// endless tells whether nothing but the client's end can call the caller away.
func (k *call) endless() bool { return k.ctx.Done() == nil && k.until.IsZero() }

// more moves until on. It reports false if that is as late as it may be.
func (k *call) more() bool {
	next := time.Now().Add(k.each)
	if !k.last.IsZero() && next.After(k.last) {
		next = k.last
	}
	if k.each == 0 || !next.After(k.until) {
		return false
	}
	k.stop()
	k.until, k.over = next, false
	return true
}

// errOver: the wait is over.
var errOver = errors.New("the wait is over")

// wait waits for c, within the call's bounds.
func (k *call) wait(c <-chan struct{}) error {
	_, err := k.waitAny(c, nil, nil)
	return err
}

// waitAny waits for one of a and b, or for wake. Its first result tells which came:
// 'a', 'b' or 'w'.
func (k *call) waitAny(a, b <-chan struct{}, wake <-chan time.Time) (rune, error) {
	var done <-chan struct{}
	if k.ctx != nil {
		done = k.ctx.Done()
	}
	select {
	case <-a:
		return 'a', nil
	case <-b:
		return 'b', nil
	case <-wake:
		return 'w', nil
	case <-done:
		return 0, ended(k.ctx)
	case <-k.end():
		k.over = true
		return 0, errOver
	case <-k.closing:
		return 0, ErrClosed
	}
}

// past tells whether the call's bounds are reached.
func (k *call) past() error {
	select {
	case <-k.closing:
		return ErrClosed
	default:
	}
	if k.ctx != nil && k.ctx.Err() != nil {
		return ended(k.ctx)
	}
	if k.over || !k.until.IsZero() && !time.Now().Before(k.until) {
		return errOver
	}
	return nil
}

var closedTime = func() chan time.Time { c := make(chan time.Time); close(c); return c }()

func (k *call) end() <-chan time.Time {
	if k.until.IsZero() {
		return nil
	}
	if k.over {
		return closedTime
	}
	if k.timer == nil {
		k.timer = k.timers.get(time.Until(k.until))
	}
	return k.timer.C
}

func (k *call) stop() {
	if k.timer != nil {
		k.timers.put(k.timer)
		k.timer = nil
	}
}
