package rlock

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/relock-go/relock/internal/script"
)

// Info is who holds a lock and who queues, as Redis has it.
type Info struct {
	Kind    string        // what stands in Redis: "lock", "rwlock", "" when free
	Holders []Holder      // usually one; the readers of a read-write lock
	TTL     time.Duration // 0 when free, -1 when the key has no expiry
	Queue   []Holder      // a fair lock's waiters in order; Depth 0
}

// Holder is one owner in Redis.
type Holder struct {
	Client string // the client's id
	Owner  Owner  // of another client: as it stands there
	Depth  int    // hold count
	Mode   string // "", "read" or "write"
}

// IsLocked asks Redis whether anybody holds the lock. Like all questions it is not
// repeated by this package: an error is ErrWrongType, ErrInvalidName, ErrInvalidOwner,
// ErrClosed, the ctx's, at whose end it returns at once, or go-redis's, which tries for as
// long as its options say. A half of a read-write lock is
// locked when somebody holds that half.
func (l *lock) IsLocked(ctx context.Context) (bool, error) {
	return ask(ctx, l, "is locked", func(ctx context.Context, _ Owner) (bool, error) {
		s, err := l.stands(ctx)
		switch l.kind {
		case reading: // a writer that reads too has a field more
			return s.Fields["mode"] == "read" || s.Fields["mode"] == "write" && len(s.Fields) > 2, err
		case writing:
			return s.Fields["mode"] == "write", err
		}
		return len(s.Fields) > 0, err
	})
}

// IsHeld asks Redis whether the owner in ctx, else the calling goroutine, holds
// the lock. A hold that is lost here is false, whatever Redis says. Errors are as of
// IsLocked.
func (l *lock) IsHeld(ctx context.Context) (bool, error) {
	n, err := ask(ctx, l, "is held", l.count)
	return n > 0, err
}

// IsHeldBy asks Redis whether owner o of this client holds the lock. A hold that
// is lost here is false, whatever Redis says. Errors are as of IsLocked.
func (l *lock) IsHeldBy(ctx context.Context, o Owner) (bool, error) {
	n, err := ask(WithOwner(ctx, o), l, "is held by", l.count)
	return n > 0, err
}

// HoldCount asks Redis how often the owner in ctx, else the calling goroutine,
// has entered. 0 when Redis does not have its field, or the hold is lost here. Errors
// are as of IsLocked.
func (l *lock) HoldCount(ctx context.Context) (int, error) {
	return ask(ctx, l, "hold count", l.count)
}

// TTL asks Redis how long the lock's key lasts: 0 when it is free, -1 when it has
// no expiry. Errors are as of IsLocked.
func (l *lock) TTL(ctx context.Context) (time.Duration, error) {
	info, err := ask(ctx, l, "ttl", l.read)
	return info.TTL, err
}

// Info asks Redis who holds the lock, for operators and composites. Redis may
// have moved on when it returns. Errors are as of IsLocked.
func (l *lock) Info(ctx context.Context) (Info, error) { return ask(ctx, l, "info", l.read) }

// count is the depth of o's field.
func (l *lock) count(ctx context.Context, o Owner) (int, error) {
	field, lost, here := l.c.opt.id+":"+string(o), false, 0
	if l.kind == writing {
		field += ":write"
	}
	look := func(h *hold) {
		if field, lost, here = h.rec.Field, h.left() == 0, 0; h.rec.Dirty() {
			here = int(h.rec.Depth) // Redis will have it so, when it was mended
		}
	}
	if l.lookAt(o, look); lost || l.knows(field, o) {
		return 0, nil
	}
	asked := field
	s, err := l.stands(ctx)
	if err != nil {
		return 0, err
	}
	text, stands := s.Fields[asked]
	if !stands || l.kind.rw() != (s.Fields["mode"] != "") {
		return 0, nil
	}
	// Redis took a moment: the hold may be lost, or another one, by now.
	if l.lookAt(o, look); lost || field != asked {
		return 0, nil
	}
	depth, err := strconv.Atoi(text)
	if err != nil {
		return 0, both(ErrWrongType, err)
	}
	if here > 0 {
		return here, nil
	}
	return depth, nil
}

