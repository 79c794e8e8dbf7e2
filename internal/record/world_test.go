package record

import (
	"slices"
	"strings"
	"time"

	"pgregory.net/rapid"

	"github.com/relock-go/relock/internal/script/scriptmodel"
)

// world is what the model test moves: a client with a record, another client,
// a server, and a network that delays, repeats and loses.
type world struct {
	t *rapid.T // of the step that runs

	server scriptmodel.Server
	asleep time.Duration // for how long the client's machine was suspended
	step   time.Duration // by how much its wall clock was stepped
	slept  time.Duration // when it last woke up, by the server's clock
	back   time.Duration // when the wall clock was last stepped back, by the server's

	rules    Rules
	rec      Record
	serial   uint64
	numbered bool

	q        *Request      // under way, nil when the line is free
	kind     string        // what its user wants with it
	first    time.Duration // when it began
	sent     Instant       // its last attempt
	alone    bool          // there was no live hold then
	attempt  *packet       // of q, not timed out yet
	wire     []*packet
	renewals []*renewal

	foreign time.Duration // the other client believes in its hold until then
	admin   bool          // whether an administrator removes the key now and then

	depth   map[*Hold]int           // Locks less Unlocks
	granted map[*Hold]time.Duration // when the request of a hold was sent, by the server's clock
	agreed  map[*Hold]time.Duration // when a lease ends, by Mono; a watchdog's not before that
	spoilt  map[string]bool         // fields that an unanswered or abandoned request named
	removed map[*Hold]bool          // the administrator removed its key
	blurred map[string]bool         // a late copy of a Keep may have changed the depth of that field
	beyond  bool                    // a copy came later than strays are remembered
}

// packet is one copy of a request, or of a renewal, on its way to the server.
type packet struct {
	run    func(*scriptmodel.Server) string
	names  []string // every field in it
	sets   string   // the field whose depth it sets
	ran    bool
	reply  string
	closed time.Duration // when its request ended, 0 before that
}

type renewal struct {
	Renewal
	packet *packet
}

const (
	watchdog = 300 * time.Millisecond
	stranger = "F:1"
)

var owners = []string{"7", "8", "7.1"} // 7.1 is also the first numbered field of 7

func newWorld(t *rapid.T, admin bool) *world {
	w := &world{
		t: t, admin: admin,
		depth:   make(map[*Hold]int),
		granted: make(map[*Hold]time.Duration),
		agreed:  make(map[*Hold]time.Duration),
		spoilt:  make(map[string]bool),
		removed: make(map[*Hold]bool),
		blurred: make(map[string]bool),
	}
	w.server.Now = time.Second
	w.rules = Rules{
		Client:   "C",
		Watchdog: watchdog,
		Serial:   func() uint64 { w.serial++; return w.serial },
		Numbered: func() bool { return w.numbered },
	}
	w.rec = New(&w.rules)
	if rapid.Bool().Draw(t, "nearly crowded") {
		for i := range mostBurned - 2 {
			w.rec.burn("C:x" + strings.Repeat("x", i))
		}
	}
	return w
}

// now is the moment on the client's clocks. They run like the server's, but
// mono stands still in suspend and the wall clock is stepped.
func (w *world) now() Instant {
	return Instant{Mono: w.server.Now - w.asleep, Wall: w.server.Now + w.step}
}

func (w *world) fail(format string, args ...any) {
	w.t.Helper()
	w.t.Fatalf(format, args...)
}

