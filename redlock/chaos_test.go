package redlock

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/relock-go/relock/rlock"
)

// Three processes of two owners, with two goroutines each, lock, lock again, extend and
// unlock at random, while servers are slow and hang, sometimes a majority of them. No two
// owners are inside together, every Unlock has one of its outcomes, and in the end no
// server and no call is left over.
func TestChaos(t *testing.T) {
	for seed := range uint64(20) {
		t.Run(fmt.Sprint("seed ", seed), inBubble(func(t *testing.T) {
			c := &chaos{rnd: rand.New(rand.NewPCG(seed, 7)), servers: servers(3 + 2*int(seed%2)), stop: make(chan struct{})}
			c.run(t)
		}))
	}
}

type chaos struct {
	servers []*fakeServer
	actors  []actor
	stop    chan struct{}

	mu  sync.Mutex
	rnd *rand.Rand
}

// actor is an owner of one process.
type actor struct {
	*RedLock
	ctx context.Context
}

func (c *chaos) run(t *testing.T) {
	var world, work sync.WaitGroup
	for p := range 3 {
		f := redlockOn(t, fmt.Sprint("p", p), c.servers, WithRetryDelay(time.Millisecond, 20*time.Millisecond))
		for _, l := range f.locks {
			world.Go(func() { c.watchdog(l) })
		}
		for o := range 2 {
			c.actors = append(c.actors, actor{f.RedLock, as(t, rlock.Owner(fmt.Sprint("o", o)))})
		}
	}
	world.Go(c.weather)
	world.Go(func() {
		for c.wait(3 * time.Millisecond) {
			c.check(t)
		}
	})
	for _, a := range c.actors {
		for range 2 {
			work.Go(func() { c.work(t, a) })
		}
	}
	work.Wait()
	close(c.stop)
	world.Wait()
	time.Sleep(10 * time.Second) // what is given back behind the Unlocks
	for i, s := range c.servers {
		assert.True(t, s.free(), "server %d has %s", i, s.holder)
	}
	for _, a := range c.actors {
		a.mu.Lock()
		for _, m := range a.members {
			assert.Empty(t, m.turns)
		}
		a.mu.Unlock()
	}
}

// n is at random, below most.
func (c *chaos) n(most int) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.rnd.IntN(most)
}

func (c *chaos) ms(most int) time.Duration { return time.Duration(c.n(most)) * time.Millisecond }

// wait reports false when it is all over.
func (c *chaos) wait(d time.Duration) bool {
	select {
	case <-c.stop:
		return false
	case <-time.After(d):
		return true
	}
}

// watchdog is that of one client.
func (c *chaos) watchdog(l *fakeLock) {
	for c.wait(watchdogTimeout / 3) {
		l.mu.Lock()
		var kept []rlock.Owner
		for o, h := range l.holds {
			if h.lease == 0 {
				kept = append(kept, o)
			}
		}
		l.mu.Unlock()
		for _, o := range kept {
			l.renew(o)
		}
	}
}

// weather has some servers hang for a while, and changes how fast they are.
func (c *chaos) weather() {
	for on := true; on; {
		hung := map[*fakeServer]bool{}
		for range c.n(len(c.servers)/2 + 2) {
			if s := c.servers[c.n(len(c.servers))]; !hung[s] {
				hung[s] = true
				s.hang()
			}
		}
		for _, s := range c.servers {
			s.delay(c.ms(60))
		}
		on = c.wait(c.ms(400))
		for s := range hung {
			s.wake()
		}
		on = on && c.wait(c.ms(400))
	}
}

func (c *chaos) check(t *testing.T) {
	inside := 0
	for _, a := range c.actors {
		if a.Validity(a.ctx) > 0 {
			inside++
		}
	}
	assert.LessOrEqual(t, inside, 1)
}

func (c *chaos) work(t *testing.T, a actor) {
	short := func(most int, f func(ctx context.Context)) {
		ctx, cancel := context.WithTimeout(a.ctx, time.Millisecond+c.ms(most))
		defer cancel()
		f(ctx)
	}
	for range 15 {
		got := false
		short(1000, func(ctx context.Context) {
			lease := time.Duration(c.n(2)) * (100*time.Millisecond + c.ms(900))
			var err error
			got, err = a.TryLock(ctx, c.ms(600)-100*time.Millisecond, lease)
			assert.False(t, got && err != nil)
		})
		if !got {
			time.Sleep(c.ms(30))
			continue
		}
		c.check(t)
		time.Sleep(c.ms(60))
		switch c.n(4) {
		case 0:
			short(100, func(ctx context.Context) { _ = a.Extend(ctx, 100*time.Millisecond+c.ms(1000)) })
		case 1:
			_ = a.Extend(a.ctx, 0)
		case 2:
			if got, _ := a.TryLock(a.ctx, 0, time.Duration(c.n(2))*time.Second); got {
				time.Sleep(c.ms(60))
				c.unlock(t, a)
			}
		}
		time.Sleep(c.ms(60))
		c.unlock(t, a)
	}
}

func (c *chaos) unlock(t *testing.T, a actor) {
	err := a.Unlock(a.ctx)
	outcomes := 0
	for _, what := range []error{rlock.ErrLost, rlock.ErrUnsettled, rlock.ErrNotHeld} {
		if errors.Is(err, what) {
			outcomes++
		}
	}
	if err != nil {
		assert.Equal(t, 1, outcomes, err)
	}
}
