package rlock

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/relock-go/relock/internal/record"
)

// flight is one step on a key that needs Redis: an attempt to acquire, a change
// to a hold, or an Unlock. It runs in a goroutine of the client's, with the turn
// to send, and ends by itself, also when its caller has left.
//
// entry.mu guards it. What it found does not change after it is settled.
type flight struct {
	e     *entry
	kind  flightKind
	ctx   context.Context // for values; never ends
	until time.Time       // attempts that fail are repeated until then
	q     *record.Request // under way; nil for an Unlock that has no turn yet
	w     *waiter         // acquiring: for whom
	h     *hold           // keeping, leaving: whose
	woken uint64          // acquiring: entry.woken when it began
	queue bool            // leaving: the turn is still to be waited for

	settled bool
	orphan  bool          // its caller left before
	done    chan struct{} // closed then; made when somebody waits for it

	verdict record.Verdict
	err     error // there was no answer, or it was a bad one
	guarded error // acquiring: it was the restart guard that refused
}

type flightKind uint8

const (
	acquiring flightKind = iota
	keeping
	leaving
)

// launch sets f on its way for a caller bounded by k. A caller that nothing can
// call away sends the request itself; f is settled when launch returns then. mu is
// held, and released meanwhile.
func (e *entry) launch(k *call, f *flight) *flight {
	f.e = e
	e.c.work.Add(1)
	if f.ctx = k.ctx; k.endless() {
		e.mu.Unlock() // callbacks wait for the end of the turn: they may want one too
		f.run()
		e.lock()
		return f
	}
	f.ctx = detached(k.ctx)
	e.c.crew.do(f)
	return f
}

// detached is ctx without its end.
func detached(ctx context.Context) context.Context {
	if ctx.Done() == nil {
		return ctx
	}
	return context.WithoutCancel(ctx)
}

// run is the life of f.
func (f *flight) run() {
	e := f.e
	defer e.c.work.Done()
	defer func() {
		if f.orphan { // nobody else looks whether the entry is still needed
			e.c.tidy(e)
		}
	}()
	if f.kind == leaving {
		e.lock()
		defer e.unlock()
		if f.queue {
			_ = e.takeTurn(&call{}, true) // every request ends, so the turn comes
		}
		e.leave(f)
		return
	}
	r := e.exchange(f.ctx, f.q, f.until)
	e.lock()
	defer e.unlock()
	if f.kind == acquiring {
		e.answered(f, r)
		return
	}
	e.kept(f, r)
	f.settle()
}

// settle publishes what came of f. mu is held.
func (f *flight) settle() {
	f.settled = true
	if f.done != nil {
		close(f.done)
	}
}

// over is closed when f is settled. mu is held, and f is not settled yet.
func (f *flight) over() <-chan struct{} {
	if f.done == nil {
		f.done = make(chan struct{})
	}
	return f.done
}

// await waits for f within the bounds of k, with mu released meanwhile. If they
// are reached first it abandons the request.
func (e *entry) await(k *call, f *flight) error {
	if f.settled {
		return f.err
	}
	over := f.over()
	e.unlock()
	err := k.wait(over)
	e.lock()
	if f.settled {
		return f.err
	}
	f.orphan = true
	e.rec.Abandon(f.q)
	switch {
	case errors.Is(err, ErrClosed):
		return err
	case e.failed != nil:
		err = fmt.Errorf("%w; the last attempt failed: %w", err, e.failed)
	}
	return both(ErrUnsettled, err)
}
