package rlock

import (
	"fmt"
	"log/slog"
	"time"

	"github.com/google/uuid"
)

// Option sets one thing about a Client. New refuses what is out of range.
type Option func(*options) error

type options struct {
	id            string
	watchdog      time.Duration
	mapName       func(string) string
	handoffPasses int
	handoffTime   time.Duration
	recheck       time.Duration
	release       time.Duration
	logger        *slog.Logger
	trace         *Trace
	guard         any // WithRestartGuard in milliseconds, boxed once for the script
	sharded       switched
	autoPipeline  bool
	fairWait      time.Duration
	acks          int // 0: none are waited for
	acksTimeout   time.Duration
}

// switched is an option that may be on, off, or left to the client.
type switched uint8

const (
	unset switched = iota
	switchedOff
	switchedOn
)

func defaults() options {
	return options{
		id:            uuid.NewString(),
		watchdog:      30 * time.Second,
		mapName:       func(name string) string { return name },
		handoffPasses: 32,
		handoffTime:   50 * time.Millisecond,
		recheck:       5 * time.Second,
		release:       5 * time.Second,
		guard:         0,
		fairWait:      30 * time.Second,
		logger:        slog.New(slog.DiscardHandler),
		trace:         &Trace{},
	}
}

// WithID sets the client's id, the first half of every owner field in Redis: 1 to
// 128 of letters, digits, '-', '_', '.'. The default is a fresh random UUID. Two
// live clients with one id hold each other's locks; that they never meet is the
// caller's promise.
func WithID(id string) Option {
	return func(o *options) error {
		if err := checkID(id); err != nil {
			return fmt.Errorf("WithID(%q): %w", id, err)
		}
		o.id = id
		return nil
	}
}

// WithWatchdogTimeout sets for how long a lock without a lease stands in Redis
// when nobody renews it. It is renewed at a third of that. The default is 30 s,
// as Redisson's; at least 100 ms, at most 10 years.
func WithWatchdogTimeout(d time.Duration) Option {
	return within("WithWatchdogTimeout", d, 100*time.Millisecond, longestLease, func(o *options) { o.watchdog = d })
}

// WithNameMapper sets how a lock's name becomes its key in Redis, to put a
// prefix before all, say. The default leaves it as it is. f must be a pure
// function: two clients that share locks need the same one.
func WithNameMapper(f func(string) string) Option {
	return func(o *options) error {
		if f == nil {
			return fmt.Errorf("WithNameMapper: the function is nil; leave the option out instead")
		}
		o.mapName = f
		return nil
	}
}

// WithShardedPubSub says whether releases are told on sharded channels, SPUBLISH
// and SSUBSCRIBE, with one subscription connection for each server that has names
// waited for, or on plain ones, PUBLISH and SUBSCRIBE, with a single connection.
//
// By default a *redis.ClusterClient uses sharded channels if its servers are a
// cluster and have them, which it asks the first one that it needs, and all other
// clients plain ones. Redisson decides in the same way. Set it where services
// that share locks would decide differently: one behind a proxy, say, or a peer
// older than Redisson 3.22. A service that listens to the other kind is not woken
// and finds out by itself, at the latest after WithRecheck.
//
// true on a server without sharded channels (before Redis 7.0) is an error of the
// first operation.
func WithShardedPubSub(on bool) Option {
	return func(o *options) error {
		if o.sharded = switchedOff; on {
			o.sharded = switchedOn
		}
		return nil
	}
}

// WithAutoPipeline sends the scripts through go-redis's autopipelining: calls of
// many goroutines share a round trip. It helps where many locks are taken at the
// same time, and adds to the latency of a single one. It is the pipeliner that
// rdb.AutoPipeline returns, which all users of rdb share; a *redis.Ring has none,
// and New says so. Renewals go in pipelines of their own.
func WithAutoPipeline() Option {
	return func(o *options) error { o.autoPipeline = true; return nil }
}

