package redlock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/relock-go/relock/rlock"
)

// round is one question to several nodes, all asked at once. Each has the same time
// for its answer, whatever its client's timeouts are; a node that is silent for longer
// has failed. The round is settled as soon as judge can tell what comes of it. What is
// answered after that is heard as well, so there is no errgroup, which would wait for
// the slowest.
//
// RedLock.mu guards it. Its goroutines end with the calls that they make, at the latest
// after limit if those end with their ctx, as rlock's do. A panic in one of them goes on
// in whoever waits for the round, unless it came too late.
type round struct {
	r       *RedLock
	limit   time.Duration
	asked   []part
	answers []answer
	judge   func() bool // whether it is settled; it must be when all have answered
	insists bool        // it gives back: its calls are made however late their turns come
	wanted  func() bool // nil, or whether a call still matters when it is settled; under mu

	settled bool
	done    chan struct{} // closed then
	timer   *time.Timer

	calls  int // that are not over; one may still call its node when the round is settled
	cancel context.CancelFunc
}

// answer is what one node said. A part that said yes has the Lost of its grant.
type answer struct {
	part
	yes      bool
	left     time.Duration // yes: for how long its hold was proven then
	until    time.Time     // yes: when that is over
	err      error
	panicked any // its value; err is set then
}

// call asks one node. Its ctx ends with the time for the answer.
type call func(ctx context.Context, p part) answer

var (
	errOpen   = fmt.Errorf("%w: an earlier call is still open", rlock.ErrUnsettled)
	errGoexit = errors.New("redlock: the call ended its goroutine")
)

// askLocked puts the question. A node has failed at once where an earlier call is open
// and somebody waits for its end already: one that hangs costs a call and who waits, not
// one for each attempt. What gives back waits for whatever is open. Calls come in the
// same order to all nodes, because all of them take their turns at once, under mu.
//
// then, unless nil, gets each answer that came after the round was settled, and may
// call the node again, still with the turn. mu is held, and not by ask and then.
func (q *round) askLocked(ctx context.Context, nodes []part, ask call, then func(answer)) {
	q.asked, q.done = nodes, make(chan struct{})
	if len(nodes) == 0 {
		q.settleLocked()
		return
	}
	q.timer = time.AfterFunc(q.limit, q.expire)
	ctx, q.cancel = context.WithTimeout(ctx, q.limit)
	for _, p := range nodes {
		t := p.joinLocked(q)
		if t == nil {
			q.answers = append(q.answers, answer{part: p, err: errOpen})
			continue
		}
		q.calls++
		go q.call(ctx, p, t, ask, then)
	}
	if q.calls == 0 {
		q.cancel()
	}
	if len(q.answers) > 0 && q.judge() {
		q.settleLocked()
	}
}

// call makes one call when its turn comes. A Locker of another make, or a callback of the
// user's, may panic or end the goroutine: that is an answer too, and the turn is left.
func (q *round) call(ctx context.Context, p part, t *turn, ask call, then func(answer)) {
	var a answer
	defer q.end(p.member, t)
	defer func() {
		if v := recover(); v != nil {
			a = answer{err: fmt.Errorf("redlock: the call panicked: %v", v), panicked: v}
		}
		a.member = p.member
		if q.hear(a, t) && then != nil {
			defer func() { _ = recover() }() // whoever called has gone
			then(a)
		}
	}()
	giveUp := ctx.Done()
	if q.insists {
		giveUp = nil
	}
	select {
	case <-t.come:
		if a.err = errOpen; q.begin(t) {
			a.err = errGoexit
			a = ask(ctx, p)
		}
	case <-giveUp:
		a.err = errOpen
	}
}

// begin tells whether the call that has the turn is still to be made.
func (q *round) begin(t *turn) bool {
	q.r.mu.Lock()
	defer q.r.mu.Unlock()
	t.begun = !q.staleLocked()
	return t.begun
}

// staleLocked tells whether nobody needs a call any more that has not begun.
func (q *round) staleLocked() bool {
	return q.settled && !q.insists && (q.wanted == nil || !q.wanted())
}

// hear takes an answer, and tells whether it came too late to matter. If not, the turn is
// left at once: who goes on from there must not find it.
func (q *round) hear(a answer, t *turn) (late bool) {
	q.r.mu.Lock()
	defer q.r.mu.Unlock()
	if q.settled {
		t.gives = t.gives || a.yes
		return true
	}
	a.leaveLocked(t)
	q.answers = append(q.answers, a)
	if q.judge() {
		q.settleLocked()
	}
	return false
}

