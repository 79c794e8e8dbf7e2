package rlock_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/relock-go/relock/rlock"
)

// startRedis is an embedded Redis for the examples. Yours is
//
//	rdb := redis.NewClient(&redis.Options{Addr: "localhost:6379"})
func startRedis() (rdb *redis.Client, stop func()) {
	server, err := miniredis.Run()
	if err != nil {
		panic(err)
	}
	rdb = redis.NewClient(&redis.Options{Addr: server.Addr()})
	return rdb, func() {
		rdb.Close()
		server.Close()
	}
}

// mustClient is for the examples that are not about New.
func mustClient(rdb *redis.Client, opts ...rlock.Option) *rlock.Client {
	client, err := rlock.New(rdb, opts...)
	if err != nil {
		panic(err)
	}
	return client
}

func Example() {
	rdb, stop := startRedis()
	defer stop()
	ctx := context.Background()

	client, err := rlock.New(rdb)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer client.Close(ctx) // rdb stays open

	lock := client.NewLock("orders:42")
	if err := lock.Lock(ctx); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("in; kept until Unlock")
	if err := lock.Unlock(ctx); err != nil {
		fmt.Println(err) // ErrLost: somebody else may have been inside
		return
	}
	fmt.Println("out")

	// Output:
	// in; kept until Unlock
	// out
}

// On a cluster a lock is one key at the node of its slot. A name that is to share its
// slot with other keys has them in one pair of braces.
func ExampleNew_cluster() {
	server, err := miniredis.Run() // which plays a cluster of one node
	if err != nil {
		fmt.Println(err)
		return
	}
	defer server.Close()
	rdb := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{server.Addr()}})
	defer rdb.Close()
	client, err := rlock.New(rdb)
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx := context.Background()
	defer client.Close(ctx)

	lock := client.NewLock("{customer:7}:invoice")
	fmt.Println(lock.Lock(ctx))
	fmt.Println(lock.Unlock(ctx))

	torn := client.NewLock("customer{7")
	fmt.Println(errors.Is(torn.Lock(ctx), rlock.ErrInvalidName))
	// Output:
	// <nil>
	// <nil>
	// true
}

func ExampleLock_Lock_reentry() {
	rdb, stop := startRedis()
	defer stop()
	ctx := context.Background()
	client := mustClient(rdb)
	defer client.Close(ctx)
	lock := client.NewLock("orders:42")

	for range 2 { // the second one is a re-entry: same owner, same lock
		if err := lock.Lock(ctx); err != nil {
			fmt.Println(err)
			return
		}
	}
	n, _ := lock.HoldCount(ctx)
	fmt.Println("hold count:", n)
	for range 2 { // as many Unlocks as Locks
		if err := lock.Unlock(ctx); err != nil {
			fmt.Println(err)
			return
		}
	}
	locked, _ := lock.IsLocked(ctx)
	fmt.Println("locked:", locked)

	// Output:
	// hold count: 2
	// locked: false
}

func ExampleLock_Do() {
	rdb, stop := startRedis()
	defer stop()
	ctx := context.Background()
	client := mustClient(rdb)
	defer client.Close(ctx)
	lock := client.NewLock("orders:42")

	err := lock.Do(ctx, func(ctx context.Context) error {
		// ctx ends when the lock is lost, so pass it on to all work inside.
		fmt.Println("inside:", lock.Validity(ctx) > 0)
		return errors.New("out of stock")
	})
	fmt.Println(err)
	fmt.Println("after:", lock.Validity(ctx))

	// Output:
	// inside: true
	// out of stock
	// after: 0s
}

func ExampleLock_TryLock() {
	rdb, stop := startRedis()
	defer stop()
	ctx := context.Background()
	client := mustClient(rdb)
	defer client.Close(ctx)
	other := mustClient(rdb) // as in another process
	defer other.Close(ctx)

	// One attempt, and a lease of ten seconds that nobody renews.
	got, err := client.NewLock("report").TryLock(ctx, 0, 10*time.Second)
	fmt.Println("first:", got, err)

	// Wait for half a second at most.
	got, err = other.NewLock("report").TryLock(ctx, 500*time.Millisecond, 10*time.Second)
	fmt.Println("second:", got, err)

	// Output:
	// first: true <nil>
	// second: false <nil>
}

func ExampleWithOwner() {
	rdb, stop := startRedis()
	defer stop()
	ctx := context.Background()
	client := mustClient(rdb)
	defer client.Close(ctx)
	lock := client.NewLock("import")

	// A lock belongs to the goroutine that took it. This one belongs to job,
	// whichever goroutine works on it.
	job := rlock.WithOwner(ctx, rlock.NewOwner())
	if err := lock.Lock(job); err != nil {
		fmt.Println(err)
		return
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		err := lock.Unlock(ctx) // as this goroutine: it holds nothing
		fmt.Println("not held:", errors.Is(err, rlock.ErrNotHeld))
		fmt.Println("with the owner:", lock.Unlock(job))
	})
	wg.Wait()

	// Output:
	// not held: true
	// with the owner: <nil>
}

