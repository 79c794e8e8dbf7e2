package multilock

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/relock-go/relock/rlock"
)

const (
	// A wait for a later member, while those before it are held, is between these.
	shortestWait, longestWait = 100 * time.Millisecond, 300 * time.Millisecond

	// The same where one before it has the same key, on another server.
	shortestTie, longestTie = time.Millisecond, 10 * time.Millisecond

	// A pause with nothing held is between these: long enough for whoever waits for
	// what was given back to get it.
	shortestPause, longestPause = 5 * time.Millisecond, 50 * time.Millisecond

	// mostLost is how many times in a row members may be lost while others are waited
	// for.
	mostLost = 3
)

// between is at random, so that groups that meet do not meet again.
func between(low, high time.Duration) time.Duration { return low + rand.N(high-low) }

// attempt is one Lock or TryLock on its way.
type attempt struct {
	g     *MultiLock
	owner rlock.Owner
	ctx   context.Context
	wait  time.Duration // as in TryLock
	lease time.Duration

	until   time.Time       // of a wait > 0
	bounded context.Context // ctx, which ends with the wait too
	order   []member        // in which the next round takes them, see tie
	refused bool            // others had a member,
	why     error           // the last time; nil: somebody held it
	by      member          // that was refused then
	trip    time.Duration   // the longest that a later member took to answer, in the last round
}

// verdict is what came of asking a member, or all of them.
type verdict int

const (
	failed  verdict = iota // with an error, or a panic
	granted                // it is held
	taken                  // others have it; with the reason, where that is not all
	lapsed                 // a member was granted and did not last
)

// lock gets the group for the owner in ctx. (false, nil): others had a member until
// the wait was over.
func (g *MultiLock) lock(ctx context.Context, op string, wait, lease time.Duration) (bool, error) {
	a := &attempt{g: g, owner: rlock.OwnerOf(ctx), ctx: ctx, wait: wait, lease: lease, bounded: ctx, order: g.members}
	if wait > 0 {
		a.until = time.Now().Add(wait)
		var cancel context.CancelFunc
		a.bounded, cancel = context.WithDeadline(ctx, a.until)
		defer cancel()
	}
	got, err := a.run()
	if wait > 0 && errors.Is(err, context.DeadlineExceeded) && a.bounded.Err() != nil && ctx.Err() == nil {
		err = waited{err}
	}
	return got, g.wrap(op, a.owner, err)
}

// waited is the error of a wait that is over: the deadline in it is not the caller's.
type waited struct{ err error }

func (w waited) Error() string {
	return fmt.Sprintf("%v: the wait is over: %v", rlock.ErrUnsettled, w.err)
}

func (w waited) Is(target error) bool {
	return target == rlock.ErrUnsettled || target != context.DeadlineExceeded && errors.Is(w.err, target)
}

func (w waited) As(target any) bool { return errors.As(w.err, target) }

func (a *attempt) run() (bool, error) {
	if err := checkLease(a.lease); err != nil {
		return false, err
	}
	if a.ctx.Err() != nil {
		return false, ended(a.ctx)
	}
	s := a.g.sit(a.owner)
	defer a.g.rise(a.owner, s)
	if a.inside(s) {
		return true, nil
	}
	if got, err := a.turn(s); !got {
		return false, err
	}
	defer func() { <-s.turn }()

	for {
		if got, err := a.cleared(s); !got {
			return false, err
		}
		h := a.g.held(a.owner)
		if h == nil {
			break
		}
		switch lost := h.loss(a.ctx); {
		case lost == nil:
			if got, err := a.again(s, h); got || !h.isOver() {
				return got, err
			}
		case h.isOver(): // unlocked meanwhile, and no loss
		case !h.agreed():
			a.g.noteLoss(a.owner, h)
			return false, lost
		case a.g.drop(s, h):
			// What it may have left behind is no matter of the new hold's.
			_ = a.g.letGo(a.detached(), h)
		}
	}
	h, err := a.rounds()
	if h != nil {
		a.g.set(s, h)
	}
	return h != nil, err
}

// inside enters the hold that the owner has, if that asks nobody. Then there is no need
// for the turn, which another goroutine of the owner may have for long.
func (a *attempt) inside(s *seat) bool {
	h := a.g.held(a.owner)
	if h == nil || h.loss(a.ctx) != nil {
		return false
	}
	left := h.left(a.ctx)
	a.g.mu.Lock()
	defer a.g.mu.Unlock()
	if s.hold != h || h.lease > 0 && (a.lease == 0 || a.lease > left) {
		return false
	}
	h.depth++
	return true
}

