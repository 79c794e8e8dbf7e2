package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/relock-go/relock/rlock"
)

// losing: orders-2, in from the scene before, works inside Do. An operator
// removes the lock by force.
func losing(ctx context.Context, s *story) error {
	two, ops := s.orders2, s.ops
	var ended time.Time
	var cause error
	working := make(chan struct{})
	done := two.start(func() error {
		return two.lock.Do(ctx, func(ctx context.Context) error {
			close(working)
			<-ctx.Done()
			ended, cause = time.Now(), context.Cause(ctx)
			return nil
		})
	})
	select {
	case <-working:
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
	s.line.say(two.name, "Do: works inside, with a ctx that ends if the lock is lost")
	if err := s.sayHash(ctx, two, "2"); err != nil {
		return err
	}

	removed := time.Now()
	var was bool
	err := ops.run(func() (err error) { was, err = ops.lock.ForceUnlock(ctx); return err })
	if err != nil {
		return err
	}
	if !was {
		return errors.New("ForceUnlock found no lock")
	}
	fields, _, err := s.look(ctx)
	if err != nil {
		return err
	}
	if len(fields) != 0 {
		return fmt.Errorf("ForceUnlock left %v", fields)
	}
	s.line.tell(
		fact{removed, ops.name, "ForceUnlock: an operator takes the lock away"},
		fact{time.Now(), "redis", "HGETALL = {}: the lock is gone"},
	)

	doErr := <-done
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if !errors.Is(cause, rlock.ErrLost) || !errors.Is(doErr, rlock.ErrLost) {
		return fmt.Errorf("the ctx of Do ended with %v, and Do returned %v", cause, doErr)
	}
	s.line.tell(
		fact{ended, two.name, fmt.Sprintf("is told %s later, with its next renewal: ctx ended, %v", ms(ended.Sub(removed)), cause)},
		fact{time.Now(), two.name, "Do has returned, and errors.Is(err, rlock.ErrLost) is true"},
	)

	// The Lock of the scene before needs its Unlock, which says the same.
	err = two.run(func() error { return two.lock.Unlock(ctx) })
	if !errors.Is(err, rlock.ErrLost) {
		return fmt.Errorf("the last Unlock of a lost lock returned %v", err)
	}
	s.line.say(two.name, "Unlock of the outer Lock: ErrLost too")
	if err := two.run(func() error { return two.lock.Lock(ctx) }); err != nil {
		return err
	}
	if err := two.run(func() error { return two.lock.Unlock(ctx) }); err != nil {
		return err
	}
	s.line.say(two.name, "Lock and Unlock: with all Unlocks made, it starts afresh")
	return nil
}
