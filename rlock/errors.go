package rlock

import (
	"context"
	"errors"
	"fmt"
)

// The errors of this package. Every operation wraps them in an Error; compare
// with errors.Is, never with ==.
var (
	// ErrNotHeld: the owner does not hold the lock. Nothing was changed. Ask for
	// the lock first, or carry the owner along with WithOwner.
	ErrNotHeld = errors.New("rlock: not held by this owner")

	// ErrLost: the hold could not be proven any more, or Redis did not have it.
	// Somebody else may be inside. Stop what the lock guards, then call Unlock
	// as often as Lock was called; the owner can take the lock again after that.
	ErrLost = errors.New("rlock: lock lost")

	// ErrClosed: the client is closed. What it held was released, or ends with
	// its lease.
	ErrClosed = errors.New("rlock: client closed")

	// ErrUnsettled: Redis did not answer in time, so the request may have run or
	// not. After Lock and TryLock nothing is held: a grant is undone in the
	// background. After Unlock the release goes on in the background. After
	// Extend the lease is what it was, in Redis perhaps longer.
	ErrUnsettled = errors.New("rlock: outcome unknown")

	// ErrReentry: the owner holds the lock already and may not enter again, or
	// the goroutine would wait for itself. What is held stays so, as deep as before.
	ErrReentry = errors.New("rlock: already inside")

	// ErrRestarted: the server has not run for as long as WithRestartGuard wants,
	// when the wait was over. Nothing is held, and nothing was changed. Nobody held
	// the lock in Redis, but somebody may still work under one that the server has
	// forgotten. Try again later.
	ErrRestarted = errors.New("rlock: server restarted not long ago")

	// ErrUpgrade: the owner is a reader of this lock and asks to write. It would wait
	// for itself for ever. It still reads. Unlock the read half first, or take the write
	// half first.
	ErrUpgrade = errors.New("rlock: a reader cannot become the writer")

	// ErrReplicas: fewer replicas than WithReplicaAcks wants have acknowledged the
	// acquisition in time. It is undone, nothing is held.
	ErrReplicas = errors.New("rlock: not enough replicas acknowledged")

	// ErrMaxHold: the hold came to the end that WithMaxHold sets. It is lost, so
	// ErrLost is in the chain too where a call returns it, and its Unlocks are due.
	ErrMaxHold = errors.New("rlock: longest hold time reached")

	// ErrInvalidName: the name is empty or longer than 1,024 bytes, after
	// mapping, or a cluster would keep its key and its channel in different slots.
	// Nothing was sent.
	ErrInvalidName = errors.New("rlock: invalid lock name")

	// ErrInvalidLease: the lease is out of range, or shorter than the round trip
	// to Redis. Nothing is held.
	ErrInvalidLease = errors.New("rlock: invalid lease")

	// ErrInvalidOwner: the owner in ctx is not 1 to 128 of letters, digits, '-',
	// '_', '.'. Nothing was sent.
	ErrInvalidOwner = errors.New("rlock: invalid owner")

	// ErrWrongType: the key is not what this kind of lock makes. Nothing was
	// changed. Choose another name, or remove the key. A hash counts as somebody's lock
	// if it has a TTL, or a field with a colon in it.
	ErrWrongType = errors.New("rlock: key is not a lock of this kind, choose another name or remove it")
)

// Error is what every operation returns when it fails. errors.Is and errors.As
// look through it, at this package's errors, the ctx's and the server's.
type Error struct {
	Op    string // "lock", "unlock", "extend", ...
	Lock  string // the name, before mapping
	Owner Owner  // on whose behalf; empty where there is none
	Err   error
}

func (e *Error) Error() string {
	if e.Owner == "" {
		return fmt.Sprintf("rlock: %s %q: %v", e.Op, e.Lock, e.Err)
	}
	return fmt.Sprintf("rlock: %s %q as owner %s: %v", e.Op, e.Lock, e.Owner, e.Err)
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// both is an error that is what and why at once: errors.Is finds each. why may be
// nil.
func both(what, why error) error {
	switch {
	case why == nil:
		return what
	case errors.Is(why, what):
		return why
	}
	return fmt.Errorf("%w: %w", what, why)
}

// firstOf is the first error that is one.
func firstOf(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// ended is the error of a ctx that is over, with its cause in the chain.
func ended(ctx context.Context) error {
	err := ctx.Err()
	if cause := context.Cause(ctx); cause != nil && !errors.Is(err, cause) {
		return fmt.Errorf("%w: %w", err, cause)
	}
	return err
}
