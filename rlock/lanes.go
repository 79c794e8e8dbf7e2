package rlock

import (
	"context"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// lanes are the renewals on their way to several servers, a lane for each. One that
// hangs fills its own and leaves the others alone.
type lanes struct {
	// mu guards the field below, and the lanes. It is held for moments only.
	mu sync.Mutex
	by map[*redis.Client]*lane // those with something to renew
}

// lane is what is to be renewed at one server.
type lane struct {
	c     *Client
	node  *redis.Client // nil: nobody can say which one
	due   []turn        // in order
	young int           // pipelines that have a place
}

// turn is a hold in a lane.
type turn struct {
	h     *hold
	since time.Duration // it stands there, by record.Instant.Mono
}

// pipe is a goroutine that sends one pipeline of a lane after the other. It has one
// of the lane's places until a pipeline is as old as an attempt may be: those of a
// server that was silent for a while must not be waited for.
type pipe struct {
	*lane
	placed bool // guarded by lanes.mu
}

const (
	laneWidth  = 4   // places
	inPipeline = 100 // renewals in a pipeline
)

// renewAt has some renewed at node. It does not wait for that.
func (c *Client) renewAt(node *redis.Client, some []*hold) {
	now := c.clock().Mono
	c.lanes.mu.Lock()
	defer c.lanes.mu.Unlock()
	l := c.lanes.by[node]
	if l == nil {
		l = &lane{c: c, node: node}
		c.lanes.by[node] = l
	}
	for _, h := range some {
		l.due = append(l.due, turn{h, now})
	}
	l.serveLocked()
}

// serveLocked starts the pipelines that there is work and place for.
func (l *lane) serveLocked() {
	for work := len(l.due); work > 0 && l.young < laneWidth; work -= inPipeline {
		if l.c.begin() != nil {
			return // Close has told the holders
		}
		l.young++
		l.c.crew.do(&pipe{l, true})
	}
}

func (p *pipe) run() {
	defer p.c.work.Done()
	attempt := p.c.opt.watchdog / 6
	for some := p.next(); some != nil; some = p.next() {
		due := make([]renewal, 0, len(some))
		for _, t := range some {
			if n, ok := t.h.renewSince(t.since); ok {
				due = append(due, renewal{t.h, n})
			}
		}
		if len(due) == 0 {
			continue
		}
		ctx, cancel := context.WithTimeout(context.Background(), attempt)
		late := time.AfterFunc(attempt, p.giveWay)
		p.c.renewEach(ctx, due)
		late.Stop()
		cancel()
	}
}

// next takes the next holds out of the lane. When there are none, or no place, the
// pipe is over, and with the last one the lane.
func (p *pipe) next() []turn {
	ls := &p.c.lanes
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if !p.placed && p.young < laneWidth {
		p.placed = true
		p.young++
	}
	n := min(len(p.due), inPipeline)
	if n > 0 && p.placed && !p.c.isClosing() {
		some := p.due[:n:n]
		p.due = p.due[n:]
		return some
	}
	if p.placed {
		p.placed = false
		p.young--
	}
	if p.young == 0 && ls.by[p.node] == p.lane {
		delete(ls.by, p.node)
	}
	return nil
}

// giveWay gives the place to another pipe.
func (p *pipe) giveWay() {
	p.c.lanes.mu.Lock()
	defer p.c.lanes.mu.Unlock()
	if p.placed {
		p.placed = false
		p.young--
		p.serveLocked()
	}
}
