package redlock

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/relock-go/relock/rlock"
)

// hold is one owner's hold, held or lost. RedLock.mu guards it.
type hold struct {
	r     *RedLock
	owner rlock.Owner
	ctx   context.Context // with the owner; never ends
	depth int
	terms *terms
	wait  time.Duration // for a node
	end   time.Time     // by WithMaxHold; zero: none

	extending *extension // the latest Extend, settled or not

	lost    error         // why; nil: it is not
	gone    chan struct{} // closed with the loss
	over    chan struct{} // closed with the last Unlock
	watched bool          // somebody listens to gone
	timer   *time.Timer   // for the end of the validity; once lost, to forget it
}

// terms are what a hold's validity follows from. They are replaced, never changed.
type terms struct {
	in    []part        // the nodes that granted it, and have not been given back
	fixed bool          // there is a lease
	until time.Time     // by this process's clocks; zero: no end
	off   time.Duration // taken off what the nodes' holds have left
	left  time.Duration // what a majority of them had left when it was granted
	drift time.Duration // taken off the lease: the nodes have it for longer than it counts
}

// remembered is for how long the Unlocks of a lost hold may come.
const remembered = 5 * time.Minute

// terms are those of a lease granted to requests of which the first was sent at start,
// and of nodes whose holds have that much left.
//
// With a lease they are the arithmetic of the algorithm: lease - elapsed - drift. The
// watchdogs renew each node's hold by itself, so there the nodes have the say, and the
// drift is that of what they promised.
func (r *RedLock) terms(in []part, lease time.Duration, start, end time.Time, lefts []time.Duration) *terms {
	t := &terms{in: in, fixed: lease > 0, until: end, left: majority(lefts, r.quorum)}
	if !t.fixed {
		t.off = r.opt.drift(t.left)
		return t
	}
	t.drift = r.opt.drift(lease)
	if until := start.Add(lease - t.drift); end.IsZero() || until.Before(end) {
		t.until = until
	}
	return t
}

// remains is what is left when the nodes' holds have that much left.
func (t *terms) remains(lefts []time.Duration, quorum int) time.Duration {
	left := majority(lefts, quorum) - t.off
	if !t.until.IsZero() {
		left = min(left, remaining(t.until))
	}
	return max(left, 0)
}

// majority is for how long as many as quorum are valid.
func majority(lefts []time.Duration, quorum int) time.Duration {
	if len(lefts) < quorum {
		return 0
	}
	lefts = slices.Sorted(slices.Values(lefts))
	return lefts[len(lefts)-quorum]
}

// remaining is the time until t by the clock that says less: the monotonic one stands
// still while the machine is suspended, and the wall clock may be set.
func remaining(t time.Time) time.Duration {
	now := time.Now()
	return min(t.Sub(now), t.Round(0).Sub(now.Round(0)))
}

// left is for how long h is proven. When that is over, h is lost. mu is not held.
func (h *hold) left() time.Duration {
	for {
		h.r.mu.Lock()
		t, lost := h.terms, h.lost != nil
		h.r.mu.Unlock()
		if lost {
			return 0
		}
		lefts := make([]time.Duration, len(t.in))
		for i, p := range t.in {
			lefts[i] = p.left(h.ctx)
		}
		if left := t.remains(lefts, h.r.quorum); left > 0 {
			return left
		}
		h.r.mu.Lock()
		same := h.terms == t
		if same {
			h.loseLocked()
		}
		h.r.mu.Unlock()
		if same {
			return 0
		}
	}
}

// loseLocked ends h: it is not valid any more.
func (h *hold) loseLocked() {
	if !h.lastsLocked() {
		return
	}
	t := h.terms
	last := t.left
	switch {
	case !h.end.IsZero() && remaining(h.end) <= 0:
		h.lost = fmt.Errorf("%w: %w", rlock.ErrLost, rlock.ErrMaxHold)
	case !t.until.IsZero() && remaining(t.until) <= 0:
		h.lost = fmt.Errorf("%w: its lease is over", rlock.ErrLost)
		last = t.drift
	default:
		h.lost = fmt.Errorf("%w: fewer than %d of %d servers are known to have it", rlock.ErrLost, h.r.quorum, len(h.r.members))
	}
	close(h.gone)
	h.timer.Stop()
	// What the nodes have of it would stay there until the owner's Unlocks, which may never
	// come, if watchdogs keep it. They keep a hold with a lease as well where the owner is
	// inside through another object. So it is given back, but not before a holder that was
	// cut off would have lost it, for this one may need time to stop.
	last = min(max(last, 100*time.Millisecond), remembered)
	h.timer = time.AfterFunc(last, func() { h.letGo(remembered - last) })
}

// letGo gives a lost hold back at its nodes, once each: an Extend that lets them end
// would also end what the owner has there through another object. The hold itself is
// remembered for rest.
func (h *hold) letGo(rest time.Duration) {
	h.r.mu.Lock()
	defer h.r.mu.Unlock()
	if h.ended() {
		return
	}
	t := *h.terms
	t.in = nil
	h.r.releaseLocked(h.ctx, h.terms.in, h.wait)
	h.terms = &t
	h.timer = time.AfterFunc(rest, h.forget)
}

