package pubsub_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"

	"github.com/relock-go/relock/pubsub"
)

// cluster is several servers, each of which serves some channels, and the view
// that a client has of that. A channel is a slot of its own.
//
// mu may be locked while a server's is, and not the other way round.
type cluster struct {
	nodes []*server

	mu     sync.Mutex
	owner  map[string]int  // node of a channel; 0 if it is missing
	view   map[string]int  // what Locate says
	stale  bool            // Locate does not refresh its view
	errs   error           // what Locate returns, if not nil
	hang   chan struct{}   // Locate blocks until it is closed or ctx ends, if not nil
	stolen map[string]bool // channels that are left alone: see steal
	unwell error           // what a node says to the channels that it serves, if not nil

	asked, doubted int // calls of Locate, and those with wrong
	busy, maxBusy  int // calls at a time
}

func newCluster(n int) *cluster {
	c := &cluster{owner: make(map[string]int), view: make(map[string]int), stolen: make(map[string]bool)}
	for i := range n {
		s := newServer()
		s.sharded = "s"
		s.refuses = func(channel string) error {
			c.mu.Lock()
			defer c.mu.Unlock()
			if c.owner[channel] != i {
				return replyError(fmt.Sprint("MOVED 1 node", c.owner[channel]))
			}
			return c.unwell
		}
		c.nodes = append(c.nodes, s)
	}
	return c
}

func (c *cluster) set(f func(*cluster)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f(c)
}

func (c *cluster) locate(ctx context.Context, channel string, wrong bool) (pubsub.Node, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.asked++
	c.busy++
	c.maxBusy = max(c.maxBusy, c.busy)
	defer func() { c.busy-- }()
	if wrong {
		c.doubted++
	}
	if hang := c.hang; hang != nil {
		c.mu.Unlock()
		select {
		case <-hang:
		case <-ctx.Done():
		}
		c.mu.Lock()
		if ctx.Err() != nil {
			return pubsub.Node{}, ctx.Err()
		}
	}
	if c.errs != nil {
		return pubsub.Node{}, c.errs
	}
	if wrong && !c.stale {
		c.view = maps.Clone(c.owner)
	}
	i := c.view[channel]
	return pubsub.Node{ID: fmt.Sprint("node", i), Open: c.nodes[i].open}, nil
}

// move gives a channel to another node. The former one ends the subscriptions.
// It reports whether there was one.
func (c *cluster) move(channel string, to int) bool {
	c.mu.Lock()
	from, stolen := c.owner[channel], c.stolen[channel]
	if !stolen {
		c.owner[channel] = to
	}
	c.mu.Unlock()
	if from == to || stolen {
		return false
	}
	c.nodes[from].kick(channel)
	return true
}

// steal is move without a word to those who are subscribed, as with a master
// that is demoted to a replica. Locate knows. The channel then stays there: if it
// came back before the next recheck, nobody could know that messages were lost.
func (c *cluster) steal(channel string, to int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.owner[channel] == to || c.stolen[channel] {
		return false
	}
	c.owner[channel], c.view[channel], c.stolen[channel] = to, to, true
	return true
}

// fail takes a node down, after its channels have moved to another one: nobody
// is told of that.
func (c *cluster) fail(node, heir int) {
	c.mu.Lock()
	for channel, i := range c.owner {
		if i == node && !c.stolen[channel] {
			c.owner[channel] = heir
		}
	}
	c.mu.Unlock()
	c.nodes[node].set(func(s *server) { s.down = errDown })
	c.nodes[node].cut()
}

func (c *cluster) publish(channel, payload string) int {
	c.mu.Lock()
	i := c.owner[channel]
	c.mu.Unlock()
	return c.nodes[i].publish(channel, payload)
}

func (c *cluster) each(f func(*server)) {
	for _, s := range c.nodes {
		f(s)
	}
}

// calm ends all troubles.
func (c *cluster) calm() {
	c.set(func(c *cluster) {
		if c.hang != nil {
			close(c.hang)
		}
		c.stale, c.errs, c.unwell, c.hang = false, nil, nil, nil
	})
	c.each((*server).calm)
}

func (c *cluster) subscribed() map[string]bool {
	all := make(map[string]bool)
	c.each(func(s *server) { maps.Copy(all, s.subscribed()) })
	return all
}

func (c *cluster) live() (n int) {
	c.each(func(s *server) { n += s.live() })
	return n
}

func (c *cluster) calls() (n int) {
	c.set(func(c *cluster) { n = c.asked })
	return n
}

func (c *cluster) wrongs() (n int) {
	c.set(func(c *cluster) { n = c.doubted })
	return n
}

func (c *cluster) dials() (n int) {
	c.each(func(s *server) { n += s.dials() })
	return n
}

var errNoState = errors.New("no node answers")
