package record

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/relock-go/relock/internal/script/scriptmodel"
)

// rwWorld is a client with the record of a read-write lock, another client, a server, and
// a network that delays, repeats and loses. It is world for halves: the rules about
// clocks, which do not depend on halves, are tested there.
type rwWorld struct {
	server *scriptmodel.RW
	serial uint64
	rec    Record

	q        *Request
	attempt  *rwPacket // of q
	wire     []*rwPacket
	renewals []rwRenewal

	strangers map[string]time.Duration // the other client's fields, and until when it believes in them
}

// rwPacket is a copy of a request on its way.
type rwPacket struct {
	run   func() string
	reply string
	ran   bool
	over  time.Duration // when its request ended; 0: it has not
}

type rwRenewal struct {
	Renewal
	*rwPacket
}

func newRWWorld() *rwWorld {
	w := &rwWorld{server: scriptmodel.NewRW(), strangers: map[string]time.Duration{}}
	w.server.Now = time.Second
	w.rec = New(&Rules{
		Client:   "C",
		Watchdog: watchdog,
		Serial:   func() uint64 { w.serial++; return w.serial },
	})
	return w
}

func (w *rwWorld) now() Instant { return Instant{Mono: w.server.Now, Wall: w.server.Now} }

// copy makes a copy of q as it would be sent now.
func (w *rwWorld) copy() *rwPacket {
	q, s := w.q, w.server
	w.rec.Sent(q, w.now())
	ttl, depth, found := q.TTL.Truncate(time.Millisecond), q.Depth, slices.Clone(q.Found)
	field := fieldOf(q.Hold)
	p := &rwPacket{}
	switch q.Op {
	case Acquire:
		own := ""
		if h := w.rec.Hold(q.Hold.Owner, Write); q.Hold.Half == Read && h != nil && !h.Lost() {
			own = h.Field
		}
		p.run = func() string { return s.Acquire(ttl, field, own, found) }
	case Keep:
		p.run = func() string { return s.Keep(ttl, field, depth) }
	case Pass:
		p.run = func() string { return s.Pass(ttl, field, found) }
	default:
		p.run = func() string { return s.Release(field, found) }
	}
	return p
}

// begin takes the line for q. The network decides what becomes of it.
func (w *rwWorld) begin(t *rapid.T, q *Request) {
	t.Logf("%v op %d %q ttl %v found %v", w.server.Now, q.Op, fieldOf(q.Hold), q.TTL, q.Found)
	w.q = q
	w.send(t)
	switch rapid.SampledFrom([]string{"ok", "ok", "ok", "reply lost, repeated", "request late, repeated", "open"}).Draw(t, "course") {
	case "open":
		return
	case "reply lost, repeated":
		w.execute(t, w.attempt)
		w.rec.Unanswered(q)
		w.send(t)
	case "request late, repeated":
		w.rec.Unanswered(q)
		w.send(t)
	}
	w.execute(t, w.attempt)
	w.answer(t)
}

func (w *rwWorld) send(*rapid.T) {
	w.attempt = w.copy()
	w.wire = append(w.wire, w.attempt)
}

func (w *rwWorld) execute(t *rapid.T, p *rwPacket) {
	w.wire = slices.DeleteFunc(w.wire, func(o *rwPacket) bool { return o == p })
	p.reply, p.ran = p.run(), true
	t.Logf("%v the server ran a copy: %s; %s %v", w.server.Now, p.reply, w.server.Mode(), w.server.Fields())
}

// ended notes that q is over; its copies may still come.
func (w *rwWorld) ended() {
	for _, p := range w.wire {
		if p.over == 0 {
			p.over = w.server.Now
		}
	}
	w.q, w.attempt = nil, nil
}

// answer delivers the reply, and does what the user of a record does then.
func (w *rwWorld) answer(t *rapid.T) {
	q, reply := w.q, w.attempt.reply
	q.Deep = reply == "granted:deep"
	yes := reply == "granted" || q.Deep || reply == "kept" || strings.HasPrefix(reply, "released") || reply == "passed"
	verdict, gone := w.rec.Answer(q, yes, w.now())
	w.ended()
	t.Logf("%v answer %s: verdict %d", w.server.Now, reply, verdict)
	for _, h := range gone {
		t.Fatalf("the hold %s is called lost by the grant of %s", h.Field, q.Hold.Field)
	}
	switch {
	case verdict == Lost && q.Op == Keep && q.Hold.Deadline.after(w.now()) > 0:
		t.Fatalf("the hold %s was kept in time and is called lost", q.Hold.Field)
	case verdict == Lost && q.Op != Keep:
		if from := rwGiver(q); from != nil && from.Deadline.after(w.now()) > 0 {
			t.Fatalf("the hold %s was given back in time and is called lost", from.Field)
		}
	case verdict == Undo && q.Op != Keep:
		w.begin(t, w.rec.Release(q.Hold, w.now()))
	}
}