// turn waits until no other goroutine of the owner takes the group. (false, nil):
// the wait is over. One attempt does not wait for that, but for what is done to a hold
// that the owner has.
func (a *attempt) turn(s *seat) (bool, error) {
	select {
	case s.turn <- struct{}{}:
		return true, nil
	default:
	}
	var over <-chan struct{}
	if a.wait == 0 {
		h := a.g.held(a.owner)
		if h == nil {
			return false, nil
		}
		over = h.over
	}
	select {
	case s.turn <- struct{}{}:
		return true, nil
	case <-over:
		return false, nil
	case <-a.bounded.Done():
		return false, a.notInTime()
	}
}

// cleared waits until what the owner has unlocked is given back. (false, nil): the wait
// is over. One attempt does not wait for that.
func (a *attempt) cleared(s *seat) (bool, error) {
	a.g.mu.Lock()
	last := s.last
	a.g.mu.Unlock()
	if last == nil || isDone(last.back) {
		return true, nil
	}
	if a.wait == 0 {
		return false, nil
	}
	select {
	case <-last.back:
		return true, nil
	case <-a.bounded.Done():
		return false, a.notInTime()
	}
}

// notInTime is the error of an attempt that did not come to ask: nil, if its wait is over.
func (a *attempt) notInTime() error {
	if a.ctx.Err() != nil {
		return ended(a.ctx)
	}
	return nil
}

// again enters h once more. If that fails h may be over: it was unlocked meanwhile.
func (a *attempt) again(s *seat, h *hold) (bool, error) {
	if h.lease > 0 && (a.lease == 0 || a.lease > h.left(a.ctx)) {
		ctx := rlock.WithOwner(a.bounded, a.owner)
		if err := a.g.relet(ctx, a.owner, h, a.lease, lengthen); err != nil {
			return false, err
		}
		if lost := h.loss(a.ctx); lost != nil {
			return false, lost
		}
	}
	a.g.mu.Lock()
	defer a.g.mu.Unlock()
	if s.hold != h {
		return false, nil
	}
	h.depth++
	return true, nil
}

// rounds tries until the group is held or the wait is over.
func (a *attempt) rounds() (*hold, error) {
	for losses := 0; ; {
		h, v, err := a.round()
		switch {
		case v == granted:
			return h, nil
		case v == failed && a.bounded.Err() != nil:
			return nil, errors.Join(err, a.by.named(a.why)) // that is why it took so long
		case v == failed:
			return nil, err
		case v == taken:
			losses = 0
		default:
			if losses++; losses == mostLost && a.lease > 0 {
				return nil, fmt.Errorf("%w: %v is shorter than it takes to have all members: %w", rlock.ErrInvalidLease, a.lease, err)
			} else if losses == mostLost {
				return nil, err
			}
		}
		if a.wait == 0 {
			return nil, err
		}
		if over, ctxErr := a.pause(); over || ctxErr != nil {
			return nil, errors.Join(ctxErr, err)
		}
	}
}

// pause waits for a moment with nothing held. It tells whether the wait is over:
// there is no other round so shortly before that that it had no time for its answers,
// because that would be an error, though it is known that others have a member. But
// one slow answer does not end the trying when half of the wait is left.
func (a *attempt) pause() (over bool, err error) {
	d := between(shortestPause, longestPause)
	round := min(max(2*a.trip*time.Duration(len(a.order)), shortestPause), a.wait/2)
	if left, ends := a.left(); ends && left <= d+round {
		d, over = left, true
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return over, nil
	case <-a.ctx.Done():
		return true, ended(a.ctx)
	}
}

// left is what is left of a wait that ends.
func (a *attempt) left() (left time.Duration, ends bool) {
	return time.Until(a.until), a.wait > 0
}

// detached is a ctx for what has to be done whatever becomes of the caller.
func (a *attempt) detached() context.Context {
	return rlock.WithOwner(context.WithoutCancel(a.ctx), a.owner)
}