// WithHandoffLimit sets how often, and for how long, a lock may pass from one
// waiter of this process to the next before it is released to all. The default
// is 32 passes or 50 ms, whichever comes first. 0 passes means never: then
// every release goes through Redis. At most 1,000,000 passes and one hour.
func WithHandoffLimit(passes int, d time.Duration) Option {
	return func(o *options) error {
		switch {
		case passes < 0 || passes > 1_000_000:
			return fmt.Errorf("WithHandoffLimit: %d passes; use 0 to 1,000,000", passes)
		case d < 0 || d > time.Hour || passes > 0 && d == 0:
			return fmt.Errorf("WithHandoffLimit: %v; use more than 0 and at most 1h", d)
		}
		o.handoffPasses, o.handoffTime = passes, d
		return nil
	}
}

// WithRecheck sets the longest time that a waiter sleeps without asking Redis,
// should every message be lost. The default is 5 s; 10 ms to one hour.
func WithRecheck(d time.Duration) Option {
	return within("WithRecheck", d, 10*time.Millisecond, time.Hour, func(o *options) { o.recheck = d })
}

// WithFairWaitTimeout sets for how long a FairLock's waiter is waited for, when it is its
// turn, from the last time that it said that it lives. One that lives says so four times
// in that time, and at least once a second, so it does not bound how long it may wait. One
// that dies while others are before it has their time on top, until it is its turn; and one
// that dies with its first request the TTL that it found. A TryLock that waits for less
// is waited for as long as it waits. The default is 30 s; 1 s to one hour. Redisson's is
// 5 minutes.
func WithFairWaitTimeout(d time.Duration) Option {
	return within("WithFairWaitTimeout", d, time.Second, time.Hour, func(o *options) { o.fairWait = d })
}

// WithReleaseTimeout sets for how long Unlock waits for Redis. When it is over
// Unlock returns ErrUnsettled and the release goes on in the background. The
// default is 5 s; 10 ms to one hour.
func WithReleaseTimeout(d time.Duration) Option {
	return within("WithReleaseTimeout", d, 10*time.Millisecond, time.Hour, func(o *options) { o.release = d })
}

// WithLogger sets where the client reports what no call could return: renewals
// that fail, holds that are lost, keys that could not be released. The default
// reports nothing.
func WithLogger(l *slog.Logger) Option {
	return func(o *options) error {
		if l == nil {
			return fmt.Errorf("WithLogger: the logger is nil; leave the option out instead")
		}
		o.logger = l
		return nil
	}
}

// WithTrace sets callbacks for what happens to locks. The default is none.
func WithTrace(t *Trace) Option {
	return func(o *options) error {
		if t == nil {
			return fmt.Errorf("WithTrace: the trace is nil; leave the option out instead")
		}
		o.trace = t
		return nil
	}
}

func within(name string, d, least, most time.Duration, set func(*options)) Option {
	return func(o *options) error {
		if d < least || d > most {
			return fmt.Errorf("%s(%v): use %v to %s", name, d, least, span(most))
		}
		set(o)
		return nil
	}
}

// span is d for a message.
func span(d time.Duration) string {
	if d == longestLease {
		return "10 years"
	}
	return d.String()
}

// LockOption sets one thing about a lock object. What is wrong with it is
// reported by the first operation.
type LockOption func(*lockOptions) error

type lockOptions struct {
	maxHold      time.Duration
	backoff      *Backoff // a SpinLock's; nil: the default
	nonReentrant bool
}

// NonReentrant makes a re-entry through this object an ErrReentry.
func NonReentrant() LockOption {
	return func(o *lockOptions) error { o.nonReentrant = true; return nil }
}

// WithMaxHold bounds how long a hold taken through this object may last,
// whatever renews or extends it. d after the grant the holder is told, with
// cause ErrMaxHold, and the key ends with what is left of its TTL. At least 1 ms,
// at most 10 years. A re-entry does not move the end.
func WithMaxHold(d time.Duration) LockOption {
	return func(o *lockOptions) error {
		if d < time.Millisecond || d > longestLease {
			return fmt.Errorf("WithMaxHold(%v): use 1ms to 10 years", d)
		}
		o.maxHold = d
		return nil
	}
}
