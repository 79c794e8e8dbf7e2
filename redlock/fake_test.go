package redlock

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/rlock"
)

// fakeServer is a server with one key, in the virtual time of a synctest bubble.
type fakeServer struct {
	mu     sync.Mutex
	holder string // of which client, and owner; empty: free
	depth  int
	until  time.Time // of the key

	// How it behaves.
	latency time.Duration // there and back, half of it each
	hangs   bool          // it answers nothing until it does not
	awake   chan struct{} // closed when it stops hanging
	fails   error         // its answer to an acquire or an Extend
	lies    bool          // it does what it says it failed to do
}

// watchdogTimeout is that of the fake clients.
const watchdogTimeout = 30 * time.Second

// fakeLock is a Locker on a fakeServer: what a careful client believes about it.
type fakeLock struct {
	s      *fakeServer
	client string
	deaf   bool // it does not listen to ctx while the server hangs

	mu    sync.Mutex
	holds map[rlock.Owner]*fakeHold
	calls map[string]int
	open  int    // calls that are under way
	most  int    // most calls that were at one time
	look  func() // called once by Validity
}

type fakeHold struct {
	depth int
	until time.Time
	lost  chan struct{}
	timer *time.Timer
	lease time.Duration
}

var errHung = errors.New("the server hangs")

func (l *fakeLock) Name() string { return "fake" }

func (l *fakeLock) Lock(ctx context.Context) error { return l.LockLease(ctx, 0) }

func (l *fakeLock) LockLease(context.Context, time.Duration) error {
	panic("bug: a RedLock never waits at a node")
}

// enter counts a call, and travels to the server.
func (l *fakeLock) enter(ctx context.Context, what string) error {
	l.mu.Lock()
	l.calls[what]++
	l.open++
	l.most = max(l.most, l.open)
	l.mu.Unlock()
	l.s.mu.Lock()
	latency, awake := l.s.latency/2, l.s.awake
	if !l.s.hangs {
		awake = nil
	}
	l.s.mu.Unlock()
	if awake != nil {
		done := ctx.Done()
		if l.deaf {
			done = nil
		}
		select {
		case <-awake:
		case <-done:
			return errors.Join(errHung, ctx.Err())
		}
	}
	time.Sleep(latency)
	return nil
}

func (l *fakeLock) leave() {
	l.s.mu.Lock()
	latency := l.s.latency / 2
	l.s.mu.Unlock()
	time.Sleep(latency)
	l.mu.Lock()
	l.open--
	l.mu.Unlock()
}

func (l *fakeLock) TryLock(ctx context.Context, wait, lease time.Duration) (bool, error) {
	if wait != 0 {
		panic("bug: a RedLock never waits at a node")
	}
	sent := time.Now()
	defer l.leave()
	if err := l.enter(ctx, "trylock"); err != nil {
		return false, err
	}
	o := rlock.OwnerOf(ctx)
	if err := l.s.failure(); err != nil {
		if l.s.lies {
			l.s.take(l.client+":"+string(o), lease)
		}
		return false, err
	}
	if !l.s.take(l.client+":"+string(o), lease) {
		return false, nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if h := l.holds[o]; h != nil && time.Now().Before(h.until) { // a nested one lengthens it
		h.depth++
		if lease == 0 || h.lease > 0 && lease > h.lease {
			h.lease = lease
		}
		h.prove(sent, h.lease)
		return true, nil
	}
	l.holds[o] = &fakeHold{depth: 1, lease: lease, lost: make(chan struct{})}
	l.holds[o].prove(sent, lease)
	return true, nil
}

func (h *fakeHold) prove(sent time.Time, lease time.Duration) {
	if lease == 0 {
		lease = watchdogTimeout
	}
	h.until = sent.Add(lease - max(lease/100, 2*time.Millisecond))
	if h.timer != nil {
		h.timer.Stop()
	}
	h.timer = time.AfterFunc(time.Until(h.until), func() { close(h.lost) })
}

func (l *fakeLock) Extend(ctx context.Context, lease time.Duration) error {
	sent := time.Now()
	defer l.leave()
	if err := l.enter(ctx, "extend"); err != nil {
		return err
	}
	if err := l.s.failure(); err != nil {
		return err
	}
	o := rlock.OwnerOf(ctx)
	if !l.s.keep(l.client+":"+string(o), lease) {
		return rlock.ErrLost
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	h := l.holds[o]
	if h == nil || !time.Now().Before(h.until) {
		return rlock.ErrLost
	}
	h.lease = lease
	h.prove(sent, lease)
	return nil
}

func (l *fakeLock) Unlock(ctx context.Context) error {
	defer l.leave()
	o := rlock.OwnerOf(ctx)
	l.mu.Lock()
	h := l.holds[o]
	if h != nil {
		if h.depth--; h.depth == 0 || !time.Now().Before(h.until) {
			h.timer.Stop()
			delete(l.holds, o)
		}
	}
	l.mu.Unlock()
	if err := l.enter(ctx, "unlock"); err != nil {
		return errors.Join(rlock.ErrUnsettled, err)
	}
	switch {
	case l.s.drop(l.client + ":" + string(o)):
		return nil
	case h == nil:
		return rlock.ErrNotHeld
	}
	return rlock.ErrLost
}

func (l *fakeLock) Validity(ctx context.Context) time.Duration {
	l.mu.Lock()
	look := l.look
	l.look = nil
	l.mu.Unlock()
	if look != nil {
		look()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if h := l.holds[rlock.OwnerOf(ctx)]; h != nil {
		return max(0, time.Until(h.until))
	}
	return 0
}

// onLook has the next Validity call f first.
func (l *fakeLock) onLook(f func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.look = f
}

func (l *fakeLock) Lost(ctx context.Context) <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	if h := l.holds[rlock.OwnerOf(ctx)]; h != nil {
		return h.lost
	}
	return closedChan
}

// renew is what a watchdog does.
func (l *fakeLock) renew(o rlock.Owner) {
	if !l.s.keep(l.client+":"+string(o), 0) {
		l.lose(o)
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if h := l.holds[o]; h != nil && h.lease == 0 {
		h.prove(time.Now(), 0)
	}
}

// lose tells the client that the node's hold is lost.
func (l *fakeLock) lose(o rlock.Owner) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if h := l.holds[o]; h != nil && h.timer.Stop() {
		h.until = time.Time{}
		close(h.lost)
	}
}

func (l *fakeLock) count(what string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.calls[what]
}

func (s *fakeServer) freeLocked() bool { return s.holder == "" || !time.Now().Before(s.until) }

func (s *fakeServer) take(who string, lease time.Duration) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.freeLocked() {
		s.holder, s.depth = who, 0
	}
	if s.holder != who {
		return false
	}
	before := s.until
	s.setLocked(lease)
	if s.depth++; s.depth > 1 && before.After(s.until) { // a nested one only lengthens it
		s.until = before
	}
	return true
}

func (s *fakeServer) keep(who string, lease time.Duration) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.freeLocked() || s.holder != who {
		return false
	}
	s.setLocked(lease)
	return true
}

