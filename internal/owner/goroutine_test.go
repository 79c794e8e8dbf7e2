package owner

import (
	"sync"
	"testing"

	"github.com/petermattis/goid"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestGoroutine_AgreesWithTheRuntime(t *testing.T) {
	require.Equal(t, parse(), Goroutine())
	require.Equal(t, Goroutine(), Goroutine())
}

func TestGoroutine_EachHasItsOwn(t *testing.T) {
	const n = 1000
	ids := make([]int64, n)
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() {
			ids[i] = Goroutine()
			assert.Equal(t, parse(), ids[i])
		})
	}
	all.Wait()

	seen := make(map[int64]bool)
	for _, id := range ids {
		assert.Positive(t, id)
		seen[id] = true
	}
	assert.Len(t, seen, n)
}

// OWN-4: CI runs this on the next Go version too, where it tells that the fast
// way is no longer used.
func TestGoroutine_TheFastWayWorksHere(t *testing.T) {
	require.True(t, agrees(goid.Get))
}

func TestChoose_FallsBack(t *testing.T) {
	here := parse()
	for name, fast := range map[string]func() int64{
		"zero":          func() int64 { return 0 },
		"negative":      func() int64 { return -here },
		"another's":     func() int64 { return here + 1 },
		"always off":    func() int64 { return parse() + 1 },
		"right by luck": nil,
	} {
		t.Run(name, func(t *testing.T) {
			if name == "right by luck" {
				luck := parse() // of the subtest's goroutine, where choose asks first
				fast = func() int64 { return luck }
			}
			id := choose(fast)
			assert.Equal(t, parse(), id())

			other := make(chan [2]int64)
			go func() { other <- [2]int64{parse(), id()} }()
			got := <-other
			assert.Equal(t, got[0], got[1])
		})
	}
}

func TestGoroutine_DoesNotAllocate(t *testing.T) {
	assert.Zero(t, testing.AllocsPerRun(100, func() { Goroutine() }))
}

//go:noinline
func deep(n int, f func()) {
	if n > 0 {
		deep(n-1, f)
		return
	}
	f()
}

func BenchmarkGoroutine(b *testing.B) {
	for name, id := range map[string]func() int64{"chosen": Goroutine, "parsed": parse} {
		b.Run(name+"/shallow", func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				id()
			}
		})
		b.Run(name+"/deep", func(b *testing.B) {
			b.ReportAllocs()
			deep(30, func() {
				for b.Loop() {
					id()
				}
			})
		})
	}
}
