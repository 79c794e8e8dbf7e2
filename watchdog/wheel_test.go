package watchdog

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// A held lock may take 400 bytes of heap; this is the watchdog's part of it:
// four links, three times, the slot and the line.
func TestLease_Size(t *testing.T) {
	require.EqualValues(t, 64, unsafe.Sizeof(Lease[struct{}]{}))
	require.EqualValues(t, 64+8, unsafe.Sizeof(Lease[*int]{}))
}

// drain pops everything until to and returns it.
func drain(w *wheel[int], to int64) (popped []*Lease[int]) {
	for l := w.pop(to); l != nil; l = w.pop(to) {
		popped = append(popped, l)
	}
	return popped
}

func TestWheel_Empty(t *testing.T) {
	var w wheel[int]
	_, ok := w.next()
	require.False(t, ok)
	require.Nil(t, w.pop(1_000_000))
	require.EqualValues(t, 1_000_000, w.now)
}

func TestWheel_HandsOutAtTheTick(t *testing.T) {
	const century = 100 * 365 * 24 * 3600 * 1000
	for _, now := range []int64{0, 1, 255, 256, 257, 65_535, 1<<40 - 1} {
		for _, ahead := range []int64{1, 2, 255, 256, 257, 511, 512, 65_279, 65_280, 65_535, 65_536, 65_537, 1 << 24, 1<<32 + 5, century} {
			var w wheel[int]
			w.pop(now)
			l := &Lease[int]{}
			w.add(l, now+ahead)
			require.Nil(t, w.pop(now+ahead-1), "%d from %d: early", ahead, now)
			require.Same(t, l, w.pop(now+ahead), "%d from %d", ahead, now)
			require.Nil(t, w.pop(now+ahead))
		}
	}
}

func TestWheel_PastTickIsTheNext(t *testing.T) {
	var w wheel[int]
	w.pop(1000)
	l := &Lease[int]{}
	w.add(l, 3)
	require.Nil(t, w.pop(1000))
	require.Same(t, l, w.pop(1001))
}

func TestWheel_FirstInFirstOutWithinATick(t *testing.T) {
	var w wheel[int]
	for i := range 10 {
		w.add(&Lease[int]{Hold: i}, 5)
	}
	for i, l := range drain(&w, 5) {
		require.Equal(t, i, l.Hold)
	}
}

// The wheel is looked at only when next says so: how often is that for one
// lease that is a renewal period, a deadline or a long lease away?
func TestWheel_LooksSeldom(t *testing.T) {
	for ahead, most := range map[int64]int{200: 1, 10_000: 2, 30_000: 2, 86_400_000: 4, 1 << 43: 6} {
		var w wheel[int]
		w.pop(12_345)
		w.add(&Lease[int]{}, 12_345+ahead)
		looks := 0
		for tick, ok := w.next(); ok; tick, ok = w.next() {
			looks++
			w.pop(tick)
		}
		assert.LessOrEqual(t, looks, most, "%d ticks ahead", ahead)
	}
}

// All leases of a client must not move down at once, wherever now stands.
func TestWheel_MovesFewAtOnce(t *testing.T) {
	const leases, period = 10_000, 10_000
	var w wheel[int]
	for i := range leases {
		w.add(&Lease[int]{}, int64(i)+1)
	}
	most := 0
	for now := int64(1); now < 10*period; now++ {
		before := w.inLevel(0)
		popped := drain(&w, now)
		most = max(most, w.inLevel(0)-before+len(popped))
		for _, l := range popped {
			w.add(l, now+period)
		}
	}
	require.LessOrEqual(t, most, slots+1)
}

func (w *wheel[H]) inLevel(level int) (n int) {
	for _, r := range w.rings[level] {
		if r.head != nil {
			n++
			for l := r.head.links[inSlot].next; l != r.head; l = l.links[inSlot].next {
				n++
			}
		}
	}
	return n
}