// begin takes the line for q and sends the first attempt.
func (w *world) begin(kind string, q *Request) {
	w.t.Logf("%v %s %v: %s depth %d ttl %v, found %v", w.server.Now, kind, q.Op, fieldOf(q.Hold), q.Depth, q.TTL, q.Found)
	w.checkRequest(q)
	w.q, w.kind, w.first, w.alone = q, kind, w.server.Now, w.rec.find(func(h *Hold) bool { return h.state == live }) == nil
	w.send()
	switch rapid.SampledFrom([]string{"ok", "ok", "ok", "slow reply", "retried", "unlocked meanwhile", "renewed meanwhile", "open"}).Draw(w.t, "course") {
	case "open":
		return
	case "slow reply":
		w.execute(w.attempt)
		w.server.Advance(drawTime(w.t))
	case "retried": // the first copy is still on its way
		w.rec.Unanswered(q)
		w.spoil(q.fields()...)
		w.send()
		w.execute(w.attempt)
	case "renewed meanwhile": // and the reply to that comes last
		if h := w.rec.Live(w.now()); h != nil {
			n := w.renew(h)
			w.execute(n.packet)
			defer w.renewed(n)
		}
		w.execute(w.attempt)
	case "unlocked meanwhile":
		if h := q.Hold; q.Op == Keep && h.Depth > 1 && !h.Lost() {
			w.rec.Leave(h)
			w.depth[h]--
		}
		w.execute(w.attempt)
	default:
		w.execute(w.attempt)
	}
	w.answer()
}

// spoil notes fields that no later hold may use.
func (w *world) spoil(fields ...string) {
	for _, f := range fields {
		w.spoilt[f] = true
	}
}

// send puts a copy of the request on the wire.
func (w *world) send() {
	q := w.q
	w.sent = w.now()
	w.rec.Sent(q, w.sent)
	if q.Op == Acquire || q.Op == Pass {
		w.granted[q.Hold] = w.first
	}
	p := &packet{names: slices.Clone(q.fields())}
	op, ttl, depth, found := q.Op, q.TTL.Truncate(time.Millisecond), q.Depth, slices.Clone(q.Found)
	field := fieldOf(q.Hold)
	p.run = func(s *scriptmodel.Server) string {
		switch op {
		case Acquire:
			return s.Acquire(ttl, field, found)
		case Keep:
			return s.Keep(ttl, field, depth)
		case Pass:
			return s.Pass(ttl, field, found)
		default:
			return s.Release(p.names)
		}
	}
	if op == Keep { // the others leave a depth that is there
		p.sets = field
	}
	w.attempt = p
	w.wire = append(w.wire, p)
}

// renew sends a renewal of h.
func (w *world) renew(h *Hold) *renewal {
	n, ok := w.rec.Renew(h, w.now())
	if !ok {
		w.fail("a live hold needs no renewal")
	}
	p := &packet{names: []string{h.Field}, closed: w.server.Now} // it is never repeated
	p.run = func(s *scriptmodel.Server) string { return s.Renew(n.TTL, p.names[0]) }
	w.wire = append(w.wire, p)
	w.renewals = append(w.renewals, &renewal{n, p})
	return w.renewals[len(w.renewals)-1]
}

// execute lets the server run a copy, and looks what that does.
func (w *world) execute(p *packet) {
	w.drop(p)
	before, existed := w.server.Expires()
	p.reply, p.ran = p.run(&w.server), true
	w.t.Logf("%v server ran a copy naming %v: %s -> %v", w.server.Now, p.names, p.reply, w.server.Fields())

	after, _ := w.server.Expires()
	if h := w.rec.Live(w.now()); h != nil && !w.removed[h] && existed && after < before {
		w.fail("the TTL of the live hold %s fell from %v to %v", h.Field, before, after)
	}
	late := p.closed != 0
	if strings.HasPrefix(p.reply, "held") && !late && w.alone && w.server.Depth(stranger) == 0 && !w.beyond {
		w.fail("leftovers %v keep their own client out", w.server.Fields())
	}
	if p.sets != "" {
		w.blurred[p.sets] = late
	}
	// A copy may come for a watchdog timeout after its request has ended: that
	// is how long the record looks out for what it leaves.
	if late && w.server.Now-p.closed >= watchdog {
		w.beyond = true
	}
}

func (w *world) drop(p *packet) {
	w.wire = slices.DeleteFunc(w.wire, func(o *packet) bool { return o == p })
}

// ended notes that the line is free again.
func (w *world) ended() {
	for _, p := range w.wire {
		if p.closed == 0 {
			p.closed = w.server.Now
		}
	}
	w.q, w.attempt = nil, nil
}

