package integration

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/rlock"
)

// writerLimit is how long the writer waits, at most.
const writerLimit = 5 * time.Second

// BenchmarkRW_WriterAmongReaders is how a writer fares under readers of another process
// that never pause: each reads for 5 ms and comes again at once. It asserts nothing.
//
//	go test ./integration -run '^$' -bench RW_Writer -benchtime 1x
func BenchmarkRW_WriterAmongReaders(b *testing.B) {
	for _, readers := range []int{1, 2, 4, 8, 16} {
		b.Run(fmt.Sprintf("readers=%d", readers), func(b *testing.B) {
			s := Redis(b)
			lock := name(b)
			w := startKindWorker(b, settings{Addr: s.Addr}, 30*time.Second)
			var ids []int
			for i := range readers {
				ids = append(ids, w.begin(task{Kind: "read", Lock: lock, Owner: rlock.Owner(fmt.Sprintf("r%d", i)), Stay: 5 * time.Millisecond}))
			}
			rdb := s.Client(b)
			require.Eventually(b, func() bool { return rdb.Exists(b.Context(), lock).Val() == 1 }, childLimit, time.Millisecond)
			writer := lockClient(b, rdb).NewReadWriteLock(lock).WriteLock()
			ctx := rlock.WithOwner(b.Context(), "writer")
			var waits []time.Duration
			tries := 0
			for b.Loop() {
				for range 10 {
					began := time.Now()
					got, err := writer.TryLock(ctx, writerLimit, 0)
					require.NoError(b, err)
					tries++
					if got {
						waits = append(waits, time.Since(began))
						require.NoError(b, writer.Unlock(ctx))
						time.Sleep(20 * time.Millisecond)
					}
				}
			}
			w.Send(task{Stop: true})
			reads := 0
			for _, id := range ids {
				reads += len(w.await(id)) / 2
			}
			slices.Sort(waits)
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(100*float64(len(waits))/float64(tries), "served-%")
			if len(waits) > 0 {
				b.ReportMetric(float64(waits[len(waits)/2].Microseconds())/1000, "median-ms")
				b.ReportMetric(float64(waits[len(waits)-1].Microseconds())/1000, "longest-ms")
			}
			b.ReportMetric(float64(reads), "reads")
			finishAll([]*kindWorker{w})
		})
	}
}
