package integration

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/anishathalye/porcupine"
)

// OpKind is what an operation on a lock did.
type OpKind string

const (
	// Acquired is a Lock or TryLock that got the lock: fresh, or nested.
	Acquired OpKind = "acquired"
	// Refused is a TryLock that found the lock with somebody else.
	Refused OpKind = "refused"
	// Released is an Unlock that the server has confirmed.
	Released OpKind = "released"
	// Lost is the end of a hold of any depth by a loss. Call is a time at which
	// the owner still took itself for the holder, Return one at which it knew better.
	// Whoever kills a process adds it for its holds.
	Lost OpKind = "lost"
)

// Op is one operation as its caller saw it. Times are Now's. It goes through
// JSON, so that several processes can report to one test.
type Op struct {
	Kind   OpKind
	Lock   string
	Owner  string // unique over all processes
	Call   int64
	Return int64
	Mode   string `json:",omitempty"` // "read" or "write": the half of a read-write lock
	Token  uint64 `json:",omitempty"` // of an Acquired of a fenced lock
}

func (o Op) String() string {
	what := fmt.Sprintf("%s %s by %s [%d, %d]", o.Kind, o.Lock, o.Owner, o.Call, o.Return)
	if o.Mode != "" {
		what += ", " + o.Mode
	}
	if o.Token > 0 {
		what += fmt.Sprintf(", token %d", o.Token)
	}
	return what
}

// Recorder collects the operations of one process; any goroutine may use it.
type Recorder struct {
	mu  sync.Mutex // guards ops
	ops []Op
}

// Do runs f and records what it says it did; the empty kind records nothing,
// as of an operation that failed and changed nothing.
func (r *Recorder) Do(lock, owner string, f func() OpKind) OpKind {
	call := Now()
	kind := f()
	if kind != "" {
		r.Add(Op{Kind: kind, Lock: lock, Owner: owner, Call: call, Return: Now()})
	}
	return kind
}

// Add records an operation whose times are known.
func (r *Recorder) Add(op Op) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ops = append(r.ops, op)
}

// Ops are the operations so far, in the order of their end.
func (r *Recorder) Ops() []Op {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.ops)
}

// lockState is a lock in the model: who holds it, how deep and with which token, and
// the latest token that there was.
type lockState struct {
	owner       string
	depth       int
	token, last uint64
}

// enter is an acquisition of a lock that is free, or held by its owner. Tokens rise from
// hold to hold, and stay within one; one may be drawn inside a hold that has none.
func (s lockState) enter(op Op) (bool, lockState) {
	next := lockState{op.Owner, s.depth + 1, s.token, s.last}
	if op.Token == 0 || s.depth > 0 && op.Token == s.token {
		return true, next
	}
	next.token, next.last = op.Token, op.Token
	return s.token == 0 && op.Token > s.last, next
}

// lockModel is one reentrant lock, fenced or not.
var lockModel = porcupine.Model{
	Init: func() any { return lockState{} },
	Step: func(state, input, _ any) (bool, any) {
		s, op := state.(lockState), input.(Op)
		switch op.Kind {
		case Acquired:
			ok, next := s.enter(op)
			return ok && (s.depth == 0 || s.owner == op.Owner), next
		case Refused:
			return s.depth > 0 && s.owner != op.Owner, s
		case Released:
			if s.depth == 1 {
				return s.owner == op.Owner, lockState{last: s.last}
			}
			return s.depth > 0 && s.owner == op.Owner, lockState{s.owner, s.depth - 1, s.token, s.last}
		case Lost:
			return s.depth > 0 && s.owner == op.Owner, lockState{last: s.last}
		}
		return false, s
	},
	DescribeOperation: func(input, _ any) string { return input.(Op).String() },
}

// CheckMutex judges a history: nil when a single lock of each name could have
// answered like this, one operation after the other, each between its call and
// its return; of a fenced lock, with tokens that rise from hold to hold. limit bounds the search; to run out of it is an error as well.
func CheckMutex(ops []Op, limit time.Duration) error {
	return checkMutex(ops, limit, chunkSize)
}

// chunkSize is about how many operations are judged at once: the cost of one
// grows with their number.
const chunkSize = 500

func checkMutex(ops []Op, limit time.Duration, size int) error {
	deadline := time.Now().Add(limit)
	byLock := make(map[string][]Op)
	for _, op := range ops {
		if op.Return < op.Call {
			return fmt.Errorf("ends before it begins: %v", op)
		}
		byLock[op.Lock] = append(byLock[op.Lock], op)
	}
	for name, part := range byLock {
		chunks := [][]Op{part}
		if sequential(part) {
			if err := narrow(part); err != nil {
				return err
			}
			chunks = split(part, size)
		}
		for _, chunk := range chunks {
			switch judge(chunk, max(time.Until(deadline), time.Millisecond)) {
			case porcupine.Illegal:
				return fmt.Errorf("no lock can answer like this: %d operations on %s from %v", len(chunk), name, chunk[0])
			case porcupine.Unknown:
				return fmt.Errorf("the history of %d operations on %s was not judged within %v", len(part), name, limit)
			}
		}
	}
	return nil
}