func rwGiver(q *Request) *Hold {
	if q.Op == Pass {
		return q.From
	}
	return q.Hold
}

var rwOwners = []string{"7", "8"}

// may tells whether owner may ask for half, as the user of a record decides.
func (w *rwWorld) may(owner string, half Half) bool {
	if w.rec.Busy() {
		return false
	}
	if h := w.rec.Hold(owner, half); h != nil && (!h.Lost() || h.Stuck(w.now())) {
		return false
	}
	other := w.rec.Hold(owner, Read)
	return half != Write || other == nil || other.Left(w.now()) == 0
}

func drawHalf(t *rapid.T) Half { return rapid.SampledFrom([]Half{Read, Write}).Draw(t, "half") }

func drawOwner(t *rapid.T) string { return rapid.SampledFrom(rwOwners).Draw(t, "owner") }

// drawLive is a live hold.
func (w *rwWorld) drawLive(t *rapid.T) *Hold {
	var live []*Hold
	for _, h := range w.rec.Holds() {
		if h.Left(w.now()) > 0 {
			live = append(live, h)
		}
	}
	unless(t, len(live) == 0)
	return rapid.SampledFrom(live).Draw(t, "hold")
}

func (w *rwWorld) Acquire(t *rapid.T) {
	owner, half := drawOwner(t), drawHalf(t)
	unless(t, !w.may(owner, half))
	w.begin(t, w.rec.Acquire(Want{Owner: owner, Half: half, Lease: drawLease(t)}, w.now()))
}

func (w *rwWorld) Enter(t *rapid.T) {
	unless(t, w.rec.Busy())
	w.begin(t, w.rec.Enter(w.drawLive(t), drawLease(t)))
}

func (w *rwWorld) Extend(t *rapid.T) {
	unless(t, w.rec.Busy())
	w.begin(t, w.rec.Extend(w.drawLive(t), drawLease(t)))
}

func (w *rwWorld) Unlock(t *rapid.T) {
	unless(t, w.rec.Busy())
	h := w.drawLive(t)
	if w.rec.Leave(h) > 0 {
		w.begin(t, w.rec.Mend(h, w.now()))
		return
	}
	next := drawOwner(t)
	if h.Half == Write && w.rec.Hold(h.Owner, Read) == nil && w.may(next, Write) && rapid.Bool().Draw(t, "pass") {
		w.begin(t, w.rec.Pass(h, Want{Owner: next, Half: Write, Lease: drawLease(t)}, w.now()))
		return
	}
	w.begin(t, w.rec.Release(h, w.now()))
}

func (w *rwWorld) Renew(t *rapid.T) {
	n, ok := w.rec.Renew(w.drawLive(t), w.now())
	unless(t, !ok)
	ttl, field := n.TTL, n.Hold.Field
	p := &rwPacket{over: w.server.Now}
	p.run = func() string { return w.server.Renew(ttl, field) }
	w.wire = append(w.wire, p)
	w.renewals = append(w.renewals, rwRenewal{n, p})
}

// RenewalEnds delivers the answer to a renewal, or gives it up.
func (w *rwWorld) RenewalEnds(t *rapid.T) {
	unless(t, len(w.renewals) == 0)
	n := w.renewals[0]
	w.renewals = w.renewals[1:]
	if !n.ran {
		w.rec.Unrenewed(n.Renewal, true)
		return
	}
	there := n.Hold.Left(w.now()) > 0
	if w.rec.Renewed(n.Renewal, n.reply == "k", w.now()) == Lost && there {
		t.Fatalf("the hold %s is called lost by a renewal", n.Hold.Field)
	}
}

func (w *rwWorld) Sweep(t *rapid.T) {
	unless(t, w.rec.Busy() || !w.rec.Strays(w.now()) || !w.rec.Sweepable(w.now()))
	w.begin(t, w.rec.Sweep(w.now()))
}

// Late lets a copy arrive that is on its way.
func (w *rwWorld) Late(t *rapid.T) {
	unless(t, len(w.wire) == 0)
	p := rapid.SampledFrom(w.wire).Draw(t, "copy")
	if p == w.attempt {
		w.execute(t, p)
		w.answer(t)
		return
	}
	unless(t, p.over != 0 && w.server.Now-p.over >= watchdog) // later than copies are looked out for
	w.execute(t, p)
}

