package multilock

import (
	"context"
	"time"

	"github.com/relock-go/relock/rlock"
)

// remembered is for how long the Unlocks may come of a hold whose lease ran out, or that
// is lost.
const remembered = 5 * time.Minute

// noteLoss is called with an h that is lost, by whoever sees that. If its Unlocks do not
// come it is forgotten, some time later. What was agreed to end needs no Unlocks.
func (g *MultiLock) noteLoss(o rlock.Owner, h *hold) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.noteLossLocked(o, h)
}

// noteLossLocked is noteLoss where mu is held.
func (g *MultiLock) noteLossLocked(o rlock.Owner, h *hold) {
	if h.forget == nil && !h.isOver() && !h.agreed() {
		h.forget = time.AfterFunc(remembered, func() { g.forget(o, h) })
	}
}

// forget ends a lost hold whose Unlocks did not come, and makes them: the watchdogs would
// keep the members that are left for ever, and those that are lost would stay lost.
func (g *MultiLock) forget(o rlock.Owner, h *hold) {
	s := g.sit(o)
	defer g.rise(o, s)
	ctx := rlock.WithOwner(context.Background(), o)
	if h.loss(ctx) == nil { // a member that only seemed to have no time left
		g.mu.Lock()
		defer g.mu.Unlock()
		h.forget = nil
		return
	}
	if g.drop(s, h) {
		_ = g.letGo(ctx, h)
	}
}

// sweep forgets holds whose lease ran out and that nobody has unlocked for long: their
// owners may never come back. It also sees losses that their owners have not asked
// about. It looks each time that the seats have doubled. mu is held.
func (g *MultiLock) sweep() {
	if len(g.seats) < max(g.most, 16) {
		return
	}
	for o, s := range g.seats {
		if s.calls > 0 {
			continue
		}
		lost, all := s.hold.lostParts()
		switch {
		case all && s.hold.agreed() && remaining(s.hold.until) <= -remembered:
			s.finish(s.hold)
			delete(g.seats, o)
		case lost:
			g.noteLossLocked(o, s.hold)
		}
	}
	g.most = 2 * len(g.seats)
}

// lostParts tells whether a part is known to be lost, and whether all are. It calls no
// member.
func (h *hold) lostParts() (lost, all bool) {
	if h.isGone() {
		return true, true
	}
	all = true
	for _, p := range h.parts {
		if p.isLost() {
			lost = true
		} else {
			all = false
		}
	}
	return lost, all
}
