package redistest

import (
	"bufio"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// Proxy stands between clients and a Redis and makes the network fail on
// demand. It knows where requests and replies begin and end and which belong
// together, so that a fault can hit exactly one of them.
//
// mu guards every field below it. It is never held while anything is read or
// written. changed is closed and replaced whenever something happened that
// somebody waits for.
type Proxy struct {
	Addr string // what clients connect to

	backend string
	done    chan struct{} // closed by Close
	wg      sync.WaitGroup

	mu         sync.Mutex
	changed    chan struct{}
	waiting    int // how many wait for changed: nobody else is to be woken
	closed     bool
	listener   net.Listener // nil while connections are refused
	conns      map[*proxyConn]struct{}
	lastConn   int
	rules      []*Rule
	hole       bool
	mutePubSub bool
	latency    time.Duration
	counts     map[string]int
	requests   []Request
}

// maxRequests bounds what Requests remembers.
const maxRequests = 100_000

// NewProxy starts a proxy to the Redis at backend, which need not answer yet.
// It is closed when t ends.
func NewProxy(t testing.TB, backend string) *Proxy {
	t.Helper()
	p, err := OpenProxy(backend)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

// OpenProxy is NewProxy for a proxy that outlives a test: the caller closes it.
func OpenProxy(backend string) (*Proxy, error) {
	l, err := listen("127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &Proxy{
		Addr:    l.Addr().String(),
		backend: backend,
		done:    make(chan struct{}),
		changed: make(chan struct{}),
		conns:   make(map[*proxyConn]struct{}),
		counts:  make(map[string]int),
	}
	p.mu.Lock()
	p.serveLocked(l)
	p.mu.Unlock()
	return p, nil
}

// listen takes a port that stays free while connections are refused: see FreePort.
func listen(addr string) (l net.Listener, err error) {
	for range 5 {
		a := addr
		if strings.HasSuffix(a, ":0") {
			port, err := FreePort()
			if err != nil {
				return nil, err
			}
			a = (&net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: port}).String()
		}
		if l, err = net.Listen("tcp", a); err == nil {
			return l, nil
		}
	}
	return nil, err
}

// serveLocked accepts from l until it is closed.
func (p *Proxy) serveLocked(l net.Listener) {
	p.listener = l
	p.wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			p.adopt(c)
		}
	})
}

func (p *Proxy) adopt(client net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || p.listener == nil {
		client.Close()
		return
	}
	p.lastConn++
	c := &proxyConn{p: p, id: p.lastConn, client: client, clientGone: make(chan struct{}), backendGone: make(chan struct{}), queued: make(chan struct{}, 1)}
	p.conns[c] = struct{}{}
	p.wg.Go(c.readClient)
	p.wg.Go(c.deliver)
}

// Close ends the proxy with all its connections. What is still held is lost.
func (p *Proxy) Close() {
	p.mu.Lock()
	if !p.closed {
		p.closed = true
		close(p.done)
		if p.listener != nil {
			p.listener.Close()
			p.listener = nil
		}
		for c := range p.conns {
			c.client.Close()
			if c.backend != nil {
				c.backend.Close()
			}
		}
	}
	p.mu.Unlock()
	p.wg.Wait()
}

// On adds a rule: action is applied to the first request from now on that
// match accepts; see Rule.Times and Rule.Skip. Of several rules that match, the
// oldest that still applies is taken. match is called by the proxy's
// goroutines, one at a time, and must not call the proxy.
func (p *Proxy) On(match Match, action Action) *Rule {
	r := &Rule{p: p, match: match, action: action, times: 1, seen: make(chan Request, 1000), gate: make(chan struct{})}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rules = append(p.rules, r)
	return r
}

// BlackHole turns a partition on or off. While it is on, nothing passes in
// either direction: connections stay open and new ones are accepted, and all
// of them are mute. When it ends, what the clients have sent meanwhile is
// delivered, but for those that have closed their connection: their requests
// are lost. (HoldRequest is the fault where they come late.)
func (p *Proxy) BlackHole(on bool) { p.set(func() { p.hole = on }) }

// MutePubSub turns connections that have subscribed, also those that do so
// while it is on, mute as BlackHole does. All others go on.
func (p *Proxy) MutePubSub(on bool) { p.set(func() { p.mutePubSub = on }) }

// Latency delays every request from now on by d; 0 ends it.
func (p *Proxy) Latency(d time.Duration) { p.set(func() { p.latency = d }) }

