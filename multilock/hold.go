package multilock

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"time"

	"github.com/relock-go/relock/rlock"
)

// hold is one owner's hold of the group, from its outermost Lock to its last Unlock.
type hold struct {
	parts []part        // never changes
	gone  chan struct{} // closed when its parts are given back before it ends; under mu
	over  chan struct{} // closed when it ends: with the last Unlock, a Lock after its lease, or forget; under mu
	back  chan struct{} // closed when it is gone, or over, and its parts have been given back

	// Who has the turn changes them, under the group's mu, and may read them without.
	// Others may enter once more under mu.
	depth int           // Unlocks that are due; guarded by mu for everybody
	lease time.Duration // 0: kept by the watchdogs
	until time.Time     // of a lease: when it ends, as agreed

	lost   chan struct{} // made when somebody asks; guarded by the group's mu
	asking *asking       // what its parts are asked; nil: nothing. Guarded by the group's mu
	forget *time.Timer   // nil: nobody has seen a loss. Guarded by the group's mu
	ends   *time.Timer   // when the lease is over, where a part outlasts it. Guarded by the group's mu
}

func newHold(parts []part) *hold {
	return &hold{parts: parts, depth: 1, over: make(chan struct{}), gone: make(chan struct{}), back: make(chan struct{})}
}

// left is for how long all of h is proven. A member that was lost may be held by
// the same owner again, without the group.
func (h *hold) left(ctx context.Context) time.Duration {
	if h.isGone() {
		return 0
	}
	return least(ctx, h.parts)
}

// least is what the part has left that has the least.
func least(ctx context.Context, parts []part) time.Duration {
	left := time.Duration(1<<63 - 1)
	for _, p := range parts {
		if p.isLost() {
			return 0
		}
		left = min(left, p.Validity(ctx))
	}
	return left
}

// last notes that h has a new lease. What the owner held of a part before says nothing
// of when it ends, unless there is nothing else.
func (g *MultiLock) last(ctx context.Context, h *hold, lease time.Duration) {
	now := time.Now() // before what is left from then on
	own := slices.DeleteFunc(slices.Clone(h.parts), func(p part) bool { return p.outer })
	if len(own) == 0 {
		own = h.parts
	}
	until := now.Add(least(ctx, own))
	g.mu.Lock()
	defer g.mu.Unlock()
	h.lease, h.until = lease, until
	if h.ends != nil {
		h.ends.Stop()
	}
	if h.ends = nil; lease > 0 && len(own) < len(h.parts) {
		o := rlock.OwnerOf(ctx)
		h.ends = time.AfterFunc(time.Until(until), func() { g.leaseOver(o, h) })
	}
}

// leaseOver gives h back when its lease is over. Parts that the owner held before would
// go on by what they had then, and one deeper for ever if no Unlock came.
func (g *MultiLock) leaseOver(o rlock.Owner, h *hold) {
	s := g.sit(o)
	defer g.rise(o, s)
	ctx := rlock.WithOwner(context.Background(), o)
	if s.turnFor(ctx, o, h) != nil {
		return
	}
	defer func() { <-s.turn }()
	if h.agreed() && !h.isGone() { // it was not extended meanwhile, nor given back
		_ = g.end(ctx, h)
	}
}

// end gives all parts of h back, before its Unlocks: its lease is over, but some parts
// could outlast it. Those Unlocks say that it is lost. Nothing is left to be done if
// the last of them has come.
func (g *MultiLock) end(ctx context.Context, h *hold) error {
	g.mu.Lock()
	over := h.isOver()
	if !over {
		h.until = time.Now()
		close(h.gone)
	}
	g.mu.Unlock()
	if over {
		return nil
	}
	defer close(h.back)
	return undone(giveBack(ctx, h.parts))
}

func (h *hold) isGone() bool { return isDone(h.gone) }
func (h *hold) isOver() bool { return isDone(h.over) }

