package script

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// The golden vectors of a Redisson fair lock, F1 to F24. Time is the server's: where a
// vector lets some pass, the scores are taken back instead. What a peer relies on is the
// end state and the message; where we differ, the comment says how.

const (
	fieldC = "U:3"
	fieldD = "U:4"
	wait   = 300000
)

// fairBench is a bench whose key is a fair lock.
type fairBench struct{ *bench }

func onEachFair(t *testing.T, test func(b fairBench)) {
	onEach(t, func(b *bench) { test(fairBench{b}) })
}

// ask is the waiting form with the default wait.
func (b fairBench) ask(ttl any, field string, found ...string) Answer {
	return b.askFor(wait, ttl, field, found...)
}

func (b fairBench) askFor(wait, ttl any, field string, found ...string) Answer {
	return b.again(wait, 0, 0, ttl, field, found...)
}

// again is another request of one that stands in the queue already.
func (b fairBench) again(wait, passed, most, ttl any, field string, found ...string) Answer {
	return b.run.Send(b.t.Context(), FairAcquire, 3,
		more([]any{b.key, QueueKey(b.key), ScoresKey(b.key), ttl, field, 0, wait, passed, most}, found)...)
}

// beat says of some that they are still waited for under.
func (b fairBench) beat(wait, passed, most int, fields ...string) Answer {
	list := []any{b.key, QueueKey(b.key), ScoresKey(b.key)}
	for _, field := range fields {
		list = append(list, field, wait, passed, most)
	}
	return b.run.Send(b.t.Context(), FairBeat, 3, list...)
}

func (b fairBench) free(field string, found ...string) Answer {
	return b.run.Send(b.t.Context(), FairRelease, 1,
		more([]any{b.key, Channel(b.key), "publish", QueueKey(b.key), ScoresKey(b.key), field}, found)...)
}

func (b fairBench) give(wait any, fields ...string) Answer {
	words := []any{b.key, QueueKey(b.key), ScoresKey(b.key), Channel(b.key), "publish"}
	for _, field := range fields {
		words = append(words, field, wait)
	}
	return b.run.Send(b.t.Context(), FairLeave, 3, words...)
}

func (b fairBench) handOver(wait, ttl any, field string, found ...string) Answer {
	return b.run.Send(b.t.Context(), FairPass, 3,
		more([]any{b.key, QueueKey(b.key), ScoresKey(b.key), ttl, field, wait, Channel(b.key), "publish"}, found)...)
}

// queues checks the reply of one that stands in the queue, and whose turn does not come
// before hint.
func (b fairBench) queues(hint time.Duration, a Answer) {
	b.t.Helper()
	require.NoError(b.t, a.Err)
	rest, ok := strings.CutPrefix(a.Text, "queued:")
	require.True(b.t, ok, a.Text)
	ms, ahead, _ := strings.Cut(rest, ":")
	n, err := strconv.Atoi(ms)
	require.NoError(b.t, err)
	if hint < 0 {
		require.Equal(b.t, -1, n)
	} else {
		near(b.t, hint, time.Duration(n)*time.Millisecond)
	}
	n, err = strconv.Atoi(ahead)
	require.NoError(b.t, err)
	require.Positive(b.t, n)
}

// line checks the queue, and how far each score is ahead of now.
func (b fairBench) line(want ...any) {
	b.t.Helper()
	ctx := b.t.Context()
	var fields []string
	now := b.rdb.Time(ctx).Val()
	for i := 0; i < len(want); i += 2 {
		field := want[i].(string)
		fields = append(fields, field)
		score := b.rdb.ZScore(ctx, ScoresKey(b.key), field).Val()
		near(b.t, time.Duration(want[i+1].(int))*time.Millisecond, time.UnixMilli(int64(score)).Sub(now))
	}
	if len(fields) == 0 {
		require.Zero(b.t, b.rdb.Exists(ctx, QueueKey(b.key), ScoresKey(b.key)).Val())
		return
	}
	require.Equal(b.t, fields, b.rdb.LRange(ctx, QueueKey(b.key), 0, -1).Val())
	require.EqualValues(b.t, len(fields), b.rdb.ZCard(ctx, ScoresKey(b.key)).Val())
}

// pass lets ms go by for those in the queue.
func (b fairBench) later(ms float64, fields ...string) {
	b.t.Helper()
	for _, field := range fields {
		require.NoError(b.t, b.rdb.ZIncrBy(b.t.Context(), ScoresKey(b.key), -ms, field).Err())
	}
}

func (b fairBench) clear() {
	b.t.Helper()
	require.NoError(b.t, b.rdb.FlushAll(b.t.Context()).Err())
}

