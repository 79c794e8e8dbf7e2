package rlock

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/relock-go/relock/internal/record"
)

// Locker is what every lock here can do, and what multilock and redlock are
// built on.
type Locker interface {
	Name() string
	Lock(ctx context.Context) error
	LockLease(ctx context.Context, lease time.Duration) error
	TryLock(ctx context.Context, wait, lease time.Duration) (bool, error)
	Unlock(ctx context.Context) error
	Extend(ctx context.Context, lease time.Duration) error
	Validity(ctx context.Context) time.Duration
	Lost(ctx context.Context) <-chan struct{}
}

// lock is what all kinds of locks have in common. Each kind is a struct around it, as
// net.TCPConn is one around a connection.
type lock struct {
	c    *Client
	name string
	key  string
	keys *keys
	bad  error // what is wrong with name or options
	opt  lockOptions
	kind kind
}

// newLock makes a lock of that kind. It sends nothing. A bad name or option is
// reported by the first operation.
func (c *Client) newLock(k kind, name string, opts []LockOption) lock {
	l := lock{c: c, name: name, kind: k}
	l.bad = checkName(name)
	if l.bad == nil {
		l.key = c.opt.mapName(name)
		l.bad = checkKey(l.key, c.redis.tags)
		l.keys = keysOf(l.key)
	}
	for _, o := range opts {
		if o == nil {
			l.bad = firstOf(l.bad, errors.New("rlock: a LockOption is nil"))
			continue
		}
		l.bad = firstOf(l.bad, o(&l.opt))
	}
	if l.opt.backoff != nil && k != spin {
		l.bad = firstOf(l.bad, errors.New("rlock: WithBackoff is for a SpinLock; the others don't poll"))
	}
	return l
}

// Name is the lock's name, before mapping.
func (l *lock) Name() string { return l.name }

// Key is the lock's key as it stands in Redis.
func (l *lock) Key() string { return l.key }

// Client is the client that made l.
func (l *lock) Client() *Client { return l.c }

// Lock waits until the owner in ctx, else the calling goroutine, holds l. The
// watchdog keeps the hold until the last Unlock. An owner that holds l already
// enters once more, and needs one more Unlock.
//
// ctx bounds the waiting, not the hold: ending it later releases nothing. If it
// ends while a request is on its way, Lock returns at once and, should Redis
// grant that request, undoes the grant in the background: after an error nothing
// is held. A ctx that has ended already sends nothing.
//
// Uncontended, Lock is one script call. Errors: ErrLost after a loss of this
// owner that its Unlocks were not told of; ErrReentry; ErrUpgrade; ErrUnsettled;
// ErrWrongType; ErrReplicas, which is not tried again; ErrInvalidName and
// ErrInvalidOwner; ErrRestarted, with the ctx's, when ctx ended while WithRestartGuard
// kept it out; ErrNotHeld, if ctx is from a Do that has returned; ErrClosed; the
// ctx's; the server's when it could not be reached for go-redis's ReadTimeout, and at
// least 3 s.
func (l *lock) Lock(ctx context.Context) error {
	_, err := l.acquire(ctx, "lock", -1, 0)
	return err
}

// LockLease is Lock for a hold that ends by itself after lease, unless an Unlock
// comes first: 1 ms to 10 years, rounded up to whole milliseconds in Redis. 0 is
// Lock. A lease that the round trip and a safety margin of 2 ms use up is
// ErrInvalidLease.
//
// Within the lease the same owner enters once more, and a nested LockLease only
// lengthens the lease. A lease that ran out is no error for the owner's next
// Lock; an Unlock of it is ErrLost.
func (l *lock) LockLease(ctx context.Context, lease time.Duration) error {
	_, err := l.acquire(ctx, "lock", -1, lease)
	return err
}

// TryLock is Lock that gives up: with wait 0 after one attempt, with wait > 0
// after at most that time, with wait < 0 when ctx ends. lease 0 is kept by the
// watchdog, lease > 0 is fixed, as in LockLease.
//
// With wait 0 it does not wait for others. An attempt that fails is repeated a few
// times, and go-redis dials anew for each: while the server is down that can take
// seconds, which ctx bounds.
//
// (false, nil) means that others had the lock at every attempt; ErrRestarted, that
// WithRestartGuard refused the last one. An attempt that
// is still unanswered when the wait is over is an error, ErrUnsettled, and undone.
func (l *lock) TryLock(ctx context.Context, wait, lease time.Duration) (bool, error) {
	return l.acquire(ctx, "trylock", wait, lease)
}

// Unlock gives back one Lock of the owner in ctx, else of the calling goroutine.
// The last one frees the lock, or passes it to a waiter of this process.
//
// It works with a ctx that has ended, and ending ctx does not stop it. nil means
// that Redis still had the hold. ErrLost: the hold was lost before. ErrNotHeld:
// the owner holds nothing, and nothing was changed. ErrUnsettled: Redis did not
// answer within WithReleaseTimeout; the release goes on, and the key is gone at
// the latest with its lease.
func (l *lock) Unlock(ctx context.Context) error {
	return l.do(ctx, opUnlock, func(who caller) error {
		e := l.c.entry(l.key)
		defer l.c.leave(e)
		return e.release(ctx, l.keys, who, l.kind.half())
	})
}

