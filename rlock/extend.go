package rlock

import (
	"time"

	"github.com/relock-go/relock/internal/record"
)

// extend gives owner's hold a new lease.
func (e *entry) extend(k *call, names *keys, owner Owner, half record.Half, lease time.Duration) error {
	e.lockAs(names)
	defer e.unlock()
	for {
		h := e.hold(owner, half)
		if h == nil {
			return e.notHeld(owner)
		}
		if now := e.c.clock(); h.rec.Left(now) == 0 {
			e.expire(h, now)
		}
		if h.rec.Lost() {
			return h.lostError()
		}
		if h.left() == 0 {
			return e.notHeld(owner)
		}
		if err := e.turn(k, true); err != nil {
			return err
		}
		if e.hold(owner, half) != h || h.rec.Left(e.c.clock()) == 0 {
			e.endTurn()
			continue
		}
		q := e.rec.Extend(h.rec, lease)
		f := e.launch(k, &flight{kind: keeping, q: q, until: time.Now().Add(k.persist), h: h})
		if err := e.await(k, f); err != nil {
			return err
		}
		if f.verdict == record.Lost {
			return h.lostError()
		}
		return nil
	}
}
