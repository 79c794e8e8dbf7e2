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
	Want  Want          // Acquire, Pass: what for. Of a Keep only Token may be set
	Deep  bool          // Acquire, in the answer: the field stands at another depth than 1

	rw        bool          // of a sweep: it is about a read-write lock
	lease     time.Duration // that Hold has afterwards; 0: the watchdog's
	anew      bool          // the lease is set, not only lengthened
	enters    bool          // Hold is one deeper afterwards
	mends     bool          // nothing is changed here
	sent      Instant       // the last attempt
	doubtful  bool          // an attempt was not answered
	abandoned bool          // nobody waits for it any more
}

// SentAt is when the last attempt of q went out, by Mono.
func (q *Request) SentAt() time.Duration { return q.sent.Mono }

// Doubtful tells whether an attempt of q went unanswered.
func (q *Request) Doubtful() bool { return q.doubtful }

// Abandoned tells whether q's caller has left.
func (q *Request) Abandoned() bool { return q.abandoned }

// Busy tells whether a request is under way. No other may begin then.
func (r *Record) Busy() bool { return r.open != nil }

// Want is a hold that somebody wants.
type Want struct {
	Owner string
	Half  Half
	Lease time.Duration // 0: kept by the watchdog
	Limit time.Duration // the longest time that it may be kept; 0: none
	Token bool          // with a fencing token
	Stand *Stand        // in the order of the queue in Redis; nil: of no queue
}

// Stand is how somebody stands in a queue in Redis. The record only reads it.
type Stand struct {
	Field string        // under which; empty: none was chosen yet
	Wait  time.Duration // for how long the others wait for its turn; 0: it does not queue
	Beat  time.Duration // when Redis last heard of it, by Mono; 0: never
	Ahead time.Duration // for how long at most it was waited for from then on
}

// Acquire begins the request for a new hold.
func (r *Record) Acquire(want Want, now Instant) *Request {
	r.purge(now)
	h := r.newHold(want, "", now)
	return r.begin(&Request{
		Op: Acquire, Hold: h, Depth: 1, TTL: r.ttl(want.Lease), lease: want.Lease,
		Found: r.strayFields(h.rw(), h.Field), Want: want,
	})
}

// Pass begins the hand-over of from to a new hold.
func (r *Record) Pass(from *Hold, want Want, now Instant) *Request {
	r.purge(now)
	h := r.newHold(want, from.Field, now)
	return r.begin(&Request{
		Op: Pass, Hold: h, From: from, Depth: 1, TTL: r.ttl(want.Lease), lease: want.Lease,
		Found: append(r.strayFields(h.rw(), h.Field, from.Field), from.Field), Want: want,
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
	return r.begin(&Request{Op: Release, Hold: h, Found: r.strayFields(h.rw(), h.Field)})
}

// Sweep begins the removal of the strays, out of the queue too: those of a read-write
// lock and the others in turns, if there are both.
func (r *Record) Sweep(now Instant) *Request {
	r.purge(now)
	whole, rw := r.strayFields(false), r.strayFields(true)
	if len(rw) == 0 || len(whole) > 0 && r.past.sweptRW {
		if r.past != nil {
			r.past.sweptRW = false
		}
		return r.begin(&Request{Op: Release, Found: whole})
	}
	r.past.sweptRW = true
	return r.begin(&Request{Op: Release, Found: rw, rw: true})
}

// RW tells whether q is about a read-write lock.
func (q *Request) RW() bool { return q.rw || q.Hold != nil && q.Hold.rw() }

func (q *Request) sweeps() bool { return q.Op == Release && q.Hold == nil }

// newHold names a hold to be. Its field is not but: an owner that passes the
// lock to itself must not have the old field taken out from under the new one. One
// that stands in a queue keeps its field: no request has named it to end it.
func (r *Record) newHold(want Want, but string, now Instant) *Hold {
	h := &Hold{Owner: want.Owner, Lease: want.Lease, Half: want.Half, Fair: want.Stand != nil}
	if h.Fair && want.Stand.Field != "" {
		h.Field = want.Stand.Field
	} else {
		h.Field = r.field(want.Owner, want.Half, but)
	}
	if want.Limit > 0 {
		end := now.Add(want.Limit)
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
