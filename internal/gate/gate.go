// Package gate is the line of one process's waiters for one key.
//
// Only its head asks Redis; the others wait for it. The releaser grants: it
// takes the head off the line and tells it that the lock is its own. How often
// that may go on before other processes get their turn is counted here too.
package gate

import "time"

// Gate is a first-in, first-out line. The zero value is empty. It has no lock of
// its own: its user serialises all calls.
type Gate[T any] struct {
	first, last *Waiter[T]

	passes int       // hand-overs since the lock was taken from Redis
	since  time.Time // when that was
}

// Waiter is a place in the line. It belongs to one Gate and must not be copied
// while it stands there.
type Waiter[T any] struct {
	For T // what waits; never read by the gate

	next, prev *Waiter[T]
	in         bool
	bell       chan struct{}
}

// Join puts w at the end of the line.
func (g *Gate[T]) Join(w *Waiter[T]) {
	if w.in {
		panic("gate: bug: the waiter stands in a line already")
	}
	w.in, w.prev, w.next = true, g.last, nil
	if g.last == nil {
		g.first = w
	} else {
		g.last.next = w
	}
	g.last = w
}

// Leave takes w out of the line, wherever it stands. If it was the head, the
// next one is the head now and is told so. It is harmless when w stands in none.
func (g *Gate[T]) Leave(w *Waiter[T]) {
	if !w.in {
		return
	}
	wasFirst := g.first == w
	if w.prev == nil {
		g.first = w.next
	} else {
		w.prev.next = w.next
	}
	if w.next == nil {
		g.last = w.prev
	} else {
		w.next.prev = w.prev
	}
	w.in, w.prev, w.next = false, nil, nil
	if wasFirst && g.first != nil {
		g.first.Ring()
	}
}

// First is the head of the line, or nil.
func (g *Gate[T]) First() *Waiter[T] { return g.first }

// All calls f for each waiter in order, until f returns false.
func (g *Gate[T]) All(f func(*Waiter[T]) bool) {
	for w := g.first; w != nil; w = w.next {
		if !f(w) {
			return
		}
	}
}

// Ring tells w to look again. Rings that w did not listen to yet become one.
func (w *Waiter[T]) Ring() {
	select {
	case w.Bell() <- struct{}{}:
	default:
	}
}

// Bell rings when w is to look again: it is the head now, or something was
// granted to it. A ring is kept until w listens.
func (w *Waiter[T]) Bell() chan struct{} {
	if w.bell == nil {
		w.bell = make(chan struct{}, 1)
	}
	return w.bell
}

// Taken notes that the lock came from Redis at now: passing on begins anew.
func (g *Gate[T]) Taken(now time.Time) { g.passes, g.since = 0, now }

// Passed notes that the lock passed from one waiter of this process to another.
func (g *Gate[T]) Passed() { g.passes++ }

// MayPass tells whether the lock may pass once more: fewer than limit times so
// far, and for less than d.
func (g *Gate[T]) MayPass(limit int, d time.Duration, now time.Time) bool {
	return g.first != nil && g.passes < limit && now.Sub(g.since) < d
}
