package redlock

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/relock-go/relock/rlock"
)

// Option sets one thing about a RedLock. New refuses what is out of range.
type Option func(*options) error

type options struct {
	nodeTimeout        time.Duration // 0: from the lease
	driftFactor        float64
	leastDelay, spread time.Duration // of the delay between two attempts
	maxHold            time.Duration // 0: none
}

func defaults() options {
	return options{driftFactor: 0.01, leastDelay: 50 * time.Millisecond, spread: 100 * time.Millisecond}
}

const longestLease = 10 * 365 * 24 * time.Hour // as rlock has it

// WithNodeTimeout sets for how long an operation waits for a single server, whatever
// the timeouts of its client are. A server that is silent for longer counts as failed,
// and what it may still do is undone. The default is a tenth of the lease, at least 5
// ms and at most 50 ms; 50 ms for a lock that the watchdog keeps. 1 ms to one minute.
func WithNodeTimeout(d time.Duration) Option {
	return func(o *options) error {
		if d < time.Millisecond || d > time.Minute {
			return fmt.Errorf("WithNodeTimeout(%v): use 1ms to 1m", d)
		}
		o.nodeTimeout = d
		return nil
	}
}

// WithDriftFactor sets by which part of a lease the clocks of the servers and of this
// process may differ when it is over. That much, and 2 ms, is taken off what a hold is
// valid for. The default is 0.01; 0 to 0.5.
func WithDriftFactor(f float64) Option {
	return func(o *options) error {
		if !(f >= 0 && f <= 0.5) { // NaN is neither
			return fmt.Errorf("WithDriftFactor(%v): use 0 to 0.5", f)
		}
		o.driftFactor = f
		return nil
	}
}

// WithRetryDelay sets how long who waits pauses between two attempts: a random time
// from least to most. The default is 50 to 150 ms; 1 ms to one minute. It should be
// longer than it takes to ask all servers, or those who wait keep splitting them
// among themselves.
func WithRetryDelay(least, most time.Duration) Option {
	return func(o *options) error {
		if least < time.Millisecond || most < least || most > time.Minute {
			return fmt.Errorf("WithRetryDelay(%v, %v): use 1ms to 1m, the shorter one first", least, most)
		}
		o.leastDelay, o.spread = least, most-least
		return nil
	}
}

// WithMaxHold bounds how long a hold may last, whatever renews or extends it. d after
// the request that got it the holder is told, with ErrLost and rlock.ErrMaxHold. What the
// servers have of it is given back once as much time has passed as it was valid for when
// it was got, after 5 minutes at most: the holder may need it to stop. The default is no bound; at least 1 ms, at most 10 years. A
// re-entry does not move the end.
func WithMaxHold(d time.Duration) Option {
	return func(o *options) error {
		if d < time.Millisecond || d > longestLease {
			return fmt.Errorf("WithMaxHold(%v): use 1ms to 10 years", d)
		}
		o.maxHold = d
		return nil
	}
}

// limit is how long an operation about a lease waits for one node.
func (o *options) limit(lease time.Duration) time.Duration {
	const least, most = 5 * time.Millisecond, 50 * time.Millisecond
	switch {
	case o.nodeTimeout > 0:
		return o.nodeTimeout
	case lease == 0:
		return most
	}
	return min(max(lease/10, least), most)
}

// drift is how far clocks may be apart after d, and what they round.
func (o *options) drift(d time.Duration) time.Duration {
	return time.Duration(float64(d)*o.driftFactor) + 2*time.Millisecond
}

func (o *options) retryDelay() time.Duration { return o.leastDelay + rand.N(o.spread+1) }

// checkLease refuses what rlock would, and a lease that the drift alone uses up.
func (o *options) checkLease(lease time.Duration) error {
	switch {
	case lease == 0:
		return nil
	case lease < time.Millisecond || lease > longestLease:
		return fmt.Errorf("%w: %v; use 0 for the watchdog, or 1ms to 10 years", rlock.ErrInvalidLease, lease)
	case lease <= o.drift(lease):
		return fmt.Errorf("%w: %v is not longer than the drift of %v", rlock.ErrInvalidLease, lease, o.drift(lease))
	}
	return nil
}