func TestGoldenFairQueue(t *testing.T) {
	t.Parallel()
	onEachFair(t, func(b fairBench) {
		b.says("granted", b.ask(30000, fieldA)) // F1
		b.queues(lease, b.ask(30000, fieldB))
		b.queues(lease, b.ask(30000, fieldC)) // the hint is the lock's; Redisson's is the score's
		b.queues(lease, b.ask(30000, fieldC))
		b.line(fieldB, 330000, fieldC, 630000)
		require.Equal(b.t, forever, b.rdb.TTL(b.t.Context(), QueueKey(b.key)).Val())
		b.says("kept", b.keep(5000, fieldA, 2)) // F2
		b.line(fieldB, 330000, fieldC, 630000)
		b.held(lease, b.askFor(0, 30000, fieldD)) // F3
		b.line(fieldB, 330000, fieldC, 630000)
		b.listen(TurnChannel(Channel(b.key), fieldB)) // F4: only to the head's channel
		b.says("kept", b.keep(5000, fieldA, 1))
		a := b.free(fieldA)
		b.says("released", a)
		require.Equal(b.t, 1, a.Told)
		b.stands(nil, 0, "0")
		b.queues(330*time.Second, b.ask(30000, fieldC)) // F5: until the silent head's time is over
		b.queues(330*time.Second, b.ask(30000, fieldD)) // F6
		b.held(330*time.Second, b.askFor(0, 30000, fieldC))
		b.line(fieldB, 330000, fieldC, 630000, fieldD, 930000)
		b.says("released", b.give(wait, fieldD)) // F7; the head is told
		b.stands(nil, 0, "0")
		b.listen(TurnChannel(Channel(b.key), fieldC))
		b.says("released", b.give(wait, fieldB))
		b.stands(nil, 0, "0")
		b.line(fieldC, 330000)
		b.says("granted", b.ask(30000, fieldC)) // F8
		b.line()
		b.says("gone", b.free(fieldD))
		b.stands(map[string]string{fieldC: "1"}, lease)
		b.says("released", b.free(fieldC))
		b.says("gone", b.free(fieldD)) // F9: nobody's
		b.stands(nil, 0)
	})
}

func TestGoldenFairScores(t *testing.T) {
	t.Parallel()
	onEachFair(t, func(b fairBench) {
		queue := func(waits ...int) {
			b.clear()
			b.says("granted", b.ask(30000, fieldA))
			for i, w := range waits {
				b.queues(lease, b.askFor(w, 30000, []string{fieldB, fieldC, fieldD}[i]))
			}
		}
		queue(5000, 5000, 5000) // F10
		b.line(fieldB, 35000, fieldC, 40000, fieldD, 45000)
		b.says("released", b.free(fieldA))
		b.says("granted", b.askFor(5000, 30000, fieldB))
		b.line(fieldC, 35000, fieldD, 40000)
		queue(5000, 6000, 7000) // F11
		b.says("left", b.give(6000, fieldC))
		b.line(fieldB, 35000, fieldD, 42000)
		b.says("gone", b.give(6000, fieldC)) // once
		b.line(fieldB, 35000, fieldD, 42000)
		queue(wait) // F13: on time, and a moment before
		b.later(329000, fieldB)
		b.held(time.Second, b.askFor(0, 30000, fieldC))
		b.line(fieldB, 1000)
		b.later(1000, fieldB)
		b.queues(lease, b.ask(30000, fieldC))
		b.line(fieldC, 330000)
		queue(wait, wait) // F14: a live one says so
		b.later(320000, fieldB, fieldC)
		b.queues(lease, b.ask(30000, fieldB)) // the head needs no more than its wait
		b.line(fieldB, 300000, fieldC, 310000)
		b.queues(lease, b.again(wait, 320000, 630000, 30000, fieldC))
		b.line(fieldB, 300000, fieldC, 630000)
		b.queues(lease, b.again(wait, 900000, 630000, 30000, fieldC)) // and never more than that
		b.line(fieldB, 300000, fieldC, 630000)
		b.later(290000, fieldB, fieldC)
		b.says("2", b.beat(wait, 290000, 630000, fieldC, fieldB, fieldD)) // or has it said for all
		b.line(fieldB, 300000, fieldC, 630000)
		b.later(300000, fieldB) // late, but nobody has come since
		b.queues(lease, b.ask(30000, fieldB))
		b.line(fieldB, 300000, fieldC, 630000)
		b.later(300000, fieldB) // evicted: it comes again, at the end
		b.held(lease, b.askFor(0, 30000, fieldD))
		b.queues(lease, b.ask(30000, fieldB))
		b.line(fieldC, 630000, fieldB, 930000)
		queue(wait, 5000) // PEER-7: a head that has waited for long takes its own wait off
		b.later(100000, fieldB, fieldC)
		b.queues(lease, b.again(5000, 100000, 335000, 30000, fieldC))
		b.says("released", b.free(fieldA))
		b.says("granted", b.ask(30000, fieldB))
		b.line(fieldC, 35000)
		queue(5000, 5000) // F12: a peer has taken too much off
		b.later(300000, fieldC)
		b.says("2", b.beat(5000, 0, 40000, fieldB, fieldC))
		b.line(fieldB, 5000, fieldC, 10000)
		b.says("released", b.free(fieldA)) // and whose turn has come hears of it
		b.says("2:"+fieldB, b.beat(5000, 0, 40000, fieldB, fieldC))
		b.says("1", b.beat(5000, 0, 40000, fieldC))
		queue(wait) // F23: a peer has raised its own score
		b.later(-(90000 - 330000), fieldB)
		b.queues(lease, b.askFor(5000, 30000, fieldC))
		b.line(fieldB, 90000, fieldC, 95000)
	})
}

