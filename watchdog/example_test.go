package watchdog_test

import (
	"context"
	"fmt"
	"time"

	"github.com/relock-go/relock/watchdog"
)

// A lease of 300 ms is renewed every 100 ms, until its server loses it.
func Example() {
	var (
		w      *watchdog.Watchdog[string]
		server = map[string]int{"orders": 2} // how often it will renew a lease
		lost   = make(chan string)
	)
	w = watchdog.New(watchdog.Config[string]{
		Period:  100 * time.Millisecond,
		Attempt: 50 * time.Millisecond,
		Calls:   1, // so that server needs no mutex
		Renew: func(_ context.Context, batch []*watchdog.Lease[string]) {
			for _, l := range batch {
				sent := time.Now() // a lease counts from before its renewal was sent
				if server[l.Hold] == 0 {
					w.Drop(l)
					lost <- l.Hold
					continue
				}
				server[l.Hold]--
				fmt.Println("renewed", l.Hold)
				w.Keep(l, sent.Add(100*time.Millisecond), sent.Add(300*time.Millisecond))
			}
		},
		Expired: func(l *watchdog.Lease[string]) { fmt.Println("too late for", l.Hold) },
	})

	l := &watchdog.Lease[string]{Hold: "orders"}
	w.Keep(l, time.Now().Add(100*time.Millisecond), time.Now().Add(300*time.Millisecond))
	fmt.Println("lost", <-lost)
	fmt.Println(w.Len(), w.Close(context.Background()))
	// Output:
	// renewed orders
	// renewed orders
	// lost orders
	// 0 <nil>
}
