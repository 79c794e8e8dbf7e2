package redisson

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/redistest"
	"github.com/relock-go/relock/internal/script"
	"github.com/relock-go/relock/rlock"
)

var fairCells = []cell{
	{name: "exclusion", run: exclusion},
	{name: "woken by unlock", run: woken},
	{name: "re-entry", run: reentry},
	{name: "watchdog", run: watchdog},
	{name: "lease runs out", run: leaseRunsOut},
	{name: "force unlock", run: forced},
	// A Redisson waiter that is interrupted stays in the queue.
	{name: "waiter cancelled", run: cancelled, only: "java"},
	{name: "cancelled as it is woken", run: cancelledAsWoken, only: "java"},
	{name: "contention", run: contention, only: "java"},
	{name: "in order", run: inOrder},
	{name: "place behind one that enters", run: placeKept},
	{name: "place outlives its first score", run: placeRefreshed, only: "go"},
	{name: "head gives up a free lock", run: headGivesUp, only: "go"},
	{name: "head cancelled at a free lock", run: headCancelled, only: "go"},
	{name: "dead Redisson head", run: deadRedissonHead, only: "go"},
}

// queue is who stands in a fair lock's queue. Each has a score, and nobody else does.
func (m *match) queue() []string {
	m.Helper()
	var line, scored *redis.StringSliceCmd
	_, err := m.rdb.TxPipelined(m.ctx, func(tx redis.Pipeliner) error {
		line = tx.LRange(m.ctx, script.QueueKey(m.key), 0, -1)
		scored = tx.ZRange(m.ctx, script.ScoresKey(m.key), 0, -1)
		return nil
	})
	require.NoError(m, err)
	require.ElementsMatch(m, line.Val(), scored.Val(), "the queue and its scores differ")
	all := line.Val()
	for i, field := range all {
		all[i] = bare(field)
	}
	return all
}

// isQueue waits until those stand in the queue, in that order: who has left it goes
// on while Redis is told.
func (m *match) isQueue(want ...party) {
	m.Helper()
	var fields []string
	for _, p := range want {
		fields = append(fields, p.field())
	}
	m.eventually(func() bool { return slices.Equal(m.queue(), fields) }, "the queue is as it should be")
}

// impatient is how long the queue waits for a Go waiter that says nothing, in the
// tests where that is not to take long. Such a waiter says that it lives four times
// as often.
const impatient = time.Second

// queuer is party whose Go waiters are impatient.
func (m *match) queuer(s side, watchdog time.Duration) party {
	m.Helper()
	if s == side(m.golang) {
		return m.impatientGo(m.client(m.T), watchdog).party(m.T, m.kind, m.key)
	}
	return m.party(s, watchdog)
}

func (m *match) impatientGo(rdb redis.UniversalClient, watchdog time.Duration) *goPeer {
	m.Helper()
	return m.golang.client(m.T, rdb, rlock.WithWatchdogTimeout(watchdog), rlock.WithFairWaitTimeout(impatient))
}

// beats waits until each Go waiter among some has said a few times that it lives.
func (m *match) beats(some ...party) {
	m.Helper()
	for _, p := range some {
		if g, ok := p.(*goParty); ok {
			before := g.peer.c.Stats().Attempts
			m.eventually(func() bool { return g.peer.c.Stats().Attempts >= before+3 }, "the waiter says that it lives")
		}
	}
}

// Waiters of both languages come in as they came, also those of one process with
// others between them.
func inOrder(m *match) {
	holder := m.party(m.holds, long)
	ours, theirs := m.holds.open(m.T, long), m.other.open(m.T, long)
	require.NoError(m, holder.lock(0))
	var line []party
	var got []<-chan outcome
	for _, peer := range []peer{theirs, theirs, ours, theirs, ours, ours, theirs} {
		p := peer.party(m.T, m.kind, m.key)
		line, got = append(line, p), append(got, m.waits(p))
		m.isQueue(line...)
	}
	inside := holder
	for i, next := range line {
		for _, newcomer := range []peer{ours, theirs} {
			m.no(newcomer.party(m.T, m.kind, m.key).tryLock(0, 0))
		}
		m.isQueue(line[i:]...)
		for _, later := range got[i:] {
			m.still(later, "it is not its turn")
		}
		require.NoError(m, inside.unlock())
		m.enters(got[i], "it is its turn")
		m.isHash(next, "1")
		inside = next
	}
	require.NoError(m, inside.unlock())
	require.Empty(m, m.fields())
	m.eventually(func() bool { return len(m.left()) == 0 }, "no key is left")
}

