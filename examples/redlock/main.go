// Command redlock shows a lock held at the majority of five Redis servers: one of them
// stops, and one comes up again with nothing in it.
//
// The servers are embedded (miniredis). Two programs, orders-1 and orders-2, have a lock
// client for each server, with a restart guard as long as the leases. Each line was
// observed when it was printed; the program fails if anything is otherwise.
//
//	go run ./examples/redlock
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"

	"github.com/relock-go/relock/redlock"
	"github.com/relock-go/relock/rlock"
)

const (
	lockName = "orders:42"

	// lease is that of every hold here, and so is the restart guard: a server that has
	// forgotten a hold gives its vote to nobody before that hold is over.
	lease = 2 * time.Second

	// nodeTimeout would be 50 ms by default; this is for machines that do a lot else.
	nodeTimeout = 200 * time.Millisecond

	timeLimit = 30 * time.Second // for all of it; it needs about a third
)

func main() {
	logging.Disable() // go-redis would report the servers that stop
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "redlock:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, out io.Writer) (err error) {
	ctx, cancel := context.WithTimeout(ctx, timeLimit)
	defer cancel()
	var servers []*server
	for range 5 {
		s, err := startServer()
		if err != nil {
			return err
		}
		defer s.stop()
		servers = append(servers, s)
	}
	start := time.Now()
	s := &story{servers: servers, say: func(format string, args ...any) {
		fmt.Fprintf(out, "%7.3f s  %s\n", time.Since(start).Seconds(), fmt.Sprintf(format, args...))
	}}
	var ends []func() error
	defer func() {
		for _, end := range ends {
			err = errors.Join(err, end())
		}
	}()
	for _, lock := range []**redlock.RedLock{&s.orders1, &s.orders2} {
		var end func() error
		*lock, end, err = open(servers)
		ends = append(ends, end)
		if err != nil {
			return err
		}
	}
	for _, scene := range []func(context.Context) error{s.waitsForTheGuard, s.oneStops, s.oneForgets} {
		if err := scene(ctx); err != nil {
			return err
		}
	}
	s.say("done")
	return nil
}

// open is one program's lock: a client for each server, and a lock at each.
func open(servers []*server) (lock *redlock.RedLock, end func() error, err error) {
	var clients []*rlock.Client
	var pools []*redis.Client
	end = func() (err error) {
		// Close waits for what the servers have not answered; one that is gone answers
		// nothing, and what it has ends with its lease.
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		defer cancel()
		for i, c := range clients {
			err = errors.Join(err, c.Close(ctx), pools[i].Close())
		}
		return err
	}
	var locks []rlock.Locker
	for _, s := range servers {
		rdb := redis.NewClient(&redis.Options{Addr: s.addr})
		c, err := rlock.New(rdb, rlock.WithRestartGuard(lease))
		if err != nil {
			return nil, end, errors.Join(err, rdb.Close())
		}
		clients, pools = append(clients, c), append(pools, rdb)
		locks = append(locks, c.NewLock(lockName))
	}
	lock, err = redlock.New(locks, redlock.WithNodeTimeout(nodeTimeout))
	return lock, end, err
}

// story is what the scenes share.
type story struct {
	servers          []*server
	orders1, orders2 *redlock.RedLock
	say              func(format string, args ...any)
}

// waitsForTheGuard: nobody can know what servers that have just started have forgotten.
func (s *story) waitsForTheGuard(ctx context.Context) error {
	if _, err := s.orders1.TryLock(ctx, 0, lease); !errors.Is(err, rlock.ErrRestarted) {
		return fmt.Errorf("a server that has just started votes: %w", err)
	}
	s.say("five servers have just started: nobody gets the lock from them yet")
	if err := s.orders1.LockLease(ctx, lease); err != nil {
		return err
	}
	s.say("orders-1 is in: they have run for %v now", lease)
	return s.orders1.Unlock(ctx)
}

// oneStops: four are a majority.
func (s *story) oneStops(ctx context.Context) error {
	s.servers[4].stop()
	s.say("server 5 stops")
	began := time.Now()
	if err := s.orders1.LockLease(ctx, lease); err != nil {
		return err
	}
	s.say("orders-1 is in all the same, after %v; valid for %v", ms(time.Since(began)), ms(s.orders1.Validity(ctx)))
	if err := s.orders1.Unlock(ctx); err != nil {
		return err
	}
	if err := s.servers[4].start(); err != nil {
		return err
	}
	s.say("orders-1 is out, and server 5 is back, empty")
	return nil
}

// oneForgets: with the votes of 1, 2 and 3 orders-1 is in. Then 3 forgets its vote, and 4
// and 5 can be reached again. Without the guard these three would let orders-2 in.
func (s *story) oneForgets(ctx context.Context) error {
	// Servers 4 and 5 have run for long when they come back: only 3 is to be young.
	s.servers[3].stop()
	s.servers[4].stop()
	began := time.Now()
	if err := s.orders1.LockLease(ctx, lease); err != nil {
		return err
	}
	s.say("servers 4 and 5 cannot be reached; orders-1 is in with 1, 2 and 3")
	time.Sleep(2 * nodeTimeout) // until then they could still join the hold
	s.servers[2].stop()
	for _, i := range []int{2, 3, 4} {
		if err := s.servers[i].start(); err != nil {
			return err
		}
	}
	for _, i := range []int{3, 4} {
		s.servers[i].startedAt(began.Add(-time.Hour)) // as if only the network had been away
	}
	for _, i := range []int{2, 3, 4} {
		if err := s.servers[i].waitFree(ctx); err != nil {
			return err
		}
	}
	s.say("server 3 is restarted, empty; 4 and 5 are back. These three do not know of orders-1, which is valid for %v",
		ms(s.orders1.Validity(ctx)))

	two := rlock.WithOwner(ctx, "orders-2")
	if err := s.orders2.LockLease(two, lease); err != nil {
		return err
	}
	if left := s.orders1.Validity(ctx); left > 0 {
		return fmt.Errorf("two are inside: orders-1 for another %v", left)
	}
	s.say("orders-2 is in, %v after orders-1, whose lease is over", ms(time.Since(began)))
	if err := s.orders1.Unlock(ctx); !errors.Is(err, rlock.ErrLost) {
		return fmt.Errorf("orders-1 was not told: %w", err)
	}
	s.say("orders-1 hears of it: Unlock is ErrLost")
	return s.orders2.Unlock(two)
}

// ms is d for people.
func ms(d time.Duration) time.Duration { return d.Round(time.Millisecond) }
