package redlock

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/relock-go/relock/rlock"
)

// Extend gives the current hold a new lease, counted from now: longer or shorter than
// before, 1 ms to 10 years. 0 hands it to the watchdogs. All servers that have the hold
// are asked at once; it counts when a majority has done it before the old validity is
// over, and then as LockLease says. WithMaxHold bounds it. A key that is gone is not
// made again.
//
// ctx bounds the waiting. After an error the lease is what it was, but at those servers
// that did it: a shorter lease there may shorten the validity. Errors: ErrNotHeld;
// ErrLost; ErrInvalidLease; the servers' errors, joined, with ErrUnsettled where one did
// not answer within NodeTimeout, and as text what single servers have lost; ErrUnsettled
// with ctx's.
func (r *RedLock) Extend(ctx context.Context, lease time.Duration) error {
	if err := r.made(); err != nil {
		return r.wrap("extend", "", err)
	}
	if err := r.opt.checkLease(lease); err != nil {
		return r.wrap("extend", "", err)
	}
	owner := rlock.OwnerOf(ctx)
	if ctx.Err() != nil {
		return r.wrap("extend", owner, ended(ctx))
	}
	h := r.hold(owner)
	if h == nil {
		return r.wrap("extend", owner, notHeld(owner))
	}
	return r.wrap("extend", owner, h.extend(ctx, ctx, lease, false))
}

// extend is Extend; or, if it is for a nested Lock, one that does not shorten. It waits
// until bound is over, which is ctx or ends before it.
func (h *hold) extend(ctx, bound context.Context, lease time.Duration, nested bool) error {
	r := h.r
	over := func() error {
		if ctx.Err() != nil {
			return ended(ctx)
		}
		return errOver
	}
	for {
		if h.left() == 0 {
			if err := h.lostError(); err != nil {
				return err
			}
			return notHeld(h.owner) // another goroutine of the owner has given it back
		}
		r.mu.Lock()
		before := h.extending
		if before == nil || before.settled {
			break
		}
		r.mu.Unlock()
		select { // one at a time: the later one counts, at all servers
		case <-before.done:
		case <-bound.Done():
			return fmt.Errorf("%w: an earlier Extend is still open: %w", rlock.ErrUnsettled, over())
		}
	}
	switch {
	case h.ended():
		r.mu.Unlock()
		return notHeld(h.owner)
	case nested && !h.shorterLocked(lease): // another goroutine of the owner was faster
		r.mu.Unlock()
		return nil
	}
	x := &extension{round: round{r: r, limit: r.opt.limit(lease)}, hold: h, lease: lease, start: time.Now()}
	x.judge = x.judgeLocked
	x.wanted = func() bool { return x.err == nil && !x.left && h.lastsLocked() }
	h.extending = x
	x.askLocked(h.ctx, h.terms.in, func(ctx context.Context, p part) answer {
		if p.isLost() { // a newer hold of the owner's is not to be changed
			return answer{err: rlock.ErrLost}
		}
		if err := p.Extend(ctx, lease); err != nil {
			return answer{err: err}
		}
		return p.held(h.ctx)
	}, func(answer) {
		r.mu.Lock()
		defer r.mu.Unlock()
		h.lookAgainLocked()
	})
	r.mu.Unlock()

	select {
	case <-x.done:
	case <-bound.Done():
	}
	r.mu.Lock()
	settled, panicked := x.settled, x.panicked()
	x.left = !settled
	r.mu.Unlock()
	switch {
	case settled && panicked != nil:
		panic(panicked)
	case !settled:
		return fmt.Errorf("%w: the servers have not answered: %w", rlock.ErrUnsettled, over())
	case h.left() == 0:
		return errors.Join(h.lostError(), x.err)
	}
	return x.err
}

// extension is an Extend under way. Its round guards it.
type extension struct {
	round
	hold  *hold
	lease time.Duration
	start time.Time // before the first request
	left  bool      // its caller did not wait for it
	err   error
}

// judgeLocked settles the extension when a majority has done it, or cannot any more.
func (x *extension) judgeLocked() bool {
	r, h := x.r, x.hold
	done := x.count(yes)
	switch {
	case x.panicked() != nil:
		x.err = x.failures()
		h.lookAgainLocked()
		return true
	case done >= r.quorum:
	case done+x.open() < r.quorum:
		x.err = x.failures(rlock.ErrLost, rlock.ErrNotHeld) // it is neither
		h.lookAgainLocked()
		return true
	default:
		return false
	}
	old := h.terms
	switch {
	case x.left:
		h.lookAgainLocked()
	case h.lost != nil:
	case h.ended():
		x.err = notHeld(h.owner)
	case !old.until.IsZero() && remaining(old.until) <= 0:
		h.loseLocked()
	default:
		h.terms = r.terms(old.in, x.lease, x.start, h.end, x.promised())
		h.wait = x.limit
		h.timer.Reset(max(h.terms.remains(x.lefts(), r.quorum), 0))
	}
	return true
}