// Whoever enters takes its own time in the queue off everybody's score: Redisson 5
// minutes, these here a second. A live waiter keeps its place all the same.
func placeKept(m *match) {
	holder := m.party(m.holds, long)
	first, second, third := m.queuer(m.holds, long), m.queuer(m.other, long), m.queuer(m.holds, long)
	require.NoError(m, holder.lock(0))
	a, b, c := m.waits(first), m.waits(second), m.waits(third)
	m.beats(first, second, third)
	m.isQueue(first, second, third)

	require.NoError(m, holder.unlock())
	m.enters(a, "the first")
	m.isQueue(second, third)
	m.beats(second, third)
	m.no(m.party(m.other, long).tryLock(0, 0)) // this drops whoever has outstayed its score
	m.isQueue(second, third)
	m.still(b, "the first is inside")

	require.NoError(m, first.unlock())
	m.enters(b, "the second")
	m.isHash(second, "1")
	m.beats(third)
	m.isQueue(third)
	require.NoError(m, second.unlock())
	m.enters(c, "the third")
	require.NoError(m, third.unlock())
}

// A Go waiter that waits for longer than it was given at first is not dropped, as a
// Redisson one would be.
func placeRefreshed(m *match) {
	holder := m.party(m.golang, 2*short) // the score is for that long, and for the waiter's impatience
	require.NoError(m, holder.lock(0))
	first, second := m.queuer(m.golang, long), m.party(m.java, long)
	a := m.waits(first)
	scores, err := m.rdb.ZRangeWithScores(m.ctx, script.ScoresKey(m.key), 0, -1).Result()
	require.NoError(m, err)
	require.Len(m, scores, 1)
	b := m.waits(second)
	m.eventually(func() bool {
		now, err := m.nodes[0].Time(m.ctx).Result() // all are on one machine
		require.NoError(m, err)
		return float64(now.UnixMilli()) > scores[0].Score
	}, "its first score is over")
	m.no(m.party(m.java, long).tryLock(0, 0))
	m.isQueue(first, second)
	require.NoError(m, holder.unlock())
	m.enters(a, "the first")
	m.still(b, "the first is inside")
	require.NoError(m, first.unlock())
	m.enters(b, "the second")
	require.NoError(m, second.unlock())
}

// A Redisson head whose time is over may leave a lock that has just become free. It
// tells nobody of that.
func headGivesUp(m *match) {
	holder, head, next := m.party(m.golang, long), m.party(m.java, long), m.party(m.golang, long)
	require.NoError(m, holder.lock(0))
	tried := make(chan bool, 1)
	gone := begin(func() error {
		got, err := head.tryLock(4*time.Second, 0)
		tried <- got
		return err
	})
	m.eventually(func() bool { return head.asleep() && m.listens(head) }, "the head waits")
	got := m.waits(next)
	m.isQueue(head, next)
	// As a release whose message comes too late. The next one was told that the holder
	// has 30 s left.
	require.NoError(m, m.rdb.Del(m.ctx, m.key).Err())
	m.enters(gone, "the head gives up")
	require.False(m, <-tried)
	m.enters(got, "the next one finds out by itself")
	m.isHash(next, "1")
	m.isQueue()
	require.NoError(m, next.unlock())
	require.ErrorIs(m, holder.unlock(), rlock.ErrLost)
}

// A Go head that leaves a free lock tells the next one, who would sleep for 30 s.
func headCancelled(m *match) {
	for range tries { // the head asks once a second, and may find out before it is cancelled
		m.again()
		holder, head, next := m.party(m.golang, long), m.party(m.golang, long), m.party(m.java, long)
		require.NoError(m, holder.lock(0))
		gone, got := m.waits(head), m.waits(next)
		m.isQueue(head, next)
		require.NoError(m, m.rdb.Del(m.ctx, m.key).Err())
		head.interrupt()
		err := m.ends(gone, "it is cancelled").err
		if err == nil {
			require.NoError(m, head.unlock())
		}
		m.enters(got, "the next one")
		m.isHash(next, "1")
		require.NoError(m, next.unlock())
		if err != nil {
			require.ErrorIs(m, err, context.Canceled)
			return
		}
	}
	m.Fatal("the head was never cancelled in time")
}

