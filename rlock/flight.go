package rlock

import (
	"context"
	"errors"
	"time"

	"github.com/relock-go/relock/internal/record"
)

// flight is one step on a key that needs Redis: an attempt to acquire, a change
// to a hold, or an Unlock. It runs in a goroutine of the client's, with the turn
// to send, and ends by itself, also when its caller has left.
//
// entry.mu guards it. done is closed when it is settled, and what it found does
// not change after that.
type flight struct {
	e     *entry
	kind  flightKind
	ctx   context.Context // for values; never ends
	until time.Time       // attempts that fail are repeated until then
	q     *record.Request // under way; nil for an Unlock that has no turn yet
	w     *waiter         // acquiring: for whom
	h     *hold           // keeping, leaving: whose
	queue bool            // leaving: the turn is still to be waited for

	settled bool
	done    chan struct{}

	verdict record.Verdict
	left    time.Duration // acquiring, Held: for how long at least; -1 without end
	err     error         // there was no answer, or it was a bad one
}

type flightKind uint8

const (
	acquiring flightKind = iota
	keeping
	leaving
)

// launch sets f on its way. mu is held.
func (e *entry) launch(ctx context.Context, f *flight) *flight {
	if f.ctx = ctx; ctx.Done() != nil {
		f.ctx = context.WithoutCancel(ctx)
	}
	f.e, f.done = e, make(chan struct{})
	e.c.work.Add(1)
	e.c.crew.do(f)
	return f
}

// run is the life of f.
func (f *flight) run() {
	e := f.e
	defer e.c.work.Done()
	if f.kind == leaving {
		e.lock()
		defer e.unlock()
		if f.queue {
			_ = e.takeTurn(&call{}) // every request ends, so the turn comes
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
	close(f.done)
}

// await waits for f within the bounds of k, with mu released meanwhile. If they
// are reached first it abandons the request.
func (e *entry) await(k *call, f *flight) error {
	if f.settled {
		return f.err
	}
	e.unlock()
	err := k.wait(f.done)
	e.lock()
	if f.settled {
		return f.err
	}
	e.rec.Abandon(f.q)
	if errors.Is(err, ErrClosed) {
		return err
	}
	return both(ErrUnsettled, err)
}
