package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// watchdogTimeout is short so that nobody has to wait. The default is 30 s.
const watchdogTimeout = 1500 * time.Millisecond

// story is what the scenes share.
type story struct {
	line    *timeline
	key     string
	redis   *redis.Client // looks at Redis from outside
	orders1 *process
	orders2 *process
	ops     *process
}

func newStory(out io.Writer, srv *server) (*story, error) {
	options := srv.options
	s := &story{
		line:  &timeline{out: out, start: time.Now()},
		key:   "quickstart:" + strings.ToLower(rand.Text()[:8]), // nobody else's
		redis: redis.NewClient(&options),
	}
	for _, p := range []struct {
		name string
		at   **process
	}{{"orders-1", &s.orders1}, {"orders-2", &s.orders2}, {"ops", &s.ops}} {
		var err error
		if *p.at, err = newProcess(p.name, srv, s.key); err != nil {
			return nil, errors.Join(err, s.close())
		}
	}
	fmt.Fprintf(out, "relock quickstart on %s\n\n", srv.what)
	fmt.Fprintf(out, "  lock      %s, kept by a watchdog: its lease is %v, renewed every %v\n",
		s.key, watchdogTimeout, watchdogTimeout/3)
	for _, p := range []*process{s.orders1, s.orders2, s.ops} {
		fmt.Fprintf(out, "  %-8s  client %s\n", p.name, p.locks.ID())
	}
	fmt.Fprintf(out, "  redis     what stands in Redis: a hash of {client:goroutine: depth}\n")
	return s, nil
}

// close ends what is left of the story, and leaves nothing in Redis.
func (s *story) close() error {
	var errs []error
	for _, p := range []*process{s.orders1, s.orders2, s.ops} {
		if p == nil {
			continue
		}
		if err := p.close(); err != nil && !p.wire.cut {
			errs = append(errs, fmt.Errorf("%s does not close: %w", p.name, err))
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	s.redis.Del(ctx, s.key) // after a failure; otherwise it is gone already
	s.redis.Close()
	return errors.Join(errs...)
}

// look is the lock as Redis has it.
func (s *story) look(ctx context.Context) (map[string]string, time.Duration, error) {
	fields, err := s.redis.HGetAll(ctx, s.key).Result()
	if err != nil {
		return nil, 0, err
	}
	ttl, err := s.redis.PTTL(ctx, s.key).Result()
	return fields, ttl, err
}

// sayHash prints the lock as Redis has it. p must hold it, depth times.
func (s *story) sayHash(ctx context.Context, p *process, depth string) error {
	fields, ttl, err := s.look(ctx)
	if err != nil {
		return err
	}
	for field, value := range fields {
		if len(fields) == 1 && strings.HasPrefix(field, p.locks.ID()+":") && value == depth {
			s.line.say("redis", "HGETALL = {%s: %s}, PTTL = %s", field, value, ms(ttl))
			return nil
		}
	}
	return fmt.Errorf("in Redis stands %v at %s, and not %s at depth %s", fields, s.key, p.name, depth)
}

// summary checks the end, and says how it went.
func (s *story) summary(ctx context.Context, scenes int) error {
	n, err := s.redis.Exists(ctx, s.key).Result()
	if err != nil {
		return err
	}
	if n != 0 {
		return fmt.Errorf("%s is still in Redis at the end", s.key)
	}
	fmt.Fprintf(s.line.out, "\nDone: %d scenes in %.1f s, each line checked; nothing is left in Redis.\n",
		scenes, time.Since(s.line.start).Seconds())
	return nil
}

// sleep waits for d, or until ctx ends.
func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
