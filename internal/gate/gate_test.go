package gate

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func rang[T any](w *Waiter[T]) bool {
	select {
	case <-w.Bell():
		return true
	default:
		return false
	}
}

func TestTheNextHeadIsToldWhenTheHeadLeaves(t *testing.T) {
	var g Gate[int]
	a, b, c := &Waiter[int]{For: 1}, &Waiter[int]{For: 2}, &Waiter[int]{For: 3}
	g.Join(a)
	g.Join(b)
	g.Join(c)
	g.Leave(b)
	require.False(t, rang(c), "c is not the head yet")
	g.Leave(a)
	require.Same(t, c, g.First())
	require.True(t, rang(c))
	require.False(t, rang(c), "one ring")
	g.Leave(c)
	g.Leave(c)
	require.Nil(t, g.First())
}

func TestJoiningTwiceIsABug(t *testing.T) {
	var g Gate[int]
	w := &Waiter[int]{}
	g.Join(w)
	require.Panics(t, func() { g.Join(w) })
}

func TestPassingOnIsBoundedByCountAndTime(t *testing.T) {
	var g Gate[int]
	now := time.Now()
	g.Taken(now)
	require.False(t, g.MayPass(2, time.Second, now), "nobody waits")
	g.Join(&Waiter[int]{})
	require.False(t, g.MayPass(0, time.Second, now))
	require.True(t, g.MayPass(2, time.Second, now))
	g.Passed()
	require.True(t, g.MayPass(2, time.Second, now))
	g.Passed()
	require.False(t, g.MayPass(2, time.Second, now), "twice is the limit")
	g.Taken(now)
	require.True(t, g.MayPass(2, time.Second, now))
	require.False(t, g.MayPass(2, time.Second, now.Add(time.Second)))
}

// The line is compared with a slice.
func TestTheLineKeepsItsOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var g Gate[int]
		var model []*Waiter[int]
		n := 0
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			if len(model) == 0 || rapid.Bool().Draw(t, "join") {
				w := &Waiter[int]{For: n}
				n++
				g.Join(w)
				model = append(model, w)
			} else {
				i := rapid.IntRange(0, len(model)-1).Draw(t, "leaver")
				g.Leave(model[i])
				next := append(model[:i:i], model[i+1:]...)
				if i == 0 && len(next) > 0 && !rang(next[0]) {
					t.Fatal("the new head was not told")
				}
				model = next
			}
			var got []*Waiter[int]
			g.All(func(w *Waiter[int]) bool { got = append(got, w); return true })
			if len(got) != len(model) {
				t.Fatalf("%d in line, want %d", len(got), len(model))
			}
			for i := range got {
				if got[i] != model[i] {
					t.Fatalf("place %d: %d, want %d", i, got[i].For, model[i].For)
				}
			}
		}
	})
}