// Conn describes a client's connection.
type Conn struct {
	ID     int  // as in Request.Conn
	PubSub bool // it has subscribed to something
}

// MuteConns makes the connections that exist and match mute for good, as a peer
// that is gone without a word: open, and nothing passes. New ones are not
// concerned. It returns how many were hit.
func (p *Proxy) MuteConns(match func(Conn) bool) (n int) {
	p.set(func() {
		for c := range p.conns {
			if !c.muted && match(Conn{ID: c.id, PubSub: c.subscribed}) {
				c.muted = true
				n++
			}
		}
	})
	return n
}

// Conns lists the connections of clients that are open.
func (p *Proxy) Conns() []Conn {
	p.mu.Lock()
	defer p.mu.Unlock()
	list := []Conn{}
	for c := range p.conns {
		if !c.closedByClient {
			list = append(list, Conn{ID: c.id, PubSub: c.subscribed})
		}
	}
	slices.SortFunc(list, func(a, b Conn) int { return a.ID - b.ID })
	return list
}

// CutAll closes all connections of clients. Requests that are held stay held.
func (p *Proxy) CutAll() { p.CutConns(func(Conn) bool { return true }) }

// CutConns closes the connections of clients that match and returns how many.
func (p *Proxy) CutConns(match func(Conn) bool) (n int) {
	p.set(func() {
		for c := range p.conns {
			if !c.closedByClient && match(Conn{ID: c.id, PubSub: c.subscribed}) {
				c.client.Close()
				n++
			}
		}
	})
	return n
}

// Refuse lets new connections be refused, as by a server that is down; those
// that exist go on. Refuse(false) listens again on the same address.
func (p *Proxy) Refuse(on bool) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.closed || on == (p.listener == nil):
		return nil
	case on:
		p.listener.Close()
		p.listener = nil
		return nil
	}
	l, err := listen(p.Addr)
	if err != nil {
		return err
	}
	p.serveLocked(l)
	return nil
}

// Requests are the requests read from clients since the start or ResetCounts,
// in the order of their arrival; the first hundred thousand of them.
func (p *Proxy) Requests() []Request {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.requests)
}

// Counts is how often clients have sent each command, names in lower case.
func (p *Proxy) Counts() map[string]int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return maps.Clone(p.counts)
}

// CountCommand is how often clients have sent the command.
func (p *Proxy) CountCommand(name string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.counts[strings.ToLower(name)]
}

// ResetCounts forgets the requests so far.
func (p *Proxy) ResetCounts() {
	p.mu.Lock()
	defer p.mu.Unlock()
	clear(p.counts)
	p.requests = nil
}

// set changes the state and wakes all who wait for it.
func (p *Proxy) set(change func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change()
	p.wakeLocked()
}

func (p *Proxy) wakeLocked() {
	if p.waiting > 0 {
		close(p.changed)
		p.changed = make(chan struct{})
	}
}

// await waits until cond, which is called with mu held, or gives up when limit
// delivers or the proxy is closed; a nil limit never does.
func (p *Proxy) await(limit <-chan time.Time, cond func() bool) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for !cond() {
		changed := p.changed
		p.waiting++
		p.mu.Unlock()
		ok := true
		select {
		case <-changed:
		case <-p.done:
			ok = false
		case <-limit:
			ok = false
		}
		p.mu.Lock()
		p.waiting--
		if !ok {
			return false
		}
	}
	return true
}

// item is one request on its way, and later the reply that is expected for it.
type item struct {
	req     Request
	raw     []byte
	rule    *Rule
	action  Action
	gate    chan struct{} // the rule's when it matched
	due     time.Time     // not delivered before
	late    bool          // delivered also when the client has gone
	confirm map[string]bool
}

// proxyConn is one client's connection. Three goroutines serve it: readClient
// only reads, so that the client never blocks on a fault; deliver passes the
// requests on, in order; readBackend, started with the backend's connection,
// passes the replies back. The fields from queue on are guarded by the proxy's mu.
type proxyConn struct {
	p           *Proxy
	id          int
	client      net.Conn
	writeMu     sync.Mutex    // one whole reply at a time goes to the client
	clientGone  chan struct{} // closed when the client's side has ended
	backendGone chan struct{} // closed when the backend's has
	queued      chan struct{} // has a token when queue or closedByClient has changed

	queue          []*item // read, not yet delivered
	expected       []*item // delivered, not yet answered
	backend        net.Conn
	subscribed     bool
	muted          bool
	hung           bool // the rest of the replies is lost
	closedByClient bool
}

