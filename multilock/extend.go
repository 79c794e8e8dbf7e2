package multilock

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/relock-go/relock/rlock"
)

const longestLease = 10 * 365 * 24 * time.Hour // as rlock has it

func checkLease(lease time.Duration) error {
	if lease != 0 && (lease < time.Millisecond || lease > longestLease) {
		return fmt.Errorf("%w: %v; use 0 for the watchdog, or 1ms to %v", rlock.ErrInvalidLease, lease, longestLease)
	}
	return nil
}

// extend is Extend.
func (g *MultiLock) extend(ctx context.Context, o rlock.Owner, lease time.Duration) error {
	if err := checkLease(lease); err != nil {
		return err
	}
	s := g.sit(o)
	defer g.rise(o, s)
	h := g.held(o)
	switch {
	case h == nil:
		return notHeld(o)
	case ctx.Err() != nil:
		return ended(ctx)
	}
	if err := s.turnFor(ctx, o, h); err != nil {
		return err
	}
	defer func() { <-s.turn }()
	if ctx.Err() != nil {
		return ended(ctx)
	}
	if lost := h.loss(ctx); h.isOver() {
		return h.overError(o)
	} else if lost != nil {
		g.noteLoss(o, h)
		return lost
	}
	ctx = rlock.WithOwner(ctx, o)
	return g.relet(ctx, o, h, lease, renew)
}

// relet gives all parts of h the lease, by way: all of them, or none. If h is unlocked
// meanwhile that is an error, and nothing more is done to its parts. The caller has the
// turn, and ctx carries the owner.
func (g *MultiLock) relet(ctx context.Context, o rlock.Owner, h *hold, lease time.Duration, way reletter) error {
	errs := g.ask(ctx, h, h.parts, lease, way)
	err := errors.Join(errs...)
	if err != nil {
		err = errors.Join(err, g.putBack(context.WithoutCancel(ctx), h, errs))
	}
	if h.isOver() {
		return h.overError(o)
	}
	if err == nil {
		g.last(ctx, h, lease)
	}
	return err
}

// putBack gives the parts that have a new lease, those without an error, the one that
// h has: with a watchdog that nobody stops, for one, the group's lease could never
// run out. If nothing is left of it, h is over. What the owner held of a part before
// keeps what it has: nobody knows what that was, and more does no harm. If h has been
// unlocked since, that has given back its parts.
func (g *MultiLock) putBack(ctx context.Context, h *hold, errs []error) error {
	lease := time.Duration(0)
	if h.lease > 0 {
		left := remaining(h.until)
		for i, p := range h.parts {
			if errs[i] != nil && !p.outer {
				left = max(left, p.Validity(ctx)) // it has its old lease still
			}
		}
		if left < time.Millisecond {
			return g.end(ctx, h)
		}
		lease = left + max(left/100, 2*time.Millisecond) // rlock's margin, which it takes off
	}
	var changed []part
	for i, p := range h.parts {
		if errs[i] == nil && !p.outer {
			changed = append(changed, p)
		}
	}
	return errors.Join(g.ask(ctx, h, changed, lease, renew)...)
}

// prolong gives p the lease, counted from now. It takes nothing away from what the
// owner held of p before.
func prolong(ctx context.Context, p part, lease time.Duration) error {
	due, err := renew(ctx, p, lease)
	return unnest(ctx, p, due, err)
}

// renew is prolong without the Unlock that is due then.
func renew(ctx context.Context, p part, lease time.Duration) (due bool, err error) {
	if p.outer {
		return lengthen(ctx, p, lease)
	}
	return false, p.Extend(ctx, lease)
}

// lengthen is renew that never shortens: Extend would cut the lease, or stop the
// watchdog, of what the owner holds of p by itself. A nested Lock never does. Where a
// lock object allows none, nothing is nested either that Extend could cut.
func lengthen(ctx context.Context, p part, lease time.Duration) (due bool, err error) {
	got, err := p.TryLock(ctx, 0, lease)
	switch {
	case errors.Is(err, rlock.ErrReentry) && !p.outer:
		if lease > 0 {
			lease = max(lease, p.Validity(ctx))
		}
		return false, p.Extend(ctx, lease)
	case err == nil && !got: // others have it
		return false, rlock.ErrLost
	}
	return err == nil, err
}

// unnest makes the Unlock that is due. If p was lost meanwhile, this frees what was not
// a nested one.
func unnest(ctx context.Context, p part, due bool, err error) error {
	if !due {
		return err
	}
	return p.Unlock(context.WithoutCancel(ctx))
}
