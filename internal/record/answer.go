package record

// Verdict is what the end of a request means.
type Verdict uint8

const (
	// Granted: Hold is live.
	Granted Verdict = iota
	// Kept: Hold is as the request wanted it.
	Kept
	// Released: Redis had the hold until it was given back.
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
// A grant of an acquire proves that a hold which was thought live is gone;
// Answer marks it lost and returns it as the second result.
func (r *Record) Answer(q *Request, yes bool, now Instant) (Verdict, *Hold) {
	r.end(q)
	switch {
	case q.Op == Keep:
		return r.kept(q, yes, now), nil
	case q.Op == Release:
		return r.released(q, yes, now), nil
	case !yes && q.Op == Pass:
		r.settle(q.fields()...)
		r.late(q, now)
		return Lost, nil
	case !yes:
		r.late(q, now)
		return Held, nil
	}

	var gone *Hold
	r.settle(q.fields()...)
	if q.Op == Acquire {
		if gone = r.anyLive(); gone != nil {
			gone.state = lost
		}
	}
	return r.granted(q, now), gone
}

// Close ends q without an answer: its user has given up, or every attempt was
// proven not to have run.
func (r *Record) Close(q *Request, now Instant) {
	r.end(q)
	r.late(q, now)
	switch {
	case q.Op == Keep:
		q.Hold.dirty = q.Hold.dirty || q.doubtful || q.Depth == q.Hold.Depth && !q.anew
	case q.Op == Release && q.Hold != nil:
		r.stray(q.Hold.Field, now.Add(r.longest(q.Hold)), false)
	case q.Op == Pass:
		r.stray(q.From.Field, now.Add(r.longest(q.From)), false)
	}
}

func (r *Record) end(q *Request) {
	if r.open != q {
		panic("record: bug: the request is not under way")
	}
	r.open = nil
}

// late notes that an unanswered copy of q may still make its field. It is
// watched for a watchdog timeout, or a lease if that is longer.
func (r *Record) late(q *Request, now Instant) {
	if q.doubtful && (q.Op == Acquire || q.Op == Pass) {
		r.stray(q.Hold.Field, now.Add(max(q.TTL, r.rules.Watchdog)), true)
	}
}

// anyLive is the hold that was not lost yet, whatever its deadline says.
func (r *Record) anyLive() *Hold {
	for _, h := range r.holds {
		if h.state == live {
			return h
		}
	}
	return nil
}

// granted makes the hold of an answered Acquire or Pass.
func (r *Record) granted(q *Request, now Instant) Verdict {
	h := q.Hold
	r.late(q, now)
	h.Granted = q.sent
	h.prove(q.sent, q.TTL, true)
	if q.abandoned || h.Deadline.after(now) <= 0 {
		r.stray(h.Field, now.Add(q.TTL), false)
		return Undo
	}
	if old := r.Hold(h.Owner); old != nil {
		r.Drop(old) // a lease that ran out
	}
	h.state, h.Depth = live, 1
	r.holds = append(r.holds, h)
	return Granted
}

func (r *Record) kept(q *Request, yes bool, now Instant) Verdict {
	h := q.Hold
	h.longest = max(h.longest, q.TTL)
	if v := r.judge(h, yes, now); v != Kept {
		return v
	}
	h.dirty = q.abandoned && q.Depth != h.Depth
	if q.abandoned {
		return Undo
	}
	if q.anew || q.lease == 0 || q.sent.Add(q.TTL-Margin(q.TTL)).Mono > h.Deadline.Mono {
		h.Lease = q.lease
	}
	h.Depth = q.Depth
	h.prove(q.sent, q.TTL, q.anew)
	return Kept
}

// judge says what it means for h that its field is, or is not, in Redis now.
func (r *Record) judge(h *Hold, there bool, now Instant) Verdict {
	switch {
	case h.state == given:
		return Lost
	case h.state == lost:
		if there { // prolonged, though nobody believes in it any more
			r.stray(h.Field, now.Add(r.longest(h)), false)
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
	r.settle(q.fields()...)
	switch {
	case q.Hold == nil || yes:
		return Released
	case q.doubtful && q.Hold.Deadline.after(now) > 0:
		return Released // the attempt without an answer did it
	}
	return Lost
}
