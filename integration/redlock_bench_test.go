package integration

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/go-redsync/redsync/v4"
	redsyncredis "github.com/go-redsync/redsync/v4/redis"
	redsyncpool "github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/redistest"
	"github.com/relock-go/relock/redlock"
	"github.com/relock-go/relock/rlock"
)

// BenchmarkRedLock sets Lock+Unlock of a RedLock on five servers beside the same of a
// single server's lock, the slowest of the five, and of redsync on the same five: in
// turns, in one run. The servers are on loopback, where five of them share the cores
// with this process, or behind lines of 1 to 3 ms; or two of the five hang.
//
// x-single and redsync-x-single are ratios of the medians; the budget is 1.3. With
// hung servers it is the slowest of the live ones and NodeTimeout, 50 ms, for each of
// Lock and Unlock: over-ms is what is above that of the single one.
//
//	go test ./integration -run '^$' -bench RedLock -benchtime 200x
func BenchmarkRedLock(b *testing.B) {
	for _, v := range []struct {
		name string
		line time.Duration // the delay of the fastest; the slowest has three times that
		hung int
	}{
		{"loopback", 0, 0},
		{"lines of 1 to 3 ms", time.Millisecond, 0},
		{"lines of 1 to 3 ms, 2 of 5 hung", time.Millisecond, 2},
	} {
		b.Run(v.name, func(b *testing.B) { benchRedLock(b, v.line, v.hung) })
	}
}

func benchRedLock(b *testing.B, line time.Duration, hung int) {
	ctx := context.Background()
	servers := startFive(b)
	var clients []*redis.Client
	for i, s := range servers {
		addr := s.Addr
		if line > 0 {
			p := redistest.NewProxy(b, addr)
			p.Latency(line + time.Duration(i)*line/2)
			addr = p.Addr
		}
		// As a user of redsync has to: without it a deadline ends nothing.
		rdb := redistest.NewClient(b, addr, func(o *redis.Options) { o.ContextTimeoutEnabled = true })
		require.NoError(b, rdb.Ping(ctx).Err())
		clients = append(clients, rdb)
	}

	var locks []rlock.Locker
	var pools []redsyncredis.Pool
	for _, rdb := range clients {
		locks = append(locks, benchClient(b, rdb).NewLock(name(b)))
		pools = append(pools, redsyncpool.NewPool(rdb))
	}
	red, err := redlock.New(locks)
	require.NoError(b, err)
	peer := redsync.New(pools...).NewMutex(name(b), redsync.WithTries(1), redsync.WithTimeoutFactor(0.00625)) // 50 ms of 8 s
	// The slowest, of those that live.
	slowest := benchClient(b, clients[len(clients)-1-hung]).NewLock(name(b))

	for _, s := range servers[len(servers)-hung:] {
		require.NoError(b, s.Stop())
	}
	pairs := []func() error{
		func() error { return lockAndUnlock(slowest.Lock(ctx), slowest.Unlock) },
		func() error { return lockAndUnlock(red.Lock(ctx), red.Unlock) },
		func() error {
			return lockAndUnlock(peer.LockContext(ctx), func(ctx context.Context) error {
				// It waits for all servers, and has no timeout of its own for that.
				ctx, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
				defer cancel()
				if ok, err := peer.UnlockContext(ctx); !ok {
					return fmt.Errorf("redsync: not unlocked: %w", err)
				}
				return nil // it reports hung servers as errors too
			})
		},
	}
	for _, pair := range pairs { // the first one of a RedLock looks at all servers
		if err := pair(); err != nil {
			b.Log(err)
		}
	}
	took, fails := make([][]time.Duration, len(pairs)), make([]float64, len(pairs))
	for b.Loop() {
		for i, pair := range pairs {
			begin := time.Now()
			if err := pair(); err != nil { // 50 ms are not enough for a busy machine now and then
				fails[i]++
				continue
			}
			took[i] = append(took[i], time.Since(begin))
		}
	}
	single, ours, theirs := float64(median(took[0])), float64(median(took[1])), float64(median(took[2]))
	b.ReportMetric(0, "ns/op") // of all, and of no use
	b.ReportMetric(single/1e3, "single-µs")
	b.ReportMetric(ours/1e3, "redlock-µs")
	b.ReportMetric(theirs/1e3, "redsync-µs")
	b.ReportMetric(ours/single, "x-single")
	b.ReportMetric(theirs/single, "redsync-x-single")
	b.ReportMetric(fails[1], "redlock-fails")
	b.ReportMetric(fails[2], "redsync-fails")
	if hung > 0 {
		b.ReportMetric((ours-single)/1e6, "over-ms")
		b.ReportMetric((theirs-single)/1e6, "redsync-over-ms")
	}
}

func lockAndUnlock(locked error, unlock func(context.Context) error) error {
	if locked != nil {
		return locked
	}
	return unlock(context.Background())
}
