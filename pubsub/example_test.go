package pubsub_test

import (
	"context"
	"fmt"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/relock-go/relock/pubsub"
)

func Example() {
	server, err := miniredis.Run() // instead of a Redis
	if err != nil {
		panic(err)
	}
	defer server.Close()
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr()})
	defer rdb.Close()
	ctx := context.Background()

	hub := pubsub.New(pubsub.Config{
		Open: func(ctx context.Context) pubsub.Conn { return rdb.Subscribe(ctx) },
	})
	defer hub.Close(ctx)

	sub := hub.Subscribe("news")
	defer sub.Close()
	<-sub.C()
	fmt.Println("subscribed: look now, nothing is missed from here on")

	rdb.Publish(ctx, "news", "free")
	<-sub.C()
	fmt.Println("woken: look again")

	// Output:
	// subscribed: look now, nothing is missed from here on
	// woken: look again
}
