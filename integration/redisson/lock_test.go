package redisson

import (
	"context"
	"slices"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/script"
	"github.com/relock-go/relock/rlock"
)

// lockCells are those of the plain lock. Other kinds may use them too.
var lockCells = []cell{
	{name: "exclusion", run: exclusion},
	{name: "woken by unlock", run: woken},
	{name: "re-entry", run: reentry},
	{name: "watchdog", run: watchdog},
	{name: "lease runs out", run: leaseRunsOut},
	{name: "force unlock", run: forced},
	{name: "waiter cancelled", run: cancelled},
	// A Redisson waiter that is interrupted at that moment may keep the lock, see
	// testInterrupted.
	{name: "cancelled as it is woken", run: cancelledAsWoken, only: "java"},
}

// soon is how quickly a waiter hears of a release on a machine that has time for
// it. This one may not, so the best of a few tries has to be within it.
const (
	soon  = 300 * time.Millisecond
	tries = 3
)

func exclusion(m *match) {
	a, b := m.pair(long)
	for _, lease := range []time.Duration{0, 20 * time.Second} {
		m.yes(a.tryLock(0, lease))
		m.isHash(a, "1")
		full := lease
		if lease == 0 {
			full = long
		}
		require.InDelta(m, full, m.pttl(), float64(5*time.Second))

		m.no(b.tryLock(0, 0))
		m.no(b.tryLock(0, time.Second))
		m.timesOut(b, 20*time.Millisecond, 0)
		m.nothingElse()
		m.yes(b.isLocked())
		m.no(b.isHeld())
		is1(m, 0, b.holdCount)
		require.ErrorIs(m, b.unlock(), rlock.ErrNotHeld)
		ttl, err := b.ttl()
		require.NoError(m, err)
		require.InDelta(m, full, ttl, float64(5*time.Second))

		m.isHash(a, "1")
		m.yes(a.isHeld())
		is1(m, 1, a.holdCount)
		require.NoError(m, a.unlock())
		m.no(b.isLocked())
		require.Empty(m, m.fields())

		m.yes(b.tryLock(waitLimit, 0))
		m.isHash(b, "1")
		m.no(a.tryLock(0, 0))
		require.NoError(m, b.unlock())
		if _, java := a.(*javaParty); java && a.kind() == "fair" { // no error to Redisson when the lock is free
			require.NoError(m, a.unlock())
		} else {
			require.ErrorIs(m, a.unlock(), rlock.ErrNotHeld)
		}
	}
}

func woken(m *match) {
	var took []time.Duration
	for range tries {
		m.again()
		a, b := m.pair(long)
		require.NoError(m, a.lock(0))
		got := m.waits(b)
		m.isHash(a, "1")
		freed := time.Now()
		require.NoError(m, a.unlock())
		took = append(took, m.enters(got, "woken, and not by the TTL").at.Sub(freed))
		m.isHash(b, "1")
		require.NoError(m, b.unlock())
	}
	m.Logf("%v is woken by %v's unlock within %v", m.other, m.holds, took)
	require.Less(m, slices.Min(took), soon)
}

func reentry(m *match) {
	a, b := m.pair(long)
	for range 3 {
		require.NoError(m, a.lock(0))
	}
	m.isHash(a, "3")
	m.no(b.tryLock(0, 0))
	require.ErrorIs(m, b.unlock(), rlock.ErrNotHeld)
	is1(m, 0, b.holdCount)
	is1(m, 3, a.holdCount)
	m.isHash(a, "3")

	got := m.waits(b)
	require.NoError(m, a.lock(0))
	for _, depth := range []string{"3", "2", "1"} {
		require.NoError(m, a.unlock())
		m.isHash(a, depth)
		m.still(got, "others wait for the last unlock")
	}
	require.NoError(m, a.unlock())
	m.enters(got, "the last unlock frees the lock")
	m.isHash(b, "1")
	require.NoError(m, b.lock(0))
	m.isHash(b, "2")
	is1(m, 0, a.holdCount)
	require.ErrorIs(m, a.unlock(), rlock.ErrNotHeld)
	require.NoError(m, b.unlock())
	require.NoError(m, b.unlock())
	require.Empty(m, m.fields())
}

