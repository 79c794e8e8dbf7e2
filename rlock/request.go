package rlock

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/relock-go/relock/internal/record"
	"github.com/relock-go/relock/internal/script"
)

// reply is what became of a request in the end.
type reply struct {
	yes    bool
	left   time.Duration // of a refused acquire
	young  bool          // of a refused acquire: it was the restart guard that refused
	token  uint64        // of what is granted, kept or passed with one
	queued bool          // of a refused acquire: it stands in the queue
	ahead  time.Duration // and is waited for for so long
	acks   int           // replicas that have what was granted or passed
	ackErr error         // why that is not known
	deep   bool          // of what is granted: its field stood there, at another depth
	freed  bool          // of a pass: the lock was released to others instead
	told   int           // of a release: subscribers that heard of it; -1 unknown
	others bool          // of a release: some are still inside
	err    error         // there was no answer
	final  bool          // and there would be none to another attempt
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
				e.mu.Lock()
				stop = q.Abandoned() && q.Op != record.Pass // meanwhile
				e.mu.Unlock()
				if !stop {
					continue
				}
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
	if q.Op == record.Acquire {
		c.counters.attempts.Add(1)
	}
	var s *script.Script
	var a script.Answer
	switch fair := q.Hold != nil && q.Hold.Fair; {
	case q.RW():
		lua, words := e.rwWords(q)
		s, a = lua, c.sendWords(ctx, e.key, q.Op, lua, 1, words)
	case q.Hold == nil && e.sweepsQueue():
		s, a = script.FairLeave, e.sendLeave(ctx, names.channel, q.Found)
	case fair && q.Op != record.Keep:
		lua, words, numKeys := e.fairWords(q, names.channel)
		s, a = lua, c.sendWords(ctx, e.key, q.Op, lua, numKeys, words)
	default:
		s, a = e.sendWhole(ctx, names, q)
	}
	switch {
	case script.WrongType(a.Err) && q.Op != record.Acquire:
		return reply{}, script.Ran // another key stands there: the hold's is gone
	case script.WrongType(a.Err):
		return reply{err: both(ErrWrongType, a.Err)}, a.Fate
	case a.Fate != script.Ran:
		return reply{err: a.Err}, a.Fate
	}
	if r, ok := meaning(q, a); ok {
		if !c.sharded.heardByAll() {
			r.told = -1
		}
		if r.err != nil {
			return r, script.Refused
		}
		return r, script.Ran
	}
	a = script.BadReply(s, a.Text)
	return reply{err: a.Err}, a.Fate
}

// sendWords sends a script, and a grant to the replicas that are to have it.
func (c *Client) sendWords(ctx context.Context, key string, op record.Op, s *script.Script, numKeys int, words []any) script.Answer {
	if c.opt.acks > 0 && (op == record.Acquire || op == record.Pass) {
		return c.sendAcked(ctx, key, s, numKeys, words)
	}
	return c.runner.Send(ctx, s, numKeys, words...)
}