// ask asks for m, while parts are held. It runs in the caller's goroutine and with
// its ctx: rlock looks at both, and keeps a goroutine from waiting for itself.
func (a *attempt) ask(m member, parts []part) (verdict, error) {
	left, ends := a.left()
	if ends && left <= 0 {
		if a.refused {
			return taken, a.why
		}
		return failed, fmt.Errorf("%w: the wait was over before it was asked", rlock.ErrUnsettled)
	}
	switch {
	case a.wait == 0:
		return a.try(a.ctx, m, 0, parts)
	case len(parts) > 0:
		return a.askLater(m, parts)
	case ends:
		return a.try(a.ctx, m, left, nil)
	}
	return a.try(a.ctx, m, -1, nil)
}

// askLater asks for a later member. A slow server has its time for the first answer;
// only the wait for whoever has the member is bounded.
func (a *attempt) askLater(m member, parts []part) (verdict, error) {
	asked := time.Now()
	v, err := a.try(a.bounded, m, 0, parts)
	a.trip = max(a.trip, time.Since(asked))
	if v != taken {
		return v, err
	}
	wait := between(shortestWait, longestWait)
	if a.tie(m, parts) {
		wait = between(shortestTie, longestTie)
	}
	switch left, ends := a.left(); {
	case ends && left <= a.trip:
		return taken, err
	case ends && left <= wait:
		return a.try(a.ctx, m, left, nil)
	}
	v, err = a.try(a.ctx, m, wait, nil)
	if v == failed && errors.Is(err, rlock.ErrUnsettled) {
		return taken, a.why // as a moment ago
	}
	return v, err
}

// tie tells whether one of parts has m's key, on another server. If so, m comes
// before it from the next round on.
//
// Groups wait for each other in a circle only there: all of them take smaller keys
// first, so round a circle the keys never fall, and must be one key. To wait long
// would keep the whole circle; to wait for m with nothing of its key in hand does
// not.
//
// What the owner has of m's key on m's own server, the write half say, stays before it:
// that lets m in, unless it is lost.
func (a *attempt) tie(m member, parts []part) bool {
	first := slices.IndexFunc(parts, func(p part) bool { return p.key == m.key })
	if first < 0 || slices.ContainsFunc(parts, func(p part) bool { return p.beside(m) }) {
		return false
	}
	order := slices.Clone(a.order[:first])
	order = append(order, m)
	for _, o := range a.order[first:] {
		if o.place != m.place {
			order = append(order, o)
		}
	}
	a.order = order
	return true
}

// try is one call of m's TryLock. A refusal because of one of parts is an error.
func (a *attempt) try(ctx context.Context, m member, wait time.Duration, parts []part) (verdict, error) {
	got, err := m.TryLock(ctx, wait, a.lease)
	switch {
	case errors.Is(err, rlock.ErrRestarted): // a reason to wait, as others are
	case err != nil:
		return failed, err
	case got:
		return granted, nil
	}
	a.refused, a.why, a.by = true, err, m
	if twice := a.twice(m, parts); twice != nil {
		return failed, twice
	}
	return taken, err
}

// twice is an error if it is one of parts that keeps m from being taken: then two
// clients of the group lead to one server, and it would wait for itself. If Redis
// cannot tell who has m, that is no error: the wait for it will end.
func (a *attempt) twice(m member, parts []part) error {
	for _, p := range parts {
		if m.lock == nil || p.lock == nil || m.key != p.key || m.lock.Client() == p.lock.Client() {
			continue
		}
		info, err := m.lock.Info(a.bounded)
		if err != nil {
			return nil
		}
		for _, h := range info.Holders {
			if h.Client == p.lock.Client().ID() && a.is(h.Owner) {
				return fmt.Errorf("%w: it is the lock of member %d, on the same server by another client",
					rlock.ErrReentry, p.place)
			}
		}
	}
	return nil
}

// is tells whether o, as another client reads it in Redis, is the owner: rlock may
// have put a number behind it.
func (a *attempt) is(o rlock.Owner) bool {
	rest, ok := strings.CutPrefix(string(o), string(a.owner))
	if !ok {
		return false
	}
	digits, ok := strings.CutPrefix(rest, ".")
	return rest == "" || ok && strings.Trim(digits, "0123456789") == ""
}

// ended is the error of a ctx that is over, with its cause in the chain.
func ended(ctx context.Context) error {
	err := ctx.Err()
	if cause := context.Cause(ctx); cause != nil && !errors.Is(err, cause) {
		return fmt.Errorf("%w: %w", err, cause)
	}
	return err
}
