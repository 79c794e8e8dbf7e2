package rlock

import (
	"context"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"

	"github.com/relock-go/relock/internal/record"
	"github.com/relock-go/relock/internal/script"
)

// reply is what became of a request in the end.
type reply struct {
	yes   bool
	left  time.Duration // of a refused acquire
	young bool          // of a refused acquire: it was the restart guard that refused
	told  int           // of a release: subscribers that heard of it; -1 unknown
	err   error         // there was no answer
	final bool          // and there would be none to another attempt
}

// exchange sends q until it is answered, or until is over, or nobody wants the
// answer any more. A zero until means one attempt. mu is not held.
func (e *entry) exchange(ctx context.Context, q *record.Request, until time.Time) reply {
	for try := 0; ; try++ {
		e.mu.Lock()
		if try == 0 {
			e.failed = nil
		}
		e.rec.Sent(q, e.c.clock())
		names := e.keys()
		e.mu.Unlock()
		r, fate := e.send(ctx, names, q)
		if fate == script.Ran {
			return r
		}
		e.c.redis.failed(ctx, r.err)
		e.mu.Lock()
		e.failed = r.err
		if fate == script.Unknown {
			e.rec.Unanswered(q)
		}
		// A pass goes on without the next owner: it ends a hold too.
		stop := fate == script.Refused || q.Abandoned() && q.Op != record.Pass
		doubtful := q.Doubtful()
		e.mu.Unlock()
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
		r.final = fate == script.Refused
		return r
	}
}

// backoff is the pause before the next attempt: from 5 to 250 ms.
func backoff(try int) time.Duration {
	d := min(250*time.Millisecond, 5*time.Millisecond<<min(try, 10))
	return d/2 + rand.N(d/2+1)
}

// send makes one attempt.
func (e *entry) send(ctx context.Context, names *keys, q *record.Request) (reply, script.Fate) {
	c := e.c
	// Most requests fit in here, and it stays on the stack: the runner copies.
	var buf [8]any
	words := append(buf[:0], names.key)
	var s *script.Script
	switch q.Op {
	case record.Acquire:
		c.counters.attempts.Add(1)
		s = script.Acquire
		words = append(words, c.ttlWord(q.TTL), q.Hold.Field, c.opt.guard)
	case record.Keep:
		s = script.Keep
		words = append(words, c.ttlWord(q.TTL), q.Hold.Field, q.Depth)
	case record.Pass:
		s = script.Pass
		words = append(words, c.ttlWord(q.TTL), q.Hold.Field)
	case record.Release:
		s = script.Release
		words = append(words, names.channel, c.sharded.publish())
		if q.Hold != nil {
			words = append(words, q.Hold.Field)
		}
	}
	for _, field := range q.Found {
		words = append(words, field)
	}
	a := c.runner.Send(ctx, s, 1, words...)
	switch {
	case script.WrongType(a.Err) && q.Op != record.Acquire:
		return reply{}, script.Ran // another key stands there: the hold's is gone
	case script.WrongType(a.Err):
		return reply{err: both(ErrWrongType, a.Err)}, a.Fate
	case a.Fate != script.Ran:
		return reply{err: a.Err}, a.Fate
	}
	if r, ok := meaning(q.Op, a); ok {
		if !c.sharded.heardByAll() {
			r.told = -1
		}
		return r, script.Ran
	}
	a = script.BadReply(s, a.Text)
	return reply{err: a.Err}, a.Fate
}

// meaning reads the reply to a request. Each script has words of its own, and
// those of another are no answer.
func meaning(op record.Op, a script.Answer) (reply, bool) {
	yes := [...]string{record.Acquire: "granted", record.Keep: "kept", record.Release: "released", record.Pass: "passed"}
	switch {
	case a.Text == yes[op]:
		return reply{yes: true, told: a.Told}, true
	case op != record.Acquire:
		return reply{}, a.Text == "gone"
	}
	why, ms, _ := strings.Cut(a.Text, ":")
	n, err := strconv.ParseInt(ms, 10, 64)
	left := time.Duration(n) * time.Millisecond
	switch {
	case err != nil:
	case why == "held" && n >= -1:
		return reply{left: left}, true
	case why == "restarted" && n > 0:
		return reply{left: left, young: true}, true
	}
	return reply{}, false
}

// keys are the names of a lock in Redis, boxed once for go-redis.
type keys struct{ key, channel any }

func keysOf(key string) *keys { return &keys{key, script.Channel(key)} }

// millis is d for Redis: whole milliseconds, rounded up, so that Redis never
// ends a hold before this client does.
func millis(d time.Duration) int64 {
	return int64((d + time.Millisecond - 1) / time.Millisecond)
}

// ttlWord is a TTL for Redis. That of the watchdog is boxed once.
func (c *Client) ttlWord(ttl time.Duration) any {
	if ttl == c.opt.watchdog {
		return c.watchdogWord
	}
	return millis(ttl)
}
