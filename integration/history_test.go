package integration

import (
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/stretchr/testify/require"
)

func op(kind OpKind, owner string, call, ret int64) Op {
	return Op{Kind: kind, Lock: "l", Owner: owner, Call: call, Return: ret}
}

// drew is o with a token.
func drew(o Op, token uint64) Op {
	o.Token = token
	return o
}

func TestCheckMutex(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		ops  []Op
		bad  string // part of the error; "" for a good history
	}{
		{"one after the other", []Op{op(Acquired, "a", 1, 2), op(Acquired, "b", 1, 5), op(Released, "a", 3, 4), op(Released, "b", 6, 7)}, ""},
		{"granted while the release is under way", []Op{op(Acquired, "a", 1, 2), op(Released, "a", 3, 9), op(Acquired, "b", 4, 5)}, ""},
		{"nested", []Op{op(Acquired, "a", 1, 2), op(Acquired, "a", 3, 4), op(Released, "a", 5, 6), op(Released, "a", 7, 8), op(Acquired, "b", 7, 9)}, ""},
		{"refused while held", []Op{op(Acquired, "a", 1, 2), op(Refused, "b", 3, 4), op(Released, "a", 5, 6)}, ""},
		{"told before the next", []Op{op(Acquired, "a", 1, 2), op(Lost, "a", 3, 4), op(Acquired, "b", 1, 5)}, ""},
		{"two goroutines of one owner", []Op{op(Acquired, "a", 1, 4), op(Acquired, "a", 2, 3), op(Released, "a", 5, 8), op(Released, "a", 6, 7), op(Acquired, "b", 5, 9)}, ""},
		{"two goroutines of one owner, and another inside", []Op{op(Acquired, "a", 1, 4), op(Acquired, "a", 2, 3), op(Acquired, "b", 5, 6), op(Released, "a", 7, 8)}, "no lock can"},
		{"other names do not matter", []Op{op(Acquired, "a", 1, 2), {Kind: Acquired, Lock: "m", Owner: "b", Call: 1, Return: 2}}, ""},
		{"two at once", []Op{op(Acquired, "a", 1, 2), op(Acquired, "b", 1, 3), op(Released, "a", 4, 5), op(Released, "b", 4, 5)}, "two hold l at once"},
		{"two at once, never released", []Op{op(Acquired, "a", 1, 2), op(Acquired, "b", 3, 4)}, "two hold l at once"},
		{"told too late", []Op{op(Acquired, "a", 1, 2), op(Acquired, "b", 3, 4), op(Lost, "a", 5, 6)}, "two hold l at once"},
		{"let in at the inner release", []Op{op(Acquired, "a", 1, 2), op(Acquired, "a", 3, 4), op(Released, "a", 5, 6), op(Acquired, "b", 7, 8), op(Released, "a", 9, 10)}, "two hold l at once"},
		{"released by a stranger", []Op{op(Acquired, "a", 1, 2), op(Released, "b", 3, 4)}, "no lock can"},
		{"released twice", []Op{op(Acquired, "a", 1, 2), op(Released, "a", 3, 4), op(Released, "a", 5, 6)}, "no lock can"},
		{"refused while free", []Op{op(Refused, "a", 1, 2)}, "no lock can"},
		{"tokens rise", []Op{drew(op(Acquired, "a", 1, 2), 7), op(Released, "a", 3, 4), drew(op(Acquired, "b", 1, 5), 9), op(Released, "b", 6, 7)}, ""},
		{"a nested Lock has the token of the hold", []Op{drew(op(Acquired, "a", 1, 2), 7), drew(op(Acquired, "a", 3, 4), 7), op(Released, "a", 5, 6)}, ""},
		{"a token drawn inside a hold without", []Op{drew(op(Acquired, "b", 1, 2), 7), op(Released, "b", 3, 4), op(Acquired, "a", 5, 6), drew(op(Acquired, "a", 7, 8), 9)}, ""},
		{"a token again", []Op{drew(op(Acquired, "a", 1, 2), 7), op(Released, "a", 3, 4), drew(op(Acquired, "b", 1, 5), 7)}, "no lock can"},
		{"a lower token", []Op{drew(op(Acquired, "a", 1, 2), 7), op(Lost, "a", 3, 4), drew(op(Acquired, "b", 1, 5), 6)}, "no lock can"},
		{"another token inside a hold", []Op{drew(op(Acquired, "a", 1, 2), 7), drew(op(Acquired, "a", 3, 4), 8)}, "no lock can"},
		{"a lower token after holds without", []Op{drew(op(Acquired, "a", 1, 2), 7), op(Released, "a", 3, 4), op(Acquired, "b", 5, 6), op(Released, "b", 7, 8), drew(op(Acquired, "b", 9, 10), 6)}, "no lock can"},
		{"backwards", []Op{op(Acquired, "a", 2, 1)}, "ends before it begins"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			err := CheckMutex(c.ops, 10*time.Second)
			if c.bad == "" {
				require.NoError(t, err)
			} else {
				require.ErrorContains(t, err, c.bad)
			}
		})
	}
}

// A history as 256 waiters on one lock make it is judged in a moment, and one
// overlap in it is found.
func TestCheckMutexAtSize(t *testing.T) {
	t.Parallel()
	const waiters, passes = 256, 20_000
	var ops []Op
	since := make([]int64, waiters)
	now := int64(1)
	for range passes {
		w := rand.IntN(waiters)
		owner := strconv.Itoa(w)
		ops = append(ops, op(Acquired, owner, since[w], now), op(Released, owner, now+10, now+12))
		since[w] = now + 13
		now += 14
	}
	require.NoError(t, CheckMutex(slices.Clone(ops), 30*time.Second))

	broken := 2 * (passes / 2)
	ops[broken].Return -= 5 // in while the one before is still inside
	ops[broken].Call = min(ops[broken].Call, ops[broken].Return)
	require.ErrorContains(t, CheckMutex(ops, 30*time.Second), "two hold l at once")
}

// Whatever the narrowing and the cutting do, the verdict is porcupine's.
func TestCheckMutexAgreesWithPlainSearch(t *testing.T) {
	t.Parallel()
	good, bad := 0, 0
	for seed := range uint64(3000) {
		rng := rand.New(rand.NewPCG(seed, 0))
		kinds := []OpKind{Acquired, Acquired, Released, Released, Refused, Lost}
		// A few short histories at random, of sequential owners, each operation at
		// times near that of a lock that works.
		var ops []Op
		free := map[string]int64{}
		state := lockState{}
		for now := int64(10); now < 120; now += 10 {
			owner := strconv.Itoa(rng.IntN(3))
			kind := kinds[rng.IntN(len(kinds))]
			o := op(kind, owner, max(free[owner], now-rng.Int64N(25)), 0)
			o.Return = max(o.Call, now) + rng.Int64N(8)
			if kind == Acquired && seed%2 == 0 {
				o.Token = []uint64{0, state.token, state.last + 1, state.last}[rng.IntN(4)]
			}
			ok, next := lockModel.Step(state, o, nil)
			if !ok && rng.IntN(20) > 0 {
				continue
			}
			state = next.(lockState)
			free[owner] = o.Return + 1
			ops = append(ops, o)
		}
		if len(ops) == 0 {
			continue
		}
		want := judge(ops, 10*time.Second)
		err := checkMutex(ops, 10*time.Second, 1+rng.IntN(4))
		require.Equal(t, want == porcupine.Ok, err == nil, "seed %d: %v: %v", seed, err, ops)
		if err == nil {
			good++
		} else {
			bad++
		}
	}
	require.Greater(t, good, 100)
	require.Greater(t, bad, 100)
}
