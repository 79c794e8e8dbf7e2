package rlock

import (
	"context"
	"fmt"

	"github.com/relock-go/relock/internal/script"
)

// ForceUnlock removes the lock, whoever holds it, and tells waiters. It reports
// whether it was held. Holders of this client hear of it at once, others within
// a renewal period: until then they may still work. It is a tool for operators.
//
// Of a read-write lock it removes the holders of this half: a ReadLock's removes all
// readers and leaves a writer alone, a WriteLock's removes a writer, with what it reads
// beside. A fair lock's queue stays.
//
// It is not repeated when its answer is lost: ErrUnsettled then, and the lock may
// have been removed.
func (l *lock) ForceUnlock(ctx context.Context) (bool, error) {
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
		if err := e.turn(k, true); err != nil {
			return err
		}
		f := &flight{}
		over := f.over()
		was := false
		vals := context.WithoutCancel(ctx)
		l.c.spawn(func() {
			defer l.c.tidy(e) // the caller may have left
			a := l.sendForce(vals)
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

func (l *lock) sendForce(ctx context.Context) script.Answer {
	c, verb := l.c, l.c.sharded.publish()
	switch l.kind {
	case reading:
		return c.runner.Send(ctx, script.RWForce, 1, l.key, script.RWChannel(l.key), verb, "read", script.HoldBase(l.key))
	case writing:
		return c.runner.Send(ctx, script.RWForce, 1, l.key, script.RWChannel(l.key), verb, "write", script.HoldBase(l.key))
	case fair:
		return c.runner.Send(ctx, script.Force, 1, l.key, l.keys.channel, verb, script.QueueKey(l.key), script.ScoresKey(l.key))
	}
	return c.runner.Send(ctx, script.Force, 1, l.key, l.keys.channel, verb)
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
	case a.Text == "lock":
		return false, fmt.Errorf("%w: it is no read-write lock", ErrWrongType)
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
