package rlock

import "sync/atomic"

// Stats is a snapshot of what a Client does and did.
type Stats struct {
	Held    int // holds of this client now
	Waiting int // goroutines that wait for a lock now

	// Counters since New.
	Acquired      uint64 // holds granted, hand-overs included, re-entries not
	Contended     uint64 // acquisitions that found the lock taken
	Failed        uint64 // acquisitions that ended without the lock
	Released      uint64 // holds given back, hand-overs included
	HandedOff     uint64 // holds passed on inside this process
	Attempts      uint64 // acquire requests sent
	Scripts       uint64 // script calls sent, of any kind
	Renewals      uint64 // holds renewed or checked
	RenewFailures uint64 // renewals of a hold that got no answer
	Lost          uint64 // holds lost, leases that ran out included
	Reconnects    uint64 // subscription connections replaced
}

// counters is what Stats is made of.
type counters struct {
	held, waiting atomic.Int64

	acquired, contended, failed, released, handedOff atomic.Uint64
	attempts, renewals, renewFailures, lost          atomic.Uint64
	reconnects                                       atomic.Uint64
}

// Stats returns a snapshot. The numbers are read one after the other.
func (c *Client) Stats() Stats {
	n := &c.counters
	return Stats{
		Held:          int(n.held.Load()),
		Waiting:       int(n.waiting.Load()),
		Acquired:      n.acquired.Load(),
		Contended:     n.contended.Load(),
		Failed:        n.failed.Load(),
		Released:      n.released.Load(),
		HandedOff:     n.handedOff.Load(),
		Attempts:      n.attempts.Load(),
		Scripts:       c.runner.Sent.Load(),
		Renewals:      n.renewals.Load(),
		RenewFailures: n.renewFailures.Load(),
		Lost:          n.lost.Load(),
		Reconnects:    n.reconnects.Load(),
	}
}