// The wheel against a list that is searched.
func TestWheel_Model(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var w wheel[int]
		var now int64
		leases := make([]*Lease[int], 20)
		for i := range leases {
			leases[i] = &Lease[int]{Hold: i}
		}
		model := map[int]int64{} // lease to tick
		ahead := rapid.OneOf(rapid.Int64Range(-5, 300), rapid.Int64Range(0, 70_000), rapid.Int64Range(0, 20_000_000), rapid.Int64Range(0, 1<<43))
		which := rapid.IntRange(0, len(leases)-1)

		t.Repeat(map[string]func(*rapid.T){
			"add": func(t *rapid.T) {
				l := leases[which.Draw(t, "lease")]
				tick := now + ahead.Draw(t, "ahead")
				w.remove(l)
				w.add(l, tick)
				model[l.Hold] = max(tick, now+1)
			},
			"remove": func(t *rapid.T) {
				l := leases[which.Draw(t, "lease")]
				w.remove(l)
				delete(model, l.Hold)
			},
			"advance": func(t *rapid.T) {
				now += max(0, ahead.Draw(t, "by"))
				last := int64(0)
				for _, l := range drain(&w, now) {
					tick, ok := model[l.Hold]
					require.True(t, ok, "lease %d is not in the model", l.Hold)
					require.LessOrEqual(t, tick, now, "early")
					require.LessOrEqual(t, last, tick, "out of order")
					require.Equal(t, tick, l.tick)
					last = tick
					delete(model, l.Hold)
				}
				for hold, tick := range model {
					require.Greater(t, tick, now, "lease %d is late", hold)
				}
			},
			"": func(t *rapid.T) {
				next, ok := w.next()
				require.Equal(t, len(model) > 0, ok)
				count, earliest := 0, int64(1<<62)
				for level := range levels {
					count += w.inLevel(level)
				}
				require.Equal(t, len(model), count)
				for _, tick := range model {
					earliest = min(earliest, tick)
				}
				if ok {
					require.LessOrEqual(t, next, earliest)
					require.Greater(t, next, now)
				}
			},
		})
	})
}

func TestRing_Model(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var r ring[int]
		var model []*Lease[int]
		t.Repeat(map[string]func(*rapid.T){
			"push": func(*rapid.T) {
				l := &Lease[int]{}
				r.push(l, inLine)
				model = append(model, l)
			},
			"remove": func(t *rapid.T) {
				if len(model) == 0 {
					t.Skip("empty")
				}
				i := rapid.IntRange(0, len(model)-1).Draw(t, "at")
				r.remove(model[i], inLine)
				require.Zero(t, model[i].links)
				model = slices.Delete(model, i, i+1)
			},
			"": func(t *rapid.T) {
				l := r.head
				for _, want := range model {
					require.Same(t, want, l)
					l = l.links[inLine].next
				}
				require.Same(t, r.head, l)
			},
		})
	})
}

func TestBitmap_Model(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var b bitmap
		set := rapid.SliceOfN(rapid.IntRange(0, slots-1), 0, 4).Draw(t, "set")
		for _, i := range set {
			b.set(i)
		}
		from := rapid.IntRange(0, slots-1).Draw(t, "from")
		want := slots
		for _, i := range set {
			want = min(want, (i-from+slots)%slots)
		}
		got, ok := b.from(from)
		require.Equal(t, len(set) > 0, ok)
		if ok {
			require.Equal(t, want, got)
		}
	})
}

func TestTickOf(t *testing.T) {
	assert.EqualValues(t, 0, tickOf(0))
	assert.EqualValues(t, 1, tickOf(1))
	assert.EqualValues(t, 1, tickOf(time.Millisecond))
	assert.EqualValues(t, 2, tickOf(time.Millisecond+1))
}

func BenchmarkWheel(b *testing.B) {
	var w wheel[int]
	leases := make([]Lease[int], 100_000)
	for i := range leases {
		w.add(&leases[i], rand.Int64N(30_000)+1)
	}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		l := &leases[i%len(leases)]
		w.remove(l)
		w.add(l, 10_000+int64(i%1000))
	}
}
