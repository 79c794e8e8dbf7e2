package integration

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/stretchr/testify/require"
)

// rwState is a read-write lock in the model.
type rwState struct {
	readers map[string]int // depth of each
	writer  string
	depth   int // of the writer
}

// read is s with n more read holds of owner.
func (s rwState) read(owner string, n int) rwState {
	s.readers = maps.Clone(s.readers)
	if s.readers == nil {
		s.readers = map[string]int{}
	}
	if s.readers[owner] += n; s.readers[owner] <= 0 {
		delete(s.readers, owner)
	}
	return s
}

// rwModel is one read-write lock: readers together, or one writer, who may read too and
// goes on as a reader. A reader never becomes the writer.
var rwModel = porcupine.Model{
	Init: func() any { return rwState{} },
	Equal: func(a, b any) bool {
		s, o := a.(rwState), b.(rwState)
		return s.writer == o.writer && s.depth == o.depth && maps.Equal(s.readers, o.readers)
	},
	Step: func(state, input, _ any) (bool, any) {
		s, op := state.(rwState), input.(Op)
		writes := op.Mode == "write"
		mine, others := s.depth > 0 && s.writer == op.Owner, s.depth > 0 && s.writer != op.Owner
		own := s.readers[op.Owner]
		switch {
		case op.Kind == Acquired && writes:
			ok := mine || s.depth == 0 && len(s.readers) == 0
			s.writer, s.depth = op.Owner, s.depth+1
			return ok, s
		case op.Kind == Acquired:
			return !others, s.read(op.Owner, 1)
		case op.Kind == Refused && writes:
			return others || len(s.readers) > 0 && !mine, s
		case op.Kind == Refused:
			return others, s
		case writes:
			n := 1
			if op.Kind == Lost {
				n = s.depth
			}
			if s.depth -= n; s.depth == 0 {
				s.writer = ""
			}
			return mine, s
		case op.Kind == Lost:
			return own > 0, s.read(op.Owner, -own)
		}
		return own > 0, s.read(op.Owner, -1)
	},
	DescribeOperation: func(input, _ any) string { return input.(Op).String() },
}

// checkRW is CheckMutex for read-write locks. An owner has one operation under way at a time.
func checkRW(ops []Op, limit time.Duration) error {
	byLock := make(map[string][]Op)
	for _, op := range ops {
		if op.Return < op.Call {
			return fmt.Errorf("ends before it begins: %v", op)
		}
		byLock[op.Lock] = append(byLock[op.Lock], op)
	}
	deadline := time.Now().Add(limit)
	for lock, part := range byLock {
		if err := narrowRW(part); err != nil {
			return err
		}
		switch judgeRW(part, max(time.Until(deadline), time.Millisecond)) {
		case porcupine.Illegal:
			return fmt.Errorf("no lock can answer like this: %d operations on %s", len(part), lock)
		case porcupine.Unknown:
			return fmt.Errorf("the history of %d operations on %s was not judged within %v", len(part), lock, limit)
		}
	}
	return nil
}

func judgeRW(ops []Op, limit time.Duration) porcupine.CheckResult {
	clients := map[string]int{}
	var history []porcupine.Operation
	for _, op := range ops {
		id, ok := clients[op.Owner]
		if !ok {
			id = len(clients)
			clients[op.Owner] = id
		}
		history = append(history, porcupine.Operation{ClientId: id, Input: op, Call: op.Call, Return: op.Return})
	}
	return porcupine.CheckOperationsTimeout(rwModel, history, limit)
}

// narrowRW shortens the operations as narrow does, and for the same reason: of two holds
// that exclude each other, the one whose acquisition returned first ended before the
// other one began.
func narrowRW(ops []Op) error {
	type hold struct {
		begin, end *Op
		depth      int
	}
	slices.SortStableFunc(ops, func(a, b Op) int { return cmp.Compare(a.Return, b.Return) })
	type half struct{ owner, mode string }
	open := map[half]*hold{}
	var holds []*hold
	for i := range ops {
		op := &ops[i]
		at := half{op.Owner, op.Mode}
		h := open[at]
		switch {
		case op.Kind == Acquired && h == nil:
			h = &hold{begin: op, depth: 1}
			open[at] = h
			holds = append(holds, h)
		case op.Kind == Acquired:
			h.depth++
		case op.Kind == Refused || h == nil: // the model judges these
		default:
			if h.depth--; h.depth == 0 || op.Kind == Lost {
				h.end = op
				delete(open, at)
			}
		}
	}
	for i, h := range holds {
		for _, before := range holds[:i] {
			if before.begin.Owner == h.begin.Owner || before.begin.Mode == "read" && h.begin.Mode == "read" {
				continue
			}
			if before.end == nil || before.end.Call > h.begin.Return {
				return fmt.Errorf("two hold %s at once: %v and %v", h.begin.Lock, before.begin, h.begin)
			}
			h.begin.Call = max(h.begin.Call, before.end.Call)
			before.end.Return = min(before.end.Return, h.begin.Return)
		}
	}
	return nil
}

