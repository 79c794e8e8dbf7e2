package main

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// sharing: orders-1 holds the lock, re-enters it and gives it back; orders-2
// sleeps until it is told. At the end orders-2 holds it.
func sharing(ctx context.Context, s *story) error {
	one, two := s.orders1, s.orders2

	channel := "redisson_lock__channel:{" + s.key + "}"
	messages := s.redis.Subscribe(ctx, channel)
	defer messages.Close()
	if _, err := messages.Receive(ctx); err != nil {
		return err
	}

	if err := one.run(func() error { return one.lock.Lock(ctx) }); err != nil {
		return err
	}
	s.line.say(one.name, "Lock: it is free, so orders-1 is in")
	if err := s.sayHash(ctx, one, "1"); err != nil {
		return err
	}

	before := two.locks.Stats().Attempts
	entered := two.start(func() error { return two.lock.Lock(ctx) })
	waits, err := next(ctx, two.waiting, "orders-2 waits")
	if err != nil {
		return err
	}
	s.line.tell(fact{waits.at, two.name, "Lock: it is taken, so orders-2 waits"})

	if err := one.run(func() error { return one.lock.Lock(ctx) }); err != nil {
		return err
	}
	s.line.say(one.name, "Lock again, in a nested call: a re-entry")
	if err := s.sayHash(ctx, one, "2"); err != nil {
		return err
	}
	if err := one.run(func() error { return one.lock.Unlock(ctx) }); err != nil {
		return err
	}
	s.line.say(one.name, "Unlock of the nested Lock: still in")
	if err := s.sayHash(ctx, one, "1"); err != nil {
		return err
	}

	// A waiter asks, subscribes, and asks once more before it sleeps.
	for two.locks.Stats().Attempts < before+2 {
		if err := sleep(ctx, time.Millisecond); err != nil {
			return err
		}
	}
	asleep := 500 * time.Millisecond
	if err := sleep(ctx, asleep); err != nil {
		return err
	}
	if n := two.locks.Stats().Attempts - before; n != 2 {
		return fmt.Errorf("orders-2 sent %d requests by now, and should have sent 2", n)
	}
	s.line.say(two.name, "has sent 2 requests, and none in the last %s: it does not poll", ms(asleep))

	unlocking := time.Now()
	if err := one.run(func() error { return one.lock.Unlock(ctx) }); err != nil {
		return err
	}
	m, err := messages.ReceiveMessage(ctx)
	if err != nil {
		return err
	}
	if m.Payload != "0" {
		return fmt.Errorf("the message is %q", m.Payload)
	}
	heard := time.Now()
	if err := <-entered; err != nil {
		return err
	}
	in, err := next(ctx, two.acquired, "orders-2 gets the lock")
	if err != nil {
		return err
	}
	took := in.at.Sub(unlocking)
	if took > asleep {
		return errors.New("orders-2 was not woken: it came in " + ms(took) + " after the Unlock")
	}
	requests := two.locks.Stats().Attempts - before
	if requests > 4 {
		return fmt.Errorf("orders-2 sent %d requests", requests)
	}
	s.line.tell(
		fact{unlocking, one.name, "Unlock: the last one"},
		fact{heard, "redis", fmt.Sprintf("message %q on %s", m.Payload, channel)},
		fact{in.at, two.name, fmt.Sprintf("is in, %s after that Unlock was called; %d requests in all", ms(took), requests)},
	)
	return s.sayHash(ctx, two, "1")
}
