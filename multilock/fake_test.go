package multilock

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/rlock"
)

// trip is how long a fake takes to answer.
const trip = time.Millisecond

// forever is the Validity of what a fake's watchdog keeps.
const forever = 30 * time.Second

// fake is a lock on a server of its own, in memory, that behaves as rlock's. In a
// synctest bubble its time is the bubble's.
type fake struct {
	name string
	log  *journal

	// Before an operation is done, and after it. They may sleep and panic; what hook
	// says instead of the server is done to nothing.
	hook  func(ctx context.Context, op string) error
	after func(op string)

	mu    sync.Mutex // guards what follows
	hold  *fakeHold  // nil: free
	lost  map[rlock.Owner]*fakeHold
	moved chan struct{} // closed when it may be free
	over  bool          // it has no time left, and does not know
}

type fakeHold struct {
	owner rlock.Owner
	depth int
	lease time.Duration
	until time.Time
	timer *time.Timer
	gone  chan struct{}
}

// journal is what the fakes of a test were asked, in order.
type journal struct {
	mu    sync.Mutex
	lines []string
}

func (j *journal) add(format string, args ...any) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.lines = append(j.lines, fmt.Sprintf(format, args...))
}

// take returns the lines, and forgets them.
func (j *journal) take() []string {
	j.mu.Lock()
	defer j.mu.Unlock()
	lines := j.lines
	j.lines = nil
	return lines
}

// fakes returns locks of these names that share a journal.
func fakes(names ...string) ([]*fake, *journal) {
	log := &journal{}
	all := make([]*fake, len(names))
	for i, n := range names {
		all[i] = &fake{name: n, log: log, lost: map[rlock.Owner]*fakeHold{}, moved: make(chan struct{})}
	}
	return all, log
}

func group(t testing.TB, locks ...*fake) *MultiLock {
	t.Helper()
	members := make([]rlock.Locker, len(locks))
	for i, l := range locks {
		members[i] = l
	}
	g, err := New(members...)
	require.NoError(t, err)
	return g
}

// begin is the way to the server.
func (f *fake) begin(ctx context.Context, op string) error {
	f.log.add("%s %s", op, f.name)
	if f.hook != nil {
		if err := f.hook(ctx, op); err != nil {
			return err
		}
	}
	return sleep(ctx, trip)
}

func (f *fake) end(op string) {
	if f.after != nil {
		f.after(op)
	}
}

func sleep(ctx context.Context, d time.Duration) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", rlock.ErrUnsettled, ctx.Err())
	}
}

func (f *fake) Name() string                   { return f.name }
func (f *fake) Lock(ctx context.Context) error { return f.LockLease(ctx, 0) }

func (f *fake) LockLease(ctx context.Context, lease time.Duration) error {
	_, err := f.TryLock(ctx, -1, lease)
	return err
}

func (f *fake) TryLock(ctx context.Context, wait, lease time.Duration) (bool, error) {
	bounded, cancel := ctx, func() {}
	if wait > 0 {
		bounded, cancel = context.WithTimeout(ctx, wait)
	}
	defer cancel()
	if err := f.begin(bounded, "lock"); err != nil {
		if bounded.Err() != nil && ctx.Err() == nil {
			err = rlock.ErrUnsettled
		}
		return false, err
	}
	defer f.end("lock")
	o := rlock.OwnerOf(ctx)
	var over <-chan time.Time
	if wait > 0 {
		over = time.After(wait - trip)
	}
	for {
		got, moved, err := f.enter(o, lease)
		if got || err != nil || wait == 0 {
			return got, err
		}
		select {
		case <-moved:
		case <-over:
			return false, nil
		case <-ctx.Done():
			return false, ctx.Err()
		}
	}
}

