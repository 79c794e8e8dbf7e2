package integration

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/relock-go/relock/rlock"
)

// BenchmarkFair_ShortWaits is how much of the time 8 clients use a FairLock when each
// gives up before it is its turn, and tries again: nobody may be waited for that has left.
// Each works for 5 ms. One iteration takes three seconds. It asserts nothing.
//
//	go test ./integration -run '^$' -bench Fair_ShortWaits -benchtime 1x
func BenchmarkFair_ShortWaits(b *testing.B) {
	const clients, work = 8, 5 * time.Millisecond
	for _, wait := range []time.Duration{15 * time.Millisecond, 30 * time.Millisecond, 60 * time.Millisecond, time.Second} {
		b.Run(fmt.Sprintf("wait=%v", wait), func(b *testing.B) {
			s := Redis(b)
			lock := name(b)
			var grants, waits, took atomic.Int64
			for b.Loop() {
				ctx, stop := context.WithTimeout(b.Context(), 3*time.Second)
				began := time.Now()
				var all errgroup.Group
				for range clients {
					l := lockClient(b, s.Client(b)).NewFairLock(lock)
					all.Go(func() error {
						own := rlock.WithOwner(ctx, rlock.NewOwner())
						for ctx.Err() == nil {
							waits.Add(1)
							got, err := l.TryLock(own, wait, 0)
							switch {
							case got:
								grants.Add(1)
								time.Sleep(work)
								if err := l.Unlock(own); err != nil {
									return err
								}
							case err != nil && ctx.Err() == nil && !errors.Is(err, rlock.ErrUnsettled):
								return err
							}
						}
						return nil
					})
				}
				require.NoError(b, all.Wait())
				stop()
				took.Add(int64(time.Since(began)))
			}
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(float64(grants.Load())/time.Duration(took.Load()).Seconds(), "grants/s")
			b.ReportMetric(100*float64(grants.Load()*int64(work))/float64(took.Load()), "in-use-%")
			b.ReportMetric(100*float64(grants.Load())/float64(waits.Load()), "served-%")
		})
	}
}
