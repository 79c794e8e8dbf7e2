package watchdog

import "math/bits"

// A wheel has levels of slots. A slot of the lowest level is one tick wide; one
// of a higher level is as wide as the whole level below. Six levels of 256
// slots reach further than time.Duration does in milliseconds, so that no tick
// is out of range.
const (
	digitBits = 8
	slots     = 1 << digitBits
	levels    = 6
)

// wheel is a hierarchical timing wheel: it orders leases by tick.
//
// Each level is a ring of slots that turns with now. A lease stands at the
// lowest level that reaches its tick within one turn. Adding and removing take
// constant time; what comes next is found by a bitmap per level. When now comes
// to a slot of a higher level, its leases move down; each does so at most five
// times, and one that is renewed within a minute does it once.
//
// Two simpler wheels were not taken. One level only needs a slot per tick of a
// period, or else looks at leases again and again that are not due. Levels by
// the highest digit that differs from now need no turning, but move all leases
// at once whenever that digit changes: milliseconds under the mutex.
//
// The zero value is empty and stands at tick 0. A wheel has no clock and no
// mutex: its user has.
type wheel[H any] struct {
	now   int64 // no lease in the wheel is due before this tick
	used  [levels]bitmap
	rings [levels][slots]ring[H]
}

// add puts l, which must not be in the wheel, at tick. A tick that has been
// handed out already counts as the next one.
func (w *wheel[H]) add(l *Lease[H], tick int64) {
	l.tick = max(tick, w.now+1)
	w.place(l)
}

func (w *wheel[H]) place(l *Lease[H]) {
	level, at, now := 0, l.tick, w.now
	for at-now >= slots {
		level, at, now = level+1, at>>digitBits, now>>digitBits
	}
	slot := int(at % slots)
	l.slot = int16(level*slots+slot) + 1
	w.rings[level][slot].push(l, inSlot)
	w.used[level].set(slot)
}

// remove takes l out of the wheel, if it is in it.
func (w *wheel[H]) remove(l *Lease[H]) {
	if l.slot == 0 {
		return
	}
	level, slot := int(l.slot-1)/slots, int(l.slot-1)%slots
	l.slot = 0
	r := &w.rings[level][slot]
	r.remove(l, inSlot)
	if r.head == nil {
		w.used[level].clear(slot)
	}
}

// pop takes out one lease whose tick is not after to, in the order of ticks,
// and returns it. It returns nil when there is none; the wheel then stands at
// to.
func (w *wheel[H]) pop(to int64) *Lease[H] {
	for {
		level, tick, ok := w.first()
		if !ok || tick > to {
			w.now = max(w.now, to)
			return nil
		}
		w.now = tick
		r := &w.rings[level][tick>>(level*digitBits)%slots]
		if level == 0 {
			l := r.head
			w.remove(l)
			return l
		}
		for r.head != nil {
			l := r.head
			w.remove(l)
			w.place(l) // at a lower level, which reaches it now
		}
	}
}

// next returns the tick at which there is something to do: a lease is due, or
// leases move down a level. No lease is due before it.
func (w *wheel[H]) next() (tick int64, ok bool) {
	_, tick, ok = w.first()
	return tick, ok
}

// first returns the slot that comes first, by its level and first tick.
func (w *wheel[H]) first() (level int, tick int64, ok bool) {
	for i := range levels {
		shift := i * digitBits
		now := w.now >> shift
		distance, found := w.used[i].from(int(now % slots))
		if !found {
			continue
		}
		if begin := (now + int64(distance)) << shift; !ok || begin < tick {
			level, tick, ok = i, begin, true
		}
	}
	return level, tick, ok
}

// bitmap has one bit for each slot of a level.
type bitmap [slots / 64]uint64

func (b *bitmap) set(i int)   { b[i/64] |= 1 << (i % 64) }
func (b *bitmap) clear(i int) { b[i/64] &^= 1 << (i % 64) }

// from returns the distance from bit i to the first bit that is set, going
// round from the last bit to the first.
func (b *bitmap) from(i int) (distance int, ok bool) {
	before := uint64(1)<<(i%64) - 1 // the bits of i's word that come last
	for n := range len(b) + 1 {
		at := (i/64 + n) % len(b)
		word := b[at]
		switch n {
		case 0:
			word &^= before
		case len(b):
			word &= before
		}
		if word != 0 {
			return (at*64 + bits.TrailingZeros64(word) - i + slots) % slots, true
		}
	}
	return 0, false
}