func TestGoldenFairDeadHead(t *testing.T) {
	t.Parallel()
	onEachFair(t, func(b fairBench) {
		b.says("granted", b.ask(30000, fieldA)) // F15
		b.queues(lease, b.askFor(5000, 30000, fieldB))
		b.queues(lease, b.askFor(5000, 30000, fieldC))
		b.says("released", b.free(fieldA))
		b.queues(35*time.Second, b.askFor(5000, 30000, fieldC))
		b.later(35001, fieldB, fieldC)
		b.says("granted", b.askFor(5000, 30000, fieldC))
		b.line()
		b.clear() // F21
		b.says("granted", b.ask(50, fieldA))
		b.queues(50*time.Millisecond, b.ask(30000, fieldB))
		require.NoError(b.t, b.rdb.Del(b.t.Context(), b.key).Err())
		b.queues(300050*time.Millisecond, b.ask(30000, fieldC))
		b.says("granted", b.ask(30000, fieldB))
		b.line(fieldC, 300050)
		b.says("gone", b.free(fieldA)) // F22
		b.stands(map[string]string{fieldB: "1"}, lease)
	})
}

func TestGoldenFairOddStates(t *testing.T) {
	t.Parallel()
	onEachFair(t, func(b fairBench) {
		ctx := b.t.Context()
		force := func() Answer {
			return b.run.Send(ctx, Force, 1, b.key, Channel(b.key), "publish", QueueKey(b.key), ScoresKey(b.key))
		}
		b.listen(TurnChannel(Channel(b.key), fieldB))
		b.says("granted", b.ask(30000, fieldA)) // F16
		b.queues(lease, b.ask(30000, fieldB))
		b.says("removed", force())
		b.says("free", force())
		b.stands(nil, 0, "0")
		b.line(fieldB, 330000)
		b.listen(Channel(b.key)) // F17: a plain lock jumps the queue
		b.says("granted", b.acquire(30000, fieldD))
		b.says("released", b.release(fieldD))
		b.stands(nil, 0, "0")
		b.line(fieldB, 330000)
		b.clear() // F18: a holder without expiry; its score counts from now
		b.set(0, fieldA)
		b.queues(-1, b.ask(30000, fieldB))
		b.queues(-1, b.ask(30000, fieldB))
		b.line(fieldB, 300000)
		b.clear() // F19: nobody waits for one without a score
		b.says("granted", b.ask(30000, fieldA))
		b.queues(lease, b.ask(30000, fieldB))
		require.NoError(b.t, b.rdb.Del(ctx, ScoresKey(b.key), b.key).Err())
		b.says("granted", b.ask(30000, fieldC))
		b.line()
		b.queues(lease, b.ask(30000, fieldB)) // F20: never twice in the queue
		b.queues(lease, b.ask(30000, fieldD))
		require.NoError(b.t, b.rdb.ZRem(ctx, ScoresKey(b.key), fieldD).Err())
		b.queues(lease, b.ask(30000, fieldD))
		b.line(fieldB, 330000, fieldD, 630000)
		b.clear() // leftovers keep others out until they are swept
		b.says("granted", b.ask(30000, fieldA))
		b.queues(lease, b.ask(30000, fieldB))
		b.queues(lease, b.ask(30000, fieldC, fieldA))
		b.says("granted", b.ask(30000, fieldB, fieldA))
		b.stands(map[string]string{fieldB: "1"}, lease)
		b.line(fieldC, 330000)
		b.clear()
		b.set(lease, "mode", fieldB)
		b.says("rwlock", b.ask(30000, fieldA))
		b.line()
	})
}

