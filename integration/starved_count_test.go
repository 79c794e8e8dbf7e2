package integration

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/redistest"
)

// counters are two processes that count as s says.
func counters(s settings, c counting) []settings {
	s.Count = c
	return []settings{s, s}
}

// countCalmly is count where nothing can be lost. It returns what came of it, and
// checks that nothing is left behind.
func countCalmly(t *testing.T, processes []settings, meanwhile, heal func()) []tally {
	t.Helper()
	all := countMeanwhile(t, processes, meanwhile, heal)
	c := processes[0].Count
	rdb := redistest.NewClient(t, c.Data)
	judgeCount(t, rdb, c.Lock, all)
	for i, c := range all {
		require.Zero(t, c.Lost+c.Told, "false losses in process %d", i)
	}
	return all
}

// counted is how long a counting goes on by default.
func counted() time.Duration { return time.Duration(soaked()) * 2 * time.Second }

// REN-12: each process has one connection, which the user's slow commands take for
// longer than a renewal period.
func TestStarvedCounter_Pool(t *testing.T) {
	t.Parallel()
	r := Redis(t)
	const watchdog = time.Second
	s := settings{Addr: r.Addr, Watchdog: watchdog, Pool: 1, Slow: watchdog/3 + 50*time.Millisecond}
	all := countCalmly(t, counters(s, counting{Lock: name(t), Data: r.Addr, Goroutines: 2, For: counted(), Least: 2}), nothing, nothing)
	renewals := uint64(0)
	for _, c := range all {
		renewals += c.Stats.Renewals
	}
	require.Positive(t, renewals, "somebody held for longer than a period")
}

// A round trip of 50 ms.
func TestStarvedCounter_Latency(t *testing.T) {
	t.Parallel()
	r := Redis(t)
	p := r.Proxy(t)
	far(p, 25*time.Millisecond)
	s := settings{Addr: p.Addr, Watchdog: strainedWatchdog}
	countCalmly(t, counters(s, counting{Lock: name(t), Data: r.Addr, Goroutines: 4, For: counted(), Least: 2}), nothing, nothing)
}

// 2 % of the replies are lost.
func TestStarvedCounter_LostReplies(t *testing.T) {
	t.Parallel()
	for kind, action := range map[string]redistest.Action{
		"closed": redistest.LoseReplyAndClose, "silent": redistest.LoseReplyAndHang,
	} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			r := Redis(t)
			p := r.Proxy(t)
			rule := p.On(oneOf(50), action).Times(0)
			s := settings{Addr: p.Addr, Watchdog: 10 * time.Second, Read: silence}
			c := counting{Lock: name(t), Data: r.Addr, Goroutines: 16, For: counted(), Least: 2, Word: true}
			countCalmly(t, counters(s, c), func() { rule.WaitCount(t, 3) }, rule.Off)
			t.Logf("%d replies lost", rule.Count())
		})
	}
}

// CLK-6: one P in each process, and goroutines that take it.
func TestStarvedCounter_Processor(t *testing.T) {
	r := Redis(t)
	s := settings{Addr: r.Addr, Procs: 1, Hogs: 3}
	countCalmly(t, counters(s, counting{Lock: name(t), Data: r.Addr, Goroutines: 4, For: counted(), Least: 2}), nothing, nothing)
}
