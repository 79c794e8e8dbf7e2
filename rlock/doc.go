// Package rlock is a reentrant distributed lock on Redis, wire-compatible with
// Redisson 4: Java and Go services that use one name exclude and wake each other.
//
//	client, err := rlock.New(redis.NewClient(&redis.Options{Addr: "localhost:6379"}))
//	...
//	defer client.Close(context.Background())
//
//	lock := client.NewLock("orders:42")
//	err = lock.Do(ctx, func(ctx context.Context) error {
//		return work(ctx) // ctx ends if the lock is lost
//	})
//
// # Who holds a lock
//
// The owner is the one that ctx carries, else the calling goroutine. A goroutine
// cannot unlock what another one locked: work that moves between goroutines takes
// an owner along, see WithOwner, or runs inside Do.
//
// # What it does not promise
//
// A lock with a lease keeps two workers apart as long as clocks run at the same
// speed and nobody is paused for longer than the lease. A process that is paused
// between its last look at Validity and its write may write after somebody else.
// Only the resource itself can refuse that write, by a version or a fencing token.
// LIMITATIONS.md says what else no lock on Redis can promise.
//
// # Cost
//
// Lock and Unlock are one script call each when nobody contends. Waiters share
// one subscription connection and don't poll. The watchdog renews all holds of a
// client from one goroutine, in batches.
package rlock