// GivesUp ends the request that is open, as its caller's leaving does.
func (w *rwWorld) GivesUp(t *rapid.T) {
	unless(t, w.q == nil)
	q := w.q
	if q.Op == Acquire && rapid.Bool().Draw(t, "the caller leaves") {
		w.rec.Abandon(q)
		w.execute(t, w.attempt)
		w.answer(t)
		return
	}
	w.rec.Unanswered(q)
	w.rec.Close(q, w.now())
	w.ended()
}

// Stranger lets the other client take the lock, or give it back.
func (w *rwWorld) Stranger(t *rapid.T) {
	field := "F:1"
	if drawHalf(t) == Write {
		field += ":write"
	}
	if w.strangers[field] > w.server.Now {
		w.server.Release(field, nil)
		delete(w.strangers, field)
		return
	}
	if w.server.Depth(field) == 0 && w.server.Acquire(watchdog, field, "", nil) == "granted" {
		w.strangers[field] = w.server.Now + watchdog
	}
}

func (w *rwWorld) Time(t *rapid.T) {
	w.server.Advance(drawTime(t))
	for _, h := range w.rec.Holds() {
		if !h.Lost() && h.Left(w.now()) == 0 {
			w.rec.Lose(h, w.now())
		}
	}
}

// Check is the promise: who believes to be inside is, and with nobody whom it excludes.
func (w *rwWorld) Check(t *rapid.T) {
	now := w.now()
	var live []*Hold
	for _, h := range w.rec.Holds() {
		if h.Left(now) == 0 {
			continue
		}
		if stands := w.server.Stands(h.Field); stands < h.Left(now) {
			t.Fatalf("%s is proven for %v and stands for %v", h.Field, h.Left(now), stands)
		}
		if h.Half == Write && w.server.Mode() != "write" {
			t.Fatalf("%s writes, and the mode is %s", h.Field, w.server.Mode())
		}
		for _, other := range live {
			if other.Bars(h.Owner, h.Half) {
				t.Fatalf("%s and %s are inside", h.Field, other.Field)
			}
		}
		live = append(live, h)
		for field, until := range w.strangers {
			if until > w.server.Now && (h.Half == Write || strings.HasSuffix(field, ":write")) {
				t.Fatalf("%s and the stranger's %s are inside", h.Field, field)
			}
		}
	}
}

// settle ends everything and has nothing of the client's left.
func (w *rwWorld) settle(t *rapid.T) {
	if w.q != nil {
		w.rec.Unanswered(w.q)
		w.rec.Close(w.q, w.now())
		w.ended()
	}
	for len(w.renewals) > 0 {
		w.RenewalEnds(t)
	}
	for _, p := range slices.Clone(w.wire) {
		if p.over == 0 || w.server.Now-p.over < watchdog {
			w.execute(t, p)
		}
	}
	w.wire = nil
	for _, h := range w.rec.Holds() {
		if h.Lost() {
			w.rec.Drop(h)
			continue
		}
		for w.rec.Leave(h) > 0 {
		}
		w.q = w.rec.Release(h, w.now())
		w.send(t)
		w.execute(t, w.attempt)
		w.rec.Answer(w.q, strings.HasPrefix(w.attempt.reply, "released"), w.now())
		w.ended()
	}
	for range 3 { // copies may have come since the last sweep
		w.server.Advance(watchdog + time.Millisecond)
		if w.rec.Strays(w.now()) {
			w.q = w.rec.Sweep(w.now())
			w.send(t)
			w.execute(t, w.attempt)
			w.rec.Answer(w.q, w.attempt.reply != "gone", w.now())
			w.ended()
		}
	}
	for _, field := range w.server.Fields() {
		if strings.HasPrefix(field, "C:") && w.server.Stands(field) > 0 {
			t.Fatalf("%s is left", field)
		}
	}
}

func TestRWModel(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		w := newRWWorld()
		t.Repeat(map[string]func(*rapid.T){
			"acquire": w.Acquire, "acquire too": w.Acquire, "enter": w.Enter, "extend": w.Extend, "unlock": w.Unlock,
			"renew": w.Renew, "renewal ends": w.RenewalEnds, "sweep": w.Sweep, "late": w.Late,
			"gives up": w.GivesUp, "stranger": w.Stranger, "time": w.Time,
			"": w.Check,
		})
		w.settle(t)
		require.False(t, w.rec.Busy())
	})
}
