package redlock

import (
	"context"
	"errors"

	"github.com/relock-go/relock/rlock"
)

// Do locks r, runs fn and unlocks, also when fn panics or ends its goroutine.
//
// The ctx of fn carries the owner, so goroutines that fn starts with it share the hold.
// It ends with ctx; with a cause that is ErrLost when the hold is lost; and when Do
// returns: only an Unlock with it does anything after that. It is advice: between its
// end and fn's next look somebody else may be inside. Ask Validity before writes that
// matter.
//
// Do returns fn's error joined with Unlock's. ErrLost is among them whenever the hold
// was lost before fn returned. An error of Lock comes alone, and fn was not run.
func (r *RedLock) Do(ctx context.Context, fn func(ctx context.Context) error) (err error) {
	owner := rlock.OwnerOf(ctx)
	if err := r.Lock(ctx); err != nil {
		return err
	}
	ctx = rlock.WithOwner(ctx, owner)
	inner, cancel := context.WithCancelCause(ctx)
	h := r.hold(owner)
	if h == nil { // another goroutine of the owner has given it back already
		cancel(rlock.ErrLost)
	} else {
		h.watch()
		go func() {
			select {
			case <-h.gone:
				cancel(h.lostError())
			case <-inner.Done():
			}
		}()
	}

	returned := false
	defer func() {
		cancel(context.Canceled)
		var lost error
		if h != nil && h.left() == 0 {
			lost = h.lostError()
		}
		unlockErr := r.Unlock(ctx)
		if !errors.Is(unlockErr, rlock.ErrLost) {
			// fn may have made the Unlocks of a lost hold itself, and locked anew.
			unlockErr = errors.Join(unlockErr, lost)
		}
		if returned { // else a panic, or Goexit, is on its way and must not be covered
			err = errors.Join(err, unlockErr)
		}
	}()
	err = fn(inner)
	returned = true
	return err
}
