package rlock

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/relock-go/relock/internal/record"
	"github.com/relock-go/relock/internal/script"
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

var _ Locker = (*Lock)(nil)

// Lock is a reentrant lock on one key. It is only a name with settings: what is
// held belongs to the Client, so two objects with one name are one lock. It is
// safe for concurrent use. Make it with Client.NewLock.
type Lock struct {
	c    *Client
	name string
	key  string
	keys *keys
	opt  lockOptions
	bad  error // what is wrong with name or options
}

// NewLock returns the lock of that name: 1 to 1,024 bytes, before and after
// mapping. On a cluster or a Ring it has no braces at all, or its first one opens
// a hash tag that is not empty, "{orders}:17" say; any other would be torn apart.
// NewLock sends nothing. A bad name or option is reported by the first operation.
func (c *Client) NewLock(name string, opts ...LockOption) *Lock {
	l := &Lock{c: c, name: name}
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
	return l
}

// Name is the lock's name, before mapping.
func (l *Lock) Name() string { return l.name }

// Key is the lock's key as it stands in Redis.
func (l *Lock) Key() string { return l.key }

// Client is the client that made l.
func (l *Lock) Client() *Client { return l.c }

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
// owner that its Unlocks were not told of; ErrReentry; ErrUnsettled; ErrWrongType;
// ErrRestarted, with the ctx's, when ctx ended while WithRestartGuard kept it out;
// ErrClosed; the ctx's; the server's when it could not be reached for some seconds.
func (l *Lock) Lock(ctx context.Context) error {
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
func (l *Lock) LockLease(ctx context.Context, lease time.Duration) error {
	_, err := l.acquire(ctx, "lock", -1, lease)
	return err
}

// TryLock is Lock that gives up: with wait 0 after one attempt, with wait > 0
// after at most that time, with wait < 0 when ctx ends. lease 0 is kept by the
// watchdog, lease > 0 is fixed, as in LockLease.
//
// (false, nil) means that others had the lock at every attempt; ErrRestarted, that
// WithRestartGuard refused the last one. An attempt that
// is still unanswered when the wait is over is an error, ErrUnsettled, and undone.
func (l *Lock) TryLock(ctx context.Context, wait, lease time.Duration) (bool, error) {
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
func (l *Lock) Unlock(ctx context.Context) error {
	return l.do(ctx, opUnlock, func(who caller) error {
		e := l.c.entry(l.key)
		defer l.c.leave(e)
		return e.release(ctx, l.keys, who)
	})
}

// Extend gives the current hold a new lease, counted from now: longer or shorter
// than before, 1 ms to 10 years. 0 hands it to the watchdog. A shorter lease
// counts at once for Validity and Lost; the key in Redis ends at the latest when
// it would have ended without.
//
// Errors: ErrNotHeld, ErrLost, ErrInvalidLease, and as Lock. After ErrUnsettled
// the lease is what it was.
func (l *Lock) Extend(ctx context.Context, lease time.Duration) error {
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
		return e.extend(l.c.call(ctx), l.keys, who.owner, lease)
	})
}

// Validity is for how long the current owner's hold is proven: what is left by
// the monotonic and by the wall clock, whichever says less. 0 when it holds
// nothing or the hold is lost. It asks nobody, so it may be called before every
// write that the lock guards.
func (l *Lock) Validity(ctx context.Context) time.Duration {
	var left time.Duration
	l.look(ctx, func(h *hold) { left = h.left() })
	return left
}

