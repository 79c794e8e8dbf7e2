package redisson

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/relock-go/relock/internal/script"
	"github.com/relock-go/relock/rlock"
)

// writeCells are those of the read-write lock: at first what its write half has in
// common with a plain lock.
var writeCells = []cell{
	{name: "exclusion", run: exclusion},
	{name: "woken by unlock", run: woken},
	{name: "re-entry", run: reentry},
	{name: "lease runs out", run: leaseRunsOut},
	{name: "force unlock", run: forced},
	{name: "cancelled as it is woken", run: cancelledAsWoken, only: "java"},
	{name: "contention", run: contention, only: "java"},
	{name: "readers see no writer", run: readersSeeNoWriter, only: "go"},
	{name: "readers together, writers alone", run: readersTogether},
	{name: "readers released in every order", run: everyOrder},
	{name: "longest reader", run: longestReader},
	{name: "writer woken by the last reader", run: writerWoken},
	{name: "readers woken by a writer", run: readersWoken},
	{name: "nested reads", run: nestedReads},
	{name: "downgrade", run: downgrade},
	{name: "watchdog", run: readersKept},
	{name: "watchdog of a writer that read", run: writerKept, only: "go"},
	{name: "readers forced out", run: readersForced},
	{name: "renewal beside a longer lease", run: longLease},
}

func (m *match) reader(s side, watchdog time.Duration) party {
	m.Helper()
	return m.partyAt("read", s, watchdog)
}

func (m *match) writer(s side, watchdog time.Duration) party {
	m.Helper()
	return m.partyAt("write", s, watchdog)
}

// isRead checks that those read, each so many times, and nobody else is there. Each
// read has a key, by which the other language knows that its reader lives.
func (m *match) isRead(depths map[party]int) {
	m.Helper()
	fields, keys := map[string]string{"mode": "read"}, []string{}
	for p, depth := range depths {
		if depth > 0 {
			fields[p.field()] = strconv.Itoa(depth)
		}
		for n := range depth {
			keys = append(keys, fmt.Sprintf("%s:%s:rwlock_timeout:%d", script.HoldBase(m.key), p.field(), n+1))
		}
	}
	if len(keys) == 0 {
		fields = map[string]string{}
	}
	require.Equal(m, fields, m.fields())
	stand := slices.DeleteFunc(m.left(), func(key string) bool { return !strings.Contains(key, ":rwlock_timeout:") })
	require.ElementsMatch(m, keys, stand)
}

func readersTogether(m *match) {
	a, b := m.reader(m.holds, long), m.reader(m.other, long)
	writers := []party{m.writer(m.holds, long), m.writer(m.other, long)}
	depths := map[party]int{}
	for _, p := range []party{a, b} {
		m.yes(p.tryLock(0, 0))
		depths[p] = 1
		m.isRead(depths)
		m.yes(b.isLocked())
		m.no(writers[0].isLocked())
		m.no(writers[1].isLocked())
		for _, w := range writers {
			m.no(w.tryLock(0, 0))
			m.timesOut(w, 20*time.Millisecond, 0)
			require.ErrorIs(m, w.unlock(), rlock.ErrNotHeld)
		}
	}
	stranger := m.reader(m.other, long)
	require.ErrorIs(m, stranger.unlock(), rlock.ErrNotHeld)
	m.no(stranger.isHeld())
	m.isRead(depths)
	for _, p := range []party{a, b} {
		m.yes(p.isHeld())
		require.NoError(m, p.unlock())
		depths[p] = 0
		m.isRead(depths)
		require.ErrorIs(m, p.unlock(), rlock.ErrNotHeld)
		m.no(p.isHeld())
		if p == a {
			m.no(writers[0].tryLock(0, 0))
			m.no(writers[1].tryLock(0, 0))
		}
	}
	for i, w := range writers {
		m.yes(w.tryLock(0, 0))
		m.isHash(w, "1")
		for _, r := range []party{a, b} {
			m.no(r.tryLock(0, 0))
			m.timesOut(r, 20*time.Millisecond, 0)
			m.no(r.isLocked())
			is1(m, 0, r.holdCount)
		}
		m.no(writers[1-i].tryLock(0, 0))
		require.NoError(m, w.unlock())
	}
	require.Empty(m, m.fields())
}

