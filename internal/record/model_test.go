package record

import (
	"flag"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// The model test drives a record as its user does, over a network on which any
// copy of a request runs at once, late, or never, and looks after each step
// whether the promises hold. RELOCK_SOAK=<duration> makes it go on for so long.

func TestModel(t *testing.T) { soak(t, func(t *rapid.T) { runModel(t, false) }) }

// An administrator who deletes the key breaks exclusion for the hold that was
// there. The record must find out, and must keep its promises to all others.
func TestModelWithForcedRemoval(t *testing.T) {
	soak(t, func(t *rapid.T) { runModel(t, true) })
}

func soak(t *testing.T, property func(*rapid.T)) {
	checks, steps := "1500", "60"
	if testing.Short() {
		checks = "200"
	}
	asked := make(map[string]bool)
	flag.Visit(func(f *flag.Flag) { asked[f.Name] = true })
	for name, value := range map[string]string{"rapid.checks": checks, "rapid.steps": steps, "rapid.nofailfile": "true"} {
		if !asked[name] {
			if err := flag.Set(name, value); err != nil {
				t.Fatal(err)
			}
		}
	}
	limit, _ := time.ParseDuration(os.Getenv("RELOCK_SOAK"))
	for start := time.Now(); ; {
		rapid.Check(t, property)
		if t.Failed() || time.Since(start) >= limit {
			return
		}
	}
}

func runModel(t *rapid.T, admin bool) {
	w := newWorld(t, admin)
	actions := rapid.StateMachineActions(w)
	for name, action := range actions {
		actions[name] = func(t *rapid.T) {
			w.t = t
			action(t)
		}
	}
	t.Repeat(actions)
	w.t = t
	w.settle()
}

// unless has rapid draw another step than this one, which the model cannot take now.
// No test is skipped by that: a run goes on until it has taken its steps.
func unless(t *rapid.T, impossible bool) {
	if impossible {
		t.Skip("not now")
	}
}

// Acquire: an owner that holds nothing, or whose lease ran out, asks.
func (w *world) Acquire(t *rapid.T) {
	unless(t, w.q != nil || len(w.free()) == 0)
	owner := rapid.SampledFrom(w.free()).Draw(t, "owner")
	w.begin("acquire", w.rec.Acquire(Want{Owner: owner, Lease: drawLease(t), Limit: drawLimit(t)}, w.now()))
}

func (w *world) Enter(t *rapid.T) {
	unless(t, w.q != nil || len(w.live()) == 0)
	w.begin("enter", w.rec.Enter(w.live()[0], drawLease(t)))
}

func (w *world) Extend(t *rapid.T) {
	unless(t, w.q != nil || len(w.live()) == 0)
	w.begin("extend", w.rec.Extend(w.live()[0], drawLease(t)))
}

// Leave is an Unlock. An inner one counts at once and is mended when the line
// is free; the last one waits for the line.
func (w *world) Leave(t *rapid.T) {
	unless(t, len(w.rec.Holds()) == 0)
	h := rapid.SampledFrom(w.rec.Holds()).Draw(t, "hold")
	lost := h.Lost()
	unless(t, h.Depth == 1 && !lost && w.q != nil)
	left := w.rec.Leave(h)
	w.depth[h]--
	switch {
	case lost:
	case left == 0:
		w.giveBack(h)
	default:
		w.mend(h)
	}
}

func (w *world) Mend(t *rapid.T) {
	unless(t, w.q != nil || len(w.live()) == 0 || !w.live()[0].Dirty())
	w.mend(w.live()[0])
}

func (w *world) Sweep(t *rapid.T) {
	unless(t, w.q != nil || len(w.live()) > 0 || !w.rec.Strays(w.now()))
	w.begin("sweep", w.rec.Sweep(w.now()))
}

// Run executes any copy that is on its way.
func (w *world) Run(t *rapid.T) {
	unless(t, len(w.wire) == 0)
	w.execute(rapid.SampledFrom(w.wire).Draw(t, "copy"))
}

// Vanish: a copy is never executed, and nobody knows.
func (w *world) Vanish(t *rapid.T) {
	unless(t, len(w.wire) == 0)
	w.drop(rapid.SampledFrom(w.wire).Draw(t, "copy"))
}

func (w *world) Answer(t *rapid.T) {
	unless(t, w.attempt == nil || !w.attempt.ran)
	w.answer()
}

func (w *world) TimeOut(t *rapid.T) {
	unless(t, w.attempt == nil)
	w.rec.Unanswered(w.q)
	w.spoil(w.q.fields()...)
	w.attempt = nil
}

// NotRun: the attempt provably did not reach the server.
func (w *world) NotRun(t *rapid.T) {
	unless(t, w.attempt == nil || w.attempt.ran || !slices.Contains(w.wire, w.attempt))
	w.drop(w.attempt)
	w.attempt = nil
}

func (w *world) Retry(t *rapid.T) {
	unless(t, w.q == nil || w.attempt != nil)
	w.send()
}

func (w *world) GiveUp(t *rapid.T) {
	unless(t, w.q == nil || w.attempt != nil)
	q := w.q
	w.rec.Close(q, w.now())
	w.ended()
	ending := q.Op == Release && q.Hold != nil || q.Op == Pass
	if ending && rapid.Bool().Draw(t, "once more") {
		w.begin("release", w.rec.Release(giver(q), w.now()))
	}
}

// Abandon: the caller, or the next owner of a pass, leaves before the answer.
func (w *world) Abandon(t *rapid.T) {
	unless(t, w.q == nil || w.q.Abandoned() || w.q.Op == Release || w.kind == "mend")
	w.rec.Abandon(w.q)
	w.spoil(w.q.Hold.Field)
}

func (w *world) Renew(t *rapid.T) {
	unless(t, len(w.live()) == 0)
	n := w.renew(w.live()[0])
	course := rapid.SampledFrom([]string{"ok", "slow reply", "late reply", "open"}).Draw(t, "course")
	if course == "open" {
		return
	}
	w.execute(n.packet)
	if course == "slow reply" {
		w.server.Advance(drawTime(t))
	}
	if course != "late reply" {
		w.renewed(n)
	}
}

// Renewed delivers the reply to a renewal, perhaps long after it was sent.
func (w *world) Renewed(t *rapid.T) {
	i := slices.IndexFunc(w.renewals, func(n *renewal) bool { return n.packet.ran })
	unless(t, i < 0)
	w.renewed(w.renewals[i])
}

func (w *world) renewed(n *renewal) {
	i := slices.Index(w.renewals, n)
	if i < 0 {
		return // timed out meanwhile
	}
	w.renewals = slices.Delete(w.renewals, i, i+1)
	var verdict Verdict
	w.noFalseLoss(func() { verdict = w.rec.Renewed(n.Renewal, n.packet.reply == "k", w.now()) })
	if verdict == Kept && n.packet.reply == "g" {
		w.fail("%s is gone and kept", n.Hold.Field)
	}
	if live := n.Hold.state == live; verdict == Lost && live || verdict == Kept && !live {
		w.fail("renewal of %s: verdict %d, live is %v", n.Hold.Field, verdict, live)
	}
}

func (w *world) Unrenewed(t *rapid.T) {
	unless(t, len(w.renewals) == 0)
	i := rapid.IntRange(0, len(w.renewals)-1).Draw(t, "renewal")
	n := w.renewals[i]
	w.renewals = slices.Delete(w.renewals, i, i+1)
	mayRun := n.packet.ran || rapid.Bool().Draw(t, "may run")
	if !mayRun {
		w.drop(n.packet)
	}
	w.rec.Unrenewed(n.Renewal, mayRun)
}

// Advance lets time pass. The watchdog's tick may come at once or later.
func (w *world) Advance(t *rapid.T) {
	w.server.Advance(drawTime(t))
	if rapid.Bool().Draw(t, "tick") {
		w.lose()
	}
}

func (w *world) Tick(*rapid.T) { w.lose() }

// StepForwards moves the wall clock. Holds may end early by that.
func (w *world) StepForwards(t *rapid.T) { w.step += drawTime(t) }

// StepBack gains nothing. Only a hold that went through a suspend and a step
// back is beyond help: then both clocks are wrong.
func (w *world) StepBack(t *rapid.T) {
	unless(t, w.provenBefore(w.slept))
	w.step -= drawTime(t)
	w.back = w.server.Now
}

// Suspend stops the client's machine: mono stands still.
func (w *world) Suspend(t *rapid.T) {
	unless(t, w.provenBefore(w.back))
	d := drawTime(t)
	w.server.Advance(d)
	w.asleep += d
	w.slept = w.server.Now
}

// provenBefore tells whether a hold counts from that moment or before it, or
// may do so when its answer comes.
func (w *world) provenBefore(moment time.Duration) bool {
	if w.q != nil && (w.first <= moment || w.q.Hold != nil && w.granted[giver(w.q)] <= moment) {
		return true
	}
	return slices.ContainsFunc(w.rec.Holds(), func(h *Hold) bool { return !h.Lost() && w.granted[h] <= moment })
}

func (w *world) ForeignAcquire(t *rapid.T) {
	ttl := rapid.SampledFrom([]time.Duration{50 * time.Millisecond, 2 * time.Second}).Draw(t, "ttl")
	unless(t, w.foreign > w.server.Now)
	if w.server.Acquire(ttl, stranger, nil) == "granted" {
		w.foreign = w.server.Now + ttl - Margin(ttl)
	}
}

func (w *world) ForeignRelease(t *rapid.T) {
	unless(t, w.foreign <= w.server.Now)
	w.server.Release([]string{stranger})
	w.foreign = 0
}

// Remove is the administrator's DEL.
func (w *world) Remove(t *rapid.T) {
	unless(t, !w.admin || rapid.IntRange(0, 3).Draw(t, "rarely") > 0)
	w.server.Remove()
	w.foreign = 0
	for _, h := range w.rec.Holds() {
		w.removed[h] = true
	}
	if w.q != nil {
		for _, h := range []*Hold{w.q.Hold, w.q.From} {
			w.removed[h] = true
		}
	}
}

// Restart: the server comes up again with all its data, and its guard refuses to
// grant for a while, whatever stands there.
func (w *world) Restart(t *rapid.T) {
	w.server.Guarded = w.server.Now + drawTime(t)
}

// Forget drops a record that says nothing, and one that only knows burned
// fields: its user makes all new fields numbered from then on.
func (w *world) Forget(t *rapid.T) {
	unless(t, w.q != nil || len(w.rec.Holds()) > 0 || w.rec.Strays(w.now()))
	if !w.rec.Idle(w.now()) {
		w.numbered = true
	}
	w.rec = New(&w.rules)
}

func drawTime(t *rapid.T) time.Duration {
	ms := rapid.SampledFrom([]int{1, 2, 3, 10, 38, 45, 100, 150, 296, 298, 301, 700, 4000}).Draw(t, "ms")
	return time.Duration(ms) * time.Millisecond
}

// Check is what holds after every step.
func (w *world) Check(t *rapid.T) {
	now := w.now()

	// Exclusion.
	var inside []string
	for _, h := range w.live() {
		if !w.removed[h] {
			inside = append(inside, h.Field)
		}
	}
	if w.foreign > w.server.Now {
		inside = append(inside, stranger)
	}
	if len(inside) > 1 {
		w.fail("inside at once: %v", inside)
	}
	if n := len(w.live()); n > 1 {
		w.fail("%d live holds in one record", n)
	}

	// Proof: the server has a live hold for longer than we believe in it.
	expires, stands := w.server.Expires()
	for _, h := range w.live() {
		if w.removed[h] {
			continue
		}
		if w.server.Depth(h.Field) == 0 {
			w.fail("%s is live and the server has %v", h.Field, w.server.Fields())
		}
		if until := w.server.Now + h.Left(now); until >= expires {
			w.fail("%s is believed in until %v, the key ends at %v", h.Field, until, expires)
		}
		if h.Limit != nil && h.Deadline.after(*h.Limit) > 0 {
			w.fail("%s goes on after its limit", h.Field)
		}
	}

	// A lease ends when it was agreed, neither earlier nor later.
	for _, h := range w.live() {
		agreed, deadline := w.agreed[h], h.Deadline.Mono
		if h.Limit != nil {
			agreed = min(agreed, h.Limit.Mono)
		}
		if deadline < agreed || deadline > agreed && h.Lease > 0 {
			w.fail("the lease of %s ends at %v, agreed was %v", h.Field, deadline, agreed)
		}
	}

	// No key without expiry.
	if len(w.server.Fields()) > 0 && !stands {
		w.fail("a key without expiry: %v", w.server.Fields())
	}

	// Depth.
	for _, h := range w.rec.Holds() {
		if int(h.Depth) != w.depth[h] {
			w.fail("%s has depth %d, its owner counts %d", h.Field, h.Depth, w.depth[h])
		}
		settled := w.q == nil && !h.Dirty() && !w.named(h.Field) && !w.blurred[h.Field]
		if settled && h.Left(now) > 0 && !w.removed[h] && w.server.Depth(h.Field) != int(h.Depth) {
			w.fail("%s has depth %d, the server %d", h.Field, h.Depth, w.server.Depth(h.Field))
		}
	}

	// No leak: a field of ours is a hold's, a request's, or a known stray.
	for field := range w.server.Fields() {
		if strings.HasPrefix(field, "C:") && !w.known(field) && !w.beyond {
			w.fail("nobody knows of %s, which stands until %v", field, expires)
		}
	}
}

// known tells whether the record will remove field some day.
func (w *world) known(field string) bool {
	if w.q != nil && slices.Contains(w.q.fields(), field) || w.rec.inUse(field) {
		return true
	}
	return slices.ContainsFunc(w.rec.strays(), func(s stray) bool {
		return s.field == field && s.until > w.now().Mono
	})
}

// named tells whether a copy on its way names field.
func (w *world) named(field string) bool {
	return slices.ContainsFunc(w.wire, func(p *packet) bool { return slices.Contains(p.names, field) })
}

// checkRequest looks at a request before it is sent.
func (w *world) checkRequest(q *Request) {
	fields := q.fields()
	slices.Sort(fields)
	if len(slices.Compact(fields)) != len(q.fields()) {
		w.fail("a field is named twice: %v", fields)
	}
	for _, h := range w.live() {
		if h != q.Hold && slices.Contains(fields, h.Field) {
			w.fail("%v names %s, which is live", q.Op, h.Field)
		}
	}
	if q.Op != Acquire && q.Op != Pass {
		return
	}
	if w.named(q.Hold.Field) {
		w.fail("a copy on its way names %s, the field of a new hold", q.Hold.Field)
	}
	if w.spoilt[q.Hold.Field] {
		w.fail("%s is used again after doubt", q.Hold.Field)
	}
}

// noFalseLoss calls report, which tells the record the server's word, and looks
// whether a hold with time left becomes lost by it.
func (w *world) noFalseLoss(report func()) {
	live := w.live()
	report()
	for _, h := range live {
		if h.Lost() && !w.removed[h] {
			w.fail("%s was lost with time left", h.Field)
		}
	}
}

// settle brings everything to its end and sweeps: nothing of ours may be left.
func (w *world) settle() {
	for w.q != nil {
		if w.attempt != nil {
			w.rec.Unanswered(w.q)
		}
		w.rec.Close(w.q, w.now())
		w.ended()
	}
	for len(w.wire) > 0 {
		p := w.wire[0]
		if w.drop(p); rapid.Bool().Draw(w.t, "run") {
			w.execute(p)
		}
	}
	for _, n := range w.renewals {
		w.rec.Unrenewed(n.Renewal, true)
	}
	for _, h := range slices.Clone(w.rec.Holds()) {
		w.rec.Lose(h, w.now())
		w.rec.Drop(h)
	}
	if w.rec.Strays(w.now()) {
		q := w.rec.Sweep(w.now())
		w.server.Release(q.Found)
		w.rec.Answer(q, true, w.now())
	}
	for field := range w.server.Fields() {
		if strings.HasPrefix(field, "C:") && !w.beyond {
			w.fail("%s is left", field)
		}
	}
}