// Lost returns a channel that is closed when the current owner's hold is lost,
// or its lease runs out. It is closed already when the owner holds nothing. An
// Unlock does not close it.
func (l *Lock) Lost(ctx context.Context) <-chan struct{} {
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
func (l *Lock) look(ctx context.Context, f func(*hold)) {
	who, err := callerIn(ctx)
	if err != nil || who.left || l.bad != nil {
		return
	}
	l.lookAt(who.owner, f)
}

// lookAt is look for any owner.
func (l *Lock) lookAt(o Owner, f func(*hold)) {
	e := l.c.find(l.key)
	if e == nil {
		return
	}
	defer l.c.leave(e)
	e.lock()
	defer e.unlock()
	if h := e.hold(o); h != nil {
		if now := e.c.clock(); h.rec.Left(now) == 0 {
			e.expire(h, now)
		}
		f(h)
	}
}

func (l *Lock) acquire(ctx context.Context, op string, wait, lease time.Duration) (bool, error) {
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
			name: l.name, keys: l.keys, owner: who.owner, self: who.self, lease: lease, limit: l.opt.maxHold,
			nonReentrant: l.opt.nonReentrant, began: time.Now(),
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
func (l *Lock) leaseFits(lease time.Duration) error {
	if lease > 0 && lease <= record.Margin(lease) {
		return tooShort(lease)
	}
	return nil
}

const opUnlock = "unlock"

// do runs an operation: it checks what all of them must, and wraps the error.
func (l *Lock) do(ctx context.Context, op string, f func(caller) error) error {
	if l.bad != nil {
		return l.wrap(op, "", l.bad)
	}
	who, err := callerIn(ctx)
	if err != nil {
		return l.wrap(op, who.owner, err)
	}
	if who.left && op != opUnlock {
		return l.wrap(op, who.owner, fmt.Errorf("%w: the Do that this ctx comes from has returned", ErrNotHeld))
	}
	if err := l.c.begin(); err != nil {
		return l.wrap(op, who.owner, err)
	}
	defer l.c.work.Done()
	return l.wrap(op, who.owner, f(who))
}

func (l *Lock) wrap(op string, o Owner, err error) error {
	if err == nil {
		return nil
	}
	return &Error{Op: op, Lock: l.name, Owner: o, Err: err}
}

// ForceUnlock removes the lock, whoever holds it, and tells waiters. It reports
// whether it was held. Holders of this client hear of it at once, others within
// a renewal period: until then they may still work. It is a tool for operators.
//
// It is not repeated when its answer is lost: ErrUnsettled then, and the lock may
// have been removed.
func (l *Lock) ForceUnlock(ctx context.Context) (bool, error) {
	removed := false
	err := l.do(ctx, "force unlock", func(caller) error {
		if ctx.Err() != nil {
			return ended(ctx)
		}
		e := l.c.entry(l.key)
		defer l.c.leave(e)
		k := l.c.call(ctx)
		defer k.stop()
		e.lock()
		defer e.unlock()
		if err := e.turn(k); err != nil {
			return err
		}
		f := &flight{}
		over := f.over()
		was := false
		vals := context.WithoutCancel(ctx)
		l.c.spawn(func() {
			a := l.c.runner.Send(vals, script.Force, 1, l.keys.key, l.keys.channel, l.c.sharded.publish())
			e.lock()
			defer e.unlock()
			was, f.err = e.forced(a)
			e.endTurn()
			f.settle()
		})
		e.unlock()
		err := k.wait(over)
		e.lock()
		if !f.settled {
			return both(ErrUnsettled, err)
		}
		removed = was
		return f.err
	})
	return removed, err
}

// forced deals with the answer to a ForceUnlock.
func (e *entry) forced(a script.Answer) (bool, error) {
	switch {
	case a.Fate == script.Unknown:
		return false, both(ErrUnsettled, a.Err)
	case script.WrongType(a.Err):
		return false, both(ErrWrongType, a.Err)
	case a.Err != nil:
		return false, a.Err
	case a.Text == "rwlock":
		return false, fmt.Errorf("%w: it is a read-write lock", ErrWrongType)
	case a.Text == "free":
		return false, nil
	case a.Text != "removed":
		return false, both(ErrUnsettled, script.BadReply(script.Force, a.Text).Err)
	}
	now := e.c.clock()
	for h := range e.eachHold {
		if !h.rec.Lost() {
			e.rec.Lose(h.rec, now)
			e.lose(h, errRemoved)
		}
	}
	e.wakeHead()
	return true, nil
}
