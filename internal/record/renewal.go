package record

import "time"

// Renewal is one attempt to renew, or to check, one hold. It goes beside the
// requests and never changes what they agree on.
type Renewal struct {
	Hold *Hold
	TTL  time.Duration // 0: only check that the field is there

	at     Instant
	proofs uint32 // Hold's, at the send
}

// Renew begins a renewal at now. It reports false when h needs none.
func (r *Record) Renew(h *Hold, now Instant) (Renewal, bool) {
	if h.Left(now) == 0 {
		return Renewal{}, false
	}
	n := Renewal{Hold: h, at: now, proofs: h.proofs}
	if h.Lease == 0 {
		n.TTL = r.rules.Watchdog
		r.mayStand(h, r.watch(now, n.TTL))
	}
	h.renewing++
	return n, true
}

// Renewed closes n with the server's word. It returns Kept, Lost or Overtaken.
func (r *Record) Renewed(n Renewal, yes bool, now Instant) Verdict {
	h := n.Hold
	h.renewing--
	if n.proofs != h.proofs && h.Left(now) > 0 {
		return Overtaken
	}
	v := r.judge(h, yes, now)
	if v != Kept {
		return v
	}
	h.Proven = n.at.Mono
	if n.TTL > 0 {
		h.prove(n.at, n.TTL, false)
	}
	return v
}

// Unrenewed closes n without an answer. If it may still run, its field is
// burned.
func (r *Record) Unrenewed(n Renewal, mayRun bool) {
	n.Hold.renewing--
	if mayRun {
		r.burn(n.Hold.Field)
	}
}