// Each release deletes what it takes for dead, so it has to find the others' holds.
func everyOrder(m *match) {
	readers := []party{m.reader(m.holds, long), m.reader(m.other, long), m.reader(m.holds, long)}
	writers := []party{m.writer(m.holds, long), m.writer(m.other, long)}
	full := map[party]int{readers[0]: 2, readers[1]: 1, readers[2]: 1}
	for _, order := range orders([]int{2, 1, 1}) {
		depths := map[party]int{}
		for _, r := range readers {
			for range full[r] {
				require.NoError(m, r.lock(0))
				depths[r]++
			}
		}
		m.isRead(depths)
		for _, i := range order {
			for _, w := range writers {
				m.no(w.tryLock(0, 0))
			}
			require.NoError(m, readers[i].unlock(), order)
			depths[readers[i]]--
			m.isRead(depths)
			for _, r := range readers {
				is1(m, depths[r], r.holdCount)
			}
			if len(m.fields()) > 0 {
				require.Greater(m, m.pttl(), long/2)
			}
		}
		for _, w := range writers {
			m.yes(w.tryLock(0, 0))
			require.NoError(m, w.unlock())
		}
	}
}

// orders are all orders of numbers of which the i-th stands for n[i] things.
func orders(n []int) (all [][]int) {
	end := true
	for i := range n {
		if n[i] == 0 {
			continue
		}
		end = false
		rest := slices.Clone(n)
		rest[i]--
		for _, o := range orders(rest) {
			all = append(all, append([]int{i}, o...))
		}
	}
	if end {
		return [][]int{nil}
	}
	return all
}

// The lock lasts for as long as the longest reader that is left.
func longestReader(m *match) {
	a, b := m.reader(m.holds, long), m.reader(m.other, long)
	about := func(d time.Duration) {
		m.Helper()
		require.InDelta(m, d, m.pttl(), float64(8*time.Second))
	}
	require.NoError(m, a.lock(40*time.Second))
	require.NoError(m, b.lock(20*time.Second))
	about(40 * time.Second)
	require.NoError(m, a.unlock())
	about(20 * time.Second)
	require.NoError(m, a.lock(60*time.Second))
	about(60 * time.Second)
	require.NoError(m, b.unlock())
	about(60 * time.Second)
	require.NoError(m, b.lock(20*time.Second))
	require.NoError(m, a.unlock())
	about(20 * time.Second)
	require.NoError(m, b.unlock())
	require.Empty(m, m.fields())
}

func writerWoken(m *match) {
	var took []time.Duration
	for range tries {
		m.again()
		last, first := m.reader(m.holds, long), m.reader(m.other, long)
		w := m.writer(m.other, long)
		require.NoError(m, last.lock(0))
		require.NoError(m, first.lock(0))
		got := m.waits(w)
		require.NoError(m, first.unlock())
		m.isHash(last, "1")
		m.still(got, "one still reads")
		freed := time.Now()
		require.NoError(m, last.unlock())
		took = append(took, m.enters(got, "the last reader has left").at.Sub(freed))
		m.isHash(w, "1")
		require.NoError(m, w.unlock())
	}
	m.Logf("%v's writer is woken by %v's reader within %v", m.other, m.holds, took)
	require.Less(m, slices.Min(took), soon)
}

func readersWoken(m *match) {
	w := m.writer(m.holds, long)
	ours, theirs := m.holds.open(m.T, long), m.other.open(m.T, long)
	require.NoError(m, w.lock(0))
	var got []<-chan outcome
	readers := map[party]int{}
	for _, peer := range []peer{ours, theirs, theirs, ours, theirs} {
		r := peer.party(m.T, "read", m.key)
		got = append(got, m.waits(r))
		readers[r] = 1
	}
	m.isHash(w, "1")
	require.NoError(m, w.unlock())
	for _, one := range got {
		m.enters(one, "the writer has left")
	}
	m.isRead(readers)
	m.no(w.tryLock(0, 0))
	for r := range readers {
		require.NoError(m, r.unlock())
	}
	require.Empty(m, m.fields())
}

