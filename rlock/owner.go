package rlock

import (
	"context"
	"fmt"
	"strconv"
	"sync/atomic"

	"github.com/relock-go/relock/internal/owner"
)

// Owner is on whose behalf a lock is taken: 1 to 128 of letters, digits, '-',
// '_' and '.'. Whoever has the same owner may re-enter and unlock.
//
// Without an owner in ctx it is the calling goroutine, as its decimal id. A
// goroutine cannot unlock what another one locked; work that moves between
// goroutines takes an owner of its own along, see NewOwner and WithOwner.
type Owner string

// NewOwner returns an owner that nobody else has. It is never all digits: those
// are goroutines.
func NewOwner() Owner { return Owner(owner.New()) }

// WithOwner returns a ctx that carries o. All goroutines that use it are one
// owner: they hold a lock together, and each Lock needs an Unlock. An owner that
// is not legal is reported by the operation that meets it.
func WithOwner(ctx context.Context, o Owner) context.Context {
	return context.WithValue(ctx, ownerKey{}, &carried{owner: o})
}

// OwnerOf returns the owner in ctx, else the calling goroutine.
func OwnerOf(ctx context.Context) Owner {
	if c, ok := ctx.Value(ownerKey{}).(*carried); ok {
		return c.owner
	}
	return goroutine()
}

type ownerKey struct{}

// carried is an owner in a ctx.
type carried struct {
	owner Owner
	// over is set when the Do whose ctx this is has returned. The ctx may have
	// leaked by then, and its owner may be inside again.
	over atomic.Bool
}

func goroutine() Owner { return Owner(strconv.FormatInt(owner.Goroutine(), 10)) }

// ownerIn is OwnerOf for an operation: it checks the owner. self is the calling
// goroutine when ctx carries an owner, else empty.
func ownerIn(ctx context.Context) (o, self Owner, err error) {
	c, ok := ctx.Value(ownerKey{}).(*carried)
	if !ok {
		return goroutine(), "", nil
	}
	if err := owner.Check(string(c.owner)); err != nil {
		return c.owner, "", fmt.Errorf("%w: %w", ErrInvalidOwner, err)
	}
	if c.over.Load() {
		return c.owner, "", fmt.Errorf("%w: the Do that this ctx comes from has returned", ErrNotHeld)
	}
	return c.owner, goroutine(), nil
}
