package multilock

import (
	"context"
	"errors"
	"sync"

	"github.com/relock-go/relock/rlock"
)

// Do locks g, runs fn and unlocks, also when fn panics or ends its goroutine.
//
// The ctx of fn carries the owner, so goroutines that fn starts with it share the
// hold. It ends with ctx; with a cause that is rlock.ErrLost and names the member,
// when the first member is lost; and when Do returns. It is advice: between its end
// and fn's next look somebody else may be inside. Ask Validity before writes that
// matter.
//
// Do returns fn's error joined with Unlock's. ErrLost is among them whenever a
// member was lost before fn returned. An error of Lock comes alone, and fn was not
// run.
func (g *MultiLock) Do(ctx context.Context, fn func(ctx context.Context) error) (err error) {
	if err := g.Lock(ctx); err != nil {
		return err
	}
	owner := rlock.OwnerOf(ctx)
	carried := rlock.WithOwner(ctx, owner)
	inner, cancel := context.WithCancelCause(carried)
	over := make(chan struct{})
	var watch sync.WaitGroup
	lost := rlock.ErrLost // if another goroutine of this owner has given it back
	if h := g.held(owner); h != nil {
		watch.Go(func() {
			if lost = h.awaitLoss(over); lost != nil {
				cancel(lost)
			}
		})
	} else {
		cancel(lost)
	}

	returned := false
	defer func() {
		close(over)
		watch.Wait()
		cancel(context.Canceled)
		unlocked := g.Unlock(carried)
		if lost != nil && !errors.Is(unlocked, rlock.ErrLost) {
			// fn may have made the Unlocks of a lost hold itself, and locked anew.
			unlocked = errors.Join(unlocked, g.wrap("do", owner, lost))
		}
		if returned { // else a panic, or Goexit, is on its way and must not be covered
			err = errors.Join(err, unlocked)
		}
	}()
	err = fn(inner)
	returned = true
	return err
}
