package record

import (
	"slices"
	"time"
)

// Op is what a request asks of Redis.
type Op uint8

const (
	Acquire Op = iota // the field at depth 1, in a key that is free or ours
	Keep              // the field at a depth, for at least a TTL
	Release           // none of the fields
	Pass              // the next owner's field at depth 1 in place of ours
)

// Request is one wanted state. Its user sends it, as often as need be, and
// closes it by Answer or Close.
type Request struct {
	Op    Op
	Hold  *Hold         // which it grants, keeps or ends; nil for a sweep
	From  *Hold         // Pass: which ends in Hold's favour
	Depth int           // Acquire, Pass: 1
	TTL   time.Duration // Acquire, Keep, Pass
	Found []string      // own fields that may stand there beside Hold's, and go

	lease     time.Duration // that Hold has afterwards; 0: the watchdog's
	anew      bool          // the lease is set, not only lengthened
	enters    bool          // Hold is one deeper afterwards
	mends     bool          // nothing is changed here
	sent      Instant       // the last attempt
	doubtful  bool          // an attempt was not answered
	abandoned bool          // nobody waits for it any more
}

// Doubtful tells whether an attempt of q went unanswered.
func (q *Request) Doubtful() bool { return q.doubtful }

// Abandoned tells whether q's caller has left.
func (q *Request) Abandoned() bool { return q.abandoned }

// Busy tells whether a request is under way. No other may begin then.
func (r *Record) Busy() bool { return r.open != nil }

// Acquire begins the request for a new hold of owner. limit, if not 0, is the
// longest time that the hold may be kept.
func (r *Record) Acquire(owner string, lease, limit time.Duration, now Instant) *Request {
	r.purge(now)
	h := r.newHold(owner, "", lease, limit, now)
	return r.begin(&Request{
		Op: Acquire, Hold: h, Depth: 1, TTL: r.ttl(lease), lease: lease,
		Found: r.strayFields(h.Field),
	})
}

// Pass begins the hand-over of from to a new hold of owner.
func (r *Record) Pass(from *Hold, owner string, lease, limit time.Duration, now Instant) *Request {
	r.purge(now)
	h := r.newHold(owner, from.Field, lease, limit, now)
	return r.begin(&Request{
		Op: Pass, Hold: h, From: from, Depth: 1, TTL: r.ttl(lease), lease: lease,
		Found: append(r.strayFields(h.Field, from.Field), from.Field),
	})
}

// Enter begins a re-entry: h one deeper, its lease lengthened if need be.
func (r *Record) Enter(h *Hold, lease time.Duration) *Request {
	if h.Lease == 0 {
		lease = 0 // the watchdog's stays
	}
	return r.keep(&Request{Hold: h, Depth: int(h.Depth) + 1, TTL: r.ttl(lease), lease: lease, enters: true})
}

// Extend begins a new lease for h, counted from the send.
func (r *Record) Extend(h *Hold, lease time.Duration) *Request {
	return r.keep(&Request{Hold: h, Depth: int(h.Depth), TTL: r.ttl(lease), lease: lease, anew: true})
}

// Mend begins the request that brings Redis to what h is here. An inner Unlock
// is one, after h.Depth has been taken down.
func (r *Record) Mend(h *Hold, now Instant) *Request {
	ttl := r.rules.Watchdog
	if h.Lease > 0 {
		ttl = max(h.Left(now), time.Millisecond)
	}
	return r.keep(&Request{Hold: h, Depth: int(h.Depth), TTL: ttl, lease: h.Lease, mends: true})
}

// Release begins the end of h, and of all strays.
func (r *Record) Release(h *Hold, now Instant) *Request {
	r.purge(now)
	return r.begin(&Request{Op: Release, Hold: h, Found: r.strayFields(h.Field)})
}

// Sweep begins the removal of the strays.
func (r *Record) Sweep(now Instant) *Request {
	r.purge(now)
	return r.begin(&Request{Op: Release, Found: r.strayFields()})
}

// newHold names a hold to be. Its field is not but: an owner that passes the
// lock to itself must not have the old field taken out from under the new one.
func (r *Record) newHold(owner, but string, lease, limit time.Duration, now Instant) *Hold {
	h := &Hold{Owner: owner, Field: r.field(owner, but), Lease: lease}
	if limit > 0 {
		end := now.Add(limit)
		h.Limit = &end
	}
	for _, s := range r.strays() {
		if s.field == h.Field {
			h.mayStand(s.until) // it stands already, and its TTL is only raised
		}
	}
	return h
}

func (r *Record) keep(q *Request) *Request {
	q.Op = Keep
	return r.begin(q)
}

func (r *Record) ttl(lease time.Duration) time.Duration {
	if lease > 0 {
		return lease
	}
	return r.rules.Watchdog
}

func (r *Record) begin(q *Request) *Request {
	if r.open != nil {
		panic("record: bug: a request is under way already")
	}
	r.open = q
	return q
}

// Sent notes that an attempt of q goes out at now. A hold counts from the
// attempt that was answered: each one asks for the whole TTL.
func (r *Record) Sent(q *Request, now Instant) {
	q.sent = now
	if q.mends && q.lease > 0 {
		q.TTL = max(q.Hold.Left(now), time.Millisecond) // what is left of it by now
	}
}

// Unanswered notes that the last attempt of q has no answer. It may have run,
// and it may still run at any time.
func (r *Record) Unanswered(q *Request) {
	q.doubtful = true
	r.burn(q.fields()...)
	if h := q.gives(); h != nil {
		h.ending = true
	}
}

// Abandon notes that q's caller has left. What q grants will be undone, so
// nobody may enter on its field.
func (r *Record) Abandon(q *Request) {
	q.abandoned = true
	r.burn(q.Hold.Field)
}

// gives is the hold that q gives back, or nil.
func (q *Request) gives() *Hold {
	switch q.Op {
	case Release:
		return q.Hold
	case Pass:
		return q.From
	}
	return nil
}

// fields are all that q names.
func (q *Request) fields() []string {
	if q.Hold == nil {
		return q.Found
	}
	return append([]string{q.Hold.Field}, q.Found...)
}

// names tells whether q names field.
func (q *Request) names(field string) bool { return slices.Contains(q.fields(), field) }
