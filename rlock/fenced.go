package rlock

import (
	"context"
	"fmt"
)

// FencedLock is a Lock whose every hold has a fencing token: a number that is higher
// than those of all holds before it. Write it along with what the lock guards, and have
// the resource refuse a lower one: then a holder that was paused past its lease cannot
// overwrite the work of the next.
//
// The token is the last one plus 1, or the Redis server's time in microseconds since
// 1970 if that is more: so tokens go on rising when Redis has lost its data, as long as
// the server's clock is not set back. It fits into 53 bits until the year 2255. Redisson's
// getFencedLock counts on from it.
//
// A nested Lock has the token of the hold. A Lock or SpinLock on the same name draws
// none; a FencedLock that is locked inside one draws a token then.
type FencedLock struct{ lock }

// NewFencedLock returns the fenced lock of that name. See NewLock.
func (c *Client) NewFencedLock(name string, opts ...LockOption) *FencedLock {
	return &FencedLock{c.newLock(fenced, name, opts)}
}

// Token is the fencing token of the current owner's hold, above 0. It asks nobody.
// ErrNotHeld: the owner holds nothing, or holds the name through another kind of lock
// only. ErrLost: the hold is lost.
func (l *FencedLock) Token(ctx context.Context) (uint64, error) {
	var token uint64
	err := l.do(ctx, "token", func(who caller) error {
		err := fmt.Errorf("%w: owner %s has no token here; lock the FencedLock first", ErrNotHeld, who.owner)
		l.lookAt(who.owner, func(h *hold) {
			switch {
			case h.rec.Lost():
				err = h.lostError()
			case h.left() > 0 && h.token() > 0:
				token, err = h.token(), nil
			}
		})
		return err
	})
	return token, err
}

// TokenFrom is the fencing token of the hold that the Do of a FencedLock gave ctx to its
// function for. It reports false for any other ctx.
func TokenFrom(ctx context.Context) (uint64, bool) {
	c, ok := ctx.Value(ownerKey{}).(*carried)
	if !ok || c.token == 0 {
		return 0, false
	}
	return c.token, true
}
