// Package record is the authority on what one client holds of one Redis key.
//
// It is plain logic: no I/O, no goroutine, no lock of its own, no clock. Its
// user sends what a Request says, reports what came of it, and serialises all
// calls. The rules that it keeps:
//
//  1. Requests that change the key go one at a time, renewals apart. Each names
//     the wanted state, so a second run is harmless.
//  2. An answer settles its request and what was sent before it.
//  3. A field that an unanswered or abandoned request named is burned: no later
//     hold uses it, because a copy of that request may still arrive. Nor does one use
//     a field that may stand: an acquire leaves the depth that it finds.
//  4. Own fields that may stand in Redis without a live hold are strays. An
//     acquire names them and takes over from them; a sweep removes them. They
//     are remembered for as long as they may stand: a copy may come for a
//     watchdog timeout after its request ended, and its field for a TTL more. An
//     answer settles those it named that no copy could still make when it was sent.
//  5. A hold counts from before its request was sent, less a margin. Lost is for
//     good: no late answer revives it.
//  6. The answer to a renewal speaks for the moment it was sent, and for the hold
//     that it was sent for. If a request that keeps this hold was answered since,
//     it neither sets a deadline nor tells a loss. Requests without an answer, and
//     those of other owners, do not count: they could put off a loss for ever, or
//     make one of a hold that is renewed all the time.
//  7. A hold that is gone after an unanswered attempt to give it back, and before
//     its deadline, was given back.
//  8. Depth is what the owner counts: one more when an Enter is answered, one
//     less at Leave. Redis follows; while it may differ the hold is dirty.
package record

import (
	"slices"
	"strconv"
	"strings"
	"time"
)

// Rules is what all records of one client share.
type Rules struct {
	Client   string        // first half of every field
	Watchdog time.Duration // TTL of a hold without a lease
	Serial   func() uint64 // a number never given before, for fields after a burned one
	Numbered func() bool   // whether all new fields take a number; nil means no
}

// Record is what a client knows of one key. There may be very many, most of which
// have one hold and nothing else to know.
type Record struct {
	rules *Rules
	holds *Hold    // the first; they are a list, oldest first
	open  *Request // the request that is under way
	past  *past    // nil: nothing has gone wrong
}

// past is what requests without an answer leave behind.
type past struct {
	strays []stray
	burned []string
	crowd  bool     // too many burned fields to list: all new ones take a number
	queued []string // fields under which somebody waits in a queue

	sweptRW bool // the latest sweep was of a read-write lock's
}

// stray is an own field that may stand in Redis though no live hold uses it.
type stray struct {
	field string
	rw    bool          // of a read-write lock, which other requests remove
	until time.Duration // it cannot matter after that, by Mono
	comes time.Duration // a request on its way may still create it until then; 0 if none is
	wait  time.Duration // it may stand in a queue too, with that Stand.Wait; 0: not
}

// mostBurned bounds the list of burned fields. Beyond it every new field takes
// a number, which avoids them all.
const mostBurned = 32

// New returns the record of a key of which nothing is held.
func New(rules *Rules) Record { return Record{rules: rules} }

// Idle tells that the record says nothing that a new one would not say.
func (r *Record) Idle(now Instant) bool {
	r.purge(now)
	return r.open == nil && r.holds == nil && len(r.strays()) == 0 && !r.Burned()
}

// Burned tells whether fields of this key are burned.
func (r *Record) Burned() bool { return r.past != nil && (len(r.past.burned) > 0 || r.past.crowd) }

func (r *Record) strays() []stray {
	if r.past == nil {
		return nil
	}
	return r.past.strays
}

// happened is the past, begun if need be.
func (r *Record) happened() *past {
	if r.past == nil {
		r.past = &past{}
	}
	return r.past
}

// find is the first hold that is wanted, or nil.
func (r *Record) find(wanted func(*Hold) bool) *Hold {
	for h := r.holds; h != nil; h = h.next {
		if wanted(h) {
			return h
		}
	}
	return nil
}

// add puts h at the end of the list.
func (r *Record) add(h *Hold) {
	end := &r.holds
	for *end != nil {
		end = &(*end).next
	}
	*end = h
}

// Hold returns owner's hold of that half, live or lost, or nil.
func (r *Record) Hold(owner string, half Half) *Hold {
	return r.find(func(h *Hold) bool { return h.Owner == owner && h.Half == half })
}

