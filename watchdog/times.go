package watchdog

import (
	"math/rand/v2"
	"time"
)

// tickLength is the grain of the wheel.
const tickLength = time.Millisecond

// gridsPerPeriod is how many times per period renewals fall due. More would
// leave batches of 100 half empty with 100,000 leases; fewer would make each
// burst larger without saving calls.
const gridsPerPeriod = 64

// The watchdog counts time from its start, in the monotonic clock where the
// times that it is given have it. So a time is 8 bytes, and 0 can mean none.

// now returns the present time.
func (w *Watchdog[H]) now() time.Duration { return time.Since(w.start) }

// since returns t as the watchdog counts it, 0 for the zero time. A time at or
// before the start is over, and so is 1 ns: the two are not told apart.
func (w *Watchdog[H]) since(t time.Time) time.Duration {
	if t.IsZero() {
		return 0
	}
	return max(t.Sub(w.start), 1)
}

// tickOf returns the first tick that is not before t: nothing is early.
func tickOf(t time.Duration) int64 {
	tick := int64(t / tickLength)
	if t%tickLength > 0 {
		tick++
	}
	return tick
}

// coarse rounds a renewal time down to the grid, unless that would make due at
// once what is not.
func (w *Watchdog[H]) coarse(t, now time.Duration) time.Duration {
	if down := t - t%w.grid; down > now {
		return down
	}
	return t
}

// retries returns when the leases of a batch that is handed out now are due
// again, if nothing is heard of them until then: as a function of the deadline.
//
// The leases of a batch share the jitter, so that they can be one batch again.
// The jitter only adds: until Attempt is over the call may still answer.
func (w *Watchdog[H]) retries(now time.Duration) func(deadline time.Duration) time.Duration {
	least := max(w.cfg.Attempt/16, tickLength) // else the tries before a deadline become a storm
	usual := now + w.cfg.Attempt + rand.N(least)
	return func(deadline time.Duration) time.Duration {
		if deadline == 0 {
			return usual
		}
		half := now + (deadline-now)/2
		if usual <= half {
			return usual
		}
		return max(w.coarse(half, now), now+least)
	}
}
