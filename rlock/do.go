package rlock

import (
	"context"
	"errors"
	"slices"
	"time"
)

// Do locks l, runs fn and unlocks, also when fn panics or ends its goroutine.
//
// The ctx of fn carries the owner, so goroutines that fn starts with it share
// the hold. It ends with ctx; with cause ErrLost, ErrMaxHold or ErrClosed when the
// hold is lost; and when Do returns: a lock call with it fails after that, but for
// the Unlock of what a goroutine has locked with it before. It is advice: between its end and fn's next look somebody else may be inside. Ask
// Validity before writes that matter.
//
// In the Do of a FencedLock, TokenFrom reads the token from ctx.
//
// Do returns fn's error joined with Unlock's. ErrLost is among them whenever the
// hold was lost before fn returned. An error of Lock comes alone, and fn was not
// run.
func (l *lock) Do(ctx context.Context, fn func(ctx context.Context) error) (err error) {
	if err := l.Lock(ctx); err != nil {
		return err
	}
	o := OwnerOf(ctx)
	s := &scope{}
	s.carried.owner = o
	inner, cancel := context.WithCancelCause(context.WithValue(ctx, ownerKey{}, &s.carried))
	s.cancel = cancel
	l.enterScope(o, s)

	returned := false
	defer func() {
		now := time.Now()
		s.carried.over.Store(&now)
		l.leaveScope(o, s)
		cancel(context.Canceled)
		lostErr := s.lost()
		unlockErr := l.Unlock(WithOwner(ctx, o))
		if !errors.Is(unlockErr, ErrLost) {
			// fn may have made the Unlocks of a lost hold itself, and locked anew.
			unlockErr = errors.Join(unlockErr, lostErr)
		}
		if !returned {
			// A panic, or Goexit, is on its way and must not be covered.
			if unlockErr != nil {
				l.c.opt.logger.Error("rlock: unlock after a panic failed", "lock", l.name, "err", unlockErr)
			}
			return
		}
		err = errors.Join(err, unlockErr)
	}()
	err = fn(inner)
	returned = true
	return err
}

func (l *lock) enterScope(o Owner, s *scope) {
	e := l.c.entry(l.key)
	defer l.c.leave(e)
	e.lock()
	defer e.unlock()
	h := e.hold(o, l.kind.half())
	s.carried.in = h
	if h == nil || h.rec.Lost() {
		cause := ErrLost
		if h != nil {
			cause = h.lostBy()
		}
		e.later(func() { s.cancel(cause) })
		return
	}
	if l.kind == fenced {
		s.carried.token = h.token()
	}
	t := h.tied()
	t.scopes = append(t.scopes, s)
}

func (l *lock) leaveScope(o Owner, s *scope) {
	e := l.c.entry(l.key)
	defer l.c.leave(e)
	e.lock()
	defer e.unlock()
	for h := range e.eachHold {
		if h.ties != nil {
			h.scopes = slices.DeleteFunc(h.scopes, func(other *scope) bool { return other == s })
		}
	}
}

// lost is the error of the hold that the Do began with, if that was lost.
func (s *scope) lost() error {
	h := s.carried.in
	if h == nil {
		return ErrLost
	}
	h.e.lock()
	defer h.e.unlock()
	if h.lostBy() != nil {
		return h.lostError()
	}
	return nil
}
