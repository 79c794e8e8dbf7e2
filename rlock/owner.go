package rlock

import (
	"context"
	"fmt"
	"strconv"
	"sync/atomic"
	"time"

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
// owner: they hold a lock together, and each Lock needs an Unlock. An owner of
// digits alone is the goroutine of that id: a name of your own, such as an order
// number, needs a letter. An owner that
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
	// in is the hold of the Do whose ctx this is; nil for WithOwner.
	in *hold
	// token is a FencedLock's, 0 when there is none. It does not change.
	token uint64
	// over is when that Do returned, nil before. The ctx may have leaked by then, and
	// its owner may be inside again.
	over atomic.Pointer[time.Time]
}

func goroutine() Owner { return Owner(strconv.FormatInt(owner.Goroutine(), 10)) }

// caller is on whose behalf an operation runs.
type caller struct {
	owner Owner
	self  Owner // the calling goroutine, when ctx carries an owner; else empty
	// left is when the Do returned that ctx comes from, nil: none has. Only Unlock works
	// then, and only for what was locked before.
	left *time.Time
}

// callerIn is OwnerOf for an operation.
func callerIn(ctx context.Context) (caller, error) {
	c, ok := ctx.Value(ownerKey{}).(*carried)
	if !ok {
		return caller{owner: goroutine()}, nil
	}
	who := caller{owner: c.owner, self: goroutine(), left: c.over.Load()}
	if err := owner.Check(string(c.owner)); err != nil {
		return who, fmt.Errorf("%w: %w", ErrInvalidOwner, err)
	}
	return who, nil
}