func watchdog(m *match) {
	a, b := m.pair(short)
	require.NoError(m, a.lock(0))
	got := m.waits(b)
	m.kept(a, "1", 3)
	m.still(got, "the watchdog keeps the lock")
	require.NoError(m, a.lock(0))
	m.kept(a, "2", 1)
	require.NoError(m, a.unlock())
	m.kept(a, "1", 1)
	require.NoError(m, a.unlock())
	m.enters(got, "the holder's unlock")
	m.kept(b, "1", 1)

	// Neither watchdog prolongs a lease, whoever had the lock before.
	require.NoError(m, b.unlock())
	m.yes(b.tryLock(0, short))
	m.runsOut()
}

// kept watches the lock's key until it was renewed so many times; p holds it all
// along.
func (m *match) kept(p party, depth string, times int) {
	m.Helper()
	before, renewed := m.pttl(), 0
	m.eventually(func() bool {
		m.isHash(p, depth)
		left := m.pttl()
		if left > before {
			renewed++
		}
		require.LessOrEqual(m, left, short)
		before = left
		return renewed == times
	}, "the watchdog renews")
}

// runsOut watches the lock's key until it is gone: nobody prolongs it.
func (m *match) runsOut() {
	m.Helper()
	left := m.pttl()
	require.Positive(m, left)
	m.eventually(func() bool {
		now := m.pttl()
		require.LessOrEqual(m, now, left)
		left = now
		return now == 0
	}, "the lease runs out")
}

func leaseRunsOut(m *match) {
	const lease = 700 * time.Millisecond
	var late []time.Duration
	for range tries {
		m.again()
		a, b := m.pair(short)
		before := time.Now()
		require.NoError(m, a.lock(lease))
		end := time.Now().Add(m.pttl()) // at the latest
		got := m.waits(b)
		entered := m.enters(got, "the lease is over")
		require.GreaterOrEqual(m, entered.at.Sub(before), lease, "the lease is not over")
		late = append(late, entered.at.Sub(end))

		m.isHash(b, "1")
		m.no(a.isHeld())
		require.ErrorIs(m, a.unlock(), rlock.ErrLost)
		m.isHash(b, "1")
		m.no(a.tryLock(0, lease))
		require.NoError(m, b.unlock())
		m.yes(a.tryLock(0, lease)) // that it ran out before is forgotten
		require.NoError(m, a.unlock())
	}
	m.Logf("%v enters after the end of %v's lease by %v", m.other, m.holds, late)
	require.Less(m, slices.Min(late), soon)
}

func forced(m *match) {
	const period = short / 3
	var told, took []time.Duration
	for range tries {
		m.again()
		a, b := m.pair(short)
		// Of another client than a, which must hear of it by its watchdog.
		next := m.party(m.holds, short)
		m.no(b.forceUnlock())
		require.NoError(m, a.lock(0))
		require.NoError(m, a.lock(0))
		got := m.waits(next)
		freed := time.Now()
		m.yes(b.forceUnlock())
		took = append(took, m.enters(got, "a forced unlock wakes").at.Sub(freed))
		m.isHash(next, "1")

		if g, ok := a.(*goParty); ok {
			select {
			case <-g.l.Lost(g.ctx):
				told = append(told, time.Since(freed))
			case <-time.After(waitLimit):
				m.Fatal("the holder is not told")
			}
			require.Zero(m, g.l.Validity(g.ctx))
		}
		m.no(a.isHeld())
		for range 2 {
			require.ErrorIs(m, a.unlock(), rlock.ErrLost)
		}
		require.ErrorIs(m, a.unlock(), rlock.ErrNotHeld)
		m.isHash(next, "1")
		m.kept(next, "1", 1)
		require.NoError(m, next.unlock())
		m.no(b.forceUnlock())
	}
	m.Logf("%v's waiter enters after %v's forced unlock by %v", m.holds, m.other, took)
	require.Less(m, slices.Min(took), soon)
	if len(told) > 0 {
		m.Logf("the holder is told by %v; the renewal period is %v", told, period)
		// A busy machine may keep the watchdog's timer waiting.
		require.Less(m, slices.Min(told), period+period/5)
		require.Less(m, slices.Max(told), short)
	}
}

