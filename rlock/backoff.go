package rlock

import (
	"errors"
	"math/rand/v2"
	"time"
)

// Backoff says how long a SpinLock's waiter sleeps between two attempts. Next is called
// by many goroutines, without a lock of this package held.
type Backoff interface {
	// Next is the pause after the attempt of that number, 1 for the first. Below 1 ms
	// it counts as 1 ms. The waiter sleeps shorter when the lock or its wait ends before.
	Next(attempt int) time.Duration
}

// WithBackoff sets how a SpinLock's waiters poll. nil is the default, an
// ExponentialBackoff{}. On any other kind of lock it is an error.
func WithBackoff(b Backoff) LockOption {
	return func(o *lockOptions) error {
		switch b := b.(type) {
		case nil:
			return WithBackoff(ExponentialBackoff{})(o)
		case ExponentialBackoff:
			if b.Initial < 0 || b.Max < 0 || b.Multiplier < 0 || b.Multiplier > 0 && b.Multiplier < 1 {
				return errors.New("rlock: WithBackoff: Initial and Max are 0 or more, Multiplier is 0, or 1 or more")
			}
		case ConstantBackoff:
			if b.Delay < 0 {
				return errors.New("rlock: WithBackoff: Delay is 0 or more")
			}
		}
		o.backoff = &b
		return nil
	}
}

// ExponentialBackoff begins with Initial and multiplies that by Multiplier after each
// attempt, up to Max. What Next returns is between half of that and all of it, at
// random, so that waiters do not poll in step. Its zero value has the defaults of
// Redisson: 1 ms, 2 and 128 ms.
type ExponentialBackoff struct {
	Initial    time.Duration // 0: 1 ms
	Multiplier float64       // 0: 2; else at least 1
	Max        time.Duration // 0: 128 ms
}

// Next implements Backoff.
func (b ExponentialBackoff) Next(attempt int) time.Duration {
	if b.Initial == 0 {
		b.Initial = time.Millisecond
	}
	if b.Multiplier == 0 {
		b.Multiplier = 2
	}
	if b.Max == 0 {
		b.Max = 128 * time.Millisecond
	}
	d := min(float64(b.Initial), float64(b.Max))
	for i := 1; i < attempt && d < float64(b.Max); i++ {
		if b.Multiplier == 1 {
			break
		}
		d = min(d*b.Multiplier, float64(b.Max))
	}
	return jitter(time.Duration(d))
}

// ConstantBackoff pauses for between half of Delay and all of it. Its zero value has the
// default of Redisson: 64 ms.
type ConstantBackoff struct {
	Delay time.Duration // 0: 64 ms
}

// Next implements Backoff.
func (b ConstantBackoff) Next(int) time.Duration {
	if b.Delay == 0 {
		b.Delay = 64 * time.Millisecond
	}
	return jitter(b.Delay)
}

// jitter is between half of d and d.
func jitter(d time.Duration) time.Duration { return d/2 + rand.N(d/2+1) }