func isDone(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// agreed tells whether h had a lease that is over by now: its end is no loss that
// the owner has to hear of.
func (h *hold) agreed() bool { return h.lease > 0 && remaining(h.until) <= 0 }

// remaining is the time until t by the clock that says less, as the members count it:
// the monotonic one stands still while the machine is suspended, and the wall clock may
// be set.
func remaining(t time.Time) time.Duration {
	now := time.Now()
	return min(t.Sub(now), t.Round(0).Sub(now.Round(0)))
}

// loss is ErrLost with the name of the first part that is lost; nil if none is.
func (h *hold) loss(ctx context.Context) error {
	if h.isGone() {
		return errGone
	}
	for _, p := range h.parts {
		if p.isLost() || p.Validity(ctx) == 0 {
			return p.named(rlock.ErrLost)
		}
	}
	return nil
}

var errGone = fmt.Errorf("%w: its lease was over when a new one could not be had", rlock.ErrLost)

// awaitLoss waits until a part of h is lost, and returns the error of that; nil when
// stop was closed and none is.
func (h *hold) awaitLoss(stop <-chan struct{}) error {
	cases := []reflect.SelectCase{
		{Dir: reflect.SelectRecv, Chan: reflect.ValueOf(stop)},
		{Dir: reflect.SelectRecv, Chan: reflect.ValueOf(h.gone)},
	}
	for _, p := range h.parts {
		cases = append(cases, reflect.SelectCase{Dir: reflect.SelectRecv, Chan: reflect.ValueOf(p.lost)})
	}
	reflect.Select(cases)
	for _, p := range h.parts {
		if p.isLost() {
			return p.named(rlock.ErrLost)
		}
	}
	if h.isGone() {
		return errGone
	}
	return nil
}

var closed = func() <-chan struct{} { c := make(chan struct{}); close(c); return c }()

// seat is an owner's place in a group. What the owner's goroutines do that sends
// something to members is done one at a time, in turn. To enter once more where nobody
// is asked needs no turn.
type seat struct {
	turn  chan struct{} // holds a token while somebody has the turn
	calls int           // that use the seat; guarded by the group's mu
	hold  *hold         // nil: none. Set by who has the turn, ended by others as well; guarded by the group's mu
	last  *hold         // that ended last, and may still be given back; guarded by the group's mu
}

// sit returns the owner's seat, for one call, which ends with rise.
func (g *MultiLock) sit(o rlock.Owner) *seat {
	g.mu.Lock()
	defer g.mu.Unlock()
	s := g.seats[o]
	if s == nil {
		g.sweep()
		s = &seat{turn: make(chan struct{}, 1)}
		g.seats[o] = s
	}
	s.calls++
	return s
}

func (g *MultiLock) rise(o rlock.Owner, s *seat) {
	g.mu.Lock()
	defer g.mu.Unlock()
	s.calls--
	if s.calls == 0 && s.hold == nil {
		delete(g.seats, o)
	}
}

// turnFor waits for the turn, while h is what the owner has. A Lock that finds h's
// lease over keeps the turn for as long as others have a member, and what it gets is
// another hold. After an error the caller does not have the turn.
func (s *seat) turnFor(ctx context.Context, o rlock.Owner, h *hold) error {
	select {
	case s.turn <- struct{}{}:
		if !h.isOver() {
			return nil
		}
		<-s.turn
	case <-h.over:
	case <-ctx.Done():
		return ended(ctx)
	}
	return h.overError(o)
}

// overError is what calls get that meant h, which is over.
func (h *hold) overError(o rlock.Owner) error {
	if h.depth == 0 { // it is over, so nobody changes that any more
		return notHeld(o)
	}
	return fmt.Errorf("%w: it has ended since, and another Lock of this owner may have come after it", rlock.ErrLost)
}

// set notes what the seat's owner, who held nothing, holds now. The caller has the turn.
func (g *MultiLock) set(s *seat, h *hold) {
	g.mu.Lock()
	defer g.mu.Unlock()
	s.hold, s.last = h, nil
}

// held is what the owner holds, or nil.
func (g *MultiLock) held(o rlock.Owner) *hold {
	g.mu.Lock()
	defer g.mu.Unlock()
	if s := g.seats[o]; s != nil {
		return s.hold
	}
	return nil
}