func (f *fake) enter(o rlock.Owner, lease time.Duration) (got bool, moved <-chan struct{}, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if old := f.lost[o]; old != nil {
		if old.lease == 0 || time.Now().Before(old.until) {
			return false, nil, rlock.ErrLost
		}
		delete(f.lost, o)
	}
	switch h := f.hold; {
	case h == nil:
		f.hold = &fakeHold{owner: o, depth: 1, gone: make(chan struct{})}
		f.last(lease)
	case h.owner != o:
		return false, f.moved, nil
	default:
		h.depth++
		if h.lease > 0 && (lease == 0 || time.Now().Add(lease).After(h.until)) {
			f.last(lease)
		}
	}
	return true, nil, nil
}

// last gives the hold a lease from now on. mu is held.
func (f *fake) last(lease time.Duration) {
	h := f.hold
	if h.timer != nil {
		h.timer.Stop()
		h.timer = nil
	}
	h.lease = lease
	if lease > 0 {
		h.until = time.Now().Add(lease)
		h.timer = time.AfterFunc(lease, func() { f.expire(h) })
	}
}

// expire ends h when its lease is over.
func (f *fake) expire(h *fakeHold) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.hold == h && !time.Now().Before(h.until) {
		f.drop()
	}
}

// drop makes the hold a lost one. mu is held.
func (f *fake) drop() {
	h := f.hold
	if h.timer != nil {
		h.timer.Stop()
	}
	close(h.gone)
	f.lost[h.owner] = h
	f.free()
}

// free is the end of the hold. mu is held.
func (f *fake) free() {
	f.hold = nil
	close(f.moved)
	f.moved = make(chan struct{})
}

// remove is what an operator does.
func (f *fake) remove() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.drop()
}

func (f *fake) Unlock(ctx context.Context) error {
	if err := f.begin(ctx, "unlock"); err != nil {
		return err
	}
	defer f.end("unlock")
	f.mu.Lock()
	defer f.mu.Unlock()
	o := rlock.OwnerOf(ctx)
	if old := f.lost[o]; old != nil && (f.hold == nil || f.hold.owner != o) {
		if old.depth--; old.depth == 0 {
			delete(f.lost, o)
		}
		return rlock.ErrLost
	}
	h := f.hold
	if h == nil || h.owner != o {
		return rlock.ErrNotHeld
	}
	if h.depth--; h.depth == 0 {
		if h.timer != nil {
			h.timer.Stop()
		}
		f.free()
	}
	return nil
}

func (f *fake) Extend(ctx context.Context, lease time.Duration) error {
	if err := f.begin(ctx, "extend"); err != nil {
		return err
	}
	defer f.end("extend")
	f.mu.Lock()
	defer f.mu.Unlock()
	o := rlock.OwnerOf(ctx)
	switch {
	case f.hold != nil && f.hold.owner == o:
		f.last(lease)
		return nil
	case f.lost[o] != nil:
		return rlock.ErrLost
	}
	return rlock.ErrNotHeld
}

func (f *fake) Validity(ctx context.Context) time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch h := f.hold; {
	case h == nil || f.over || h.owner != rlock.OwnerOf(ctx):
		return 0
	case h.lease == 0:
		return forever
	default:
		return max(0, time.Until(h.until))
	}
}

func (f *fake) Lost(ctx context.Context) <-chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.hold == nil || f.hold.owner != rlock.OwnerOf(ctx) {
		return closed
	}
	return f.hold.gone
}

// depth is how deep the holder is inside; 0: it is free.
func (f *fake) depth() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.hold == nil {
		return 0
	}
	return f.hold.depth
}

// lease is what the holder has; below 0: it is free.
func (f *fake) lease() time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.hold == nil {
		return -1
	}
	return f.hold.lease
}

// as is a ctx of that owner.
func as(t testing.TB, o rlock.Owner) context.Context { return rlock.WithOwner(t.Context(), o) }

const (
	alice = rlock.Owner("alice")
	bob   = rlock.Owner("bob")
)

func depths(locks []*fake) (all []int) {
	for _, l := range locks {
		all = append(all, l.depth())
	}
	return all
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
