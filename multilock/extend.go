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
	errs := each(h.parts, func(p part) error { return p.Extend(ctx, lease) })
	err := errors.Join(errs...)
	if err == nil {
		h.last(ctx, lease)
		return nil
	}
	return errors.Join(err, h.putBack(context.WithoutCancel(ctx), errs))
}

// putBack gives the parts that were extended the lease that h has: with a watchdog
// that nobody stops, for one, the group's lease could never run out.
func (h *hold) putBack(ctx context.Context, errs []error) error {
	var done []part
	for i, p := range h.parts {
		if errs[i] == nil {
			done = append(done, p)
		}
	}
	lease := time.Duration(0)
	if h.lease > 0 {
		lease = max(time.Until(h.until), time.Millisecond)
	}
	return errors.Join(each(done, func(p part) error { return p.Extend(ctx, lease) })...)
}

// prolong gives p the lease, counted from now.
func prolong(ctx context.Context, p part, lease time.Duration) error {
	if p.outer {
		return lengthen(ctx, p, lease)
	}
	return p.Extend(ctx, lease)
}

// lengthen is prolong that takes nothing away: Extend would cut the lease, or stop
// the watchdog, of what the owner holds of p by itself. A nested Lock never does.
func lengthen(ctx context.Context, p part, lease time.Duration) error {
	got, err := p.TryLock(ctx, 0, lease)
	if !got {
		return err // without one, others have it: p is lost, as the caller will see
	}
	return p.Unlock(ctx) // if p was lost meanwhile, this frees what was not a nested one
}