// A waiter that gives up leaves nothing, and the next one, of its own process or
// the other, gets the lock.
func cancelled(m *match) {
	holder := m.party(m.holds, long)
	require.NoError(m, holder.lock(0))
	theirs := m.other.open(m.T, long)
	one, two := theirs.party(m.T, m.kind, m.key), theirs.party(m.T, m.kind, m.key)

	gone := m.waits(one)
	one.interrupt()
	require.ErrorIs(m, m.ends(gone, "it is cancelled").err, context.Canceled)
	m.eventually(func() bool { return len(m.channels()) == 0 }, "nobody listens any more")
	m.isHash(holder, "1")
	m.nothingElse()

	gone = m.waits(one)
	got := m.waits(two)
	one.interrupt()
	require.ErrorIs(m, m.ends(gone, "it is cancelled").err, context.Canceled)
	m.eventually(func() bool { return m.listens(two) }, "the other still waits")
	m.isHash(holder, "1")
	freed := time.Now()
	require.NoError(m, holder.unlock())
	m.Logf("the next waiter enters after %v", m.enters(got, "the next one").at.Sub(freed))
	m.isHash(two, "1")
	m.no(one.isHeld())

	// Nor does it have a claim later.
	require.NoError(m, two.unlock())
	require.ErrorIs(m, one.unlock(), rlock.ErrNotHeld)
	m.no(one.isLocked())
	m.yes(one.tryLock(0, 0))
	require.NoError(m, one.unlock())
}

// nothingElse checks that the lock has no other keys than its hash, and the counter
// of its tokens.
func (m *match) nothingElse() {
	m.Helper()
	m.eventually(func() bool { return slices.Equal(m.left(), []string{m.key}) }, "no key but the lock's is left")
}

// left are the keys of the lock that stand there, but the counter of its tokens,
// which stays for good.
func (m *match) left() []string {
	m.Helper()
	keys, err := m.keys(m.ctx, m.key) // the lock's name is in all its keys
	require.NoError(m, err)
	return slices.DeleteFunc(keys, func(key string) bool { return key == script.TokenKey(m.key) })
}

// A waiter may be cancelled as the message comes for it. The one behind it must
// not have to wait for the TTL.
func cancelledAsWoken(m *match) {
	const rounds = 20
	entered := 0
	holder := m.party(m.holds, long)
	theirs := m.other.open(m.T, long)
	one, two := theirs.party(m.T, m.kind, m.key), theirs.party(m.T, m.kind, m.key)
	third := m.holds
	if m.kind == "write" { // a Redisson waiter may miss its message, see missed
		third = m.other
	}
	three := m.party(third, long)
	for i := range rounds {
		require.NoError(m, holder.lock(0))
		first, second, last := m.waits(one), m.waits(two), m.waits(three)
		freed := begin(holder.unlock)
		time.Sleep(time.Duration(i%10) * 300 * time.Microsecond) // another moment each time
		one.interrupt()
		require.NoError(m, m.ends(freed, "the unlock").err)
		// Each gives the lock back, so all have it in the end, in whatever order.
		for waiting := 3; waiting > 0; waiting-- {
			select {
			case o := <-first:
				if o.err == nil {
					entered++
					require.NoError(m, one.unlock())
				} else {
					require.ErrorIs(m, o.err, context.Canceled)
				}
				first = nil
			case o := <-second:
				require.NoError(m, o.err)
				require.NoError(m, two.unlock())
				second = nil
			case o := <-last:
				require.NoError(m, o.err)
				require.NoError(m, three.unlock())
				last = nil
			case <-time.After(waitLimit):
				m.Fatalf("round %d: nobody enters a free lock: %v; the second waits: %v, the third: %v",
					i, m.fields(), second != nil, last != nil)
			}
		}
		require.Empty(m, m.fields())
	}
	m.Logf("%d of %d got in before they were cancelled", entered, rounds)
}

// is1 is is for a question that stands alone.
func is1[T any](m *match, want T, question func() (T, error)) {
	m.Helper()
	got, err := question()
	is(m, want, got, err)
}
