package redistest

import (
	"slices"
	"strings"
	"testing"
	"time"
)

// Request is a command that a client has sent through a Proxy.
type Request struct {
	Conn int      // number of the client's connection, from 1
	Args []string // the command's name as the client spells it, then its arguments
}

// Command is the command's name in lower case.
func (r Request) Command() string {
	if len(r.Args) == 0 {
		return ""
	}
	return strings.ToLower(r.Args[0])
}

// Match chooses requests.
type Match func(Request) bool

// Any matches every request.
func Any(Request) bool { return true }

// Command matches requests by the command's name, in any case.
func Command(names ...string) Match {
	return func(r Request) bool {
		return slices.ContainsFunc(names, func(n string) bool { return strings.EqualFold(n, r.Command()) })
	}
}

// HasArg matches requests of which one argument, the name apart, is arg.
func HasArg(arg string) Match {
	return func(r Request) bool { return len(r.Args) > 1 && slices.Contains(r.Args[1:], arg) }
}

// ArgContains matches requests of which one argument, the name apart, contains part.
func ArgContains(part string) Match {
	return func(r Request) bool {
		return len(r.Args) > 1 && slices.ContainsFunc(r.Args[1:], func(a string) bool { return strings.Contains(a, part) })
	}
}

// And matches what all of them match.
func And(all ...Match) Match {
	return func(r Request) bool {
		for _, m := range all {
			if !m(r) {
				return false
			}
		}
		return true
	}
}

// Not matches what m does not.
func Not(m Match) Match { return func(r Request) bool { return !m(r) } }

// Action is what happens to a request that a rule matches. The requests before
// it on its connection are not touched; those behind it wait while it waits.
type Action struct {
	drop      bool
	canned    []byte // answer without the backend
	hold      bool   // the request waits for Release
	delay     time.Duration
	holdReply bool // the reply waits for Release
	slowReply time.Duration
	lose      lossKind
}

type lossKind int

const (
	loseNothing lossKind = iota
	loseAndClose
	loseAndHang
)

var (
	// LoseReplyAndClose lets the backend run the request, swallows the reply and
	// closes the client's connection.
	LoseReplyAndClose = Action{lose: loseAndClose}

	// LoseReplyAndHang lets the backend run the request and swallows its reply and
	// whatever would follow it: the connection stays open and mute. What the
	// client sends on it later is still run.
	LoseReplyAndHang = Action{lose: loseAndHang}

	// HoldRequest keeps the request until Release and delivers it then, also when
	// the client has closed its side meanwhile. A client that is still there gets
	// the reply.
	HoldRequest = Action{hold: true}

	// HoldRequestLoseReply is HoldRequest whose reply is lost as with LoseReplyAndHang.
	HoldRequestLoseReply = Action{hold: true, lose: loseAndHang}

	// HoldReply delivers the request at once and keeps its reply, and all that
	// follows on this connection, until Release. Other connections go on: their
	// answers overtake this one.
	HoldReply = Action{holdReply: true}

	// DropRequest does not deliver the request and closes the client's connection.
	DropRequest = Action{drop: true}
)

// Delay delivers the request d later, also when the client has gone meanwhile.
func Delay(d time.Duration) Action { return Action{delay: d} }

// DelayReply delivers the request at once and passes its reply on d later.
func DelayReply(d time.Duration) Action { return Action{slowReply: d} }

// Reply answers with raw, one whole RESP value such as "-BUSY script\r\n",
// without asking the backend.
func Reply(raw string) Action { return Action{canned: []byte(raw)} }

// Rule applies an Action to requests that match. Everything but match and
// action is guarded by the proxy's mu.
type Rule struct {
	p      *Proxy
	match  Match
	action Action

	times, skip int
	off         bool
	count       int
	executed    int
	replies     []string
	seen        chan Request
	gate        chan struct{} // closed by the next Release
}

// Times lets the rule apply to the first n requests that match, 0 = to all.
// Without it a rule applies once.
func (r *Rule) Times(n int) *Rule {
	r.p.mu.Lock()
	defer r.p.mu.Unlock()
	r.times = n
	return r
}

// Skip leaves the next n requests that match alone.
func (r *Rule) Skip(n int) *Rule {
	r.p.mu.Lock()
	defer r.p.mu.Unlock()
	r.skip = n
	return r
}

// Release lets go all that this rule holds now. What it matches later is held
// until the next Release.
func (r *Rule) Release() {
	r.p.mu.Lock()
	defer r.p.mu.Unlock()
	r.releaseLocked()
}

func (r *Rule) releaseLocked() {
	close(r.gate)
	r.gate = make(chan struct{})
}

// Off ends the rule: it matches nothing more, and what it holds is let go.
func (r *Rule) Off() {
	r.p.mu.Lock()
	defer r.p.mu.Unlock()
	r.off = true
	r.releaseLocked()
}

// Count is how many requests the rule has applied to.
func (r *Rule) Count() int {
	r.p.mu.Lock()
	defer r.p.mu.Unlock()
	return r.count
}

// Seen delivers each request that the rule applied to, when it was read, before
// it is held or delivered. The channel keeps the first thousand that nobody
// takes.
func (r *Rule) Seen() <-chan Request { return r.seen }

// Replies are the backend's answers, as they came over the wire, to the
// requests that the rule applied to: those that were lost too.
func (r *Rule) Replies() []string {
	r.p.mu.Lock()
	defer r.p.mu.Unlock()
	return slices.Clone(r.replies)
}

// waitLimit bounds every wait for a rule.
const waitLimit = 15 * time.Second

// Wait waits until the rule has applied to a request.
func (r *Rule) Wait(t testing.TB) {
	t.Helper()
	r.WaitCount(t, 1)
}

// WaitCount waits until the rule has applied to n requests.
func (r *Rule) WaitCount(t testing.TB, n int) {
	t.Helper()
	if !r.p.await(time.After(waitLimit), func() bool { return r.count >= n }) {
		t.Fatalf("redistest: the rule applied to %d requests within %v, want %d", r.Count(), waitLimit, n)
	}
}

// WaitExecuted waits until the backend has answered n of the requests that the
// rule applied to, whether or not the client hears of it.
func (r *Rule) WaitExecuted(t testing.TB, n int) {
	t.Helper()
	if !r.p.await(time.After(waitLimit), func() bool { return r.executed >= n }) {
		t.Fatalf("redistest: the backend did not answer %d requests of the rule within %v", n, waitLimit)
	}
}
