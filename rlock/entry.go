package rlock

import (
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/relock-go/relock/internal/gate"
	"github.com/relock-go/relock/internal/record"
	"github.com/relock-go/relock/pubsub"
)

// entry is one key of a client: the record of what is held, the line of those
// who wait, and the turn to send. All lock objects on the key share it. There is
// one for each hold, so what a hold that nobody touches does not need is apart.
type entry struct {
	c    *Client
	key  string
	refs int // guarded by c.mu

	// mu guards the fields below, the holds and the waiters of this key. It is
	// never held across I/O, a wait or a callback of the user's. The mutexes of
	// watchdog and pubsub are taken under it, never around it.
	mu    sync.Mutex
	rec   record.Record
	holds *hold // the first; they are a list, oldest first

	*traffic // never nil while mu is held by lock; nil when nothing goes on
}

// traffic is what goes on at a key.
type traffic struct {
	names *keys              // nil until somebody asks for them
	gate  gate.Gate[*waiter] // its head asks Redis for all
	fairs gate.Gate[*waiter] // of FairLock: each stands in Redis's queue itself

	sending bool            // a request has the turn
	urgent  []chan struct{} // those inside who wait for it, in order
	turns   []chan struct{} // those who want to come in
	moved   uint64          // how often it was passed on
	asking  *flight         // the acquire that is under way, if one is
	failed  error           // of the last attempt of the request under way
	passing struct {        // to whom the lock is being passed, if to anyone
		to *waiter
		q  *record.Request
	}

	ears               // of the head of the gate
	again    bool      // the lock went from one of this process to the next through Redis
	found    uint64    // how often the lock was found taken, or given to one of ours
	shared   uint64    // how often of that to a reader, which keeps no other reader out
	woken    uint64    // how often the head was told to ask at once
	young    time.Time // the restart guard refused the latest attempt, until then; zero: it did not
	sweeps   *sweep    // while own fields may stand that no hold uses
	sweeping bool      // somebody is about to do so

	beaten time.Time // when it was last said for the fairs that they live

	after []func() // callbacks for unlock to run
}

// ears are how a waiter sleeps.
type ears struct {
	sub     *pubsub.Subscription // nil until it has to wait; stays for the next head
	channel string               // of sub
	asked   time.Time            // it need not ask again before that
	yields  bool                 // until asked it does not listen to messages either
}

// quiet tells whether t says nothing that a new one would not say.
func (t *traffic) quiet() bool {
	return !t.sending && t.gate.First() == nil && t.fairs.First() == nil && t.sub == nil && t.sweeps == nil && len(t.after) == 0
}

func (e *entry) lock() {
	e.mu.Lock()
	if e.traffic != nil {
		return
	}
	e.traffic = e.c.traffic.Get().(*traffic)
	// As it was when Redis was last asked for the hold that is there, if one is.
	if h := e.rec.Live(e.c.clock()); h != nil {
		e.gate.Taken(e.c.start.Add(h.Granted))
		e.asked = e.c.start.Add(h.Proven + e.c.opt.recheck)
	}
}

// lockAs is lock for a lock object, which has the names ready.
func (e *entry) lockAs(names *keys) {
	e.lock()
	e.names = names
}

// leaveQuiet gives up mu, and what is not needed until the next lock.
func (e *entry) leaveQuiet() {
	if t := e.traffic; t.quiet() {
		e.traffic = nil
		*t = traffic{}
		e.c.traffic.Put(t)
	}
	e.mu.Unlock()
}

// keys are the names for a request on this key.
func (e *entry) keys() *keys {
	if e.names == nil {
		e.names = keysOf(e.key)
	}
	return e.names
}

// unlock ends the critical section and then runs the callbacks gathered in it.
func (e *entry) unlock() {
	after := e.after
	e.after = nil
	e.leaveQuiet()
	for _, f := range after {
		tell(e.c.opt.logger, f)
	}
}

// unlockAside is unlock for goroutines that others wait for, the wheel's, those that
// renew and Close: the callbacks run in another one.
func (e *entry) unlockAside() {
	after := e.after
	e.after = nil
	e.leaveQuiet()
	if len(after) == 0 {
		return
	}
	e.c.spawn(func() { // Close awaits the goroutines that come here before its crew
		for _, f := range after {
			tell(e.c.opt.logger, f)
		}
	})
}

// later has f called when the critical section is over.
func (e *entry) later(f func()) { e.after = append(e.after, f) }

