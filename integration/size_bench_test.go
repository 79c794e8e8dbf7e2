package integration

import (
	"context"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// What many waiters and holds cost: README.md of this folder has a table of it, and
// the budgets. An operation is one run of the scene, so use -benchtime 1x.

func init() {
	roles["hog"] = func(ctx context.Context, env *ChildEnv) error {
		began, turns := time.Now(), uint64(0)
		for ctx.Err() == nil {
			for range 1 << 20 {
				turns++
			}
		}
		var u unix.Rusage
		if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
			return err
		}
		return env.Send(float64(u.Utime.Nano()+u.Stime.Nano()) / float64(time.Since(began)))
	}
}

// bench runs a scene on one server and, a part of it, on a cluster of three masters.
func bench(b *testing.B, scene func(b *testing.B, s *site, part int)) {
	for _, v := range []struct {
		name string
		open func(testing.TB) *site
		part int
	}{{"single", singleSite, 1}, {"cluster", clusterSite, 5}} {
		b.Run(v.name, func(b *testing.B) {
			s := v.open(b)
			for b.Loop() {
				scene(b, s, v.part)
			}
			b.ReportMetric(0, "ns/op") // says nothing
		})
	}
}

// BenchmarkWaiters has 10,000 goroutines wait for 1,000 names that another client
// holds (on a cluster: 2,000 for 200), first in vain for three recheck intervals of
// the default length, 5 s, and then until all have had their name.
//
//	connections     subscription connections; 1, or one for each node
//	goroutines      that the client has beside the waiters' own, between its requests
//	peak            the same, at worst: a request under way has one
//	asks            script calls per name and recheck interval while nothing happens
//	probes          PINGs per connection and probe interval, 5 s, meanwhile
//	idle-cpu-%      of one core that the process uses meanwhile
//	B/waiter        heap and stack, with all that the goroutine itself needs
//	gather-s        until all waited
//	pass-s          from the first release until the last one had been inside
//	requests/pass   script calls of the client per waiter that had its name
//	left            goroutines after Close
//
// All subscriptions must be gone before Close, and all keys after it.
//
//	go test ./integration -run '^$' -bench Waiters -benchtime 1x
func BenchmarkWaiters(b *testing.B) {
	const recheck, intervals = 5 * time.Second, 3
	bench(b, func(b *testing.B, s *site, part int) {
		waiters, names := 10_000/part, sizedNames("wait", 1000/part)
		r := s.wait(waiters, names, recheck, intervals)
		require.LessOrEqual(b, scripts(r.idle), r.most(len(names), recheck))
		b.Logf("idle for %v: %v", r.elapsed.Round(time.Millisecond), r.idle)
		b.Logf("passing: %v; %+v", r.passes, r.stats)
		spans := float64(r.elapsed) / float64(recheck)
		n := 0
		for _, each := range r.subscribers {
			n += each
		}
		b.ReportMetric(float64(n), "connections")
		b.ReportMetric(float64(r.goroutines.ours+r.goroutines.others), "goroutines")
		b.ReportMetric(float64(r.peak), "peak")
		b.ReportMetric(float64(scripts(r.idle))/float64(len(names))/spans, "asks")
		b.ReportMetric(float64(r.idle["ping"])/float64(n)/spans, "probes")
		b.ReportMetric(100*r.cpu, "idle-cpu-%")
		b.ReportMetric(r.memory, "B/waiter")
		b.ReportMetric(r.gathering.Seconds(), "gather-s")
		b.ReportMetric(r.passing.Seconds(), "pass-s")
		b.ReportMetric(float64(scripts(r.passes)-len(names))/float64(waiters), "requests/pass")
		b.ReportMetric(float64(r.left.ours), "left")
	})
}

// BenchmarkHolds has one client keep 100,000 holds (on a cluster 10,000) with the
// default watchdog timeout of 30 s, through two renewal periods in peace and three
// while another process keeps one core busy.
//
//	calls/period      script calls
//	pipelines/period  in which they were sent
//	cpu-s/period      that the process used
//	cpu-%             the same as a share of one core
//	busy-…            the same while a core is kept busy
//	least-left-s      the shortest validity that was seen; 20 s are left when a
//	                  renewal is due
//	hog-%             of a core that the other process got
//	lost              holds, by the client or by the servers; 0
//	failed            renewals without an answer
//	B/hold            heap after all that, with the Lock object and the connections,
//	objects/hold      without the name: see BenchmarkHeapPerHold
//
//	go test ./integration -run '^$' -bench Holds -benchtime 1x -timeout 20m
func BenchmarkHolds(b *testing.B) {
	bench(b, func(b *testing.B, s *site, part int) {
		holds := 100_000
		if part > 1 {
			holds = 10_000
		}
		k := s.newKeep(holds, 30*time.Second)
		base := heapNow()
		k.fill()
		// The renewals come together, as the locking did: no count begins or ends amid them.
		time.Sleep(k.period + k.period/2)
		quiet := k.watch(2)
		child := StartChild(b, "hog", nil)
		busy := k.watch(3)
		child.Terminate()
		var share float64
		child.Receive(&share)
		lost, stats := k.lost(), k.c.Stats()
		after := heapNow()
		b.Logf("quiet: %+v", quiet)
		b.Logf("busy: %+v; %+v", busy, stats)
		b.ReportMetric(quiet.scripts, "calls/period")
		b.ReportMetric(quiet.pipelines, "pipelines/period")
		b.ReportMetric(quiet.cpu.Seconds(), "cpu-s/period")
		b.ReportMetric(100*quiet.share, "cpu-%")
		b.ReportMetric(busy.scripts, "busy-calls/period")
		b.ReportMetric(100*busy.share, "busy-cpu-%")
		b.ReportMetric(min(quiet.least, busy.least).Seconds(), "least-left-s")
		b.ReportMetric(100*share, "hog-%")
		b.ReportMetric(float64(lost), "lost")
		b.ReportMetric(float64(stats.RenewFailures), "failed")
		if part == 1 { // with fewer holds the buffers of the connections count
			after.report(b, base, holds, "hold")
		}
		require.Zero(b, lost)
		require.NoError(b, k.c.Close(context.Background()))
		runtime.KeepAlive(k)
	})
}

// BenchmarkClose closes a client with 10,000 goroutines that wait for 1,000 names,
// and 10,000 holds (on a cluster 2,000, 200 and 2,000).
//
//	close-s          that it took
//	tell-ms          until the first release was sent
//	told             holders that knew by then; all
//	requests/hold    script calls
//	keys-left        and goroutines-left: 0
//
//	go test ./integration -run '^$' -bench Close -benchtime 1x
func BenchmarkClose(b *testing.B) {
	bench(b, func(b *testing.B, s *site, part int) {
		holds := 10_000 / part
		r := s.close(10_000/part, sizedNames("wait", 1000/part), holds)
		require.Equal(b, holds, r.told)
		b.ReportMetric(r.took.Seconds(), "close-s")
		b.ReportMetric(1e3*r.telling.Seconds(), "tell-ms")
		b.ReportMetric(float64(r.told), "told")
		b.ReportMetric(float64(r.requests)/float64(holds), "requests/hold")
		b.ReportMetric(float64(r.keys), "keys-left")
		b.ReportMetric(float64(r.goroutines.ours), "goroutines-left")
	})
}