func rd(kind OpKind, owner string, call, ret int64) Op {
	return Op{Kind: kind, Lock: "l", Owner: owner, Mode: "read", Call: call, Return: ret}
}

func wr(kind OpKind, owner string, call, ret int64) Op {
	return Op{Kind: kind, Lock: "l", Owner: owner, Mode: "write", Call: call, Return: ret}
}

func TestCheckRW(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		ops  []Op
		bad  string // part of the error; "" for a good history
	}{
		{"readers together", []Op{rd(Acquired, "a", 1, 2), rd(Acquired, "b", 1, 3), rd(Released, "a", 4, 5), rd(Released, "b", 6, 7)}, ""},
		{"a writer after readers", []Op{rd(Acquired, "a", 1, 2), rd(Acquired, "b", 1, 3), rd(Released, "a", 4, 5), rd(Released, "b", 6, 8), wr(Acquired, "c", 1, 7)}, ""},
		{"a downgrade", []Op{wr(Acquired, "a", 1, 2), rd(Acquired, "a", 3, 4), wr(Released, "a", 5, 7), rd(Acquired, "b", 1, 6), rd(Released, "a", 8, 9), rd(Released, "b", 8, 9)}, ""},
		{"told before the next", []Op{rd(Acquired, "a", 1, 2), rd(Acquired, "a", 3, 4), rd(Lost, "a", 5, 6), wr(Acquired, "b", 1, 7)}, ""},
		{"refused", []Op{rd(Acquired, "a", 1, 2), wr(Refused, "b", 3, 4), rd(Released, "a", 5, 6), wr(Acquired, "b", 7, 8), rd(Refused, "a", 9, 10), wr(Refused, "a", 11, 12)}, ""},
		{"a writer among readers", []Op{rd(Acquired, "a", 1, 2), rd(Acquired, "b", 1, 3), rd(Released, "a", 4, 5), wr(Acquired, "c", 1, 6), rd(Released, "b", 7, 8)}, "two hold l at once"},
		{"a reader beside a writer", []Op{wr(Acquired, "a", 1, 2), rd(Acquired, "b", 3, 4), wr(Released, "a", 5, 6), rd(Released, "b", 7, 8)}, "two hold l at once"},
		{"two writers", []Op{wr(Acquired, "a", 1, 2), wr(Acquired, "b", 1, 3)}, "two hold l at once"},
		{"in before the writer went on as a reader", []Op{wr(Acquired, "a", 1, 2), rd(Acquired, "a", 3, 4), rd(Acquired, "b", 1, 5), wr(Released, "a", 6, 7)}, "two hold l at once"},
		{"an upgrade", []Op{rd(Acquired, "a", 1, 2), wr(Acquired, "a", 3, 4)}, "no lock can"},
		{"the half of another is released", []Op{rd(Acquired, "a", 1, 2), wr(Released, "a", 3, 4)}, "no lock can"},
		{"refused among readers", []Op{rd(Acquired, "a", 1, 2), rd(Refused, "b", 3, 4)}, "no lock can"},
		{"released twice", []Op{rd(Acquired, "a", 1, 2), rd(Released, "a", 3, 4), rd(Released, "a", 5, 6)}, "no lock can"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			err := checkRW(c.ops, 10*time.Second)
			if c.bad == "" {
				require.NoError(t, err)
			} else {
				require.ErrorContains(t, err, c.bad)
			}
		})
	}
}

// Whatever the narrowing does, the verdict is porcupine's.
func TestCheckRWAgreesWithPlainSearch(t *testing.T) {
	t.Parallel()
	good, bad := 0, 0
	for seed := range uint64(3000) {
		rng := rand.New(rand.NewPCG(seed, 0))
		kinds := []OpKind{Acquired, Acquired, Released, Released, Refused, Lost}
		var ops []Op
		free := map[string]int64{}
		state := rwState{}
		for now := int64(10); now < 120; now += 10 {
			owner := strconv.Itoa(rng.IntN(3))
			o := rd(kinds[rng.IntN(len(kinds))], owner, max(free[owner], now-rng.Int64N(25)), 0)
			if rng.IntN(2) == 0 {
				o.Mode = "write"
			}
			o.Return = max(o.Call, now) + rng.Int64N(8)
			ok, next := rwModel.Step(state, o, nil)
			if !ok && rng.IntN(30) > 0 {
				continue
			}
			state = next.(rwState)
			free[owner] = o.Return + 1
			ops = append(ops, o)
		}
		if len(ops) == 0 {
			continue
		}
		want := judgeRW(ops, 10*time.Second)
		err := checkRW(slices.Clone(ops), 10*time.Second)
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