// idle tells whether nothing is going on here, and whether fields are burned,
// which is all that a new entry would not know then.
func (e *entry) idle() (idle, burned bool) {
	idle = e.holds == nil && (e.traffic == nil || e.quiet())
	return idle && !e.rec.Strays(e.c.clock()), e.rec.Burned()
}

// hold returns owner's hold of that half, live or lost, or nil.
func (e *entry) hold(owner Owner, half record.Half) *hold {
	return e.find(func(h *hold) bool { return h.rec.Owner == string(owner) && h.rec.Half == half })
}

func (e *entry) holdOf(r *record.Hold) *hold {
	return e.find(func(h *hold) bool { return h.rec == r })
}

// find is the first hold that is wanted, or nil.
func (e *entry) find(wanted func(*hold) bool) *hold {
	for h := e.holds; h != nil; h = h.next {
		if wanted(h) {
			return h
		}
	}
	return nil
}

// eachHold are the holds, live and lost. The one that it stands at may be removed.
func (e *entry) eachHold(yield func(*hold) bool) {
	for h := e.holds; h != nil; {
		next := h.next
		if !yield(h) {
			return
		}
		h = next
	}
}

// takeTurn waits until the caller may send a request on this key; inside goes first. It
// returns with mu held, as it was called, and on success with the turn.
func (e *entry) takeTurn(k *call, inside bool) error {
	if !e.sending {
		e.sending = true
		return nil
	}
	turn, line := make(chan struct{}), &e.turns
	if inside {
		line = &e.urgent
	}
	*line = append(*line, turn)
	var err error
	for moved := e.moved; ; moved = e.moved {
		e.unlockAside() // whoever runs callbacks cannot take the turn when it comes
		err = k.wait(turn)
		e.lock()
		if err == nil {
			return nil
		}
		if !errors.Is(err, errOver) || moved == e.moved || !k.more() {
			break
		}
	}
	for i, t := range *line { // the turn is somebody's all the time, so line is still e's
		if t == turn {
			*line = slices.Delete(*line, i, i+1)
			return err
		}
	}
	e.endTurn() // it came at the same moment
	return err
}

// endTurn passes the turn on.
func (e *entry) endTurn() {
	e.moved++
	line := &e.urgent
	if len(*line) == 0 {
		line = &e.turns
	}
	if len(*line) == 0 {
		e.sending, e.turns, e.urgent = false, nil, nil
		return
	}
	close((*line)[0])
	*line = (*line)[1:]
}

// wakeGate has the head of the line ask Redis at once.
func (e *entry) wakeGate() {
	e.asked, e.yields = time.Time{}, false
	e.woken++
	if w := e.gate.First(); w != nil {
		w.Ring()
	}
}

// wakeHead has the head of the line ask Redis at once, and the first of those who queue
// there.
func (e *entry) wakeHead() {
	e.wakeGate()
	if w := e.fairs.First(); w != nil {
		w.For.own.asked = time.Time{}
		w.Ring()
	}
}

// yield has this process's head wait for a moment, deaf to messages, so that the
// heads of other processes, which were just told of the release, ask before it.
// told is how many subscribers that were.
//
// A message reaches subscribers in the order in which they came, so without the
// pause the same process could win every time. It is long enough for a JVM that
// has to wake up. When nobody else listens there is none. Those who poll do not listen,
// so a SpinLock's head always waits.
func (e *entry) yield(told int) {
	w := e.gate.First()
	switch {
	case w == nil:
	case w.For.kind != spin && (told == 0 || told == 1 && e.sub != nil):
		e.wakeHead()
	default:
		e.asked, e.yields = time.Now().Add(15*time.Millisecond+rand.N(10*time.Millisecond)), true
		w.Ring()
	}
}

// follow subscribes to a channel. It does not wait for the server: a wake-up tells when
// the subscription stands.
func (e *entry) follow(at *ears, channel string) {
	if at.sub != nil && at.channel == channel {
		return
	}
	if at.sub != nil { // the last head was of another kind
		at.sub.Close()
	}
	at.sub, at.channel = e.c.hub.Subscribe(channel), channel
}

// unfollow ends the subscription when nobody waits and nothing is held: while
// something is, the next waiter is likely to come.
func (e *entry) unfollow() {
	if e.sub != nil && e.gate.First() == nil && e.holds == nil {
		e.sub.Close()
		e.sub = nil
	}
}