// knows tells whether field is one of this client's that o does not hold: it is
// left over, or that of another owner with a number behind it.
func (l *lock) knows(field string, o Owner) bool {
	e := l.c.find(l.key)
	if e == nil {
		return false
	}
	defer l.c.leave(e)
	e.lock()
	defer e.unlock()
	return e.rec.Knows(field, string(o))
}

// stands is one consistent look at the key.
func (l *lock) stands(ctx context.Context) (script.Standing, error) {
	queue, base := "", ""
	switch {
	case l.kind == fair:
		queue = script.QueueKey(l.key)
	case l.kind.rw():
		base = script.HoldBase(l.key)
	}
	s, err := l.c.runner.Read(ctx, l.keys.key, queue, base)
	if err == nil && s.TTL == -1 && !slices.ContainsFunc(slices.Collect(maps.Keys(s.Fields)), isOwners) {
		return s, fmt.Errorf("%w: the hash that stands there has no fields of a lock", ErrWrongType)
	}
	return s, err
}

// isOwners tells whether a field is like an owner's, <client>:<owner>.
func isOwners(field string) bool { return strings.Contains(field, ":") }

// read is stands for users.
func (l *lock) read(ctx context.Context, _ Owner) (Info, error) {
	s, err := l.stands(ctx)
	if err != nil {
		return Info{}, err
	}
	var info Info
	for _, field := range s.Queue {
		if h, ok := l.holder(field, "0", "lock"); ok {
			info.Queue = append(info.Queue, h)
		}
	}
	if len(s.Fields) == 0 {
		return info, nil
	}
	if info.TTL = time.Duration(s.TTL) * time.Millisecond; s.TTL < 0 {
		info.TTL = -1
	}
	info.Kind = "lock"
	if s.Fields["mode"] != "" {
		info.Kind = "rwlock"
	}
	for field, value := range s.Fields {
		if h, ok := l.holder(field, value, info.Kind); ok {
			info.Holders = append(info.Holders, h)
		}
	}
	return info, nil
}

// holder reads one field of the hash. Peers may keep other things in it.
func (l *lock) holder(field, value, kind string) (Holder, bool) {
	client, owner, ok := strings.Cut(field, ":")
	depth, err := strconv.Atoi(value)
	if !ok || err != nil {
		return Holder{}, false
	}
	h := Holder{Client: client, Owner: Owner(owner), Depth: depth}
	if kind == "rwlock" {
		h.Mode = "read"
		if o, write := strings.CutSuffix(owner, ":write"); write {
			h.Owner, h.Mode = Owner(o), "write"
		}
	}
	if client == l.c.opt.id { // the field may carry a number that the owner does not
		if e := l.c.find(l.key); e != nil {
			e.lock()
			for own := range e.eachHold {
				if own.rec.Field == field {
					h.Owner = own.owner()
				}
			}
			e.fairs.All(func(p *place) bool {
				if p.For.stand.Field == field {
					h.Owner = p.For.owner
				}
				return true
			})
			e.unlock()
			l.c.leave(e)
		}
	}
	return h, true
}

// ask runs a question to Redis. go-redis does not look at a ctx that is cancelled
// while it waits for the server, so the question is asked in a goroutine, and
// ends by itself when the caller leaves first.
func ask[T any](ctx context.Context, l *lock, op string, f func(context.Context, Owner) (T, error)) (T, error) {
	var answer T
	err := l.do(ctx, op, func(who caller) error {
		if ctx.Err() != nil {
			return ended(ctx)
		}
		type result struct {
			val T
			err error
		}
		done := make(chan result, 1)
		l.c.spawn(func() {
			val, err := f(context.WithoutCancel(ctx), who.owner)
			done <- result{val, err}
		})
		select {
		case r := <-done:
			if script.WrongType(r.err) {
				return both(ErrWrongType, r.err)
			}
			answer = r.val
			return r.err
		case <-ctx.Done():
			return ended(ctx)
		case <-l.c.closing:
			return ErrClosed
		}
	})
	return answer, err
}
