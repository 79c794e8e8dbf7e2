package redlock

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"sync"
	"time"

	"github.com/relock-go/relock/rlock"
)

// RedLock is a reentrant lock that is held when a majority of its servers has granted
// it. What is held belongs to the object. It is safe for concurrent use. Make it with
// New.
type RedLock struct {
	opt     options
	members []*member
	quorum  int

	// mu guards the fields below, the holds, the rounds and the members' turns. It is
	// never held while a member is called: that may run callbacks of the user's.
	mu     sync.Mutex
	holds  map[rlock.Owner]*hold // held and lost, until their last Unlock
	asking *attempt              // the one that is not settled yet
	doubts bool                  // whether all servers are different: the next success hears all of them
}

var _ rlock.Locker = (*RedLock)(nil)

// member is the lock at one of the servers, the node.
type member struct {
	rlock.Locker
	place  int    // in the list, from 1
	server server // nil: a Locker of another make, taken for a server of its own

	// turns are the calls that are open, in order. The first one is under way. Guarded
	// by RedLock.mu.
	turns []*turn

	// apart tells of each member, by its place less one, whether it has held the lock at
	// the same time as this one: then it is at another server. Of this one itself it tells
	// whether it has been a part of a hold. Guarded by RedLock.mu.
	apart []bool
}

// part is a node in a hold: who else has the same locks, in another object, may have it
// there too, for the same owner.
type part struct {
	*member
	lost <-chan struct{} // of the node's hold that was granted; nil: there is none
}

func (p part) isLost() bool {
	select {
	case <-p.lost:
		return true
	default:
		return false
	}
}

// left is for how long what the node granted is proven. A newer hold of the same owner
// does not count.
func (p part) left(ctx context.Context) time.Duration {
	if p.isLost() {
		return 0
	}
	return p.Validity(ctx)
}

// held is the answer of a node that has the hold.
func (p part) held(ctx context.Context) answer {
	now := time.Now() // before the look: it must not seem longer
	left := p.left(ctx)
	return answer{part: p, yes: true, left: left, until: now.Add(left)}
}

// giveBack unlocks the node once. If what it granted is lost, and the owner holds it
// anew, that is another object's and stays.
func (p part) giveBack(ctx context.Context) error {
	if p.isLost() && p.Validity(ctx) > 0 {
		return fmt.Errorf("%w: the owner has got it again since", rlock.ErrLost)
	}
	return p.Unlock(ctx)
}

// server is what every lock of package rlock has beside Locker.
type server interface {
	Key() string
	Client() *rlock.Client
	Info(ctx context.Context) (rlock.Info, error)
}

// New returns the lock that is held at a majority of locks, which are at independent
// servers. There have to be three or more, and an odd number: one more tolerates the
// loss of no more servers, and makes a majority larger. New sends nothing.
//
// All have to have the same key, and each a client of its own; two with one ID are an
// error too, for their requests could not be told apart. That two clients lead to the
// same server is then found by the first Lock to which both answer, or by one of the next,
// which fails. The read half of a read-write lock is refused: a RedLock lets one owner
// in at a time, so its readers would keep each other out. For the same reason no other
// lock that several may hold at once is of use.
func New(locks []rlock.Locker, opts ...Option) (*RedLock, error) {
	r := &RedLock{opt: defaults(), quorum: len(locks)/2 + 1, holds: map[rlock.Owner]*hold{}, doubts: true}
	switch n := len(locks); {
	case n < 3:
		return nil, fmt.Errorf("redlock: New: %d locks; a majority that tolerates a loss takes three servers or more", n)
	case n%2 == 0:
		return nil, fmt.Errorf("redlock: New: %d locks; an even number tolerates the loss of no more servers than %d do: "+
			"leave one out or add one", n, n-1)
	}
	for i, l := range locks {
		if v := reflect.ValueOf(l); !v.IsValid() || v.Kind() == reflect.Pointer && v.IsNil() {
			return nil, fmt.Errorf("redlock: New: lock %d is nil", i+1)
		}
		if _, reads := l.(*rlock.ReadLock); reads {
			return nil, fmt.Errorf("redlock: New: lock %d is the read half of a read-write lock: "+
				"a RedLock lets one owner in at a time, so it takes locks that exclude", i+1)
		}
		m := &member{Locker: l, place: i + 1, apart: make([]bool, len(locks))}
		m.server, _ = l.(server)
		for _, other := range r.members {
			switch {
			case m.server == nil || other.server == nil:
			case m.server.Client().ID() == other.server.Client().ID():
				return nil, fmt.Errorf("redlock: New: locks %d and %d are of one client, or of two with one ID: "+
					"each server needs a client of its own", other.place, m.place)
			case m.server.Key() != other.server.Key():
				return nil, fmt.Errorf("redlock: New: locks %d and %d have the keys %q and %q: give them one name, "+
					"or a server that is there twice would have two votes and not be found", other.place, m.place,
					other.server.Key(), m.server.Key())
			}
		}
		r.members = append(r.members, m)
	}
	for _, o := range opts {
		if o == nil {
			return nil, errors.New("redlock: New: an option is nil")
		}
		if err := o(&r.opt); err != nil {
			return nil, fmt.Errorf("redlock: New: %w", err)
		}
	}
	return r, nil
}

