// Package multilock takes several locks as one: all of them, or none.
//
//	both, err := multilock.New(client.NewLock("from"), client.NewLock("to"))
//	...
//	err = both.Do(ctx, func(ctx context.Context) error {
//		return transfer(ctx) // ctx ends if one of them is lost
//	})
//
// # Order
//
// The members are taken one after another, in the order of their keys in Redis and
// not in the one that New was given. Groups on one server that overlap can so not
// wait for each other in a circle. Names may repeat over servers, where no order
// that all processes know exists, so a wait for a later member is bounded as well:
// when it is over, all members are given back, and it begins anew after a random
// pause. It is short where a member with the same key is held already, which is the
// only place where a circle can close, and the one that was waited for comes first
// then. What the group is given to wait is one budget for all of that.
//
// Who keeps one member for long makes groups that want it ask again and again, and
// others may come in between: a group is not served in the order of arrival.
//
// # Cost
//
// Each member is a lock of its own and is asked by itself: members on one server
// and slot are not taken in one round trip. That would need a second protocol
// beside Redisson's, for a few hundred microseconds. Taking n members by the
// watchdog is n script calls, one after another; with a lease it is n more, all at
// once, because the lease of all counts from the moment when the last was in.
// Unlock is n calls, all at once. Each member that others have costs one more.
package multilock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/relock-go/relock/rlock"
)

var _ rlock.Locker = (*MultiLock)(nil)

// MultiLock is a group of locks that are held together. It is reentrant, and safe
// for concurrent use. Make it with New.
//
// Who holds the group is the same as with a single lock: the owner in ctx, else the
// calling goroutine. What is held belongs to the object: two MultiLock objects with
// the same members are two groups, whose members nest in each other, as they nest
// in what their owner holds of them by itself. A member that the owner gives back
// past the group is missing from it, and the group does not notice before Unlock.
type MultiLock struct {
	name    string
	members []member // in the order in which they are taken; never changes

	// mu guards seats, and of each seat what its comment says. It is never held
	// across a call of a member.
	mu    sync.Mutex
	seats map[rlock.Owner]*seat
	most  int // so many seats are let be, see sweep
}

// New makes a group of locks: of this module, of several clients and servers, or
// others. It sends nothing. It is an error to give none, or one that is nil.
//
// The same lock twice is one member, the first: the same client, key and, of a
// read-write lock, half. So are Lock, FencedLock, FairLock and SpinLock of one name,
// which nest into each other: to have a token, name the FencedLock first. If one server
// turns out to be there twice, by two clients, every operation that meets it is
// ErrReentry.
//
// A type of the user's that embeds a lock is that lock. One that has methods of its own
// instead is the same only as itself, and nests in the lock behind it. Where it hides a
// half of a read-write lock, and the other half is hidden as well, name the write half
// first. A Locker that does not say its key and client is a server of its own, and is
// taken in the order of its name.
func New(locks ...rlock.Locker) (*MultiLock, error) {
	if len(locks) == 0 {
		return nil, errors.New("multilock: a group needs at least one lock")
	}
	g := &MultiLock{seats: make(map[rlock.Owner]*seat)}
	var names []string
	for i, l := range locks {
		if isNil(l) {
			return nil, fmt.Errorf("multilock: lock %d of %d is nil", i+1, len(locks))
		}
		m := newMember(l, i+1)
		if slices.ContainsFunc(g.members, m.same) {
			continue
		}
		g.members = append(g.members, m)
		names = append(names, m.Name())
	}
	g.name = strings.Join(names, ", ")
	slices.SortFunc(g.members, func(a, b member) int {
		return cmp.Or(cmp.Compare(a.key, b.key), cmp.Compare(a.half, b.half), cmp.Compare(a.place, b.place))
	})
	return g, nil
}

// Name is the names of the members, in the order in which New was given them.
func (g *MultiLock) Name() string { return g.name }

// Lock waits until the owner in ctx, else the calling goroutine, holds all members.
// Their watchdogs keep them until the last Unlock. An owner that holds the group
// enters once more, also where a member is NonReentrant, and needs one more Unlock.
// That asks nobody, unless the hold has a lease: see LockLease.
//
// ctx bounds the waiting, not the hold: ending it later releases nothing. After an
// error, a panic of a member or the end of ctx the members that were taken are
// given back, and the error names those for which that failed: they end with their
// lease, or go on being released in the background.
//
// Errors name the member, by its place among New's arguments and its name, and are
// those of the member's Lock; and ErrLost if the group was lost and its Unlocks are
// due. Five minutes after the loss was seen it makes them itself, for an owner that may
// never come back: until then the members that are left stay locked. A member that cannot be reached is an error after one attempt, for a
// go-redis client when its ReadTimeout is over.
func (g *MultiLock) Lock(ctx context.Context) error {
	_, err := g.lock(ctx, "lock", -1, 0)
	return err
}

