package multilock

import (
	"context"
	"time"
)

// asking is one call of all, or some, parts of a hold for another lease. The last Unlock
// does not wait for that: it calls it off. But each part is unlocked after its own call
// has returned, so that none comes late, and finds what the owner has taken since.
type asking struct {
	off      context.CancelFunc
	returned map[int]chan struct{} // by the part's place: it has no other lease after that
	done     chan struct{}         // all is
}

// reletter gives p another lease. due: what it did has to be followed by an Unlock of p.
type reletter func(ctx context.Context, p part, lease time.Duration) (due bool, err error)

// ask has way give the lease to parts of h, unless h is over. The caller has the turn,
// and looks whether h is over afterwards.
func (g *MultiLock) ask(ctx context.Context, h *hold, parts []part, lease time.Duration, way reletter) []error {
	bounded, off := context.WithCancel(ctx)
	defer off()
	a := &asking{off: off, returned: make(map[int]chan struct{}, len(parts)), done: make(chan struct{})}
	for _, p := range parts {
		a.returned[p.place] = make(chan struct{})
	}
	if !g.asks(h, a) {
		return nil
	}
	defer close(a.done)
	defer g.asks(h, nil)
	return each(parts, func(p part) error {
		due, err := a.one(bounded, p, lease, way)
		return unnest(ctx, p, due, err)
	})
}

func (a *asking) one(ctx context.Context, p part, lease time.Duration, way reletter) (due bool, err error) {
	defer close(a.returned[p.place])
	if ctx.Err() != nil {
		return false, ended(ctx)
	}
	return way(ctx, p, lease)
}

// asks notes what h's parts are asked, unless h is over.
func (g *MultiLock) asks(h *hold, a *asking) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if h.isOver() {
		return false
	}
	h.asking = a
	return true
}

// callOff ends a, if there is one. Each part's call returns soon after.
func (a *asking) callOff() {
	if a != nil {
		a.off()
	}
}

// await waits until p has no other lease to come.
func (a *asking) await(p part) {
	if a == nil {
		return
	}
	if returned := a.returned[p.place]; returned != nil {
		<-returned
	}
}

// awaitAll waits until all that a does is done.
func (a *asking) awaitAll() {
	if a != nil {
		<-a.done
	}
}