// A hand-over goes to the head of the queue, or to nobody of this client.
func TestGoldenFairPass(t *testing.T) {
	t.Parallel()
	onEachFair(t, func(b fairBench) {
		b.listen(TurnChannel(Channel(b.key), fieldB))
		b.says("granted", b.ask(30000, fieldA))
		b.queues(lease, b.askFor(5000, 30000, fieldB))
		b.queues(lease, b.askFor(5000, 30000, fieldC))
		for range 2 { // a second run is harmless
			b.says("passed", b.handOver(5000, 10000, fieldB, fieldA))
			b.stands(map[string]string{fieldB: "1"}, 10*time.Second)
			b.line(fieldC, 35000)
		}
		b.says("gone", b.handOver(5000, 10000, fieldD, fieldA))
		b.queues(10*time.Second, b.askFor(5000, 30000, fieldA))
		b.listen(TurnChannel(Channel(b.key), fieldC))
		b.says("released", b.handOver(5000, 10000, fieldA, fieldB)) // C is the head
		b.stands(nil, 0, "0")
		b.line(fieldC, 35000, fieldA, 40000)
		b.says("gone", b.handOver(5000, 10000, fieldA, fieldB))
		b.refused("TTL below 1", b.handOver(5000, 0, fieldA, fieldB))
		b.refused("TTL below 1", b.ask(0, fieldA))
	})
}

// A queue of another type stops those who want to come in, before they change anything.
// Whoever has the lock, or leaves, goes on.
func TestACQ14_QueueOfAnotherType(t *testing.T) {
	t.Parallel()
	onEachFair(t, func(b fairBench) {
		ctx := b.t.Context()
		for _, key := range []string{QueueKey(b.key), ScoresKey(b.key)} {
			b.clear()
			require.NoError(b.t, b.rdb.Set(ctx, key, "x", 0).Err())
			b.refused("WRONGTYPE", b.ask(30000, fieldA))
			b.stands(nil, 0)
			b.set(lease, fieldB)
			b.refused("WRONGTYPE", b.ask(30000, fieldA))
			b.says("gone", b.handOver(5000, 10000, fieldA, fieldC))
			b.says("gone", b.give(5000, fieldA))
			b.says("0", b.beat(5000, 0, 0, fieldA))
			b.stands(map[string]string{fieldB: "1"}, lease)
			b.says("passed", b.handOver(5000, 10000, fieldB, fieldA)) // a second run
			b.stands(map[string]string{fieldB: "1"}, lease)
			for _, leave := range []func() Answer{
				func() Answer { return b.free(fieldB) },
				func() Answer { return b.handOver(5000, 10000, fieldA, fieldB) },
				func() Answer { return b.give(5000, fieldB) },
			} {
				b.set(lease, fieldB)
				b.says("released", leave())
				b.stands(nil, 0, "0")
				b.says("gone", leave())
				b.stands(nil, 0)
			}
			require.Equal(b.t, "x", b.rdb.Get(ctx, key).Val())
		}
	})
}

// While the scores cannot be read nobody is left out of the queue; those who leave are.
func TestACQ14_ScoresOfAnotherType(t *testing.T) {
	t.Parallel()
	onEachFair(t, func(b fairBench) {
		ctx := b.t.Context()
		b.says("granted", b.ask(30000, fieldA))
		for _, field := range []string{fieldB, fieldC, fieldD} {
			b.queues(lease, b.ask(30000, field))
		}
		require.NoError(b.t, b.rdb.Set(ctx, ScoresKey(b.key), "x", 0).Err())
		b.listen(TurnChannel(Channel(b.key), fieldB))
		b.says("released", b.free(fieldA))
		b.stands(nil, 0, "0")
		require.Equal(b.t, []string{fieldB, fieldC, fieldD}, b.rdb.LRange(ctx, QueueKey(b.key), 0, -1).Val())
		b.set(lease, fieldA)
		b.says("released", b.handOver(wait, 30000, fieldB, fieldA))
		b.stands(nil, 0, "0")
		b.set(lease, fieldA)
		b.says("left", b.give(wait, fieldB, fieldD))
		require.Equal(b.t, []string{fieldC}, b.rdb.LRange(ctx, QueueKey(b.key), 0, -1).Val())
	})
}

// Who has it, or leaves, can do so when memory is full.
func TestACQ9_FairAtMaxMemory(t *testing.T) {
	t.Parallel()
	onEachFair(t, func(b fairBench) {
		if b.mini { // it has no maxmemory
			return
		}
		ctx := b.t.Context()
		b.says("granted", b.ask(30000, fieldA))
		b.queues(lease, b.ask(30000, fieldB))
		b.queues(lease, b.ask(30000, fieldC))
		b.queues(lease, b.ask(30000, fieldD))
		require.NoError(b.t, b.rdb.ConfigSet(ctx, "maxmemory", "1").Err())
		defer b.rdb.ConfigSet(ctx, "maxmemory", "0")
		b.says("passed", b.handOver(wait, 30000, fieldB, fieldA))
		b.says("left", b.give(wait, fieldC))
		b.says("released", b.free(fieldB))
		b.says("granted", b.ask(30000, fieldD))
		b.says("released", b.free(fieldD))
	})
}