// A writer that has read goes on as the writer, and nobody comes in.
func nestedReads(m *match) {
	w, other := m.writer(m.holds, long), m.reader(m.other, long)
	r := w.as("read")
	require.NoError(m, w.lock(0))
	require.NoError(m, r.lock(0))
	require.NoError(m, r.lock(0))
	require.Equal(m, map[string]string{"mode": "write", w.field(): "1", r.field(): "2"}, m.fields())
	m.yes(other.isLocked()) // somebody reads, if only the writer
	m.no(other.tryLock(0, 0))
	got := m.waits(other)
	for _, left := range []int{1, 0} {
		require.NoError(m, r.unlock())
		is1(m, left, r.holdCount)
		m.yes(w.isHeld())
		m.still(got, "the writer is inside")
		m.no(m.writer(m.other, long).tryLock(0, 0))
		require.Greater(m, m.pttl(), long/2)
	}
	m.isHash(w, "1")
	require.NoError(m, w.unlock())
	m.enters(got, "the writer has left")
	m.isRead(map[party]int{other: 1})
	require.NoError(m, other.unlock())
}

// A writer that reads when it unlocks the write half goes on as a reader. relock tells
// those who wait. Redisson does not, so a Go reader finds out when it asks again.
func downgrade(m *match) {
	w, other := m.writer(m.holds, long), m.reader(m.other, long)
	if m.other == side(m.golang) {
		asking := m.golang.client(m.T, m.client(m.T), rlock.WithRecheck(500*time.Millisecond))
		other = asking.party(m.T, "read", m.key)
	}
	r := w.as("read")
	require.NoError(m, w.lock(0))
	require.NoError(m, r.lock(0))
	got := m.waits(other)
	require.NoError(m, w.unlock())
	m.enters(got, "the writer only reads")
	m.isRead(map[party]int{r: 1, other: 1})
	m.no(w.isHeld())
	m.yes(r.isHeld())
	require.ErrorIs(m, w.unlock(), rlock.ErrNotHeld)

	next := m.writer(m.other, long)
	m.no(m.writer(m.holds, long).tryLock(0, 0))
	entered := m.waits(next)
	require.NoError(m, other.unlock())
	m.still(entered, "the old writer still reads")
	m.isRead(map[party]int{r: 1})
	require.NoError(m, r.unlock())
	m.enters(entered, "nobody reads")
	m.isHash(next, "1")
	require.NoError(m, next.unlock())
}

// isRenewed watches the lock's key until it was renewed so many times, and calls check
// all along.
func (m *match) isRenewed(times int, check func()) {
	m.Helper()
	before, renewed := m.pttl(), 0
	m.eventually(func() bool {
		check()
		left := m.pttl()
		require.Positive(m, left)
		if left > before {
			renewed++
		}
		before = left
		return renewed >= times
	}, "the watchdog renews")
}

// Readers of both languages keep themselves alive, and not each other.
func readersKept(m *match) {
	a, b, w := m.reader(m.holds, short), m.reader(m.other, short), m.writer(m.other, long)
	require.NoError(m, a.lock(0))
	require.NoError(m, b.lock(0))
	require.NoError(m, b.lock(0))
	got := m.waits(w)
	m.isRenewed(4, func() { m.isRead(map[party]int{a: 1, b: 2}) })
	m.still(got, "they read")
	require.NoError(m, b.unlock())
	m.isRenewed(2, func() { m.isRead(map[party]int{a: 1, b: 1}) })
	require.NoError(m, a.unlock())
	m.isRenewed(3, func() { m.isRead(map[party]int{b: 1}) })
	m.still(got, "one still reads")
	require.NoError(m, b.unlock())
	m.enters(got, "nobody reads")
	require.NoError(m, w.unlock())
}

// Redisson no longer renews a write lock inside which its owner has read.
func writerKept(m *match) {
	w, other := m.writer(m.golang, short), m.reader(m.java, long)
	require.NoError(m, w.lock(0))
	got := m.waits(other)
	m.isRenewed(2, func() { m.isHash(w, "1") })
	r := w.as("read")
	require.NoError(m, r.lock(0))
	require.NoError(m, r.unlock())
	m.isRenewed(4, func() { m.isHash(w, "1") })
	m.still(got, "the writer is inside")
	require.NoError(m, w.unlock())
	m.enters(got, "the writer has left")
	require.NoError(m, other.unlock())
}