// LockLease is Lock for a hold that ends by itself after lease, unless an Unlock
// comes first: 1 ms to 10 years, 0 is Lock. The lease counts from when the last
// member was in; those that are there before are kept alive meanwhile. A lease that
// is over before all members can be taken, three times in a row, is
// ErrInvalidLease.
//
// A nested LockLease only lengthens the lease, and asks the members if it does. If one
// of them fails, the others are given back the lease that they had, as by Extend. A
// lease that ran out is no error for the owner's next Lock; an Unlock of it is
// ErrLost, and after five minutes perhaps ErrNotHeld.
func (g *MultiLock) LockLease(ctx context.Context, lease time.Duration) error {
	_, err := g.lock(ctx, "lock", -1, lease)
	return err
}

// TryLock is Lock that gives up: with wait 0 after one attempt at each member, with
// wait > 0 after at most that time, with wait < 0 when ctx ends. Giving back what
// was taken is not counted. lease 0 is kept by the watchdogs, lease > 0 is fixed,
// as in LockLease.
//
// (false, nil) means that others had a member at every attempt. Another goroutine
// with the same owner that is about to take the group, or to give it back, counts as
// others. A
// member that is still unanswered when the wait is over is an error, ErrUnsettled,
// and undone.
func (g *MultiLock) TryLock(ctx context.Context, wait, lease time.Duration) (bool, error) {
	return g.lock(ctx, "trylock", wait, lease)
}

// Unlock gives back one Lock of the owner in ctx, else of the calling goroutine. The
// last one unlocks all members at once, whatever becomes of each, and joins their
// errors.
//
// It works with a ctx that has ended, and ending ctx does not stop it. nil means
// that all members were held until now. ErrLost: one of them was lost before, or the
// lease ran out; what another goroutine of the owner has locked since stays.
// ErrNotHeld: the owner does not hold the group, and nothing was changed.
// ErrUnsettled: a member did not answer within its WithReleaseTimeout; its release goes
// on. The last Unlock waits for nothing else: an Extend by another goroutine of the owner
// is called off and ErrNotHeld, and a nested Lock begins anew.
func (g *MultiLock) Unlock(ctx context.Context) error {
	owner := rlock.OwnerOf(ctx)
	return g.wrap("unlock", owner, g.leave(ctx, owner))
}

// Extend gives the current hold a new lease, counted from now: longer or shorter
// than before, 1 ms to 10 years. 0 hands it to the watchdogs. It asks all members
// at once. If one of them fails the others are given back the lease that they had; if
// that is over by then, all are given back, and the group is lost.
//
// What the owner held of a member before the group is never shortened, nor taken from
// its watchdog; it may be lengthened, as by a nested LockLease, and stays so. What it
// takes of a member inside the group shares the group's lease.
//
// Errors: ErrNotHeld, ErrLost, ErrInvalidLease, and as Lock.
func (g *MultiLock) Extend(ctx context.Context, lease time.Duration) error {
	owner := rlock.OwnerOf(ctx)
	return g.wrap("extend", owner, g.extend(ctx, owner, lease))
}

// Validity is for how long the current owner's hold of all members is proven: that
// of the member with the least. 0 when it does not hold the group, or one member is
// lost. It asks nobody.
func (g *MultiLock) Validity(ctx context.Context) time.Duration {
	owner := rlock.OwnerOf(ctx)
	h := g.held(owner)
	if h == nil {
		return 0
	}
	left := h.left(ctx)
	if left == 0 {
		g.noteLoss(owner, h)
	}
	return left
}

// Lost returns a channel that is closed when the first member of the current
// owner's hold is lost, or the lease runs out. It is closed already when the owner
// does not hold the group. An Unlock does not close it.
//
// The first call for a hold starts a goroutine, which ends with the last Unlock or
// the loss.
func (g *MultiLock) Lost(ctx context.Context) <-chan struct{} {
	owner := rlock.OwnerOf(ctx)
	h := g.held(owner)
	if h == nil {
		return closed
	}
	if h.left(ctx) == 0 {
		g.noteLoss(owner, h)
		return closed
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if h.lost == nil {
		h.lost = make(chan struct{})
		go func() {
			if h.awaitLoss(h.over) != nil {
				close(h.lost)
				g.noteLoss(owner, h)
			}
		}()
	}
	return h.lost
}

func (g *MultiLock) wrap(op string, o rlock.Owner, err error) error {
	if err == nil {
		return nil
	}
	return &rlock.Error{Op: op, Lock: g.name, Owner: o, Err: err}
}