// A Redisson process may die as the head. relock's waiter behind it gets in when the
// time of the dead one is over, and asks about once a second until then.
func deadRedissonHead(m *match) {
	const lease = 3 * time.Second
	dying := m.java.client(m.T, m.addrs, long, "patience", millis(impatient))
	holder, head := m.party(m.golang, long), dying.party(m.T, m.kind, m.key)
	next := m.party(m.golang, long).(*goParty)
	require.NoError(m, holder.lock(lease))
	gone := m.waits(head)
	got := m.waits(next)
	dying.close(m.T)
	require.NoError(m, holder.unlock())
	before, died := next.peer.c.Stats().Attempts, time.Now()
	took := m.enters(got, "the dead head's time is over").at.Sub(died)
	asked := next.peer.c.Stats().Attempts - before
	m.Logf("go enters %v after the head died, after %d requests", took, asked)
	require.Less(m, asked, uint64(30))
	m.isHash(next, "1")
	m.isQueue()
	require.NoError(m, next.unlock())
	require.Error(m, m.ends(gone, "its client is closed").err)
}

// testQuiet counts what a Redisson waiter sends behind Go waiters that give up: a
// message that is not for it, or an entry that is left before it, has it ask thousands
// of times a second.
func testQuiet(t *testing.T, h *harness) {
	m := newMatch(t, h, "fair")
	proxy := h.single.Proxy(t)
	client := h.java.client(t, []string{proxy.Addr}, long)
	defer client.close(t)
	sent := func() (n int) {
		for _, r := range proxy.Requests() {
			if redistest.And(redistest.Command("evalsha", "eval"), redistest.HasArg(m.key))(r) {
				n++
			}
		}
		return n
	}
	holder, waiter := m.party(h.golang, long), client.worker(t, "fair", m.key)
	first, head, behind := m.queuer(h.golang, long), m.queuer(h.golang, long), m.queuer(h.golang, long)
	require.NoError(t, holder.lock(0))
	entered, gone := m.waits(first), m.waits(head)
	got, last := m.waits(waiter), m.waits(behind)
	asked := sent()
	m.beats(first, head, behind)
	require.NoError(t, holder.unlock())
	m.enters(entered, "the first")
	m.beats(head, behind)
	require.Equal(t, asked, sent(), "live waiters, and one that enters, concern only themselves")

	head.interrupt()
	require.ErrorIs(t, m.ends(gone, "it is cancelled").err, context.Canceled)
	m.isQueue(waiter, behind)
	m.timesOut(m.queuer(h.golang, long), 300*time.Millisecond, 0)
	m.isQueue(waiter, behind)
	m.beats(behind)
	require.Equal(t, asked, sent(), "those who give up a lock that is taken concern only themselves")
	require.NoError(t, first.unlock())
	m.enters(got, "it is its turn")
	require.LessOrEqual(t, sent()-asked, 2)
	require.NoError(t, waiter.unlock())
	m.enters(last, "the last one")
	require.NoError(t, behind.unlock())
}

// testDeadHead bounds for how long a Go process that dies while it is the head keeps a
// Redisson waiter out. Redisson asks without a pause meanwhile, as behind a dead waiter
// of its own, which takes 5 minutes.
func testDeadHead(t *testing.T, h *harness) {
	const lease = 3 * time.Second
	m := newMatch(t, h, "fair")
	proxy := h.single.Proxy(t)
	rdb := redistest.NewClient(t, proxy.Addr, func(o *redis.Options) { o.ReadTimeout = 200 * time.Millisecond })
	dead := m.impatientGo(rdb, short).party(t, "fair", m.key)
	holder, next := m.party(h.golang, long), m.party(h.java, long)
	require.NoError(t, holder.lock(lease))
	gone := m.waits(dead)
	got := m.waits(next)
	proxy.BlackHole(true)
	died, count := time.Now(), redistest.CountCommands(t, h.rdb)
	require.NoError(t, holder.unlock())
	took := m.enters(got, "the dead head's time is over").at.Sub(died)
	asked := count()["evalsha"]
	m.isHash(next, "1")
	t.Logf("java enters %v after the head died, after %d requests; it was given what was left of %v, and %v",
		took, asked, lease, impatient)
	require.Less(t, took, lease+impatient+5*time.Second) // the machine may be busy

	// What it had sent comes late, and gets it nothing.
	dead.interrupt()
	require.Error(t, m.ends(gone, "it is cancelled, or has given Redis up before").err)
	proxy.BlackHole(false)
	m.isHash(next, "1")
	require.NoError(t, next.unlock())
	m.eventually(func() bool { return len(m.left()) == 0 }, "the dead one has taken back what came late")
}