// Holds returns all holds, live and lost.
func (r *Record) Holds() (all []*Hold) {
	for h := r.holds; h != nil; h = h.next {
		all = append(all, h)
	}
	return all
}

// Live returns a hold that is valid at now, or nil. There is more than one only of a
// read-write lock.
func (r *Record) Live(now Instant) *Hold {
	return r.find(func(h *Hold) bool { return h.Left(now) > 0 })
}

// Barring returns a hold that is valid at now and keeps a hold of that owner and half
// out, or nil.
func (r *Record) Barring(owner string, half Half, now Instant) *Hold {
	return r.find(func(h *Hold) bool { return h.Left(now) > 0 && h.Bars(owner, half) })
}

// Leave takes one Unlock off h and returns how many are left. Redis hears of an
// inner one by Mend. At 0 the hold is over here, before Redis is asked to end
// it, and forgotten: Release or Pass comes next, before any other request.
func (r *Record) Leave(h *Hold) int32 {
	h.Depth--
	h.dirty = true
	if h.Depth == 0 {
		r.Drop(h)
		if h.state == live {
			h.state = given
		}
	}
	return h.Depth
}

// Drop forgets h: it was given back, or its loss was heard of by all.
func (r *Record) Drop(h *Hold) {
	if h.renewing > 0 {
		r.burn(h.Field) // a renewal is still on its way
	}
	for at := &r.holds; *at != nil; at = &(*at).next {
		if *at == h {
			*at, h.next = h.next, nil
			return
		}
	}
}

// Lose ends h without the server's word: its deadline has come, or the client
// closes. The field may stand for as long as its TTL.
func (r *Record) Lose(h *Hold, now Instant) {
	r.purge(now)
	if h.state != live {
		return
	}
	h.state = lost
	r.left(h)
}

// left notes that the field of h may stand without it.
func (r *Record) left(h *Hold) { r.stray(stray{field: h.Field, rw: h.rw(), until: h.stands}) }

// mayStand notes that the field of h may stand until then, by Mono. What keeps one hold
// of a read-write lock keeps the hash, and all that is in it.
func (r *Record) mayStand(h *Hold, until time.Duration) {
	h.mayStand(until)
	if !h.rw() {
		return
	}
	for other := r.holds; other != nil; other = other.next {
		if other.rw() {
			other.mayStand(until)
		}
	}
	for i := range r.strays() {
		if s := &r.past.strays[i]; s.rw {
			s.until = max(s.until, until)
		}
	}
}

// field is the field for a new hold of owner; it is not but.
//
// No two fields are ever equal but by this choice: a number is given once, and
// an owner that is itself called like a numbered field, "7.3", always takes one. So does
// "write", or its field as a reader would be taken for a writer's.
func (r *Record) field(owner string, half Half, but string) string {
	end := ""
	if half == Write {
		end = ":write"
	}
	plain := r.rules.Client + ":" + owner
	numbered := r.past != nil && r.past.crowd || numbered(owner) || owner == "write" || r.rules.Numbered != nil && r.rules.Numbered()
	if !numbered && plain+end != but && r.fresh(plain+end) {
		return plain + end
	}
	return plain + "." + strconv.FormatUint(r.rules.Serial(), 10) + end
}

// numbered tells whether s ends in a dot and digits.
func numbered(s string) bool {
	rest := strings.TrimRight(s, "0123456789")
	return len(rest) < len(s) && strings.HasSuffix(rest, ".")
}

// fresh tells whether a new hold may use field. One that may stand in Redis already may
// have another depth there, which an acquire leaves: it could be a late copy.
func (r *Record) fresh(field string) bool {
	if r.past != nil && slices.Contains(r.past.burned, field) || r.isQueued(field) || r.isStray(field) {
		return false
	}
	return r.find(func(h *Hold) bool { return h.Field == field && (h.state == live || h.renewing > 0) }) == nil
}

func (r *Record) burn(fields ...string) {
	p := r.happened()
	for _, field := range fields {
		if p.crowd || slices.Contains(p.burned, field) {
			continue
		}
		if len(p.burned) == mostBurned {
			p.crowd, p.burned = true, nil
			continue
		}
		p.burned = append(p.burned, field)
	}
}

