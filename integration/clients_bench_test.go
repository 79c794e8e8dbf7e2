package integration

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/relock-go/relock/internal/redistest"
	"github.com/relock-go/relock/rlock"
)

// BenchmarkContendedClients has 32 clients of one goroutine each on one key, 1 ms inside
// and 2 ms outside, for two seconds each: on a sync.Mutex, on a Lock, and on a FairLock.
// An operation is a run of two seconds.
//
//	go test ./integration -run '^$' -bench ContendedClients -benchtime 3x
func BenchmarkContendedClients(b *testing.B) {
	const n = 32
	ctx := context.Background()
	rdb := Redis(b).Client(b)
	count := redistest.CountCommands(b, rdb)
	for what, lock := range map[string]func(*rlock.Client, string) rlock.Locker{
		"Lock":     func(c *rlock.Client, name string) rlock.Locker { return c.NewLock(name) },
		"FairLock": func(c *rlock.Client, name string) rlock.Locker { return c.NewFairLock(name) },
	} {
		b.Run(what, func(b *testing.B) {
			var local, remote contention
			evals, granted := 0, 0
			for b.Loop() {
				var mu sync.Mutex
				local.run(2*time.Second, n, mu.Lock, mu.Unlock)

				locks := make(chan rlock.Locker, n) // one for each goroutine
				name := name(b)
				for range n {
					locks <- lock(benchClient(b, rdb), name)
				}
				before := count()["evalsha"]
				var mine sync.Map
				remote.run(2*time.Second, n,
					func() {
						l, ok := mine.Load(rlock.OwnerOf(ctx))
						if !ok {
							l = <-locks
							mine.Store(rlock.OwnerOf(ctx), l)
						}
						if err := l.(rlock.Locker).Lock(ctx); err != nil {
							b.Error(err)
						}
					},
					func() {
						l, _ := mine.Load(rlock.OwnerOf(ctx))
						if err := l.(rlock.Locker).Unlock(ctx); err != nil {
							b.Error(err)
						}
					})
				evals += count()["evalsha"] - before
			}
			for _, share := range remote.shares {
				granted += share
			}
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(remote.used()/local.used(), "used-x-mutex")
			b.ReportMetric(float64(percentile(remote.waits, 99))/float64(percentile(local.waits, 99)), "p99-x-mutex")
			b.ReportMetric(float64(evals)/float64(granted), "requests/hand-off")
			b.ReportMetric(remote.jain(), "jain")
		})
	}
}