// Extend gives the current hold a new lease, counted from now: longer or shorter
// than before, 1 ms to 10 years. 0 hands it to the watchdog. A shorter lease
// counts at once for Validity and Lost; the key in Redis ends at the latest when
// it would have ended without.
//
// Errors: ErrNotHeld, ErrLost, ErrInvalidLease, and as Lock. After ErrUnsettled
// the lease is what it was.
func (l *lock) Extend(ctx context.Context, lease time.Duration) error {
	if err := checkLease(lease); err != nil {
		return l.wrap("extend", "", err)
	}
	return l.do(ctx, "extend", func(who caller) error {
		if err := l.leaseFits(lease); err != nil {
			return err
		}
		if ctx.Err() != nil {
			return ended(ctx)
		}
		e := l.c.entry(l.key)
		defer l.c.leave(e)
		return e.extend(l.c.call(ctx), l.keys, who.owner, l.kind.half(), lease)
	})
}

// Validity is for how long the current owner's hold is proven: what is left by
// the monotonic and by the wall clock, whichever says less. 0 when it holds
// nothing or the hold is lost. It asks nobody, so it may be called before every
// write that the lock guards.
func (l *lock) Validity(ctx context.Context) time.Duration {
	var left time.Duration
	l.look(ctx, func(h *hold) { left = h.left() })
	return left
}

// Lost returns a channel that is closed when the current owner's hold is lost,
// or its lease runs out. It is closed already when the owner holds nothing. An
// Unlock does not close it.
func (l *lock) Lost(ctx context.Context) <-chan struct{} {
	lost := closedChan
	l.look(ctx, func(h *hold) {
		if h.leaving < h.rec.Depth {
			lost = h.lostChan()
		}
	})
	return lost
}

var closedChan = func() <-chan struct{} { c := make(chan struct{}); close(c); return c }()

// look calls f with the current owner's hold, if there is one, under its lock.
func (l *lock) look(ctx context.Context, f func(*hold)) {
	who, err := callerIn(ctx)
	if err != nil || who.left != nil || l.bad != nil {
		return
	}
	l.lookAt(who.owner, f)
}

// lookAt is look for any owner.
func (l *lock) lookAt(o Owner, f func(*hold)) {
	e := l.c.find(l.key)
	if e == nil {
		return
	}
	defer l.c.leave(e)
	e.lock()
	defer e.unlock()
	if h := e.hold(o, l.kind.half()); h != nil {
		if now := e.c.clock(); h.rec.Left(now) == 0 {
			e.expire(h, now)
		}
		f(h)
	}
}

func (l *lock) acquire(ctx context.Context, op string, wait, lease time.Duration) (bool, error) {
	if err := checkLease(lease); err != nil {
		return false, l.wrap(op, "", err)
	}
	got := false
	err := l.do(ctx, op, func(who caller) error {
		if err := l.leaseFits(lease); err != nil {
			return err
		}
		if ctx.Err() != nil {
			return ended(ctx)
		}
		w := &waiter{
			kind: l.kind, name: l.name, keys: l.keys, owner: who.owner, self: who.self, lease: lease,
			limit: l.opt.maxHold, nonReentrant: l.opt.nonReentrant, backoff: l.opt.backoff, began: time.Now(),
		}
		if l.kind == fair {
			w.stand = l.stand(wait)
		}
		w.place.For = w
		k := l.c.call(ctx)
		defer k.stop()
		switch {
		case wait > 0:
			k.until = w.began.Add(wait)
		case wait == 0: // one attempt: what the read timeout ends is not repeated
			k.patience, k.persist = l.c.readTimeout, l.c.readTimeout/2
		}
		err := l.c.sharded.begin(l.c, k, l.key)
		if err != nil {
			return err
		}
		e := l.c.entry(l.key)
		defer l.c.leave(e)
		got, err = e.acquire(k, w, wait == 0)
		return err
	})
	return got, err
}

// leaseFits refuses a lease that the margin alone would use up.
func (l *lock) leaseFits(lease time.Duration) error {
	if lease > 0 && lease <= record.Margin(lease) {
		return tooShort(lease)
	}
	return nil
}

const opUnlock = "unlock"

// do runs an operation: it checks what all of them must, and wraps the error.
func (l *lock) do(ctx context.Context, op string, f func(caller) error) error {
	if l.bad != nil {
		return l.wrap(op, "", l.bad)
	}
	who, err := callerIn(ctx)
	if err != nil {
		return l.wrap(op, who.owner, err)
	}
	if who.left != nil && op != opUnlock {
		return l.wrap(op, who.owner, fmt.Errorf("%w: the Do that this ctx comes from has returned", ErrNotHeld))
	}
	if err := l.c.begin(); err != nil {
		return l.wrap(op, who.owner, err)
	}
	defer l.c.work.Done()
	return l.wrap(op, who.owner, f(who))
}

func (l *lock) wrap(op string, o Owner, err error) error {
	if err == nil {
		return nil
	}
	return &Error{Op: op, Lock: l.name, Owner: o, Err: err}
}