// Sweepable tells whether a Sweep has something to remove while holds are live: readers
// do not vouch for each other, and a queue is no business of the holder's.
func (r *Record) Sweepable(now Instant) bool {
	h := r.Live(now)
	return h == nil || r.InQueue() || h.rw() && len(r.strayFields(true)) > 0
}

// Strays tells whether own fields may stand that no live hold uses and nobody waits
// under.
func (r *Record) Strays(now Instant) bool {
	r.purge(now)
	return slices.ContainsFunc(r.strays(), func(s stray) bool { return !r.isQueued(s.field) })
}

// Knows tells whether field may stand in Redis for another reason than that owner
// holds the key: it is a stray, or another owner's.
func (r *Record) Knows(field, owner string) bool {
	if h := r.find(func(h *Hold) bool { return h.Field == field }); h != nil {
		return h.Owner != owner
	}
	return r.isStray(field) || r.open != nil && r.open.Hold != nil && r.open.Hold.Field == field
}

func (r *Record) stray(s stray) {
	p := r.happened()
	for i := range p.strays {
		if old := &p.strays[i]; old.field == s.field && old.rw == s.rw {
			old.comes, old.until, old.wait = max(old.comes, s.comes), max(old.until, s.until), max(old.wait, s.wait)
			return
		}
	}
	p.strays = append(p.strays, s)
}

// Queue notes that somebody waits under field, which is no stray until Quit, whatever
// late requests make of it.
func (r *Record) Queue(field string) {
	if p := r.happened(); !slices.Contains(p.queued, field) {
		p.queued = append(p.queued, field)
	}
}

// Quit notes that nobody waits under field any more. If it may stand in the queue,
// s says how; nil: it was granted, and only late requests may put it there again.
func (r *Record) Quit(field string, s *Stand, now Instant) {
	if r.past != nil {
		r.past.queued = slices.DeleteFunc(r.past.queued, func(f string) bool { return f == field })
	}
	if s != nil {
		r.burn(field)
		r.stray(stray{field: field, until: now.Mono + 2*r.rules.Watchdog + s.Ahead + s.Wait, wait: s.Wait})
	}
	r.purge(now)
}

// InQueue tells whether strays may stand in a queue.
func (r *Record) InQueue() bool {
	return slices.ContainsFunc(r.strays(), func(s stray) bool { return s.wait > 0 && !r.isQueued(s.field) })
}

// WaitOf is the Stand.Wait of a stray, 0 if it is in no queue.
func (r *Record) WaitOf(field string) time.Duration {
	for _, s := range r.strays() {
		if s.field == field {
			return s.wait
		}
	}
	return 0
}

func (r *Record) isStray(field string) bool {
	return slices.ContainsFunc(r.strays(), func(s stray) bool { return s.field == field })
}

func (r *Record) isQueued(field string) bool {
	return r.past != nil && slices.Contains(r.past.queued, field)
}

// strayFields lists the strays that a request of that sort removes, each once, without the fields that a request is
// about and without that of a live hold: a request that was repeated may have a
// copy on its way that makes it again once the hold is over, but not before.
func (r *Record) strayFields(rw bool, but ...string) []string {
	var fields []string
	for _, s := range r.strays() {
		if s.rw == rw && !slices.Contains(but, s.field) && !r.inUse(s.field) && !r.isQueued(s.field) {
			fields = append(fields, s.field)
		}
	}
	return fields
}

func (r *Record) inUse(field string) bool {
	return r.find(func(h *Hold) bool { return h.Field == field && h.state == live }) != nil
}

// settle drops the strays that an answered request named, but for those that a
// request on its way might still create after it was sent. Out of a queue only a
// sweep takes them.
func (r *Record) settle(q *Request) {
	r.forget(func(s stray) bool {
		return (s.comes == 0 || s.comes < q.sent.Mono) && s.rw == q.RW() && q.names(s.field) && (s.wait == 0 || q.sweeps())
	})
}

func (r *Record) purge(now Instant) {
	r.forget(func(s stray) bool { return s.until <= now.Mono })
}

// forget drops the strays that are over.
func (r *Record) forget(over func(stray) bool) {
	if r.past == nil {
		return
	}
	r.past.strays = slices.DeleteFunc(r.past.strays, over)
	if len(r.past.strays) == 0 && len(r.past.queued) == 0 && !r.Burned() {
		r.past = nil
	}
}