// sendWhole is send for a lock that has neither halves nor a queue.
func (e *entry) sendWhole(ctx context.Context, names *keys, q *record.Request) (*script.Script, script.Answer) {
	c := e.c
	// Most requests fit in here, and it stays on the stack: the runner copies.
	var buf [8]any
	words, numKeys := append(buf[:0], names.key), 1
	if q.Want.Token {
		words, numKeys = append(words, script.TokenKey(e.key)), 2
	}
	var s *script.Script
	switch q.Op {
	case record.Acquire:
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
	words = appendAll(words, q.Found)
	if c.opt.acks > 0 {
		return s, c.sendWords(ctx, e.key, q.Op, s, numKeys, slices.Clone(words))
	}
	return s, c.runner.Send(ctx, s, numKeys, words...)
}

func appendAll(words []any, fields []string) []any {
	for _, field := range fields {
		words = append(words, field)
	}
	return words
}

// rwWords are the words of a request on a read-write lock.
func (e *entry) rwWords(q *record.Request) (*script.Script, []any) {
	words, base := []any{e.key}, script.HoldBase(e.key)
	ended := ""
	switch q.Op {
	case record.Acquire:
		half, own := "read", ""
		if q.Hold.Half == record.Write {
			half = "write"
		} else {
			own = e.writerField(q.Hold.Owner)
		}
		words = append(words, e.c.ttlWord(q.TTL), q.Hold.Field, e.c.opt.guard, half, base, own)
		return script.RWAcquire, appendAll(words, q.Found)
	case record.Keep:
		return script.RWKeep, append(words, e.c.ttlWord(q.TTL), q.Hold.Field, q.Depth, base)
	case record.Pass:
		words = append(words, e.c.ttlWord(q.TTL), q.Hold.Field, base, script.RWChannel(e.key), e.c.sharded.publish())
		return script.RWPass, appendAll(words, q.Found)
	}
	if q.Hold != nil {
		ended = q.Hold.Field
	}
	return script.RWRelease, appendAll(append(words, script.RWChannel(e.key), e.c.sharded.publish(), base, ended), q.Found)
}

// writerField is the field under which owner is the writer; empty: it is not.
func (e *entry) writerField(owner string) string {
	e.mu.Lock()
	defer e.mu.Unlock()
	if h := e.rec.Hold(owner, record.Write); h != nil && !h.Lost() {
		return h.Field
	}
	return ""
}

// fairWords are the words of a request that the queue has a part in.
func (e *entry) fairWords(q *record.Request, channel any) (*script.Script, []any, int) {
	words, queue, scores := []any{e.key}, script.QueueKey(e.key), script.ScoresKey(e.key)
	switch q.Op {
	case record.Acquire:
		words = append(words, queue, scores, e.c.ttlWord(q.TTL), q.Hold.Field, e.c.opt.guard)
		words = appendStand(words, q.Want.Stand, q.SentAt())
		return script.FairAcquire, appendAll(words, q.Found), 3
	case record.Pass:
		words = append(words, queue, scores, e.c.ttlWord(q.TTL), q.Hold.Field, millis(q.Want.Stand.Wait),
			channel, e.c.sharded.publish())
		return script.FairPass, appendAll(words, q.Found), 3
	}
	words = append(words, channel, e.c.sharded.publish(), queue, scores, q.Hold.Field)
	return script.FairRelease, appendAll(words, q.Found), 1
}

// mostLeave is how many fields one call takes out of the queue: Redis serves nobody else
// meanwhile.
const mostLeave = 200

// sendLeave takes fields out of the queue, and out of the lock, by as many calls as that
// needs. They count as one attempt: the first that fails is its answer, and another
// attempt names all of them again.
func (e *entry) sendLeave(ctx context.Context, channel any, fields []string) script.Answer {
	a := script.Answer{Text: "gone", Fate: script.Ran}
	for some := range slices.Chunk(fields, mostLeave) {
		words := []any{e.key, script.QueueKey(e.key), script.ScoresKey(e.key), channel, e.c.sharded.publish()}
		e.mu.Lock()
		for _, field := range some {
			words = append(words, field, millis(e.rec.WaitOf(field)))
		}
		e.mu.Unlock()
		next := e.c.runner.Send(ctx, script.FairLeave, 3, words...)
		if next.Fate != script.Ran {
			return next
		}
		if next.Text != "gone" {
			a = next
		}
	}
	return a
}

// sweepsQueue tells whether fields that are to be swept may stand in the queue.
func (e *entry) sweepsQueue() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.rec.InQueue()
}

// meaning reads the reply to a request. Each script has words of its own, and
// those of another are no answer.
func meaning(q *record.Request, a script.Answer) (reply, bool) {
	yes := [...]string{record.Acquire: "granted", record.Keep: "kept", record.Release: "released", record.Pass: "passed"}
	what, rest, _ := strings.Cut(a.Text, ":")
	switch {
	case what == yes[q.Op]:
		deep := false
		if q.Op == record.Acquire {
			if rest, deep = strings.CutSuffix(rest, ":deep"); rest == "deep" {
				rest, deep = "", true
			}
		}
		r := reply{yes: true, deep: deep, told: a.Told, acks: a.Acks, ackErr: a.AckErr, others: rest == "others"}
		if q.Want.Token {
			token, err := strconv.ParseUint(rest, 10, 64)
			r.token = token
			return r, err == nil && token > 0
		}
		return r, rest == "" || r.others
	case what == "released" && q.Op == record.Pass && (q.Hold.Fair || q.RW()):
		return reply{freed: true, told: a.Told, others: rest == "others"}, true
	case a.Text == "left" && q.Op == record.Release:
		return reply{yes: true, others: true}, true
	case q.Op != record.Acquire:
		return reply{}, a.Text == "gone"
	case a.Text == "rwlock":
		return reply{err: fmt.Errorf("%w: a read-write lock stands there", ErrWrongType)}, true
	case a.Text == "lock" && q.RW():
		return reply{err: fmt.Errorf("%w: it is no read-write lock that stands there", ErrWrongType)}, true
	}
	ms, ahead, queued := strings.Cut(rest, ":")
	r := reply{young: what == "restarted", queued: queued}
	var whole bool
	if r.left, whole = parseMillis(ms); whole && queued {
		r.ahead, whole = parseMillis(ahead)
		whole = whole && q.Hold.Fair
	}
	switch {
	case !whole:
	case what == "held" && !queued && r.left >= -time.Millisecond:
		return r, true
	case what == "queued" && queued && r.left >= -time.Millisecond:
		return r, true
	case r.young && r.left > 0: // a FairLock's waiter may stand in the queue meanwhile
		return r, true
	}
	return reply{}, false
}

// parseMillis reads a time that a script gives.
func parseMillis(text string) (d time.Duration, ok bool) {
	n, err := strconv.ParseInt(text, 10, 64)
	return time.Duration(n) * time.Millisecond, err == nil
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
