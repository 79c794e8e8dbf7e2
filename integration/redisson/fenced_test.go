package redisson

import (
	"sync"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/relock-go/relock/internal/script"
	"github.com/relock-go/relock/rlock"
)

var fencedCells = []cell{
	{name: "exclusion", run: exclusion},
	{name: "woken by unlock", run: woken},
	{name: "re-entry", run: reentry},
	{name: "watchdog", run: watchdog},
	{name: "force unlock", run: forced},
	{name: "contention", run: contention, only: "java"},
	{name: "tokens rise", run: tokensRise},
	{name: "counter with a TTL", run: counterKept},
	{name: "counter lost", run: counterLost, only: "go"},
	{name: "tokens of those who contend", run: tokensContend, only: "go"},
}

// token is that of p's hold.
func (m *match) token(p party) uint64 {
	m.Helper()
	var token uint64
	var err error
	switch p := p.(type) {
	case *goParty:
		token, err = p.l.(*rlock.FencedLock).Token(p.ctx)
	case *javaParty:
		token, err = ask[uint64](p, "token")
	}
	require.NoError(m, err)
	return token
}

// One counter serves both languages. Redisson raises it at a re-entry too.
func tokensRise(m *match) {
	a, b := m.pair(long)
	last := uint64(0)
	for range 3 {
		for _, p := range []party{a, b} {
			require.NoError(m, p.lock(0))
			token := m.token(p)
			require.Greater(m, token, last)
			require.NoError(m, p.lock(0))
			again := m.token(p)
			if _, java := p.(*javaParty); java {
				require.Equal(m, token+1, again)
			} else {
				require.Equal(m, token, again)
			}
			counter, err := m.rdb.Get(m.ctx, script.TokenKey(m.key)).Uint64()
			is(m, again, counter, err)
			require.NoError(m, p.unlock())
			require.NoError(m, p.unlock())
			last = again
		}
	}
	// One that waits is given its token later.
	require.NoError(m, a.lock(0))
	got := m.waits(b)
	last = m.token(a)
	require.NoError(m, a.unlock())
	m.enters(got, "woken")
	require.Greater(m, m.token(b), last)
	require.NoError(m, b.unlock())
}

// A MultiLock of Redisson's puts a TTL on the counter. With its end tokens would begin
// at 1 again, so each grant of relock's takes it off.
func counterKept(m *match) {
	key := script.TokenKey(m.key)
	expires := func() {
		require.NoError(m, m.rdb.PExpire(m.ctx, key, time.Hour).Err())
	}
	kept := func(p party) {
		m.Helper()
		ttl, err := m.rdb.PTTL(m.ctx, key).Result()
		require.NoError(m, err)
		if _, java := p.(*javaParty); java {
			require.Positive(m, ttl, "Redisson leaves the TTL as it is")
		} else {
			require.Equal(m, time.Duration(-1), ttl, "the counter has no TTL")
		}
	}
	a, b := m.pair(long)
	last := uint64(0)
	for _, p := range []party{a, b, a} {
		require.NoError(m, p.lock(0))
		require.Greater(m, m.token(p), last)
		last = m.token(p)
		require.NoError(m, p.unlock())
		expires()
	}
	for _, p := range []party{a, b} {
		require.NoError(m, p.lock(0))
		kept(p)
		require.Greater(m, m.token(p), last)
		last = m.token(p)
		require.NoError(m, p.unlock())
		expires()
	}

	// So do a hand-over within the process and a nested Lock that draws the first token
	// of a hold.
	golang := m.golang.open(m.T, long)
	holder, next := golang.party(m.T, "fenced", m.key).as("lock"), golang.party(m.T, "fenced", m.key)
	require.NoError(m, holder.lock(0))
	nested := holder.as("fenced")
	require.NoError(m, nested.lock(0))
	kept(nested)
	require.Greater(m, m.token(nested), last)
	last = m.token(nested)
	require.NoError(m, nested.unlock())
	got := m.waits(next)
	expires()
	require.NoError(m, holder.unlock())
	m.enters(got, "the lock is passed on")
	kept(next)
	require.Greater(m, m.token(next), last)
	require.NoError(m, next.unlock())
}

// relock's tokens go on rising when the counter is gone, and Redisson's go on from them.
func counterLost(m *match) {
	a, b := m.pair(long)
	last := uint64(0)
	for range 2 {
		for _, p := range []party{a, b} {
			require.NoError(m, p.lock(0))
			require.Greater(m, m.token(p), last)
			last = m.token(p)
			require.NoError(m, p.unlock())
		}
		require.NoError(m, m.rdb.Del(m.ctx, script.TokenKey(m.key)).Err())
	}
}

// Whoever comes in later has the higher token, also of owners who pass the lock on
// inside their process while Java threads come between them.
func tokensContend(m *match) {
	client := m.golang.open(m.T, long).(*goPeer)
	over := m.contending(m.javaThreads(3), nil, soak(m.T, time.Second), time.Millisecond)
	var mu sync.Mutex // only the race detector needs it: the lock keeps them apart
	var tokens []uint64
	var drawing errgroup.Group
	end := time.Now().Add(soak(m.T, time.Second))
	for _, g := range m.owners(client, 4) {
		drawing.Go(func() error {
			for time.Now().Before(end) {
				if err := g.lock(0); err != nil {
					return err
				}
				token := m.token(g)
				mu.Lock()
				tokens = append(tokens, token)
				mu.Unlock()
				if err := g.unlock(); err != nil {
					return err
				}
			}
			return nil
		})
	}
	require.NoError(m, drawing.Wait())
	j, _ := over()
	s := client.c.Stats()
	m.Logf("java: %d entries; go: %d, %d of them passed on", j.Entries, len(tokens), s.HandedOff)
	for i := range tokens[1:] {
		require.Greater(m, tokens[i+1], tokens[i])
	}
	require.Positive(m, j.Entries)
	require.Positive(m, s.HandedOff)
}