func readersForced(m *match) {
	a, b, next := m.reader(m.holds, short), m.reader(m.other, short), m.writer(m.holds, long)
	require.NoError(m, a.lock(0))
	m.no(m.writer(m.other, long).forceUnlock())
	m.isHash(a, "1")
	got := m.waits(next)
	m.yes(b.forceUnlock())
	m.enters(got, "a forced unlock wakes")
	m.isHash(next, "1")
	m.no(b.forceUnlock())
	m.no(a.isHeld())
	require.ErrorIs(m, a.unlock(), rlock.ErrLost)
	m.isHash(next, "1")
	require.NoError(m, next.unlock())
}

// A Redisson reader that renews itself sets the TTL of the lock to its own watchdog
// timeout, also when another reader's lease is longer. relock never shortens it, and
// puts it back to what its own readers need.
func longLease(m *match) {
	lasting := m.reader(m.holds, short)
	require.NoError(m, lasting.lock(long))
	if m.other == side(m.golang) {
		renewing := m.reader(m.golang, short).(*goParty)
		require.NoError(m, renewing.lock(0))
		m.eventually(func() bool {
			require.Greater(m, m.pttl(), long/2, "relock cuts a longer lease")
			return renewing.peer.c.Stats().Renewals >= 3
		}, "the watchdog renews")
		require.NoError(m, renewing.unlock())
		require.Greater(m, m.pttl(), long/2)
		require.NoError(m, lasting.unlock())
		return
	}
	dying := m.java.client(m.T, m.addrs, 2*short)
	renewing, w := dying.worker(m.T, "read", m.key), m.writer(m.java, long)
	require.NoError(m, renewing.lock(0))
	m.eventually(func() bool { return m.pttl() <= 2*short }, "Redisson cuts the TTL")
	dying.close(m.T) // what it held stays, and nobody renews it
	key := fmt.Sprintf("%s:%s:rwlock_timeout:1", script.HoldBase(m.key), renewing.field())
	m.eventually(func() bool { return m.rdb.Exists(m.ctx, key).Val() == 0 }, "the dead reader's time is over")
	require.Greater(m, m.pttl(), long/3, "relock puts the TTL back")
	m.yes(lasting.isHeld())
	m.no(w.tryLock(0, 0))
	got := m.waits(w)
	m.still(got, "a live reader is inside")
	require.NoError(m, lasting.unlock())
	m.enters(got, "the dead reader does not count")
	require.NoError(m, w.unlock())
}

// While writers of both languages go in and out, relock's readers never see what they
// read change.
func readersSeeNoWriter(m *match) {
	d := soak(m.T, 1500*time.Millisecond)
	client := m.golang.open(m.T, missed).(*goPeer)
	over := m.contending(m.workers(m.java.open(m.T, missed).(*javaPeer), 2), m.owners(client, 2), d, 2*time.Millisecond)
	ctx, cancel := context.WithTimeout(m.ctx, d)
	defer cancel()
	var reading errgroup.Group
	reads := make([]int, 3)
	for i := range reads {
		r := client.worker(m.T, "read", m.key)
		reading.Go(func() error {
			for ; ctx.Err() == nil; time.Sleep(5 * time.Millisecond) { // Redisson's writers would starve
				if err := r.lock(0); err != nil {
					return err
				}
				before := m.rdb.Get(m.ctx, m.key+":counter").Val()
				time.Sleep(time.Millisecond)
				after := m.rdb.Get(m.ctx, m.key+":counter").Val()
				if err := r.unlock(); err != nil {
					return err
				}
				if before != after {
					return fmt.Errorf("the counter went from %s to %s beside a reader", before, after)
				}
				reads[i]++
			}
			return nil
		})
	}
	require.NoError(m, reading.Wait())
	j, g := over()
	m.Logf("java: %d entries, the longest wait %v; go: %d, %v; go reads: %v", j.Entries, j.Longest, g.Entries, g.Longest, reads)
	require.Positive(m, j.Entries)
	require.Positive(m, g.Entries)
	require.Positive(m, slices.Min(reads))
}
