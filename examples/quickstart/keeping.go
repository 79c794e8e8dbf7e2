package main

import (
	"context"
	"fmt"
	"time"
)

// keeping: orders-2 works for longer than the lease, and its lock stays.
func keeping(ctx context.Context, s *story) error {
	two := s.orders2
	began := time.Now()
	s.line.say(two.name, "works for longer than %v and does nothing about its lock", watchdogTimeout)
	_, low, err := s.look(ctx)
	if err != nil {
		return err
	}
	for rises := 0; rises < 4; {
		if err := sleep(ctx, 20*time.Millisecond); err != nil {
			return err
		}
		_, ttl, err := s.look(ctx)
		switch {
		case err != nil:
			return err
		case ttl <= 0:
			return fmt.Errorf("the lock has expired while orders-2 held it")
		case ttl < low+100*time.Millisecond:
			low = ttl
			continue
		}
		rises++
		e, err := next(ctx, two.renewed, "orders-2 renews")
		if err != nil {
			return err
		}
		s.line.say("redis", "PTTL was %s and is %s: renewed; orders-2 knows it is safe for %s", ms(low), ms(ttl), ms(e.left))
		low = ttl
	}
	held := time.Since(began)
	if held < watchdogTimeout {
		return fmt.Errorf("four renewals came within %v", held)
	}
	if err := s.sayHash(ctx, two, "1"); err != nil {
		return err
	}
	if err := two.run(func() error { return two.lock.Unlock(ctx) }); err != nil {
		return err
	}
	s.line.say(two.name, "Unlock, after %.1f s", held.Seconds())
	return nil
}
