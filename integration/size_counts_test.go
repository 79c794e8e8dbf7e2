package integration

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// The counts that BenchmarkWaiters, BenchmarkHolds and BenchmarkClose show at size,
// with numbers small enough for every run. Times are not asserted.

// onSites runs a test on one server and on a cluster.
func onSites(t *testing.T, f func(t *testing.T, s *site)) {
	t.Helper()
	t.Parallel()
	for name, open := range map[string]func(testing.TB) *site{"single": singleSite, "cluster": clusterSite} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f(t, open(t))
		})
	}
}

// TestSize_Waiters: however many wait, there is one subscription connection, or one
// for each node, and no goroutine of ours for each; and they hardly ask.
func TestSize_Waiters(t *testing.T) {
	onSites(t, func(t *testing.T, s *site) {
		const waiters, recheck = 1000, 200 * time.Millisecond
		names := sizedNames("wait", 100)
		r := s.wait(waiters, names, recheck, 10)
		t.Logf("idle for %v: %v; goroutines: %d ours, %d others; passing in %v: %v",
			r.elapsed.Round(time.Millisecond), r.idle, r.goroutines.ours, r.goroutines.others,
			r.passing.Round(time.Millisecond), r.passes)
		require.Equal(t, s.connections(), r.subscribers)
		require.Equal(t, len(names), r.subscriptions, "one for each name")
		require.LessOrEqual(t, scripts(r.idle), r.most(len(names), recheck))
		require.NotZero(t, scripts(r.idle), "they do look from time to time")
		require.LessOrEqual(t, r.idle["ping"], len(s.nodes)*(1+int(r.elapsed/(5*time.Second))), "probes")
		require.Equal(t, waiters, r.goroutines.users)
		require.LessOrEqual(t, r.goroutines.ours+r.goroutines.others, ownGoroutines, r.goroutines.text)
		require.Zero(t, r.left.ours, r.left.text)
	})
}

// gridSlots is into how many slots the watchdog divides a period. What falls due in
// one is renewed together, and the last batch of each need not be full.
const gridSlots = 64

// TestSize_Holds: 5,000 holds live through three renewals, in batches where one call
// may name several keys; fewer on a cluster, where each has a call of its own.
func TestSize_Holds(t *testing.T) {
	onSites(t, func(t *testing.T, s *site) {
		holds := 5000
		if s.sharded {
			holds = 2000
		}
		k := s.keep(holds, 9*time.Second)
		r := k.watch(3)
		t.Logf("%+v", r)
		require.Zero(t, k.lost())
		// At size it is 1.2 x holds/100: there the slots matter less.
		batches := 1.2 * float64(holds/100+gridSlots)
		if s.sharded {
			require.LessOrEqual(t, r.scripts, 1.2*float64(holds), "one for each")
			require.LessOrEqual(t, r.pipelines, batches*float64(len(s.nodes)))
			return
		}
		require.LessOrEqual(t, r.scripts, batches)
	})
}

// TestSize_Close: all holders are told before a key is released, all waiters get
// ErrClosed, and nothing is left.
func TestSize_Close(t *testing.T) {
	onSites(t, func(t *testing.T, s *site) {
		const waiters, holds = 1000, 1000
		r := s.close(waiters, sizedNames("wait", 100), holds)
		t.Logf("%v, told after %v; %d script calls", r.took.Round(time.Millisecond), r.telling.Round(time.Millisecond), r.requests)
		require.Equal(t, holds, r.told, "before the first release is sent")
		require.Zero(t, r.keys)
		require.Zero(t, r.goroutines.ours, r.goroutines.text)
		require.LessOrEqual(t, r.requests, holds+holds/10)
	})
}
