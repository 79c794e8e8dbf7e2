package pubsub_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/relock-go/relock/pubsub"
)

// server is a Redis that does what a test says, made for a synctest bubble.
type server struct {
	mu      sync.Mutex
	conns   []*conn         // open ones
	opened  int             // see dials
	log     []string        // commands that arrived
	denied  map[string]bool // channels that an ACL forbids
	down    error           // what every command meets, if not nil
	holding bool            // replies and messages stay on the way until release
	hang    chan struct{}   // commands block until it is closed, if not nil, whatever their ctx says

	// Of a node of a cluster:
	sharded string                     // "s", what the commands and kinds begin with
	refuses func(channel string) error // what else it answers to a command, if not nil
}

func newServer() *server { return &server{denied: make(map[string]bool)} }

func (s *server) open(context.Context) pubsub.Conn {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := &conn{
		server: s, turn: make(chan struct{}, 1), arrived: make(chan struct{}, 1),
		gone: make(chan struct{}), channels: make(map[string]bool),
	}
	s.conns = append(s.conns, c)
	s.opened++
	return c
}

// publish returns how many connections were subscribed.
func (s *server) publish(channel, payload string) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.conns {
		if c.channels[channel] && !c.muted {
			n++
			c.push(&redis.Message{Channel: channel, Payload: payload})
		}
	}
	return n
}

// kick ends a channel's subscription from the server's side.
func (s *server) kick(channel string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.conns {
		if c.channels[channel] {
			delete(c.channels, channel)
			c.push(&redis.Subscription{Kind: s.sharded + "unsubscribe", Channel: channel})
		}
	}
}

// repeat is what a reader sees when go-redis changes the connection silently.
func (s *server) repeat() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.conns {
		for channel := range c.channels {
			c.push(&redis.Subscription{Kind: s.sharded + "subscribe", Channel: channel})
		}
	}
}

// cut breaks all connections.
func (s *server) cut() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.conns {
		c.broken = errors.New("connection reset by peer")
		clear(c.channels)
		signal(c.arrived)
	}
}

// silence makes the present connections half-open.
func (s *server) silence() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.conns {
		c.muted = true
	}
}

// release lets n held replies of every connection through, all if n < 0.
func (s *server) release(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.holding = n >= 0
	for _, c := range s.conns {
		k := min(n, len(c.held))
		if n < 0 {
			k = len(c.held)
		}
		c.inbox = append(c.inbox, c.held[:k]...)
		c.held = c.held[k:]
		signal(c.arrived)
	}
}

// calm ends all troubles.
func (s *server) calm() {
	s.set(func(s *server) { s.down = nil })
	s.release(-1)
}

func (s *server) set(f func(*server)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f(s)
}

// commands returns the commands since the last call, PINGs left out.
func (s *server) commands() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	log := slices.DeleteFunc(s.log, func(c string) bool { return c == "PING" })
	s.log = nil
	return log
}

// subscribed returns the channels of all connections.
func (s *server) subscribed() map[string]bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make(map[string]bool)
	for _, c := range s.conns {
		for name := range c.channels {
			all[name] = true
		}
	}
	return all
}

func (s *server) live() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.conns)
}

// dials returns how many connections were ever made.
func (s *server) dials() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.opened
}

// conn is one connection to a server. server.mu guards its fields.
type conn struct {
	server  *server
	turn    chan struct{} // go-redis's mutex, on which synctest can see us block
	arrived chan struct{}
	gone    chan struct{}

	channels map[string]bool
	inbox    []any // replies, messages and error replies
	held     []any
	muted    bool // swallows everything
	broken   error
}

func (c *conn) push(v any) {
	switch {
	case c.muted:
	case c.server.holding || len(c.held) > 0:
		c.held = append(c.held, v)
	default:
		c.inbox = append(c.inbox, v)
		signal(c.arrived)
	}
}

func (c *conn) do(name string, channels []string, then func()) error {
	c.turn <- struct{}{}
	defer func() { <-c.turn }()

	c.server.mu.Lock()
	hang := c.server.hang
	c.server.mu.Unlock()
	if hang != nil {
		<-hang
	}

	c.server.mu.Lock()
	defer c.server.mu.Unlock()
	if err := errors.Join(c.server.down, c.broken); err != nil {
		return err
	}
	if c.muted {
		return nil
	}
	c.server.log = append(c.server.log, strings.TrimSpace(name+" "+strings.Join(channels, " ")))
	then()
	return nil
}

func (c *conn) Subscribe(_ context.Context, channels ...string) error {
	return c.do("SUBSCRIBE", channels, func() {
		for _, name := range channels {
			if c.server.denied[name] {
				c.push(replyError("NOPERM no permission for a channel"))
				return
			}
		}
		if c.refused(channels) {
			return
		}
		for _, name := range channels {
			c.channels[name] = true
			c.push(&redis.Subscription{Kind: c.server.sharded + "subscribe", Channel: name})
		}
	})
}

// refused answers as a node of a cluster that does not serve the channels.
func (c *conn) refused(channels []string) bool {
	if c.server.refuses == nil {
		return false
	}
	err := c.server.refuses(channels[0])
	if len(channels) > 1 {
		err = replyError("CROSSSLOT Keys in request don't hash to the same slot")
	}
	if err != nil {
		c.push(err)
	}
	return err != nil
}

func (c *conn) Unsubscribe(_ context.Context, channels ...string) error {
	return c.do("UNSUBSCRIBE", channels, func() {
		if !c.channels[channels[0]] && c.refused(channels) {
			return
		}
		for _, name := range channels {
			delete(c.channels, name)
			c.push(&redis.Subscription{Kind: c.server.sharded + "unsubscribe", Channel: name})
		}
	})
}

func (c *conn) Ping(context.Context, ...string) error {
	return c.do("PING", nil, func() { c.push(&redis.Pong{}) })
}

func (c *conn) ReceiveTimeout(ctx context.Context, timeout time.Duration) (any, error) {
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	for {
		v, err := c.pop()
		if v != nil || err != nil {
			return v, err
		}
		select {
		case <-c.arrived:
		case <-c.gone:
			return nil, errors.New("use of closed network connection")
		case <-timer.C:
			return nil, timeoutError{}
		}
	}
}

func (c *conn) pop() (any, error) {
	c.server.mu.Lock()
	defer c.server.mu.Unlock()
	if c.broken != nil {
		return nil, c.broken
	}
	if len(c.inbox) == 0 {
		return nil, nil
	}
	v := c.inbox[0]
	c.inbox = c.inbox[1:]
	if err, ok := v.(error); ok {
		return nil, err
	}
	return v, nil
}

func (c *conn) Close() error {
	c.turn <- struct{}{}
	defer func() { <-c.turn }()
	c.server.mu.Lock()
	defer c.server.mu.Unlock()
	c.server.conns = slices.DeleteFunc(c.server.conns, func(o *conn) bool { return o == c })
	close(c.gone)
	return nil
}

var errDown = errors.New("connection refused")

type replyError string

func (e replyError) Error() string { return string(e) }
func (replyError) RedisError()     {}

type timeoutError struct{}

func (timeoutError) Error() string   { return "i/o timeout" }
func (timeoutError) Timeout() bool   { return true }
func (timeoutError) Temporary() bool { return true }

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
