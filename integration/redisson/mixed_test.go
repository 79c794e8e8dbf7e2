package redisson

import (
	"slices"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/script"
	"github.com/relock-go/relock/rlock"
)

// spinCells are those of the plain lock, but that waiters poll.
var spinCells = []cell{
	{name: "exclusion", run: exclusion},
	{name: "woken by unlock", run: woken},
	{name: "re-entry", run: reentry},
	{name: "force unlock", run: forced},
	// A Redisson waiter is often interrupted while it asks, see testInterrupted.
	{name: "waiter cancelled", run: cancelled, only: "java"},
	{name: "contention", run: contention, only: "java"},
	{name: "nobody listens", run: nobodyListens},
}

// mixedCells are kinds that share a name: the lock is one.
var mixedCells = []cell{
	{name: "exclusion and waking", run: kindsExclude},
	{name: "contention", run: kindsContend, only: "java"},
	{name: "tokens", run: kindsAndTokens},
	{name: "fair and plain", run: fairBesidePlain},
	{name: "read-write and plain", run: rwBesidePlain, only: "java"},
}

func nobodyListens(m *match) {
	a, b := m.pair(long)
	require.NoError(m, a.lock(0))
	got := m.waits(b)
	require.Empty(m, m.channels())
	require.NoError(m, a.unlock())
	m.enters(got, "the lock is free")
	require.Empty(m, m.channels())
	require.NoError(m, b.unlock())
}

// wakes are the pairs of kinds where the first one's release wakes the second. Redisson's
// SpinLock tells nobody, so that those who wait for it must poll; relock's does.
var wakes = []struct {
	holds, waits string
	only         string
}{
	{holds: "fenced", waits: "lock"},
	{holds: "lock", waits: "fenced"},
	{holds: "lock", waits: "spin"},
	{holds: "fenced", waits: "spin"},
	{holds: "spin", waits: "lock", only: "go"},
	{holds: "spin", waits: "fenced", only: "go"},
}

func kindsExclude(m *match) {
	for _, v := range wakes {
		if v.only != "" && v.only != m.holds.String() {
			continue
		}
		var took []time.Duration
		for range tries {
			m.again()
			a, b := m.partyAt(v.holds, m.holds, long), m.partyAt(v.waits, m.other, long)
			require.NoError(m, a.lock(0))
			m.no(b.tryLock(0, 0))
			require.ErrorIs(m, b.unlock(), rlock.ErrNotHeld)
			got := m.waits(b)
			m.isHash(a, "1")
			freed := time.Now()
			require.NoError(m, a.unlock())
			took = append(took, m.enters(got, "woken, and not by the TTL").at.Sub(freed))
			m.isHash(b, "1")
			m.no(a.tryLock(0, 0))
			require.NoError(m, b.unlock())
		}
		m.Logf("%v's %s is woken by %v's %s within %v", m.other, v.waits, m.holds, v.holds, took)
		require.Less(m, slices.Min(took), soon)
	}
}

func kindsContend(m *match) {
	java := m.java.open(m.T, long).(*javaPeer)
	var threads []*javaParty
	var owners []*goParty
	for _, kind := range []string{"lock", "fenced", "lock"} {
		threads = append(threads, java.worker(m.T, kind, m.key))
	}
	one, two := m.golang.open(m.T, long).(*goPeer), m.golang.open(m.T, long).(*goPeer)
	for _, kind := range []string{"fenced", "spin", "lock"} {
		owners = append(owners, one.worker(m.T, kind, m.key), two.worker(m.T, kind, m.key))
	}
	j, g := m.contendBoth(threads, owners, soak(m.T, time.Second), time.Millisecond)
	m.Logf("java: %d entries, the longest wait %v; go: %d, %v", j.Entries, j.Longest, g.Entries, g.Longest)
	require.Positive(m, j.Entries)
	require.Positive(m, g.Entries)
	require.Less(m, max(j.Longest, g.Longest), waitLimit, "nobody waits for a TTL")
}

// A plain Lock between two FencedLocks draws no token, and leaves the counter alone.
func kindsAndTokens(m *match) {
	fenced, plain := m.partyAt("fenced", m.holds, long), m.partyAt("lock", m.other, long)
	last := uint64(0)
	for range 3 {
		require.NoError(m, fenced.lock(0))
		require.Greater(m, m.token(fenced), last)
		last = m.token(fenced)
		got := m.waits(plain)
		require.NoError(m, fenced.unlock())
		m.enters(got, "woken")
		counter, err := m.rdb.Get(m.ctx, script.TokenKey(m.key)).Uint64()
		is(m, last, counter, err)
		m.no(fenced.tryLock(0, 0))
		require.NoError(m, plain.unlock())
		counter, err = m.rdb.Get(m.ctx, script.TokenKey(m.key)).Uint64()
		is(m, last, counter, err)
	}
}

// A FairLock and a plain Lock exclude each other. relock's FairLock also wakes those who
// wait for a plain Lock when nobody queues; Redisson's does not.
func fairBesidePlain(m *match) {
	a, b := m.partyAt("fair", m.holds, long), m.partyAt("lock", m.other, long)
	require.NoError(m, a.lock(0))
	m.no(b.tryLock(0, 0))
	if m.holds == side(m.golang) {
		got := m.waits(b)
		require.NoError(m, a.unlock())
		m.enters(got, "woken, and not by the TTL")
	} else {
		require.NoError(m, a.unlock())
		m.yes(b.tryLock(0, 0))
	}
	m.isHash(b, "1")
	m.no(a.tryLock(0, 0))
	require.NoError(m, b.unlock())
}

// Redisson lets a plain lock and a read-write lock of one name be held at once. relock
// refuses the one while the other stands there, whoever holds it.
func rwBesidePlain(m *match) {
	plain := m.partyAt("lock", m.java, long)
	require.NoError(m, plain.lock(0))
	for _, kind := range []string{"read", "write"} {
		_, err := m.partyAt(kind, m.golang, long).tryLock(0, 0)
		require.ErrorIs(m, err, rlock.ErrWrongType)
	}
	m.isHash(plain, "1")
	require.NoError(m, plain.unlock())
	for _, kind := range []string{"read", "write"} {
		p := m.partyAt(kind, m.java, long)
		require.NoError(m, p.lock(0))
		before := m.fields()
		for _, other := range []string{"lock", "fair", "fenced", "spin"} {
			_, err := m.partyAt(other, m.golang, long).tryLock(0, 0)
			require.ErrorIs(m, err, rlock.ErrWrongType)
		}
		require.Equal(m, before, m.fields())
		require.NoError(m, p.unlock())
	}
}
