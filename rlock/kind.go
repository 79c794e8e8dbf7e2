package rlock

import (
	"github.com/relock-go/relock/internal/record"
	"github.com/relock-go/relock/internal/script"
)

// kind is what a lock object asks for. Those of half Whole share a hash in Redis, and
// one owner's holds of them nest.
type kind uint8

const (
	plain kind = iota
	fair
	fenced
	spin
	reading
	writing
)

func (k kind) half() record.Half {
	switch k {
	case reading:
		return record.Read
	case writing:
		return record.Write
	}
	return record.Whole
}

// rw tells whether it is a half of a read-write lock.
func (k kind) rw() bool { return k.half() != record.Whole }

// channel is where a waiter of that kind listens. field is a fair one's.
func (e *entry) channel(k kind, field string) string {
	switch {
	case k.rw():
		return script.RWChannel(e.key)
	case k == fair:
		return script.TurnChannel(script.Channel(e.key), field)
	}
	return e.keys().channel.(string)
}

var _ = [...]Locker{(*Lock)(nil), (*FairLock)(nil), (*FencedLock)(nil), (*SpinLock)(nil), (*ReadLock)(nil), (*WriteLock)(nil)}

// Lock is a reentrant lock on one key. It is only a name with settings: what is
// held belongs to the Client, so two objects with one name are one lock. It is
// safe for concurrent use. Make it with Client.NewLock.
type Lock struct{ lock }

// NewLock returns the lock of that name: 1 to 1,024 bytes, before and after
// mapping. On a cluster or a Ring it has no braces at all, or its first one opens
// a hash tag that is not empty, "{orders}:17" say; any other would be torn apart.
// NewLock sends nothing. A bad name or option is reported by the first operation.
func (c *Client) NewLock(name string, opts ...LockOption) *Lock {
	return &Lock{c.newLock(plain, name, opts)}
}

// FairLock is a Lock that is given in the order in which its waiters came, over all
// clients, and Redisson's getFairLock. Every waiter stands in a queue in Redis from
// its first request on, asks again about once a second, and is told when it is next.
//
// A waiter that dies, or is stopped, blocks those behind it until its time in the queue
// is over, see WithFairWaitTimeout. One that gives up leaves the queue within milliseconds.
//
// A Lock, SpinLock or FencedLock on the same name excludes a FairLock, does not queue
// and may come before those who do. TryLock with wait 0 does not queue either: it gets
// the lock if it is free and nobody stands in the queue.
type FairLock struct{ lock }

// NewFairLock returns the fair lock of that name. See NewLock.
func (c *Client) NewFairLock(name string, opts ...LockOption) *FairLock {
	return &FairLock{c.newLock(fair, name, opts)}
}

// SpinLock is a Lock whose waiters poll, see WithBackoff, and never subscribe. It suits
// locks that are held for a moment, and servers that forbid subscriptions. Its
// releases are told to waiters of a Lock on the name as any other. Within a process
// only one of the waiters polls.
type SpinLock struct{ lock }

// NewSpinLock returns the spin lock of that name. See NewLock.
func (c *Client) NewSpinLock(name string, opts ...LockOption) *SpinLock {
	return &SpinLock{c.newLock(spin, name, opts)}
}
