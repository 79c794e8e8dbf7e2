package redlock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/relock-go/relock/rlock"
)

// attempt is one try to get a majority for an owner. Its round guards it.
type attempt struct {
	round
	owner rlock.Owner
	ctx   context.Context // with the owner; never ends
	lease time.Duration
	start time.Time // before the first request

	left  bool  // its caller did not wait for it: a grant is given back
	hold  *hold // granted, and kept
	late  bool  // granted when nothing of the lease was left, or when the caller had left
	err   error // too many nodes failed, or two of them are one
	young bool  // without restart guards not so many had: it may be tried again
	again bool  // it says nothing: look again
}

// acquire gets the lock for the owner in ctx. (false, nil): others had too many nodes
// until the wait was over.
func (r *RedLock) acquire(ctx context.Context, op string, wait, lease time.Duration) (bool, error) {
	if err := r.made(); err != nil {
		return false, r.wrap(op, "", err)
	}
	if err := r.opt.checkLease(lease); err != nil {
		return false, r.wrap(op, "", err)
	}
	owner := rlock.OwnerOf(ctx)
	if ctx.Err() != nil {
		return false, r.wrap(op, owner, ended(ctx))
	}
	bound := ctx
	if wait > 0 {
		var cancel context.CancelFunc
		bound, cancel = context.WithTimeoutCause(ctx, wait, errOver)
		defer cancel()
	}
	got, err := r.tryUntil(ctx, bound, owner, lease, wait == 0)
	return got, r.wrap(op, owner, err)
}

var errOver = errors.New("the wait is over")

// mostLate is how many majorities in a row may come too late before the lease is called
// shorter than the round trips.
const mostLate = 3

// tryUntil makes attempts until one succeeds, or bound is over, which is ctx or ends
// before it.
func (r *RedLock) tryUntil(ctx, bound context.Context, owner rlock.Owner, lease time.Duration, once bool) (bool, error) {
	var failed error // the latest attempt, in a way that may pass
	since := time.Now()
	for tried, late := false, 0; ; {
		if in, err := r.reenter(ctx, bound, owner, lease); in || err != nil {
			return in, err
		}
		if tried && bound.Err() != nil {
			if ctx.Err() != nil {
				failed = errors.Join(ended(ctx), failed)
			}
			return false, failed
		}
		a := &attempt{} // refused: if another owner has it here, that is what all would say
		if other := r.insider(owner); other == nil || other.left() == 0 {
			if a = r.attempt(bound, owner, lease, since); a == nil {
				over := errOver
				if ctx.Err() != nil {
					over = ended(ctx)
				}
				return false, fmt.Errorf("%w: the servers have not answered: %w", rlock.ErrUnsettled, over)
			}
		}
		switch {
		case a.again:
			continue
		case a.hold != nil:
			return true, nil
		case a.late:
			failed = fmt.Errorf("%w: the lease, or WithMaxHold, is shorter than the round trips and the drift", rlock.ErrInvalidLease)
			if late++; late >= mostLate {
				return false, failed
			}
			tried = true
			continue
		case a.err != nil && !a.young || once:
			return false, a.err
		}
		tried, late, failed = true, 0, a.err
		r.pause(bound, r.opt.limit(lease))
		since = time.Now()
	}
}

// pause waits a random time, or until bound is over. An attempt that takes as long as
// limit has to fit in before that, and be noticed: what is open at the end is an error.
func (r *RedLock) pause(bound context.Context, limit time.Duration) {
	d := r.opt.retryDelay()
	if end, ok := bound.Deadline(); ok {
		last := time.Until(end) - limit - limit/4
		if last <= 0 {
			<-bound.Done()
			return
		}
		d = min(d, last)
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-bound.Done():
	}
}

// reenter lets owner in if it is inside, once the hold lasts as long as lease says. It
// reports an error if it may not enter, and false if it has to ask the nodes.
func (r *RedLock) reenter(ctx, bound context.Context, owner rlock.Owner, lease time.Duration) (bool, error) {
	var lengthened *hold
	for {
		h := r.hold(owner)
		switch {
		case h == nil:
			self := rlock.OwnerOf(context.Background())
			if own := r.hold(self); self != owner && own != nil && own.left() > 0 {
				return false, fmt.Errorf("%w: this goroutine holds it as owner %s and would wait for itself as owner %s",
					rlock.ErrReentry, self, owner)
			}
			return false, nil
		case h.left() > 0:
			if h.enter(lease, lengthened == h) {
				return true, nil
			}
			err := h.extend(ctx, bound, lease, true)
			if err != nil && h.left() > 0 && r.hold(owner) == h {
				return false, err
			}
			if err == nil {
				lengthened = h
			}
		case !h.replace():
			return false, h.lostError()
		}
	}
}

// insider is the hold of another owner, or nil. There is at most one that is not lost.
func (r *RedLock) insider(owner rlock.Owner) *hold {
	r.mu.Lock()
	defer r.mu.Unlock()
	for o, h := range r.holds {
		if o != owner && h.lost == nil {
			return h
		}
	}
	return nil
}

