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
// after limit if those end with their ctx, as rlock's do.
type round struct {
	r       *RedLock
	limit   time.Duration
	asked   []*member
	answers []answer
	judge   func() bool // whether it is settled; it must be when all have answered
	insists bool        // its calls are made however late their turns come

	settled bool
	done    chan struct{} // closed then
	timer   *time.Timer

	calls  int // that are not over; one may still call its node when the round is settled
	cancel context.CancelFunc
}

// answer is what one node said.
type answer struct {
	m    *member
	yes  bool
	left time.Duration // yes: for how long its hold is proven
	err  error
}

// call asks one node. Its ctx ends with the time for the answer.
type call func(ctx context.Context, m *member) answer

// askLocked puts the question. A call waits until those before it to the same node are
// over: one that hangs costs one call, not one for each attempt. Calls come in the
// same order to all nodes, because all of them take their turns at once, under mu.
//
// then, unless nil, gets each answer that came after the round was settled, and may
// call the node again, still with the turn. mu is held, and not by ask and then.
func (q *round) askLocked(ctx context.Context, nodes []*member, ask call, then func(answer)) {
	q.asked, q.done = nodes, make(chan struct{})
	if len(nodes) == 0 {
		q.settleLocked()
		return
	}
	q.timer = time.AfterFunc(q.limit, q.expire)
	ctx, q.cancel = context.WithTimeout(ctx, q.limit)
	q.calls = len(nodes)
	for _, m := range nodes {
		turn := m.joinLocked()
		go func() {
			giveUp := ctx.Done()
			if q.insists {
				giveUp = nil
			}
			var a answer
			select {
			case <-turn:
				a = ask(ctx, m)
			case <-giveUp:
				a.err = fmt.Errorf("%w: an earlier call is still open", rlock.ErrUnsettled)
			}
			a.m = m
			if late := q.hear(a); late && then != nil {
				then(a)
			}
			q.r.mu.Lock()
			defer q.r.mu.Unlock()
			m.leaveLocked(turn)
			if q.calls--; q.calls == 0 {
				q.cancel()
			}
		}()
	}
}

// hear takes an answer, and tells whether it came too late to matter.
func (q *round) hear(a answer) (late bool) {
	q.r.mu.Lock()
	defer q.r.mu.Unlock()
	if q.settled {
		return true
	}
	q.answers = append(q.answers, a)
	if q.judge() {
		q.settleLocked()
	}
	return false
}

// expire counts those who have not answered as failed.
func (q *round) expire() {
	q.r.mu.Lock()
	defer q.r.mu.Unlock()
	if q.settled {
		return
	}
	for _, m := range q.asked {
		if !slices.ContainsFunc(q.answers, func(a answer) bool { return a.m == m }) {
			q.answers = append(q.answers, answer{m: m, err: fmt.Errorf("%w: no answer within %v", rlock.ErrUnsettled, q.limit)})
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

// lefts is for how long the holds of those who said yes are proven.
func (q *round) lefts() (all []time.Duration) {
	for _, a := range q.answers {
		if a.yes {
			all = append(all, a.left)
		}
	}
	return all
}

// failures is what failed, each with its node.
func (q *round) failures() error {
	var all []error
	for _, a := range q.answers {
		if a.err != nil {
			all = append(all, fmt.Errorf("node %d of %d: %w", a.m.place, len(q.r.members), a.err))
		}
	}
	return errors.Join(all...)
}

// joinLocked takes a turn to call m. The channel is closed when it has come.
func (m *member) joinLocked() chan struct{} {
	turn := make(chan struct{})
	if m.turns = append(m.turns, turn); len(m.turns) == 1 {
		close(turn)
	}
	return turn
}

// leaveLocked gives a turn up, whether or not it had come.
func (m *member) leaveLocked(turn chan struct{}) {
	i := slices.Index(m.turns, turn)
	if m.turns = slices.Delete(m.turns, i, i+1); i == 0 && len(m.turns) > 0 {
		close(m.turns[0])
	}
}