// lostError is what an operation of a lost hold's owner returns. mu is not held.
func (h *hold) lostError() error {
	h.r.mu.Lock()
	defer h.r.mu.Unlock()
	return h.lost
}

// ended tells whether the last Unlock has been made. mu is held.
func (h *hold) ended() bool { return h.r.holds[h.owner] != h }

// lastsLocked tells whether it is neither lost nor ended, as far as anybody has looked.
func (h *hold) lastsLocked() bool { return h.lost == nil && !h.ended() }

// due looks at h when its validity should be over: watchdogs may have renewed it. What it
// saw counts only if nothing was changed meanwhile, or the timer would come too late for
// what it is now.
func (h *hold) due() {
	for {
		h.r.mu.Lock()
		t := h.terms
		h.r.mu.Unlock()
		left := h.left()
		h.r.mu.Lock()
		again := h.lastsLocked() && h.terms != t
		if h.lastsLocked() && !again {
			h.timer.Reset(left)
		}
		h.r.mu.Unlock()
		if !again {
			return
		}
	}
}

// changedLocked is to be called when some nodes may have less of h than they had. Whoever
// looks at it already sees by the new terms that it has to look once more.
func (h *hold) changedLocked() {
	t := *h.terms
	h.terms = &t
}

// lookAgainLocked has h looked at, for the same reason.
func (h *hold) lookAgainLocked() {
	if h.lastsLocked() {
		h.changedLocked()
		h.timer.Reset(0)
	}
}

// lookAgain is lookAgainLocked that has looked when it returns.
func (h *hold) lookAgain() {
	h.r.mu.Lock()
	h.changedLocked()
	h.r.mu.Unlock()
	h.due()
}

// forget drops a lost hold whose Unlocks did not come.
func (h *hold) forget() {
	h.r.mu.Lock()
	defer h.r.mu.Unlock()
	if !h.ended() {
		h.endLocked()
	}
}

// enter goes one deeper, if h is there still, and lasts as long as lease says; or was
// made to a moment ago.
func (h *hold) enter(lease time.Duration, lengthened bool) bool {
	h.r.mu.Lock()
	defer h.r.mu.Unlock()
	if !h.lastsLocked() || !lengthened && h.shorterLocked(lease) {
		return false
	}
	h.depth++
	return true
}

// shorterLocked tells whether h ends before a lease that begins now would: 0 is the
// watchdog's, which is longer than any. What ends with WithMaxHold cannot last longer.
func (h *hold) shorterLocked(lease time.Duration) bool {
	t := h.terms
	if !t.fixed || t.until.Equal(h.end) {
		return false
	}
	return lease == 0 || lease-h.r.opt.drift(lease) > remaining(t.until)
}

// replace makes place for the next hold of the owner if the lease of h ran out, which
// was agreed, or h has ended meanwhile.
func (h *hold) replace() bool {
	h.r.mu.Lock()
	defer h.r.mu.Unlock()
	switch {
	case h.ended():
	case h.terms.fixed && remaining(h.terms.until) <= 0:
		h.endLocked()
	default:
		return false
	}
	return true
}

// adopt adds a node that granted h late. It reports false if there is no such h to
// join: what was lost in between must not come back.
func (h *hold) adopt(p part) bool {
	if h.left() == 0 {
		return false
	}
	h.r.mu.Lock()
	in := h.terms.in
	h.r.mu.Unlock()
	held := slices.DeleteFunc(append(slices.Clone(in), p), func(p part) bool { return p.left(h.ctx) == 0 })
	h.r.mu.Lock()
	defer h.r.mu.Unlock()
	if !h.lastsLocked() {
		return false
	}
	apartLocked(held)
	t := *h.terms
	t.in = append(slices.Clip(t.in), p)
	h.terms = &t
	if h.watched {
		h.watchLocked(p)
	}
	return true
}

// watch has h look at itself whenever a node's hold is lost.
func (h *hold) watch() {
	h.r.mu.Lock()
	defer h.r.mu.Unlock()
	if h.watched || !h.lastsLocked() {
		return
	}
	h.watched = true
	for _, p := range h.terms.in {
		h.watchLocked(p)
	}
}

// watchLocked starts a goroutine that ends with h, or with the node's hold.
func (h *hold) watchLocked(p part) {
	go func() {
		select {
		case <-p.lost:
			h.lookAgain()
		case <-h.gone:
		case <-h.over:
		}
	}()
}

// endLocked gives h back at all its nodes. The next calls of its owner find nothing.
func (h *hold) endLocked() *round {
	delete(h.r.holds, h.owner)
	h.timer.Stop()
	close(h.over)
	return h.r.releaseLocked(h.ctx, h.terms.in, h.wait)
}
