// Package redlock is a lock held at the majority of several independent Redis
// servers, by the algorithm of
// https://redis.io/docs/latest/develop/clients/patterns/distributed-locks/. It works
// as long as a majority of the servers does, and survives the loss of the others with
// all their data.
//
//	lock, err := redlock.New([]rlock.Locker{
//		one.NewLock("orders:42"), two.NewLock("orders:42"), three.NewLock("orders:42"),
//	})
//	...
//	err = lock.Do(ctx, func(ctx context.Context) error {
//		return work(ctx) // ctx ends if the lock is lost
//	})
//
// The servers must not replicate each other, and each has a rlock.Client of its own.
// Three of them tolerate the loss of one, five that of two.
//
// # What it does not promise
//
// It keeps two workers apart as long as clocks run at the same speed, within
// WithDriftFactor, nobody is paused for longer than the lease, and no server forgets a
// hold that still counts. A server that comes up empty does forget: give the clients
// rlock.WithRestartGuard, as long as the longest lease and the longest watchdog
// timeout in use. That is the delayed restart of the page above.
//
// There are no fencing tokens. Each server would count by itself, and two majorities
// that have one server in common may have tokens of any order: comparing them would
// need a write back to all servers, and that is a consensus protocol. Where two
// workers at once would do damage, the resource itself has to refuse one of them.
//
// # Who holds it
//
// The owner is that of package rlock: the one in ctx, else the calling goroutine. What
// is held belongs to the RedLock object, other than with rlock's own locks: use one
// object for a name in a process. It counts how deep an owner is inside, each server
// has it once. Two objects over the same locks exclude different owners like two
// processes do; for one owner they nest.
//
// # Cost
//
// Lock and Unlock are one script call at each server, all at once, and take as long as
// the slowest of the fastest majority; while fewer than a majority of the servers
// hang, at most NodeTimeout more. A nested Lock asks nobody,
// unless it lengthens the lease. A held lock has a timer,
// and goroutines only while somebody listens, through Lost or Do: one for each server.
//
// Who waits asks again after a random delay, as the algorithm says: the locks of
// package rlock have no way to wait for a message without taking part in the wait for
// the lock, so a release wakes nobody. Use it where many contend only for short waits.
package redlock
