package redlock

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/relock-go/relock/rlock"
)

// Unlock gives back one Lock of the owner in ctx, else of the calling goroutine. The
// last one gives the hold back at all its servers at once, and returns when a majority
// has confirmed that it had it until then. An inner one asks nobody.
//
// It works with a ctx that has ended, and returns within NodeTimeout. ErrLost: the hold
// was lost before, or a majority of the servers did not have it any more. ErrUnsettled:
// a majority could not confirm it in time. The servers' errors are joined to either, as
// text where they would pass for another outcome. The release goes on in the background
// then, and what fails ends with its lease. ErrNotHeld: the owner holds nothing, and
// nothing was changed.
//
// A server where the hold was lost, and where the same owner has got a newer one through
// another object since, is left alone.
func (r *RedLock) Unlock(ctx context.Context) error {
	if err := r.made(); err != nil {
		return r.wrap("unlock", "", err)
	}
	owner := rlock.OwnerOf(ctx)
	return r.wrap("unlock", owner, r.unlock(owner))
}

func (r *RedLock) unlock(owner rlock.Owner) error {
	h := r.hold(owner)
	if h == nil {
		return notHeld(owner)
	}
	h.left() // whether it is lost
	r.mu.Lock()
	if h.ended() { // by another goroutine of the same owner
		r.mu.Unlock()
		return notHeld(owner)
	}
	lost := h.lost
	if h.depth--; h.depth > 0 {
		r.mu.Unlock()
		return lost
	}
	q := h.endLocked()
	r.mu.Unlock()

	<-q.done
	r.mu.Lock()
	defer r.mu.Unlock()
	if v := q.panicked(); v != nil {
		panic(v)
	}
	switch {
	case lost != nil:
		return errors.Join(lost, q.failures(rlock.ErrUnsettled, rlock.ErrNotHeld))
	case q.count(yes) >= r.quorum:
		return nil
	case q.count(gone) > len(q.asked)-r.quorum:
		return errors.Join(fmt.Errorf("%w: a majority of the servers does not have it", rlock.ErrLost),
			q.failures(rlock.ErrUnsettled, rlock.ErrNotHeld))
	}
	return errors.Join(fmt.Errorf("%w: no majority has confirmed the release, which goes on", rlock.ErrUnsettled),
		q.failures(rlock.ErrLost, rlock.ErrNotHeld))
}

func notHeld(owner rlock.Owner) error {
	return fmt.Errorf("%w: owner %s holds nothing here; a goroutine cannot unlock what another one locked, "+
		"unless both carry one owner (WithOwner)", rlock.ErrNotHeld, owner)
}

// gone: the node does not have the hold any more.
func gone(a answer) bool {
	return errors.Is(a.err, rlock.ErrLost) || errors.Is(a.err, rlock.ErrNotHeld)
}

// releaseLocked gives what some nodes granted the owner in ctx back. The round is
// settled when a majority has confirmed that, or cannot any more. mu is held.
func (r *RedLock) releaseLocked(ctx context.Context, nodes []part, limit time.Duration) *round {
	q := &round{r: r, limit: limit, insists: true}
	q.judge = func() bool {
		return q.open() == 0 || q.count(yes) >= r.quorum || q.count(gone) > max(len(nodes)-r.quorum, 0)
	}
	q.askLocked(ctx, nodes, func(_ context.Context, p part) answer {
		err := p.giveBack(ctx) // its time is the client's WithReleaseTimeout
		return answer{yes: err == nil, err: err}
	}, nil)
	return q
}
