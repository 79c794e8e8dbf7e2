package watchdog

import "time"

// Lease is one hold that a Watchdog keeps.
//
// The zero value with Hold set is ready to be kept. A lease belongs to one
// Watchdog and must not be copied once it was kept.
type Lease[H any] struct {
	// Hold is what the lease belongs to. It is set before the first Keep; the
	// watchdog never reads it.
	Hold H

	// The rest is guarded by the watchdog's mutex.

	links    [2]links[H]   // neighbours in a slot of the wheel and in a line
	tick     int64         // when the wheel hands it out
	renewAt  time.Duration // since the watchdog's start; 0: not to be renewed
	deadline time.Duration // since the watchdog's start; 0: none
	slot     int16         // the slot of the wheel, counted from 1; 0: none
	line     line          // the line that it stands in, beside the wheel
}

// kept reports whether the watchdog keeps l: it is then in the wheel, in a
// line, or in both (in the queue, with its deadline in the wheel).
func (l *Lease[H]) kept() bool { return l.slot != 0 || l.line != noLine }

// line names the list, other than the wheel's, that a lease stands in.
type line uint8

const (
	noLine line = iota
	lapsed      // past its deadline, to be told
	queued      // due, waits for a Renew call
)

// links are the neighbours of a lease in one ring.
type links[H any] struct {
	next, prev *Lease[H]
}

// kind says which of its links a lease uses for a ring.
type kind int

const (
	inSlot kind = iota
	inLine
)

// ring is a first in, first out list through the links of its leases. The zero
// value is empty. All calls for a ring name the same kind.
type ring[H any] struct {
	head *Lease[H]
}

func (r *ring[H]) push(l *Lease[H], k kind) {
	if r.head == nil {
		l.links[k] = links[H]{next: l, prev: l}
		r.head = l
		return
	}
	first, last := r.head, r.head.links[k].prev
	l.links[k] = links[H]{next: first, prev: last}
	last.links[k].next = l
	first.links[k].prev = l
}

// remove takes l, which must be in r, out of it.
func (r *ring[H]) remove(l *Lease[H], k kind) {
	next, prev := l.links[k].next, l.links[k].prev
	next.links[k].prev = prev
	prev.links[k].next = next
	if r.head == l {
		r.head = next
		if next == l {
			r.head = nil
		}
	}
	l.links[k] = links[H]{} // a lease that is kept no more must not keep others from the collector
}
