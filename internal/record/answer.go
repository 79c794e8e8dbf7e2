package record

import "time"

// Verdict is what the end of a request means.
type Verdict uint8

const (
	// Granted: Hold is live.
	Granted Verdict = iota
	// Kept: Hold is as the request wanted it.
	Kept
	// Released: Redis had the hold until it was given back. After Pass: and the
	// next owner, who may have had it, has it no more.
	Released
	// Held: others have the lock.
	Held
	// Undo: Redis has what nobody waits for any more, or what came too late.
	// After Acquire and Pass its field is a stray; after Keep, Mend is due.
	Undo
	// Lost: Redis does not have the hold that was to be kept, passed or given
	// back, or it came to its deadline meanwhile.
	Lost
	// Overtaken: the answer says nothing about the present. Ask again.
	Overtaken
)

// Answer closes q with the server's word: yes for granted, kept, released and
// passed, no for held and gone. now is when the answer came.
//
// A grant of an acquire proves that holds which were thought live, and would have
// barred it, are gone; Answer marks them lost and returns them as the second result.
func (r *Record) Answer(q *Request, yes bool, now Instant) (Verdict, []*Hold) {
	r.end(q, now)
	switch {
	case q.Op == Keep:
		return r.kept(q, yes, now), nil
	case q.Op == Release:
		return r.released(q, yes, now), nil
	case !yes && q.Op == Pass:
		r.settle(q)
		r.late(q)
		return r.gone(q.From, now), nil
	case !yes:
		r.late(q)
		return Held, nil
	}

	var gone []*Hold
	r.settle(q)
	if q.Op == Acquire {
		for h := r.holds; h != nil; h = h.next { // whatever their deadlines say
			own := h.Half == Read && q.Hold.Half == Write // the owner's own: it would have been refused
			if h.state == live && (own || h.Bars(q.Hold.Owner, q.Hold.Half)) {
				h.state = lost
				gone = append(gone, h)
			}
		}
	}
	return r.granted(q, now), gone
}

// Freed closes q, a Pass, with the server's word that the lock was released to others
// instead.
func (r *Record) Freed(q *Request, now Instant) Verdict {
	r.end(q, now)
	r.settle(q)
	r.late(q)
	return Released
}

// Close ends q without an answer: its user has given up, or every attempt was
// proven not to have run.
func (r *Record) Close(q *Request, now Instant) {
	r.end(q, now)
	r.late(q)
	switch {
	case q.Op == Keep:
		q.Hold.dirty = q.Hold.dirty || q.doubtful
		if q.Hold.state == lost && q.doubtful {
			r.left(q.Hold) // it may have been prolonged, or may still be
		}
	case q.Op == Release && q.Hold != nil:
		r.left(q.Hold)
	case q.Op == Pass:
		r.left(q.From)
	}
}

func (r *Record) end(q *Request, now Instant) {
	if r.open != q {
		panic("record: bug: the request is not under way")
	}
	r.open = nil
	switch {
	case q.Op == Release:
	case q.doubtful:
		r.mayStand(q.Hold, r.watch(now, q.TTL))
	default:
		r.mayStand(q.Hold, now.Mono+q.TTL)
	}
}

// watch is how long to look out for what an unanswered copy does. It may come
// for a watchdog timeout, and the field stands for its TTL after that.
func (r *Record) watch(now Instant, ttl time.Duration) time.Duration {
	return now.Mono + r.rules.Watchdog + ttl
}

// late notes that an unanswered copy of q may still make its field.
func (r *Record) late(q *Request) {
	if q.doubtful && (q.Op == Acquire || q.Op == Pass) {
		s := stray{field: q.Hold.Field, rw: q.Hold.rw(), until: q.Hold.stands, comes: q.Hold.stands - q.TTL}
		if at := q.Want.Stand; at != nil {
			s.until, s.wait = s.until+at.Ahead+at.Wait, at.Wait // in the queue
		}
		r.stray(s)
	}
}

// granted makes the hold of an answered Acquire or Pass.
func (r *Record) granted(q *Request, now Instant) Verdict {
	h := q.Hold
	r.late(q)
	h.Granted, h.Proven = q.sent.Mono, q.sent.Mono
	h.prove(q.sent, q.TTL, true)
	if q.abandoned || h.Deadline.after(now) <= 0 {
		r.left(h)
		return Undo
	}
	if old := r.Hold(h.Owner, h.Half); old != nil {
		r.Drop(old) // a lease that ran out
	}
	h.state, h.Depth, h.dirty = live, 1, q.Deep
	for other := r.holds; other != nil; other = other.next {
		if h.rw() && other.rw() {
			h.mayStand(other.stands)
		}
	}
	r.add(h)
	return Granted
}

func (r *Record) kept(q *Request, yes bool, now Instant) Verdict {
	h := q.Hold
	if v := r.judge(h, yes, now); v != Kept {
		return v
	}
	if q.enters && !q.abandoned {
		h.Depth++
	}
	// An Unlock may have come meanwhile, so Redis need not have h's depth now.
	h.dirty = q.Depth != int(h.Depth)
	if q.abandoned { // and it proves nothing: the deadline stays where it was
		return Undo
	}
	h.Proven = q.sent.Mono
	h.proofs++
	if q.anew || q.lease == 0 || q.sent.Add(q.TTL-Margin(q.TTL)).Mono > h.Deadline.Mono {
		h.Lease = q.lease
	}
	if !q.mends || q.lease == 0 { // an inner Unlock does not lengthen a fixed lease
		h.prove(q.sent, q.TTL, q.anew)
	}
	return Kept
}

// judge says what it means for h that its field is, or is not, in Redis now.
func (r *Record) judge(h *Hold, there bool, now Instant) Verdict {
	switch {
	case h.state == given:
		return Lost
	case h.state == lost:
		if there { // prolonged, though nobody believes in it any more
			r.left(h)
		}
		return Lost
	case h.Left(now) == 0:
		r.Lose(h, now)
		return Lost
	case !there:
		h.state = lost
		return Lost
	}
	return Kept
}

func (r *Record) released(q *Request, yes bool, now Instant) Verdict {
	r.settle(q)
	if q.Hold == nil || yes {
		return Released
	}
	return r.gone(q.Hold, now)
}

// gone judges a hold that was to be given back and is not there. Before its
// deadline an unanswered attempt has done it, of this request or an earlier one.
func (r *Record) gone(h *Hold, now Instant) Verdict {
	if h.ending && h.Deadline.after(now) > 0 {
		return Released
	}
	return Lost
}
