package integration

import (
	"context"
	"fmt"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/relock-go/relock/rlock"
)

// senders is how many goroutines take the holds of a test. None of them stays.
const senders = 32

// forAll calls f for 0 to n-1, by a few goroutines.
func forAll(n int, f func(i int) error) error {
	var next atomic.Int64
	var group errgroup.Group
	for range senders {
		group.Go(func() error {
			for {
				i := int(next.Add(1)) - 1
				if i >= n {
					return nil
				}
				if err := f(i); err != nil {
					return err
				}
			}
		})
	}
	return group.Wait()
}

// heap is what is reachable.
type heap struct{ bytes, objects float64 }

func heapNow() heap {
	runtime.GC()
	runtime.GC() // what only a finalizer kept, and what the first one left to sweep
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return heap{float64(m.HeapAlloc), float64(m.HeapObjects)}
}

// report reports per hold what h has more than before.
func (h heap) report(b *testing.B, before heap, n int, what string) {
	b.ReportMetric((h.bytes-before.bytes)/float64(n), "B/"+what)
	b.ReportMetric((h.objects-before.objects)/float64(n), "objects/"+what)
}

// BenchmarkHeapPerHold measures what a hold keeps of the heap. An operation is
// 100,000 holds of one client, kept by the watchdog on a server of their own, with
// names of 16 bytes, no two of them the same. After garbage collections, per hold:
//
//	hold    what the call of Lock adds, to a Lock object that is there already
//	locked  the same with its Lock object, without its name: what the budget for
//	        a held lock is about
//	named   the same with the string of the name
//	kept    what is left of that when the user forgets the names and the Lock
//	        objects: all is the client's
//
// Owners are made before. "one owner" holds all; with "an owner each" every hold
// has a field of its own.
//
//	go test ./integration -run '^$' -bench HeapPerHold -benchtime 1x
func BenchmarkHeapPerHold(b *testing.B) {
	const n = 100_000
	for _, v := range []struct {
		name   string
		owners int
	}{{"one owner", 1}, {"an owner each", n}} {
		b.Run(v.name, func(b *testing.B) {
			s := OwnRedis(b)
			for b.Loop() {
				heapPerHold(b, s.Client(b), n, v.owners)
			}
			b.ReportMetric(0, "ns/op") // says nothing
		})
	}
}

func heapPerHold(b *testing.B, rdb redis.UniversalClient, n, owners int) {
	// No renewal comes in between.
	c := benchClient(b, rdb, rlock.WithWatchdogTimeout(time.Hour))
	ctxs := make([]context.Context, owners)
	for i := range ctxs {
		ctxs[i] = rlock.WithOwner(context.Background(), rlock.NewOwner())
	}
	// The connections and the client's own goroutines are there before it begins.
	require.NoError(b, forAll(10*senders, func(i int) error {
		l := c.NewLock(fmt.Sprint("warm:", i))
		if err := l.Lock(ctxs[0]); err != nil {
			return err
		}
		return l.Unlock(ctxs[0])
	}))
	names, locks := make([]string, n), make([]*rlock.Lock, n)

	empty := heapNow()
	for i := range names {
		names[i] = fmt.Sprintf("orders:%09d", i)
	}
	named := heapNow()
	for i := range locks {
		locks[i] = c.NewLock(names[i])
	}
	made := heapNow()
	require.NoError(b, forAll(n, func(i int) error { return locks[i].Lock(ctxs[i%owners]) }))
	held := heapNow()
	clear(names)
	clear(locks)
	kept := heapNow()

	require.Equal(b, n, c.Stats().Held)
	runtime.KeepAlive(names)
	runtime.KeepAlive(locks)
	runtime.KeepAlive(ctxs)
	held.report(b, made, n, "hold")
	held.report(b, named, n, "locked")
	held.report(b, empty, n, "named")
	kept.report(b, empty, n, "kept")
	require.NoError(b, c.Close(context.Background()))
}
