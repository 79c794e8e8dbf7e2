package multilock_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/relock-go/relock/multilock"
	"github.com/relock-go/relock/rlock"
)

// start is a client of an embedded Redis, for the examples. Yours is
//
//	client, err := rlock.New(redis.NewClient(&redis.Options{Addr: "localhost:6379"}))
func start() (client *rlock.Client, stop func()) {
	server, err := miniredis.Run()
	if err != nil {
		panic(err)
	}
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr()})
	client, err = rlock.New(rdb)
	if err != nil {
		panic(err)
	}
	return client, func() {
		client.Close(context.Background())
		rdb.Close()
		server.Close()
	}
}

func Example() {
	client, stop := start()
	defer stop()
	ctx := context.Background()

	// Another transfer may name the accounts the other way round: that is no
	// deadlock.
	transfer, err := multilock.New(client.NewLock("account:7"), client.NewLock("account:3"))
	if err != nil {
		fmt.Println(err)
		return
	}
	err = transfer.Do(ctx, func(ctx context.Context) error {
		// ctx ends when one of the locks is lost, so pass it on to all work inside.
		fmt.Println("both are mine:", transfer.Validity(ctx) > 0)
		return nil
	})
	fmt.Println(err)

	// Output:
	// both are mine: true
	// <nil>
}

func ExampleMultiLock_TryLock() {
	client, stop := start()
	defer stop()
	ctx := context.Background()
	a, b := client.NewLock("a"), client.NewLock("b")
	both, err := multilock.New(a, b)
	if err != nil {
		fmt.Println(err)
		return
	}

	// Somebody else has b.
	job := rlock.WithOwner(ctx, "job-7")
	if err := b.Lock(job); err != nil {
		fmt.Println(err)
		return
	}
	got, err := both.TryLock(ctx, 0, 10*time.Second)
	fmt.Println("while b is held:", got, err)
	locked, _ := a.IsLocked(ctx)
	fmt.Println("a is held:", locked) // all or nothing

	if err := b.Unlock(job); err != nil {
		fmt.Println(err)
		return
	}
	got, err = both.TryLock(ctx, time.Second, 10*time.Second)
	fmt.Println("when b is free:", got, err)
	fmt.Println(both.Unlock(ctx))

	// Output:
	// while b is held: false <nil>
	// a is held: false
	// when b is free: true <nil>
	// <nil>
}

func ExampleMultiLock_Lost() {
	client, stop := start()
	defer stop()
	ctx := context.Background()
	a, b := client.NewLock("a"), client.NewLock("b")
	both, err := multilock.New(a, b)
	if err != nil {
		fmt.Println(err)
		return
	}
	if err := both.Lock(ctx); err != nil {
		fmt.Println(err)
		return
	}

	// An operator removes one of the members.
	if _, err := b.ForceUnlock(ctx); err != nil {
		fmt.Println(err)
		return
	}
	<-both.Lost(ctx)
	fmt.Println("left:", both.Validity(ctx))
	fmt.Println("lost:", errors.Is(both.Unlock(ctx), rlock.ErrLost))
	locked, _ := a.IsLocked(ctx)
	fmt.Println("a is held:", locked)

	// Output:
	// left: 0s
	// lost: true
	// a is held: false
}