// answer delivers the reply of the present attempt, and does what the user of a
// record has to do then.
func (w *world) answer() {
	q, kind, reply := w.q, w.kind, w.attempt.reply
	q.Deep = reply == "granted:deep"
	yes := reply == "granted" || q.Deep || reply == "kept" || reply == "released" || reply == "passed"
	var verdict Verdict
	var gone []*Hold
	w.noFalseLoss(func() { verdict, gone = w.rec.Answer(q, yes, w.now()) })
	w.ended()
	w.t.Logf("%v answer %q: verdict %d", w.server.Now, reply, verdict)

	h := q.Hold
	if verdict == Kept && !yes || verdict == Granted && !yes {
		w.fail("the answer is no and the verdict %d", verdict)
	}
	if deadline := w.sent.Mono + q.TTL - Margin(q.TTL); verdict == Granted || verdict == Kept {
		if verdict == Kept && kind != "extend" {
			deadline = max(deadline, w.agreed[h])
		}
		w.agreed[h] = deadline
	}
	for _, h := range gone {
		if !h.Lost() {
			w.fail("the hold %s is gone and not lost", h.Field)
		}
	}
	switch {
	case q.Op == Keep && verdict == Kept:
		if kind == "enter" {
			w.depth[h]++
		}
	case q.Op == Keep && verdict == Lost:
		if h.Left(w.now()) > 0 {
			w.fail("the verdict is Lost and %s is live", h.Field)
		}
	case verdict == Granted:
		if w.rec.Hold(h.Owner, h.Half) != h || h.Left(w.now()) == 0 || q.Abandoned() {
			w.fail("the grant of %s made no live hold", h.Field)
		}
		w.depth[h] = 1
	case verdict == Lost: // of what was given back
		if from := giver(q); from.Deadline.after(w.now()) > 0 && !w.removed[from] && !from.Lost() {
			w.fail("the hold %s was given back in time and is called lost", from.Field)
		}
	case verdict == Undo && q.Op != Keep:
		w.giveBack(h)
		return
	}
	w.mend(h)
}

// giver is the hold that q ends.
func giver(q *Request) *Hold {
	if q.Op == Pass {
		return q.From
	}
	return q.Hold
}

// giveBack ends a hold that its owner has left: Release, or Pass to another.
func (w *world) giveBack(h *Hold) {
	next := rapid.SampledFrom(append([]string{""}, w.free()...)).Draw(w.t, "next owner")
	if next == "" {
		w.begin("release", w.rec.Release(h, w.now()))
		return
	}
	w.begin("pass", w.rec.Pass(h, Want{Owner: next, Lease: drawLease(w.t), Limit: drawLimit(w.t)}, w.now()))
}

// mend brings Redis to h's depth when the line is free.
func (w *world) mend(h *Hold) {
	if w.q == nil && h != nil && h.Dirty() && h.Left(w.now()) > 0 {
		w.begin("mend", w.rec.Mend(h, w.now()))
	}
}

// free are the owners that may take the lock.
func (w *world) free() []string {
	var free []string
	for _, o := range owners {
		if h := w.rec.Hold(o, Whole); h == nil || h.Lost() && !h.Stuck(w.now()) {
			free = append(free, o)
		}
	}
	return free
}

// lose ends what has come to its deadline, as the watchdog's tick does.
func (w *world) lose() {
	for _, h := range slices.Clone(w.rec.Holds()) {
		if !h.Lost() && h.Left(w.now()) == 0 {
			w.rec.Lose(h, w.now())
		}
	}
}

// live are the holds with time left.
func (w *world) live() []*Hold {
	var live []*Hold
	for _, h := range w.rec.Holds() {
		if h.Left(w.now()) > 0 {
			live = append(live, h)
		}
	}
	return live
}

func fieldOf(h *Hold) string {
	if h == nil {
		return ""
	}
	return h.Field
}

func drawLease(t *rapid.T) time.Duration {
	return rapid.SampledFrom([]time.Duration{0, 0, 40 * time.Millisecond, watchdog, time.Second, 5 * time.Second}).Draw(t, "lease")
}

func drawLimit(t *rapid.T) time.Duration {
	return rapid.SampledFrom([]time.Duration{0, 0, 0, 500 * time.Millisecond}).Draw(t, "limit")
}
