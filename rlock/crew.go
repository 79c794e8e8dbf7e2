package rlock

import "sync"

// job is work that outlives, or may outlive, the call that began it.
type job interface{ run() }

// crew runs jobs, each in a goroutine of its own, and keeps a few goroutines for
// the next ones: a fresh one has to grow its stack through go-redis again, which
// costs more than the work.
type crew struct {
	// mu guards the fields below. It is held for moments only.
	mu     sync.Mutex
	idle   []chan job // goroutines without work, the latest last
	closed bool       // none is kept any more
	all    sync.WaitGroup
}

// mostIdle bounds the goroutines that are kept. They wait on a channel and cost
// a stack each.
const mostIdle = 8

// do runs j soon.
func (c *crew) do(j job) {
	c.mu.Lock()
	if n := len(c.idle); n > 0 {
		hand := c.idle[n-1]
		c.idle = c.idle[:n-1]
		c.mu.Unlock()
		hand <- j
		return
	}
	c.all.Add(1)
	c.mu.Unlock()
	hand := make(chan job, 1)
	hand <- j
	go c.work(hand)
}

func (c *crew) work(hand chan job) {
	defer c.all.Done()
	for j := range hand {
		j.run()
		c.mu.Lock()
		keep := !c.closed && len(c.idle) < mostIdle
		if keep {
			c.idle = append(c.idle, hand)
		}
		c.mu.Unlock()
		if !keep {
			return
		}
	}
}

// close lets every goroutine end with the job that it has. Jobs may still be
// given; wait awaits them all.
func (c *crew) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	for _, hand := range c.idle {
		close(hand)
	}
	c.idle = nil
}

// wait waits until no goroutine is left. No job may be given any more.
func (c *crew) wait() { c.all.Wait() }
