package multilock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/relock-go/relock/rlock"
)

// round takes all members once, and keeps those that it has.
type round struct {
	*attempt
	parts []part

	keepers  sync.WaitGroup
	keeping  context.Context // the keepers'
	cancel   context.CancelFunc
	panicked chan any // in an Extend of a keeper's: the first one goes on in stop
}

// round takes all members or, unless granted, none: also when a member panics or
// ends the goroutine.
func (a *attempt) round() (h *hold, v verdict, err error) {
	r := &round{attempt: a, panicked: make(chan any, 1)}
	r.keeping, r.cancel = context.WithCancel(rlock.WithOwner(a.ctx, a.owner))
	last := a.trip
	a.trip = 0
	defer func() { a.trip = cmp.Or(a.trip, last) }()
	returned := false
	defer func() {
		if returned && v == granted {
			return
		}
		undone := r.undo()
		if returned && undone != nil { // else a panic is on its way and must not be covered
			v, err = failed, fmt.Errorf("%w; not undone: %w", reason(v, err), undone)
		}
	}()
	defer r.stop()
	for _, m := range a.order {
		if v, err = r.take(m); v != granted {
			returned = true
			return nil, v, m.named(err)
		}
		if a.lease > 0 && len(r.parts) < len(a.g.members) {
			p := r.parts[len(r.parts)-1]
			r.keepers.Go(func() { r.keep(p) })
		}
	}
	r.stop()
	h, v, err = r.begin()
	returned = true
	return h, v, err
}

func reason(v verdict, err error) error {
	if v == taken && err == nil {
		return errors.New("others have a member")
	}
	return err
}

// take adds m to the parts, if it is granted. A member that panics may be held.
func (r *round) take(m member) (v verdict, err error) {
	outer := m.Validity(r.ctx) > 0
	panicked := true
	defer func() {
		if v == granted || panicked && !outer && m.Validity(r.ctx) > 0 {
			r.parts = append(r.parts, part{member: m, lost: m.Lost(r.ctx), outer: outer})
		}
	}()
	v, err = r.ask(m, r.parts)
	panicked = false
	return v, err
}

// begin makes a hold of all parts. A lease counts from here on, for all of them.
func (r *round) begin() (*hold, verdict, error) {
	h := newHold(r.parts)
	if r.lease > 0 && len(r.parts) > 1 {
		ctx := rlock.WithOwner(r.bounded, r.owner)
		err := errors.Join(each(r.parts, func(p part) error { return prolong(ctx, p, r.lease) })...)
		if err != nil && !errors.Is(err, rlock.ErrLost) {
			return nil, failed, err
		}
	}
	r.g.last(r.ctx, h, r.lease)
	if err := h.loss(r.ctx); err != nil {
		return nil, lapsed, fmt.Errorf("%w, while others were waited for", err)
	}
	return h, granted, nil
}

// keep extends p by the lease, every third of it, until stop. Each part has its own
// keeper, so that one silent server does not keep the others waiting. What becomes of
// that, the last time, in begin, will tell.
func (r *round) keep(p part) {
	defer func() {
		if v := recover(); v != nil {
			select {
			case r.panicked <- v:
			default:
			}
		}
	}()
	tick := time.NewTicker(r.lease / 3)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-r.keeping.Done():
			return
		}
		_ = prolong(r.keeping, p, r.lease)
	}
}

// stop ends the keepers and waits for them.
func (r *round) stop() {
	r.cancel()
	r.keepers.Wait()
	select {
	case v := <-r.panicked:
		panic(v)
	default:
	}
}

// undo gives back all parts. Its error names those for which nobody knows whether
// they were.
func (r *round) undo() error { return undone(giveBack(r.detached(), r.parts)) }