func (c *proxyConn) readClient() {
	r := bufio.NewReader(c.client)
	for {
		args, raw, err := readRequest(r)
		if err != nil {
			break
		}
		if len(args) > 0 {
			c.enqueue(args, raw)
		}
	}
	close(c.clientGone)
	c.p.set(func() { c.closedByClient = true })
	c.notify()
}

// notify wakes deliver.
func (c *proxyConn) notify() {
	select {
	case c.queued <- struct{}{}:
	default:
	}
}

// enqueue counts a request and finds its rule.
func (c *proxyConn) enqueue(args []string, raw []byte) {
	p := c.p
	p.mu.Lock()
	defer p.mu.Unlock()
	it := &item{req: Request{Conn: c.id, Args: args}, raw: raw, due: time.Now().Add(p.latency)}
	name := it.req.Command()
	p.counts[name]++
	if len(p.requests) < maxRequests {
		p.requests = append(p.requests, it.req)
	}
	switch name {
	case "subscribe", "ssubscribe", "psubscribe", "unsubscribe", "sunsubscribe", "punsubscribe":
		c.subscribed = true
		it.confirm = make(map[string]bool)
		for _, ch := range args[1:] {
			it.confirm[ch] = true
		}
	}
	for _, r := range p.rules {
		if r.off || (r.times > 0 && r.count >= r.times) || !r.match(it.req) {
			continue
		}
		if r.skip > 0 {
			r.skip--
			continue
		}
		r.count++
		it.rule, it.action, it.gate = r, r.action, r.gate
		it.due = it.due.Add(r.action.delay)
		it.late = r.action.hold || r.action.delay > 0
		select {
		case r.seen <- it.req:
		default:
		}
		break
	}
	c.queue = append(c.queue, it)
	p.wakeLocked()
	c.notify()
}

// next waits for the oldest request; nil when there will be none.
func (c *proxyConn) next() *item {
	for {
		c.p.mu.Lock()
		var it *item
		if len(c.queue) > 0 {
			it, c.queue = c.queue[0], c.queue[1:]
		}
		ended := c.closedByClient
		c.p.mu.Unlock()
		if it != nil {
			return it
		}
		if ended {
			return nil
		}
		select {
		case <-c.queued:
		case <-c.p.done:
			return nil
		case <-c.backendGone:
			return nil
		}
	}
}

func (c *proxyConn) deliver() {
	defer c.leave()
	late := false
	for {
		it := c.next()
		if it == nil {
			break
		}
		if !c.deliverOne(it) {
			return
		}
		late = late || it.late
	}
	// What was delivered behind the client's back is run to its end; anything
	// else ends as it does when a client closes.
	if late {
		c.p.await(time.After(waitLimit), func() bool {
			return !slices.ContainsFunc(c.expected, func(it *item) bool { return it.confirm == nil })
		})
	}
}

// deliverOne does what the item's action says, up to the delivery; false ends
// the connection.
func (c *proxyConn) deliverOne(it *item) bool {
	if it.action.drop {
		return false
	}
	if it.action.hold && !c.pause(it.gate, nil) {
		return false
	}
	if wait := time.Until(it.due); wait > 0 {
		timer := time.NewTimer(wait)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-c.p.done:
			return false
		}
	}
	if it.action.canned != nil {
		// Its turn comes after the replies to what was sent before.
		if !c.p.await(nil, func() bool { return len(c.expected) == 0 || c.closedByClient }) || !c.passable() {
			return false
		}
		return c.toClient(it.action.canned) == nil
	}
	if it.late {
		if !c.p.await(nil, func() bool { return !c.muteLocked() }) {
			return false
		}
	} else if !c.passable() {
		return false
	}
	b, err := c.dial()
	if err != nil {
		return false
	}
	if len(it.confirm) > 0 || it.confirm == nil {
		c.p.set(func() { c.expected = append(c.expected, it) })
	}
	_, err = b.Write(it.raw)
	return err == nil
}

// pause waits for gate; false when the proxy is closed or, where abandon is not
// nil, when that is.
func (c *proxyConn) pause(gate, abandon <-chan struct{}) bool {
	select {
	case <-gate:
		return true
	case <-abandon:
		return false
	case <-c.p.done:
		return false
	}
}

