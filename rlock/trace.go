package rlock

import (
	"fmt"
	"log/slog"
	"time"
)

// Trace is a set of callbacks, in the manner of net/http/httptrace. Nil ones are
// skipped. They are called without any lock of this package held, each in a
// goroutine of its own, so they must be safe for concurrent use and quick. Inside
// one the calling goroutine is nobody's owner: take the one it is told along with
// WithOwner. Close waits for callbacks, so one must not call it and wait. A panic in
// one is recovered and logged.
type Trace struct {
	// Waiting: the lock was not free, and o begins to wait.
	Waiting func(lock string, o Owner)
	// Acquired: o holds the lock, after so long. Re-entries are not told.
	Acquired func(lock string, o Owner, waited time.Duration)
	// Failed: o did not get the lock. err is nil when the wait was over.
	Failed func(lock string, o Owner, waited time.Duration, err error)
	// HandedOff: the lock passed from one owner of this client to the next.
	HandedOff func(lock string, from, to Owner)
	// Released: o gave the lock back, after so long, to the next owner or to all.
	Released func(lock string, o Owner, held time.Duration)
	// Renewed: the hold is proven for left from now.
	Renewed func(lock string, o Owner, left time.Duration)
	// RenewFailed: a renewal got no answer; the hold is proven for left still.
	RenewFailed func(lock string, o Owner, left time.Duration, err error)
	// Lost: the hold is lost, after so long. So is one whose lease has run out, and one
	// that Close ends, cause ErrClosed.
	Lost func(lock string, o Owner, held time.Duration, cause error)
}

// tell runs a callback of the user's. It has a goroutine of its own, so that neither
// a panic nor a Goexit (a test's FailNow) in it cuts through this package.
func tell(log *slog.Logger, f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer func() {
			if p := recover(); p != nil {
				log.Error("rlock: panic in a Trace callback", "panic", fmt.Sprint(p))
			}
		}()
		f()
	}()
	<-done
}