// attempt asks all nodes for the lock, or takes part in the attempt that is under way:
// those of one process would split the nodes among them. It returns when that is
// settled; nil when bound is over before. since is when the caller began to wait for an
// attempt that says something.
func (r *RedLock) attempt(bound context.Context, owner rlock.Owner, lease time.Duration, since time.Time) *attempt {
	r.mu.Lock()
	if r.holds[owner] != nil {
		r.mu.Unlock()
		return &attempt{again: true}
	}
	a := r.asking
	mine := a == nil
	if mine {
		a = &attempt{
			round: round{r: r, limit: r.opt.limit(lease)},
			owner: owner,
			ctx:   rlock.WithOwner(context.WithoutCancel(bound), owner),
			lease: lease,
			start: time.Now(),
		}
		a.judge = a.judgeLocked
		a.wanted = func() bool { return a.hold != nil && a.hold.lastsLocked() } // to join it
		r.asking = a
		all := make([]part, len(r.members))
		for i, m := range r.members {
			all[i].member = m
		}
		a.askLocked(a.ctx, all, a.request, a.tooLate)
	}
	r.mu.Unlock()

	select {
	case <-a.done:
	case <-bound.Done():
	}
	nests := !mine && r.nests(rlock.WithOwner(bound, owner))
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case !a.settled:
		a.left = a.left || mine
		return nil
	case mine:
		if v := a.panicked(); v != nil {
			panic(v)
		}
	case errors.Is(a.err, errTwice):
	case nests:
		return &attempt{again: true}
	default:
		limit := r.opt.limit(lease)
		return a.toOthersLocked(limit, time.Since(since) >= limit)
	}
	return a
}

// nests tells whether the owner in ctx has a node already, through another object: what
// keeps others out there does not keep it out.
func (r *RedLock) nests(ctx context.Context) bool {
	return slices.ContainsFunc(r.members, func(m *member) bool { return m.Validity(ctx) > 0 })
}

// request asks one node for the lock.
func (a *attempt) request(ctx context.Context, p part) answer {
	fresh := p.Validity(a.ctx) == 0 // else the owner has it already, through another object
	returned := false
	defer func() {
		if !returned && fresh && p.Validity(a.ctx) > 0 { // a panic after the grant
			_ = p.Unlock(a.ctx)
		}
	}()
	ok, err := p.TryLock(ctx, 0, a.lease)
	returned = true
	switch {
	case ok && err == nil:
		p.lost = p.Lost(a.ctx)
		return p.held(a.ctx)
	case err != nil:
		// A lock of package rlock holds nothing after an error, and undoes what the
		// server may have granted. Others may not be so careful; but what the owner had
		// before is not theirs to give back, nor a loss for them to hear of.
		if p.server == nil && fresh && !errors.Is(err, rlock.ErrLost) {
			_ = p.Unlock(a.ctx)
		}
		return answer{err: err}
	}
	return answer{err: a.r.twice(ctx, p.member)}
}

// judgeLocked tells whether the attempt is settled, and makes of it what it is. Until
// the first success, and after a server that is there twice was found too late, it waits
// for all answers, to see whether all servers are different.
func (a *attempt) judgeLocked() bool {
	r := a.r
	granted := a.count(yes)
	same := a.count(func(x answer) bool { return errors.Is(x.err, errTwice) })
	young := a.count(guarded)
	failed := a.count(func(x answer) bool { return x.err != nil })
	spare := len(r.members) - r.quorum // so many may fail
	switch {
	case same > 0 || a.panicked() != nil:
		a.err = a.failures()
	case granted >= r.quorum && (!r.doubts || a.open() == 0):
		a.grantLocked()
	case failed > spare && (failed-young > spare || failed-young+a.open() <= spare):
		a.err, a.young = a.failed(spare)
	case granted < r.quorum && len(a.answers)-granted > spare && failed+a.open() <= spare:
		// Others have it, and it is certain that no majority failed.
	default:
		return false
	}
	r.asking = nil
	if a.hold == nil {
		r.releaseLocked(a.ctx, a.granted(), a.limit)
	}
	return true
}

// grantLocked makes the hold of a majority, if anything is left of it.
func (a *attempt) grantLocked() {
	r := a.r
	r.doubts = false
	nodes, lefts := a.granted(), a.lefts()
	t := r.terms(nodes, a.lease, a.start, a.end(), a.promised())
	left := t.remains(lefts, r.quorum)
	if a.late = a.left || left == 0; a.late {
		return
	}
	a.hold = &hold{
		r: r, owner: a.owner, ctx: a.ctx, depth: 1, terms: t, wait: a.limit, end: a.end(),
		gone: make(chan struct{}), over: make(chan struct{}),
	}
	r.holds[a.owner] = a.hold
	held := make([]part, 0, len(nodes))
	for i, p := range nodes {
		if lefts[i] > 0 {
			held = append(held, p)
		}
	}
	apartLocked(held)
	a.hold.timer = time.AfterFunc(left, a.hold.due)
}

// end is when WithMaxHold ends what the attempt gets; zero: never.
func (a *attempt) end() time.Time {
	if d := a.r.opt.maxHold; d > 0 {
		return a.start.Add(d)
	}
	return time.Time{}
}

// tooLate deals with an answer that came when the attempt was settled: a grant joins
// the hold, or is given back.
func (a *attempt) tooLate(x answer) {
	if errors.Is(x.err, errTwice) {
		a.r.doubt()
	}
	if x.yes && (a.hold == nil || !a.hold.adopt(x.part)) {
		_ = x.giveBack(a.ctx) // what fails ends with its lease
	}
}