// end is the end of a call.
func (q *round) end(m *member, t *turn) {
	q.r.mu.Lock()
	defer q.r.mu.Unlock()
	m.leaveLocked(t)
	if q.calls--; q.calls == 0 {
		q.cancel()
	}
}

// expire counts those who have not answered as failed.
func (q *round) expire() {
	q.r.mu.Lock()
	defer q.r.mu.Unlock()
	if q.settled {
		return
	}
	for _, p := range q.asked {
		if !slices.ContainsFunc(q.answers, func(a answer) bool { return a.member == p.member }) {
			q.answers = append(q.answers, answer{part: p, err: fmt.Errorf("%w: no answer within %v", rlock.ErrUnsettled, q.limit)})
		}
	}
	if !q.judge() {
		panic("bug: redlock: all have answered, and the round is not settled")
	}
	q.settleLocked()
}

func (q *round) settleLocked() {
	q.settled = true
	if q.timer != nil {
		q.timer.Stop()
	}
	close(q.done)
}

// open is how many have not answered.
func (q *round) open() int { return len(q.asked) - len(q.answers) }

// count is how many answers are like that.
func (q *round) count(like func(answer) bool) (n int) {
	for _, a := range q.answers {
		if like(a) {
			n++
		}
	}
	return n
}

func yes(a answer) bool { return a.yes }

// granted is who has said yes.
func (q *round) granted() (nodes []part) {
	for _, a := range q.answers {
		if a.yes {
			nodes = append(nodes, a.part)
		}
	}
	return nodes
}

// promised is for how long the holds of those who said yes were proven then.
func (q *round) promised() (all []time.Duration) {
	for _, a := range q.answers {
		if a.yes {
			all = append(all, a.left)
		}
	}
	return all
}

// lefts is for how long they are proven now: a round may wait long for its last answer.
func (q *round) lefts() (all []time.Duration) {
	for _, a := range q.answers {
		if a.yes {
			all = append(all, max(remaining(a.until), 0))
		}
	}
	return all
}

// failures is what failed, each with its node. Those that are one of others are told as
// text only: they are not what the whole of it comes to.
func (q *round) failures(others ...error) error {
	var all []error
	for _, a := range q.answers {
		if a.err == nil {
			continue
		}
		format := "node %d of %d: %w"
		if slices.ContainsFunc(others, func(other error) bool { return errors.Is(a.err, other) }) {
			format = "node %d of %d: %v"
		}
		all = append(all, fmt.Errorf(format, a.place, len(q.r.members), a.err))
	}
	return errors.Join(all...)
}

// failed is what more than spare failures come to: whether it was the restart guards that
// made them so many, and the error. That has ErrRestarted in its chain only then, for who
// finds it there tries again.
func (q *round) failed(spare int) (err error, young bool) {
	if q.count(guarded) < q.count(func(a answer) bool { return a.err != nil })-spare {
		return q.failures(rlock.ErrRestarted), false
	}
	return q.failures(), true
}

// guarded: the node's restart guard keeps everybody out.
func guarded(a answer) bool { return errors.Is(a.err, rlock.ErrRestarted) }

// panicked is the value of a panic among the answers, or nil.
func (q *round) panicked() any {
	for _, a := range q.answers {
		if a.panicked != nil {
			return a.panicked
		}
	}
	return nil
}

// turn is a place in the line of the calls to a node. RedLock.mu guards it.
type turn struct {
	q     *round
	come  chan struct{} // closed when it has come, or the call is not to be made
	begun bool          // the call is under way
	gives bool          // it gives a hold back
}

// joinLocked takes a turn to call m; nil if another call that does not give back waits
// already. Those that nobody needs any more lose theirs.
func (m *member) joinLocked(q *round) *turn {
	for _, t := range slices.Clone(m.turns) {
		if !t.begun && t.q.staleLocked() {
			waits := t != m.turns[0]
			m.leaveLocked(t)
			if waits {
				close(t.come)
			}
		}
	}
	if !q.insists && len(m.turns) > 0 && slices.ContainsFunc(m.turns[1:], func(t *turn) bool { return !t.gives }) {
		return nil
	}
	t := &turn{q: q, come: make(chan struct{}), gives: q.insists}
	if m.turns = append(m.turns, t); len(m.turns) == 1 {
		close(t.come)
	}
	return t
}

// leaveLocked gives a turn up, whether or not it had come, or was left already.
func (m *member) leaveLocked(t *turn) {
	i := slices.Index(m.turns, t)
	if i < 0 {
		return
	}
	if m.turns = slices.Delete(m.turns, i, i+1); i == 0 && len(m.turns) > 0 {
		close(m.turns[0].come)
	}
}