// muteLocked reports whether a fault of the whole connection stops it now.
func (c *proxyConn) muteLocked() bool {
	return c.p.hole || c.muted || c.p.mutePubSub && c.subscribed
}

// passable waits while the connection is mute; false when the client goes
// meanwhile, or the proxy is closed. Without a fault the bytes of a client that
// closes right behind its request pass, as they do in a network.
func (c *proxyConn) passable() bool {
	pass := false
	c.p.await(nil, func() bool {
		pass = !c.muteLocked()
		return pass || c.closedByClient
	})
	return pass
}

// dial connects to the backend when there is something to deliver: a new
// connection in a black hole reaches nobody.
func (c *proxyConn) dial() (net.Conn, error) {
	p := c.p
	if c.backend != nil { // set only by this goroutine
		return c.backend, nil
	}
	b, err := net.DialTimeout("tcp", p.backend, waitLimit)
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		b.Close()
		return nil, net.ErrClosed
	}
	c.backend = b
	p.wg.Go(c.readBackend)
	return b, nil
}

func (c *proxyConn) readBackend() {
	defer close(c.backendGone)
	defer c.p.set(func() { c.expected = nil }) // they will never be answered
	r := bufio.NewReader(c.backend)
	for {
		f, err := readFrame(r)
		if err != nil {
			// A server that closes has closed for the client too, unless the
			// client cannot know.
			if c.passable() && !c.isHung() {
				c.client.Close()
			} else {
				select {
				case <-c.clientGone:
				case <-c.p.done:
				}
			}
			return
		}
		it, last := c.answered(f)
		c.reply(f, it)
		if last {
			c.p.set(func() {
				if i := slices.Index(c.expected, it); i >= 0 {
					c.expected = slices.Delete(c.expected, i, i+1)
				}
			})
		}
	}
}

// answered finds the request that f answers, nil if there is none, and tells
// whether it has all its answers then.
func (c *proxyConn) answered(f *frame) (it *item, last bool) {
	p := c.p
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case f.pubsub(c.subscribed):
		if !f.confirmation() || len(f.words) < 2 {
			return nil, false
		}
		i := slices.IndexFunc(c.expected, func(it *item) bool {
			return it.req.Command() == f.words[0] && it.confirm[f.words[1]]
		})
		if i < 0 {
			return nil, false
		}
		it = c.expected[i]
		delete(it.confirm, f.words[1])
		last = len(it.confirm) == 0
	default:
		// The answer to a subscription is an error or a confirmation.
		i := slices.IndexFunc(c.expected, func(it *item) bool { return it.confirm == nil || f.kind == '-' })
		if i < 0 {
			return nil, false
		}
		it, last = c.expected[i], true
	}
	if r := it.rule; r != nil {
		r.replies = append(r.replies, string(f.raw))
		if last {
			r.executed++
		}
		p.wakeLocked()
	}
	return it, last
}

// reply does with a reply what the action of its request says.
func (c *proxyConn) reply(f *frame, it *item) {
	if it != nil {
		a := it.action
		if a.holdReply {
			c.pause(it.gate, c.clientGone)
		}
		if a.slowReply > 0 {
			timer := time.NewTimer(a.slowReply)
			defer timer.Stop()
			select {
			case <-timer.C:
			case <-c.clientGone:
			case <-c.p.done:
			}
		}
		switch a.lose {
		case loseAndClose:
			c.p.set(func() { c.hung = true })
			c.client.Close()
		case loseAndHang:
			c.p.set(func() { c.hung = true })
		}
	}
	if !c.isHung() && c.passable() {
		_ = c.toClient(f.raw) // a client that has gone is noticed by readClient
	}
}

func (c *proxyConn) isHung() bool {
	c.p.mu.Lock()
	defer c.p.mu.Unlock()
	return c.hung
}

func (c *proxyConn) toClient(b []byte) error {
	c.writeMu.Lock()
	defer c.writeMu.Unlock()
	_, err := c.client.Write(b)
	return err
}

// leave closes both sides. It runs when nothing more is to be delivered.
func (c *proxyConn) leave() {
	c.client.Close()
	<-c.clientGone
	if c.backend != nil {
		// Closing at once could reset the connection before the backend has read
		// what was delivered.
		if tcp, ok := c.backend.(*net.TCPConn); ok {
			_ = tcp.CloseWrite() // fails when the backend was quicker
		}
		<-c.backendGone
		c.backend.Close()
	}
	c.p.set(func() { delete(c.p.conns, c) })
}