func judge(ops []Op, limit time.Duration) porcupine.CheckResult {
	clients := make(map[string]int)
	history := make([]porcupine.Operation, 0, len(ops))
	for _, op := range ops {
		id, ok := clients[op.Owner]
		if !ok {
			id = len(clients)
			clients[op.Owner] = id
		}
		history = append(history, porcupine.Operation{ClientId: id, Input: op, Call: op.Call, Return: op.Return})
	}
	return porcupine.CheckOperationsTimeout(lockModel, history, limit)
}

// sequential reports whether no owner had two operations under way at once,
// which goroutines that share an owner can.
func sequential(ops []Op) bool {
	slices.SortStableFunc(ops, func(a, b Op) int { return cmp.Compare(a.Call, b.Call) })
	last := make(map[string]int64)
	for _, op := range ops {
		if end, ok := last[op.Owner]; ok && op.Call < end {
			return false
		}
		last[op.Owner] = op.Return
	}
	return true
}

// narrow shortens the operations on one lock, whose owners are sequential, to
// the time in which they can have taken effect. With hundreds of waiters under
// way at once, the search would not end otherwise.
//
// It changes no verdict. Holds do not overlap, so they take effect in the order
// in which their acquisitions returned: a hold's acquisition takes effect before
// it returns, hence before the call of what ends the hold, hence before the
// next acquisition takes effect. So that one takes effect no earlier than the
// call of the end before it, and that end no later than its return. Where this
// leaves no time, two had the lock at once.
func narrow(ops []Op) error {
	type hold struct {
		begin, end *Op
		depth      int
	}
	slices.SortStableFunc(ops, func(a, b Op) int { return cmp.Compare(a.Return, b.Return) })
	open := make(map[string]*hold)
	var holds []*hold
	for i := range ops {
		op := &ops[i]
		h := open[op.Owner]
		switch {
		case op.Kind == Acquired && h == nil:
			h = &hold{begin: op, depth: 1}
			open[op.Owner] = h
			holds = append(holds, h)
		case op.Kind == Acquired:
			h.depth++
		case op.Kind == Refused || h == nil: // the model judges these
		default:
			if h.depth--; h.depth == 0 || op.Kind == Lost {
				h.end = op
				delete(open, op.Owner)
			}
		}
	}
	for i := 1; i < len(holds); i++ {
		before, h := holds[i-1], holds[i]
		if before.end == nil || before.end.Call > h.begin.Return {
			return fmt.Errorf("two hold %s at once: %v and %v", h.begin.Lock, before.begin, h.begin)
		}
		h.begin.Call = max(h.begin.Call, before.end.Call)
		before.end.Return = min(before.end.Return, h.begin.Return)
	}
	return nil
}

// split cuts the operations on one lock into parts of at least size, at times
// when none was under way and it is plain who holds the lock. What follows begins with
// acquisitions by that holder, after a hold with the latest token before.
func split(ops []Op, size int) [][]Op {
	slices.SortStableFunc(ops, func(a, b Op) int { return cmp.Compare(a.Call, b.Call) })
	var chunks [][]Op
	var chunk []Op
	depth, tokens, last := make(map[string]int), make(map[string]uint64), uint64(0)
	end := int64(math.MinInt64)
	for _, op := range ops {
		if len(chunk) >= size && end < op.Call && len(depth) <= 1 {
			chunks, chunk = append(chunks, chunk), nil
			seed := Op{Kind: Acquired, Lock: op.Lock, Call: end, Return: end}
			before := last
			for owner, n := range depth {
				if tokens[owner] == last {
					before = 0 // it is the holder's
				}
				seed.Owner, seed.Token = owner, tokens[owner]
				for range n {
					chunk = append(chunk, seed)
				}
			}
			if before > 0 {
				earlier := Op{Kind: Acquired, Lock: op.Lock, Owner: "before", Call: end - 2, Return: end - 2, Token: before}
				gone := Op{Kind: Released, Lock: op.Lock, Owner: "before", Call: end - 1, Return: end - 1}
				chunk = append([]Op{earlier, gone}, chunk...)
			}
		}
		chunk = append(chunk, op)
		end = max(end, op.Return)
		switch op.Kind {
		case Acquired:
			depth[op.Owner]++
			if op.Token > 0 {
				tokens[op.Owner], last = op.Token, max(last, op.Token)
			}
		case Released:
			depth[op.Owner]--
		case Lost:
			depth[op.Owner] = 0
		}
		if depth[op.Owner] <= 0 { // below it, the chunk that it is in is bad
			delete(depth, op.Owner)
			delete(tokens, op.Owner)
		}
	}
	return append(chunks, chunk)
}
