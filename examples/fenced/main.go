// Command fenced guards a row of a database with fencing tokens.
//
// One worker takes a lock, is paused for longer than its lease, and writes then. The
// lock alone cannot stop that write: another worker has been inside meanwhile. The row
// can, because it remembers the highest token that was written.
//
//	go run .                                      # in examples/fenced: embedded Redis, SQLite in memory
//	REDIS_URL=redis://localhost:6379/0 go run .   # a real Redis
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/relock-go/relock/rlock"
)

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if err := run(ctx, os.Stdout, os.Getenv("REDIS_URL")); err != nil {
		fmt.Fprintln(os.Stderr, "fenced:", err)
		os.Exit(1)
	}
}

// lease is how long a worker may take. A real one would be longer.
const lease = 500 * time.Millisecond

// run tells the story on the Redis at url, or on an embedded one if url is empty.
func run(ctx context.Context, out io.Writer, url string) error {
	rdb, stop, err := open(url)
	if err != nil {
		return err
	}
	defer stop()
	store, err := openStore(ctx)
	if err != nil {
		return err
	}
	defer store.close()
	a, err := newWorker(rdb, store)
	if err != nil {
		return err
	}
	defer a.close()
	b, err := newWorker(rdb, store)
	if err != nil {
		return err
	}
	defer b.close()

	if err := a.lock.LockLease(ctx, lease); err != nil {
		return err
	}
	tokenA, err := a.lock.Token(ctx)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "A has the lock with token %d and is paused\n", tokenA)

	// B waits until A's lease is over. A does not notice: it is paused.
	err = b.lock.Do(ctx, func(ctx context.Context) error {
		token, _ := rlock.TokenFrom(ctx)
		fmt.Fprintf(out, "B has the lock with token %d\n", token)
		return store.deposit(ctx, token, 100)
	})
	if err != nil {
		return err
	}
	fmt.Fprintln(out, "B has written 100 and unlocked")

	err = store.deposit(ctx, tokenA, 1)
	if err == nil {
		return errors.New("the late write of A came through")
	}
	fmt.Fprintf(out, "A wakes up and writes: %v\n", err)
	if left := a.lock.Validity(ctx); left > 0 {
		return fmt.Errorf("worker A still believes in its lock for %v", left)
	}
	balance, err := store.balance(ctx)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "the balance is %d\n", balance)
	return nil
}

// worker is one process, as far as Redis can tell.
type worker struct {
	client *rlock.Client
	lock   *rlock.FencedLock
}

func newWorker(rdb *redis.Client, s *store) (*worker, error) {
	client, err := rlock.New(rdb)
	if err != nil {
		return nil, err
	}
	return &worker{client: client, lock: client.NewFencedLock("account:" + s.account)}, nil
}

func (w *worker) close() { _ = w.client.Close(context.Background()) }

// open is a client of the Redis at url, or of one inside this process.
func open(url string) (rdb *redis.Client, stop func(), err error) {
	if url != "" {
		opt, err := redis.ParseURL(url)
		if err != nil {
			return nil, nil, err
		}
		rdb = redis.NewClient(opt)
		return rdb, func() { _ = rdb.Close() }, nil
	}
	mini := miniredis.NewMiniRedis()
	mini.ClockTTL(true) // its keys expire as time goes by
	if err := mini.Start(); err != nil {
		return nil, nil, err
	}
	rdb = redis.NewClient(&redis.Options{Addr: mini.Addr()})
	return rdb, func() { _ = rdb.Close(); mini.Close() }, nil
}
