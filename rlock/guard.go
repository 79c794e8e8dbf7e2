package rlock

import (
	"fmt"
	"time"
)

// WithRestartGuard has no lock granted by a server that has run for less than d: a
// server that comes up empty would grant again what it granted before, while those
// holders still count on it. The default is 0, no guard; else 1 s to 24 h. To do its
// work d must be as long as the longest lease in use, and as the watchdog timeout of
// every client, Redisson's included. Each client guards only what it takes itself.
//
// While the server is too young Lock waits, as it does for a holder. A wait that
// ends first, and a single attempt, get ErrRestarted. Holds are renewed, entered
// again, extended, handed over and released as ever: none of that creates a key, so
// a hold that the server has forgotten is lost.
//
// The guard looks at how long the server's process has run, in whole seconds
// rounded down, so it refuses for up to a second longer. A server that came back
// with all its data, from its AOF say, counts as restarted as well. What it cannot
// see: FLUSHALL and FLUSHDB; an eviction; a failover to a replica that does not have
// the key yet, and whose process has run for long; a server's clock that was set
// forward, which makes the process look older, as one that was set back makes it
// look younger.
//
// The user of a guarded client needs the right to the commands TIME and INFO (ACL:
// +time +info), and LASTSAVE (+lastsave) makes it cheaper. Without, Lock fails at once
// with an error that says so. There is no further round trip: a grant takes Redis 2 to
// 4 microseconds longer, and 10 to 25 while its latest save was less than d ago
// (BenchmarkAcquire of internal/script). Who finds others there pays nothing.
func WithRestartGuard(d time.Duration) Option {
	return func(o *options) error {
		if d != 0 && (d < time.Second || d > 24*time.Hour) {
			return fmt.Errorf("WithRestartGuard(%v): use 1s to 24h, or 0 for none", d)
		}
		o.guard = millis(d)
		return nil
	}
}

// guard notes whether the answer to an acquire came from the restart guard.
func (e *entry) guard(w *waiter, r reply) {
	if !r.young {
		e.young = time.Time{}
		return
	}
	now := time.Now()
	if end := now.Add(r.left).UnixMilli(); e.c.guarded.Swap(end) < now.UnixMilli() { // the first of many
		e.later(func() {
			e.c.opt.logger.Warn("rlock: the server restarted not long ago; the restart guard refuses",
				"lock", w.name, "left", r.left)
		})
	}
	e.young = now.Add(r.left)
}

// restarted is the error of an acquire that the restart guard kept out. It is nil if
// the latest one that was answered was granted, or found others there.
func (e *entry) restarted() error {
	if e.young.IsZero() {
		return nil
	}
	left := max(0, time.Until(e.young)).Round(time.Millisecond)
	return fmt.Errorf("%w: the restart guard refuses for another %v", ErrRestarted, left)
}
