package main

import (
	"context"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/relock-go/relock/rlock"
)

// process stands for a program of its own: it has its own connections, its own
// lock client, and one goroutine that does all its work. The goroutine matters:
// it is the owner of the locks that it takes.
type process struct {
	name  string
	wire  *wire
	rdb   *redis.Client
	locks *rlock.Client
	lock  *rlock.Lock
	tasks chan func()

	// What the lock client tells through its Trace.
	waiting, acquired, renewed, renewFailed, lost chan event
}

// event is one call of a Trace.
type event struct {
	at   time.Time
	left time.Duration // for which the hold is proven
	err  error
}

func newProcess(name string, s *server, key string) (*process, error) {
	options := s.options
	p := &process{
		name:        name,
		wire:        &wire{dial: redis.NewDialer(&s.options)},
		tasks:       make(chan func()),
		waiting:     make(chan event, 64),
		acquired:    make(chan event, 64),
		renewed:     make(chan event, 64),
		renewFailed: make(chan event, 64),
		lost:        make(chan event, 64),
	}
	options.Dialer = p.wire.open
	p.rdb = redis.NewClient(&options)

	var err error
	p.locks, err = rlock.New(p.rdb, rlock.WithWatchdogTimeout(watchdogTimeout), rlock.WithTrace(&rlock.Trace{
		Waiting: func(string, rlock.Owner) { note(p.waiting, event{}) },
		Acquired: func(string, rlock.Owner, time.Duration) {
			note(p.acquired, event{})
		},
		Renewed: func(_ string, _ rlock.Owner, left time.Duration) {
			note(p.renewed, event{left: left})
		},
		RenewFailed: func(_ string, _ rlock.Owner, left time.Duration, err error) {
			note(p.renewFailed, event{left: left, err: err})
		},
		Lost: func(_ string, _ rlock.Owner, _ time.Duration, cause error) {
			note(p.lost, event{err: cause})
		},
	}))
	if err != nil {
		p.rdb.Close()
		return nil, err
	}
	p.lock = p.locks.NewLock(key)
	go func() {
		for task := range p.tasks {
			task()
		}
	}()
	return p, nil
}

// note never waits: a Trace has to be quick.
func note(to chan<- event, e event) {
	e.at = time.Now()
	select {
	case to <- e:
	default:
	}
}

// next waits for an event.
func next(ctx context.Context, from <-chan event, what string) (event, error) {
	select {
	case e := <-from:
		return e, nil
	case <-time.After(5 * time.Second):
		return event{}, fmt.Errorf("%s: nothing for 5 s", what)
	case <-ctx.Done():
		return event{}, ctx.Err()
	}
}

// start has the process work on task.
func (p *process) start(task func() error) <-chan error {
	done := make(chan error, 1)
	p.tasks <- func() { done <- task() }
	return done
}

// run has the process do task, and waits for it.
func (p *process) run(task func() error) error { return <-p.start(task) }

// close ends the process in good order.
func (p *process) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	err := p.locks.Close(ctx)
	p.rdb.Close()
	close(p.tasks)
	return err
}
