package integration

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/redistest"
	"github.com/relock-go/relock/internal/script"
	"github.com/relock-go/relock/rlock"
)

// benchClient is a relock client of its own on rdb.
func benchClient(b testing.TB, rdb redis.UniversalClient, opts ...rlock.Option) *rlock.Client {
	c, err := rlock.New(rdb, opts...)
	require.NoError(b, err)
	b.Cleanup(func() { _ = c.Close(context.Background()) })
	return c
}

// BenchmarkUncontended sets Lock+Unlock beside the two EVALSHA that they send, in
// turns in one run. x-raw is the ratio of the medians.
//
//	go test ./integration -run '^$' -bench Uncontended
func BenchmarkUncontended(b *testing.B) {
	endless := func(b *testing.B) context.Context { return context.Background() }
	for _, v := range []struct {
		name string
		ctx  func(*testing.B) context.Context
	}{
		{"endless ctx", endless},
		{"ctx", func(b *testing.B) context.Context { return b.Context() }},
	} {
		b.Run(v.name, func(b *testing.B) {
			ctx := v.ctx(b)
			rdb := Redis(b).Client(b)
			l := benchClient(b, rdb).NewLock(name(b))
			raw := rawPair(b, rdb, name(b))
			pair := func() {
				if l.Lock(ctx) != nil || l.Unlock(ctx) != nil {
					b.Fatal("no lock")
				}
			}
			beside(b, raw, pair)
		})
	}
}

// BenchmarkReentrant is the same for a re-entry.
func BenchmarkReentrant(b *testing.B) {
	ctx := context.Background()
	rdb := Redis(b).Client(b)
	l := benchClient(b, rdb).NewLock(name(b))
	require.NoError(b, l.Lock(ctx))
	beside(b, rawPair(b, rdb, name(b)), func() {
		if l.Lock(ctx) != nil || l.Unlock(ctx) != nil {
			b.Fatal("no lock")
		}
	})
}

// rawPair is what Lock+Unlock sends, without anything around it.
func rawPair(b *testing.B, rdb *redis.Client, key string) func() {
	ctx := context.Background()
	field, channel := "bench:1", script.Channel(key)
	require.NoError(b, rdb.ScriptLoad(ctx, script.Acquire.Text).Err())
	require.NoError(b, rdb.ScriptLoad(ctx, script.Release.Text).Err())
	keys := []string{key}
	return func() {
		if rdb.EvalSha(ctx, script.Acquire.SHA, keys, 30000, field, 0).Err() != nil ||
			rdb.EvalSha(ctx, script.Release.SHA, keys, channel, "publish", field).Err() != nil {
			b.Fatal("no script")
		}
	}
}

// beside runs raw and f in turns, so that a busy machine slows both, and reports
// their medians and what they allocate.
func beside(b *testing.B, raw, f func()) {
	var raws, fs []time.Duration
	for b.Loop() {
		begin := time.Now()
		raw()
		mid := time.Now()
		f()
		raws, fs = append(raws, mid.Sub(begin)), append(fs, time.Since(mid))
	}
	b.ReportMetric(0, "ns/op") // of both, and of no use
	b.ReportMetric(float64(median(raws)), "raw-ns")
	b.ReportMetric(float64(median(fs)), "lock-ns")
	b.ReportMetric(float64(median(fs))/float64(median(raws)), "x-raw")
	b.ReportMetric(testing.AllocsPerRun(200, f), "allocs")
}

func median(d []time.Duration) time.Duration { return percentile(d, 50) }

func percentile(d []time.Duration, p int) time.Duration {
	if len(d) == 0 {
		return 0
	}
	d = slices.Clone(d)
	slices.Sort(d)
	return d[min(len(d)-1, len(d)*p/100)]
}

// BenchmarkContended has 64 goroutines of one process on one key, 1 ms inside and
// 2 ms outside, for two seconds each: first on a sync.Mutex, then on a Lock. An
// operation is a run of two seconds.
//
//	go test ./integration -run '^$' -bench Contended -benchtime 3x
func BenchmarkContended(b *testing.B) {
	ctx := context.Background()
	rdb := Redis(b).Client(b)
	count := redistest.CountCommands(b, rdb)
	var local, remote contention
	var scripts, granted uint64
	evals := 0
	for b.Loop() {
		var mu sync.Mutex
		local.run(2*time.Second, 64, mu.Lock, mu.Unlock)

		c := benchClient(b, rdb)
		l := c.NewLock(name(b))
		before := count()["evalsha"]
		remote.run(2*time.Second, 64,
			func() {
				if err := l.Lock(ctx); err != nil {
					b.Error(err)
				}
			},
			func() {
				if err := l.Unlock(ctx); err != nil {
					b.Error(err)
				}
			})
		evals += count()["evalsha"] - before
		s := c.Stats()
		scripts, granted = scripts+s.Scripts, granted+s.Acquired
	}
	b.ReportMetric(100*local.used(), "mutex-used-%")
	b.ReportMetric(100*remote.used(), "used-%")
	b.ReportMetric(float64(percentile(local.waits, 99))/1e6, "mutex-p99-ms")
	b.ReportMetric(float64(percentile(remote.waits, 99))/1e6, "p99-ms")
	b.ReportMetric(float64(percentile(remote.waits, 99))/float64(percentile(local.waits, 99)), "p99-x-mutex")
	b.ReportMetric(float64(scripts)/float64(granted), "requests/hand-off")
	b.ReportMetric(float64(evals)/float64(granted), "evalsha/hand-off")
	b.ReportMetric(remote.jain(), "jain")
}

// contention is what a lock showed under goroutines that want it all the time.
type contention struct {
	waits  []time.Duration
	shares []int
	inside time.Duration
	span   time.Duration
}

func (c *contention) run(d time.Duration, goroutines int, lock, unlock func()) {
	var wg sync.WaitGroup
	var mu sync.Mutex
	begin := time.Now()
	for range goroutines {
		wg.Go(func() {
			var waits []time.Duration
			var inside time.Duration
			for time.Since(begin) < d {
				asked := time.Now()
				lock()
				in := time.Now()
				time.Sleep(time.Millisecond)
				inside += time.Since(in)
				unlock()
				waits = append(waits, in.Sub(asked))
				time.Sleep(2 * time.Millisecond)
			}
			mu.Lock()
			defer mu.Unlock()
			c.waits = append(c.waits, waits...)
			c.shares = append(c.shares, len(waits))
			c.inside += inside
		})
	}
	wg.Wait()
	c.span += time.Since(begin)
}

// used is the part of the time in which somebody was inside.
func (c *contention) used() float64 { return float64(c.inside) / float64(c.span) }

// jain is Jain's fairness index of the shares: 1 when all are equal.
func (c *contention) jain() float64 {
	var sum, squares float64
	for _, n := range c.shares {
		sum += float64(n)
		squares += float64(n) * float64(n)
	}
	return sum * sum / (float64(len(c.shares)) * squares)
}
