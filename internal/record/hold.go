package record

import "time"

// Half is what a hold keeps out.
type Half uint8

const (
	Whole Half = iota // a lock without halves: everybody else
	Read              // of a read-write lock: writers
	Write             // everybody else, but for the same owner's Read
)

// Hold is one owner's grant, from its outermost Lock to its last Unlock.
type Hold struct {
	Owner    string
	Field    string        // as it stands in Redis
	Lease    time.Duration // 0: kept by the watchdog
	Granted  time.Duration // when the request that granted it was sent, by Mono
	Proven   time.Duration // when the latest request was sent that found it there, by Mono
	Deadline Instant       // when we stop believing in it
	Limit    *Instant      // Deadline is never later; nil means no limit

	next     *Hold         // of the record's
	stands   time.Duration // the field cannot stand any longer, by Mono
	Depth    int32         // Unlocks that are due
	proofs   uint32        // requests that kept it, answered so far; renewals apart
	renewing int16         // renewals under way
	Half     Half
	Fair     bool // a queue in Redis is to hear of its end
	state    state
	dirty    bool // Redis may have another depth than Depth
	ending   bool // an unanswered request may have ended it
}

type state uint8

const (
	asked state = iota // not granted yet
	live
	lost
	given // back, by the last Unlock
)

// Left is the time for which h is proven from now on: by the clock that
// stands still in suspend and by the wall clock, whichever says less. 0 when it
// is lost.
func (h *Hold) Left(now Instant) time.Duration {
	if h.state != live {
		return 0
	}
	return max(0, h.Deadline.after(now))
}

// Bars tells whether h keeps a hold of that owner and half out.
func (h *Hold) Bars(owner string, half Half) bool {
	switch {
	case h.Half == Read && half == Read:
		return false
	case h.Half == Write && half == Read, h.Half == Read && half == Write:
		return h.Owner != owner
	}
	return true
}

func (h *Hold) rw() bool { return h.Half != Whole }

// Lost tells whether h was granted and is lost.
func (h *Hold) Lost() bool { return h.state == lost }

// Dirty tells whether Redis may have another depth than h.Depth: Mend is due.
func (h *Hold) Dirty() bool { return h.dirty }

// Stuck tells whether h is lost in a way that its owner must hear of before it
// may hold the key again. A fixed lease that ran out was agreed.
func (h *Hold) Stuck(now Instant) bool {
	return h.state == lost && (h.Lease == 0 || h.Deadline.after(now) > 0)
}

// prove moves the deadline to ttl after the send, within the limit.
func (h *Hold) prove(sent Instant, ttl time.Duration, anew bool) {
	deadline := sent.Add(ttl - Margin(ttl))
	if anew || h.Deadline.Mono < deadline.Mono {
		h.Deadline = deadline
	}
	if h.Limit != nil { // each clock for itself: one may have been stepped since
		h.Deadline.Mono = min(h.Deadline.Mono, h.Limit.Mono)
		h.Deadline.Wall = min(h.Deadline.Wall, h.Limit.Wall)
	}
}

// mayStand notes that the field may stand until then, by Mono.
func (h *Hold) mayStand(until time.Duration) {
	h.stands = max(h.stands, until)
}

// Margin is how much earlier than Redis a hold of that TTL ends here: one
// hundredth, for clocks that run at different speeds, and at least the two
// milliseconds that rounding and a tick of the watchdog's wheel can cost.
func Margin(ttl time.Duration) time.Duration { return max(ttl/100, 2*time.Millisecond) }

// Instant is a moment on both clocks, as times since origins of their own.
type Instant struct {
	Mono time.Duration // never steps; stands still while the machine is suspended
	Wall time.Duration // goes on in suspend; may step
}

// Add returns the moment d later.
func (t Instant) Add(d time.Duration) Instant { return Instant{t.Mono + d, t.Wall + d} }

// after is the time from now to t by the clock that says less.
func (t Instant) after(now Instant) time.Duration {
	return min(t.Mono-now.Mono, t.Wall-now.Wall)
}