func (s *fakeServer) setLocked(lease time.Duration) {
	if lease == 0 {
		lease = watchdogTimeout
	}
	s.until = time.Now().Add(lease)
}

func (s *fakeServer) drop(who string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.freeLocked() || s.holder != who {
		return false
	}
	if s.depth--; s.depth == 0 {
		s.holder = ""
	}
	return true
}

// has is how deep the owner of that client is inside; 0: not.
func (s *fakeServer) has(client string, o rlock.Owner) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.freeLocked() || s.holder != client+":"+string(o) {
		return 0
	}
	return s.depth
}

func (s *fakeServer) free() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.freeLocked()
}

func (s *fakeServer) hang() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hangs, s.awake = true, make(chan struct{})
}

func (s *fakeServer) wake() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hangs = false
	close(s.awake)
}

// empty is what a restart without data does.
func (s *fakeServer) empty() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.holder = ""
}

// fail is what the server answers from now on; nil: it works.
func (s *fakeServer) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fails = err
}

func (s *fakeServer) failure() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.fails
}

func (s *fakeServer) delay(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.latency = d
}

// servers are n servers of one bubble.
func servers(n int) (all []*fakeServer) {
	for range n {
		all = append(all, &fakeServer{latency: time.Millisecond})
	}
	return all
}

// fakes is a RedLock on servers, with the locks of one client for each.
type fakes struct {
	*RedLock
	servers []*fakeServer
	locks   []*fakeLock
}

func redlockOn(t require.TestingT, client string, servers []*fakeServer, opts ...Option) *fakes {
	f := &fakes{servers: servers}
	var locks []rlock.Locker
	for i, s := range servers {
		l := &fakeLock{s: s, client: fmt.Sprint(client, i), holds: map[rlock.Owner]*fakeHold{}, calls: map[string]int{}}
		f.locks = append(f.locks, l)
		locks = append(locks, l)
	}
	r, err := New(locks, opts...)
	require.NoError(t, err)
	f.RedLock = r
	return f
}

// another is one more RedLock over the same locks.
func (f *fakes) another(t require.TestingT, opts ...Option) *RedLock {
	var locks []rlock.Locker
	for _, l := range f.locks {
		locks = append(locks, l)
	}
	r, err := New(locks, opts...)
	require.NoError(t, err)
	return r
}

// held is how deep the owner is inside at each server.
func (f *fakes) held(o rlock.Owner) (depths []int) {
	for i, s := range f.servers {
		depths = append(depths, s.has(f.locks[i].client, o))
	}
	return depths
}

func (f *fakes) count(what string) (n int) {
	for _, l := range f.locks {
		n += l.count(what)
	}
	return n
}

// goroutines is how many are in a function, or were started by it.
func goroutines(function string) (n int) {
	buf := make([]byte, 1<<20)
	for _, g := range strings.Split(string(buf[:runtime.Stack(buf, true)]), "\n\n") {
		if strings.Contains(g, "redlock") && strings.Contains(g, function) {
			n++
		}
	}
	return n
}

// as is a ctx with an owner.
func as(t testing.TB, o rlock.Owner) context.Context { return rlock.WithOwner(t.Context(), o) }

// bubble runs f in virtual time. A goroutine that does not end within a minute after it
// is a failure: the bubble is deadlocked then.
func bubble(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		defer time.Sleep(time.Minute)
		f(t)
	})
}

func inBubble(f func(t *testing.T)) func(t *testing.T) {
	return func(t *testing.T) { bubble(t, f) }
}
