package redlock_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/relock-go/relock/redlock"
	"github.com/relock-go/relock/rlock"
)

// startServers are embedded servers for the examples, with a lock client for each. Yours
// are independent Redis servers:
//
//	client, err := rlock.New(redis.NewClient(&redis.Options{Addr: "redis-1:6379"}),
//		rlock.WithRestartGuard(time.Minute)) // as long as the longest lease
func startServers(n int) (servers []*miniredis.Miniredis, clients []*rlock.Client, stop func()) {
	var stops []func()
	for range n {
		server, err := miniredis.Run()
		if err != nil {
			panic(err)
		}
		rdb := redis.NewClient(&redis.Options{Addr: server.Addr()})
		client, err := rlock.New(rdb)
		if err != nil {
			panic(err)
		}
		servers, clients = append(servers, server), append(clients, client)
		stops = append(stops, func() {
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			defer cancel()
			client.Close(ctx)
			rdb.Close()
			server.Close()
		})
	}
	return servers, clients, func() {
		for _, stop := range stops {
			stop()
		}
	}
}

// One of three servers is away, and nobody notices.
func Example() {
	servers, clients, stop := startServers(3)
	defer stop()
	ctx := context.Background()

	var locks []rlock.Locker
	for _, client := range clients {
		locks = append(locks, client.NewLock("orders:42"))
	}
	lock, err := redlock.New(locks, redlock.WithNodeTimeout(time.Second))
	if err != nil {
		fmt.Println(err)
		return
	}

	servers[0].Close()
	err = lock.Do(ctx, func(ctx context.Context) error {
		fmt.Println("in; valid:", lock.Validity(ctx) > 20*time.Second)
		return nil // an end of ctx would have told of a loss
	})
	fmt.Println(err)
	// Output:
	// in; valid: true
	// <nil>
}

// With a lease it is valid for lease - elapsed - drift, and ends by itself.
func ExampleRedLock_TryLock() {
	_, clients, stop := startServers(3)
	defer stop()
	var locks []rlock.Locker
	for _, client := range clients {
		locks = append(locks, client.NewLock("report"))
	}
	lock, err := redlock.New(locks, redlock.WithNodeTimeout(time.Second))
	if err != nil {
		fmt.Println(err)
		return
	}

	ctx := rlock.WithOwner(context.Background(), "cron-7")
	got, err := lock.TryLock(ctx, 0, 10*time.Second)
	if err != nil || !got {
		fmt.Println("somebody else does it", err)
		return
	}
	left := lock.Validity(ctx)
	fmt.Println(left > 5*time.Second, left <= 10*time.Second-102*time.Millisecond)

	other := rlock.WithOwner(context.Background(), "cron-8")
	got, err = lock.TryLock(other, 0, 10*time.Second)
	fmt.Println(got, err)

	fmt.Println(lock.Unlock(ctx))
	fmt.Println(errors.Is(lock.Unlock(ctx), rlock.ErrNotHeld))
	// Output:
	// true true
	// false <nil>
	// <nil>
	// true
}
