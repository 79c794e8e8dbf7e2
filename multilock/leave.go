package multilock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/relock-go/relock/rlock"
)

// leave is Unlock. It needs no turn: what another goroutine of the owner asks of the
// members may take longer than they do to be released.
func (g *MultiLock) leave(ctx context.Context, o rlock.Owner) error {
	s := g.sit(o)
	defer g.rise(o, s)
	h := g.held(o)
	if h == nil {
		return notHeld(o)
	}
	ctx = rlock.WithOwner(context.WithoutCancel(ctx), o)
	lost := h.loss(ctx)
	switch last, there := g.down(s, h); {
	case !there:
		return h.overError(o)
	case !last:
		if lost != nil {
			g.noteLoss(o, h)
		}
		return lost
	}
	err := errors.Join(g.letGo(ctx, h)...)
	if errors.Is(err, rlock.ErrLost) {
		return err
	}
	return errors.Join(lost, err)
}

func notHeld(o rlock.Owner) error {
	return fmt.Errorf("%w: owner %s does not hold the group; a goroutine cannot unlock what another one locked, "+
		"unless both carry one owner (WithOwner)", rlock.ErrNotHeld, o)
}

// down counts one Unlock of h, if it is there still, and tells whether it was the last
// one: then h is over.
func (g *MultiLock) down(s *seat, h *hold) (last, there bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if s.hold != h {
		return false, false
	}
	h.depth--
	return h.depth == 0 && s.finish(h), true
}

// drop ends h before its Unlocks, if it is there still.
func (g *MultiLock) drop(s *seat, h *hold) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return s.finish(h)
}

// finish ends h, and reports false if that is done already. Who ended it lets it go: so
// no part is unlocked twice. mu is held.
func (s *seat) finish(h *hold) bool {
	if s.hold != h {
		return false
	}
	close(h.over)
	for _, timer := range []*time.Timer{h.forget, h.ends} {
		if timer != nil {
			timer.Stop()
		}
	}
	s.hold, s.last = nil, h
	return true
}

// letGo gives the parts of h back, which is over, each as soon as nothing gives it
// another lease any more.
func (g *MultiLock) letGo(ctx context.Context, h *hold) []error {
	if h.isGone() { // they are given back elsewhere
		<-h.back
		return nil
	}
	defer close(h.back)
	g.mu.Lock()
	a := h.asking // the last one: h is over
	g.mu.Unlock()
	a.callOff()
	defer a.awaitAll()
	return each(h.parts, func(p part) error {
		a.await(p)
		return handBack(ctx, p)
	})
}

// giveBack unlocks parts, once each.
func giveBack(ctx context.Context, parts []part) []error {
	return each(parts, func(p part) error { return handBack(ctx, p) })
}

// handBack unlocks p. What was lost is not asked for if the owner holds it anew: that is
// no business of the group's.
func handBack(ctx context.Context, p part) error {
	if p.isLost() && p.Validity(ctx) > 0 {
		return rlock.ErrLost
	}
	return p.Unlock(ctx)
}

// undone joins those errors of giveBack that leave it open whether a part was given
// back. One that was lost is not there to be given back.
func undone(errs []error) error {
	return errors.Join(slices.DeleteFunc(errs, func(err error) bool {
		return err == nil || !errors.Is(err, rlock.ErrUnsettled) &&
			(errors.Is(err, rlock.ErrLost) || errors.Is(err, rlock.ErrNotHeld))
	})...)
}
