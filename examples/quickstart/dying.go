package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/relock-go/relock/rlock"
)

// dying: orders-1 holds the lock and is cut off from Redis. Redis cannot tell
// that from its death. The lock expires and goes to orders-2.
func dying(ctx context.Context, s *story) error {
	one, two := s.orders1, s.orders2
	if err := one.run(func() error { return one.lock.Lock(ctx) }); err != nil {
		return err
	}
	s.line.say(one.name, "Lock: in")
	entered := two.start(func() error { return two.lock.Lock(ctx) })
	waits, err := next(ctx, two.waiting, "orders-2 waits")
	if err != nil {
		return err
	}
	s.line.tell(fact{waits.at, two.name, "Lock: waits"})

	if err := sleep(ctx, 200*time.Millisecond); err != nil {
		return err
	}
	one.wire.sever()
	severed := time.Now()
	fields, ttl, err := s.look(ctx)
	if err != nil {
		return err
	}
	if len(fields) != 1 || ttl <= 0 {
		return fmt.Errorf("the lock of orders-1 is gone too early: %v", fields)
	}
	s.line.tell(
		fact{severed, one.name, "all its connections are cut, as if it had died: no renewal, no Unlock"},
		fact{time.Now(), "redis", "PTTL = " + ms(ttl) + ": the lock stands until that is over"},
	)
	failed, err := next(ctx, one.renewFailed, "a renewal fails")
	if err != nil {
		return err
	}
	s.line.tell(fact{failed.at, one.name, "(it lives on, cut off) a renewal failed; safe for " + ms(failed.left)})

	if err := <-entered; err != nil {
		return err
	}
	in, err := next(ctx, two.acquired, "orders-2 gets the lock")
	if err != nil {
		return err
	}
	var validity time.Duration
	if err := one.run(func() error { validity = one.lock.Validity(ctx); return nil }); err != nil {
		return err
	}
	told, err := next(ctx, one.lost, "orders-1 is told")
	if err != nil {
		return err
	}
	if validity > 0 || !errors.Is(told.err, rlock.ErrLost) {
		return fmt.Errorf("orders-1 believes in its lock for %v, after %v", validity, told.err)
	}
	order := fmt.Sprintf("is in, %s after the cut, and %s after orders-1 was told", ms(in.at.Sub(severed)), ms(in.at.Sub(told.at)))
	if told.at.After(in.at) { // the machine was too busy to run what tells it; Validity was right all the same
		order = fmt.Sprintf("is in, %s after the cut", ms(in.at.Sub(severed)))
	}
	s.line.tell(
		fact{told.at, one.name, "is told: " + told.err.Error()},
		fact{in.at, two.name, order},
	)
	return s.sayHash(ctx, two, "1")
}