func ExampleLock_Extend() {
	rdb, stop := startRedis()
	defer stop()
	ctx := context.Background()
	client := mustClient(rdb)
	defer client.Close(ctx)
	lock := client.NewLock("report")

	if err := lock.LockLease(ctx, 10*time.Second); err != nil {
		fmt.Println(err)
		return
	}
	defer lock.Unlock(ctx)
	fmt.Println("more than 10 s left:", lock.Validity(ctx) > 10*time.Second)

	// The work takes longer than thought: one minute from now.
	if err := lock.Extend(ctx, time.Minute); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("more than 50 s left:", lock.Validity(ctx) > 50*time.Second)

	// Output:
	// more than 10 s left: false
	// more than 50 s left: true
}

func ExampleLock_Validity() {
	rdb, stop := startRedis()
	defer stop()
	ctx := context.Background()
	client := mustClient(rdb)
	defer client.Close(ctx)
	lock := client.NewLock("ledger")

	// write asks before each write. Validity looks at the clocks, not at Redis:
	// it costs no round trip, and after a pause of the process it is 0 at once.
	write := func(line string) error {
		const needed = 2 * time.Second // longer than one write takes
		if lock.Validity(ctx) < needed {
			return rlock.ErrLost
		}
		fmt.Println("write", line)
		return nil
	}

	if err := lock.Lock(ctx); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(write("first"))

	// An operator removes the lock. Holders of the client that does it hear of it
	// at once, those of others with their next renewal.
	if _, err := lock.ForceUnlock(ctx); err != nil {
		fmt.Println(err)
	}
	fmt.Println(write("second"))

	// Output:
	// write first
	// <nil>
	// rlock: lock lost
}

func ExampleLock_Lost() {
	rdb, stop := startRedis()
	defer stop()
	ctx := context.Background()
	client := mustClient(rdb)
	defer client.Close(ctx)
	lock := client.NewLock("ledger")

	if err := lock.LockLease(ctx, 200*time.Millisecond); err != nil {
		fmt.Println(err)
		return
	}
	select {
	case <-lock.Lost(ctx):
		fmt.Println("lost: stop")
	case <-time.After(time.Minute):
		fmt.Println("all done")
	}
	err := lock.Unlock(ctx)
	fmt.Println("lost:", errors.Is(err, rlock.ErrLost))

	// Output:
	// lost: stop
	// lost: true
}

func ExampleError() {
	rdb, stop := startRedis()
	defer stop()
	ctx := context.Background()
	client := mustClient(rdb)
	defer client.Close(ctx)
	lock := client.NewLock("orders:42")

	// Compare with errors.Is, never with ==: what comes back is an *Error, with
	// the cause in it.
	err := lock.Unlock(rlock.WithOwner(ctx, "job-7"))
	switch {
	case errors.Is(err, rlock.ErrLost):
		fmt.Println("somebody else may be inside: stop")
	case errors.Is(err, rlock.ErrUnsettled):
		fmt.Println("Redis did not answer: the release goes on")
	case errors.Is(err, rlock.ErrNotHeld):
		fmt.Println("this owner holds nothing")
	}
	var e *rlock.Error
	if errors.As(err, &e) {
		fmt.Println(e.Op, e.Lock, e.Owner)
	}

	// A ctx that ends while others hold the lock is in the chain too.
	if err := lock.Lock(ctx); err != nil {
		fmt.Println(err)
		return
	}
	defer lock.Unlock(ctx)
	short, cancel := context.WithTimeout(rlock.WithOwner(ctx, "job-8"), 20*time.Millisecond)
	defer cancel()
	elsewhere := make(chan error)
	go func() { elsewhere <- lock.Lock(short) }()
	fmt.Println(errors.Is(<-elsewhere, context.DeadlineExceeded))

	// Output:
	// this owner holds nothing
	// unlock orders:42 job-7
	// true
}

func ExampleWithTrace() {
	rdb, stop := startRedis()
	defer stop()
	ctx := context.Background()

	// Callbacks may come from any goroutine: send what they say somewhere.
	events := make(chan string, 10)
	client := mustClient(rdb, rlock.WithTrace(&rlock.Trace{
		Acquired: func(lock string, o rlock.Owner, _ time.Duration) {
			events <- fmt.Sprintf("%s acquired %s", o, lock)
		},
		Released: func(lock string, o rlock.Owner, _ time.Duration) {
			events <- fmt.Sprintf("%s released %s", o, lock)
		},
	}))
	defer client.Close(ctx)

	job := rlock.WithOwner(ctx, "job-7")
	if err := client.NewLock("orders:42").Do(job, func(context.Context) error { return nil }); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(<-events)
	fmt.Println(<-events)
	fmt.Println("released:", client.Stats().Released)

	// Output:
	// job-7 acquired orders:42
	// job-7 released orders:42
	// released: 1
}
