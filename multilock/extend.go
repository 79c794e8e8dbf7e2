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
	if lost := h.loss(ctx); lost != nil {
		return lost
	}
	ctx = rlock.WithOwner(ctx, o)
	return g.relet(ctx, h, lease, prolong)
}

// relet gives all parts of h the lease, by way: all of them, or none. The caller has
// the turn, and ctx carries the owner.
func (g *MultiLock) relet(ctx context.Context, h *hold, lease time.Duration, way func(context.Context, part, time.Duration) error) error {
	errs := each(h.parts, func(p part) error { return way(ctx, p, lease) })
	if err := errors.Join(errs...); err != nil {
		return errors.Join(err, g.putBack(context.WithoutCancel(ctx), h, errs))
	}
	g.last(ctx, h, lease)
	return nil
}

// putBack gives the parts that have a new lease, those without an error, the one that
// h has: with a watchdog that nobody stops, for one, the group's lease could never
// run out. If nothing is left of it, h is over. What the owner held of a part before
// keeps what it has: nobody knows what that was, and more does no harm.
func (g *MultiLock) putBack(ctx context.Context, h *hold, errs []error) error {
	lease := time.Duration(0)
	if h.lease > 0 {
		left := time.Until(h.until)
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
	return errors.Join(each(changed, func(p part) error { return p.Extend(ctx, lease) })...)
}

// prolong gives p the lease, counted from now. It takes nothing away from what the
// owner held of p before.
func prolong(ctx context.Context, p part, lease time.Duration) error {
	if p.outer {
		return lengthen(ctx, p, lease)
	}
	return p.Extend(ctx, lease)
}

// lengthen is prolong that never shortens: Extend would cut the lease, or stop the
// watchdog, of what the owner holds of p by itself. A nested Lock never does. Where a
// lock object allows none, nothing is nested either that Extend could cut.
func lengthen(ctx context.Context, p part, lease time.Duration) error {
	got, err := p.TryLock(ctx, 0, lease)
	switch {
	case errors.Is(err, rlock.ErrReentry) && !p.outer:
		if lease > 0 {
			lease = max(lease, p.Validity(ctx))
		}
		return p.Extend(ctx, lease)
	case err != nil:
		return err
	case !got: // others have it
		return rlock.ErrLost
	}
	// If p was lost meanwhile, this frees what was not a nested one.
	return p.Unlock(context.WithoutCancel(ctx))
}