// Name is the name of the first server's lock.
func (r *RedLock) Name() string {
	if r.made() != nil {
		return ""
	}
	return r.members[0].Name()
}

// made is the error of a RedLock that New has not made.
func (r *RedLock) made() error {
	if r == nil || len(r.members) == 0 {
		return errNotMade
	}
	return nil
}

var errNotMade = errors.New("redlock: it has no servers; make it with redlock.New")

// Lock waits until the owner in ctx, else the calling goroutine, holds r. The
// watchdogs of the members' clients keep the hold until the last Unlock. An owner that
// is inside already enters once more, and needs one more Unlock; no server is asked,
// unless the hold has a lease: the watchdogs take it over first, at a majority.
//
// ctx bounds the waiting, not the hold. When it ends, Lock returns at once, and what
// the servers may have granted is given back in the background: after an error nothing
// is held. A ctx that has ended already sends nothing.
//
// While others have the lock it asks again after a random delay, see WithRetryDelay,
// and so it does while rlock.WithRestartGuard keeps it out. If a majority of the
// servers fails otherwise, Lock returns their errors, joined, within NodeTimeout; within
// twice that if another owner of r was asking when it came. Other errors: ErrLost after a
// loss of this owner that its Unlocks were not told of; ErrReentry, when the goroutine
// holds r as itself and ctx carries another owner; ErrUnsettled or ErrRestarted with
// ctx's; an error that says that two members are the same server.
func (r *RedLock) Lock(ctx context.Context) error {
	_, err := r.acquire(ctx, "lock", -1, 0)
	return err
}

// LockLease is Lock for a hold that ends by itself after lease, unless an Unlock comes
// first: 1 ms to 10 years. It is valid for the lease without the time that passed since
// the first request of the attempt that got it, and without the drift, see
// WithDriftFactor; a lease that these use up is ErrInvalidLease. 0 is Lock.
//
// A nested LockLease only lengthens the lease: if its own is longer than what is left, a
// majority of the servers has to agree, as in Extend, or it is an error and the owner is
// inside as often as before. Otherwise it asks no server. A lease that ran out is no error for the owner's next Lock; an Unlock of it is ErrLost.
func (r *RedLock) LockLease(ctx context.Context, lease time.Duration) error {
	_, err := r.acquire(ctx, "lock", -1, lease)
	return err
}

// TryLock is Lock that gives up: with wait 0 after one attempt, with wait > 0 after at
// most that time, with wait < 0 when ctx ends. lease is as in LockLease.
//
// (false, nil) means that at every attempt others had so many servers that no majority
// was left, and that a majority did answer. It does not mean that they had a majority:
// several who want the lock at the same moment can split the servers among them.
// ErrRestarted: rlock.WithRestartGuard was what kept the last attempt from a majority.
// An attempt that is still unanswered when the wait is over is ErrUnsettled, and undone.
// None but the first begins so late that it could be.
func (r *RedLock) TryLock(ctx context.Context, wait, lease time.Duration) (bool, error) {
	return r.acquire(ctx, "trylock", wait, lease)
}

// Validity is for how long the current owner's hold is proven; 0 when it holds nothing
// or the hold is lost. With a lease it is what is left of it, without the drift, as long
// as a majority of the holds is valid by itself. Under the watchdog it is what the best
// majority of the holds has left, without the drift. It asks nobody.
func (r *RedLock) Validity(ctx context.Context) time.Duration {
	if h := r.hold(rlock.OwnerOf(ctx)); h != nil {
		return h.left()
	}
	return 0
}

// Lost returns a channel that is closed when the current owner's hold is lost, or its
// lease runs out: that is when fewer than a majority of the holds are valid. It is
// closed already when the owner holds nothing. An Unlock does not close it.
func (r *RedLock) Lost(ctx context.Context) <-chan struct{} {
	if h := r.hold(rlock.OwnerOf(ctx)); h != nil {
		h.watch()
		return h.gone
	}
	return closedChan
}

var closedChan = func() <-chan struct{} { c := make(chan struct{}); close(c); return c }()

// hold returns owner's hold, held or lost, or nil.
func (r *RedLock) hold(owner rlock.Owner) *hold {
	if r.made() != nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.holds[owner]
}

func (r *RedLock) wrap(op string, owner rlock.Owner, err error) error {
	if err == nil {
		return nil
	}
	return &rlock.Error{Op: op, Lock: r.Name(), Owner: owner, Err: err}
}

// ended is the error of a ctx that is over, with its cause in the chain.
func ended(ctx context.Context) error {
	err := ctx.Err()
	if cause := context.Cause(ctx); cause != nil && !errors.Is(err, cause) {
		return fmt.Errorf("%w: %w", err, cause)
	}
	return err
}
