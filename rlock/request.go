package rlock

import (
	"context"
	"errors"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"

	"github.com/relock-go/relock/internal/record"
	"github.com/relock-go/relock/internal/script"
)

// flight is a request with the goroutine that sends it. It ends by itself, also
// when its caller has left. entry.mu guards it; done is closed when it is settled.
type flight struct {
	q       *record.Request
	done    chan struct{}
	settled bool

	verdict record.Verdict
	hold    *hold         // Granted
	left    time.Duration // Held: for how long at least, -1 without end
	err     error         // no answer
}

// launch sends q in a goroutine of its own and has finish deal with the answer.
// finish is called with mu held and keeps the turn; it must end it.
func (e *entry) launch(ctx context.Context, q *record.Request, until time.Time, finish func(*flight, reply)) *flight {
	f := &flight{q: q, done: make(chan struct{})}
	ctx = context.WithoutCancel(ctx)
	e.c.spawn(func() {
		r := e.exchange(ctx, q, until)
		e.lock()
		defer e.unlock()
		finish(f, r)
	})
	return f
}

// settle publishes what came of f. mu is held.
func (f *flight) settle() {
	f.settled = true
	close(f.done)
}

// await waits for f within the bounds of k, with mu released meanwhile. If they
// are reached first it abandons the request.
func (e *entry) await(k *call, f *flight) error {
	if f.settled {
		return f.err
	}
	e.unlock()
	err := k.wait(f.done)
	e.lock()
	if f.settled {
		return f.err
	}
	e.rec.Abandon(f.q)
	if errors.Is(err, ErrClosed) {
		return err
	}
	return both(ErrUnsettled, err)
}

// reply is what became of a request in the end.
type reply struct {
	yes  bool
	left time.Duration // of a refused acquire
	err  error         // there was no answer
}

// exchange sends q until it is answered, or until is over, or nobody wants the
// answer any more. A zero until means one attempt. mu is not held.
func (e *entry) exchange(ctx context.Context, q *record.Request, until time.Time) reply {
	for try := 0; ; try++ {
		e.lock()
		e.rec.Sent(q, e.c.clock())
		e.unlock()
		r, fate := e.send(ctx, q)
		if fate == script.Ran {
			return r
		}
		e.lock()
		if fate == script.Unknown {
			e.rec.Unanswered(q)
		}
		stop := fate == script.Refused || q.Abandoned()
		doubtful := q.Doubtful()
		e.unlock()
		pause := backoff(try)
		if !stop && time.Until(until) > pause {
			select {
			case <-e.c.closing: // no time to lose; Close sweeps what is left
			case <-time.After(pause):
				continue
			}
		}
		if doubtful {
			r.err = both(ErrUnsettled, r.err)
		}
		return r
	}
}

// backoff is the pause before the next attempt: from 5 to 250 ms.
func backoff(try int) time.Duration {
	d := min(250*time.Millisecond, 5*time.Millisecond<<min(try, 10))
	return d/2 + rand.N(d/2+1)
}

// send makes one attempt.
func (e *entry) send(ctx context.Context, q *record.Request) (reply, script.Fate) {
	run := &e.c.runner
	var s *script.Script
	var a script.Answer
	switch q.Op {
	case record.Acquire:
		e.c.counters.attempts.Add(1)
		s = script.Acquire
		a = run.Send(ctx, s, 1, e.words(q, millis(q.TTL), q.Hold.Field)...)
	case record.Keep:
		s = script.Keep
		a = run.Send(ctx, s, 1, e.word, millis(q.TTL), q.Hold.Field, q.Depth)
	case record.Pass:
		s = script.Pass
		a = run.Send(ctx, s, 1, e.words(q, millis(q.TTL), q.Hold.Field)...)
	case record.Release:
		s = script.Release
		if q.Hold != nil {
			a = run.Send(ctx, s, 2, e.words(q, script.Channel(e.key), publish, q.Hold.Field)...)
		} else {
			a = run.Send(ctx, s, 2, e.words(q, script.Channel(e.key), publish)...)
		}
	}
	if a.Fate != script.Ran {
		if script.WrongType(a.Err) {
			a.Err = both(ErrWrongType, a.Err)
		}
		return reply{err: a.Err}, a.Fate
	}
	switch a.Text {
	case "granted", "kept", "released", "passed":
		return reply{yes: true}, script.Ran
	case "gone":
		return reply{}, script.Ran
	}
	if ms, ok := strings.CutPrefix(a.Text, "held:"); ok && q.Op == record.Acquire {
		if n, err := strconv.ParseInt(ms, 10, 64); err == nil && n >= -1 {
			return reply{left: time.Duration(n) * time.Millisecond}, script.Ran
		}
	}
	a = script.BadReply(s, a.Text)
	return reply{err: a.Err}, a.Fate
}

// publish is the command that tells a release: sharded channels are for clusters.
const publish = "publish"

// words are the key, then args, then the own fields that q names.
func (e *entry) words(q *record.Request, args ...any) []any {
	words := make([]any, 0, 1+len(args)+len(q.Found))
	words = append(words, e.word)
	words = append(words, args...)
	for _, field := range q.Found {
		words = append(words, field)
	}
	return words
}

// millis is d for Redis: whole milliseconds, rounded up, so that Redis never
// ends a hold before this client does.
func millis(d time.Duration) int64 {
	return int64((d + time.Millisecond - 1) / time.Millisecond)
}
