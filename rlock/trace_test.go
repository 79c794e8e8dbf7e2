package rlock

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/redistest"
)

// story is a Trace that writes down what it is told.
type story struct {
	mu    sync.Mutex
	lines []string
}

func (s *story) tell(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lines = append(s.lines, fmt.Sprintf(format, args...))
}

// has waits for a line.
func (s *story) has(t *testing.T, format string, args ...any) {
	t.Helper()
	want := fmt.Sprintf(format, args...)
	eventually(t, func() bool { return s.count(want) > 0 }, "%q in %q", want, s.all())
}

func (s *story) count(line string) (n int) {
	for _, l := range s.all() {
		if l == line {
			n++
		}
	}
	return n
}

func (s *story) all() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string(nil), s.lines...)
}

func (s *story) trace(t *testing.T) *Trace {
	plausible := func(d time.Duration) {
		if d < 0 || d > time.Minute {
			t.Errorf("a duration of %v", d)
		}
	}
	return &Trace{
		Waiting:  func(_ string, o Owner) { s.tell("waiting %s", o) },
		Acquired: func(_ string, o Owner, d time.Duration) { plausible(d); s.tell("acquired %s", o) },
		Failed: func(_ string, o Owner, d time.Duration, err error) {
			plausible(d)
			s.tell("failed %s %t", o, err != nil)
		},
		HandedOff: func(_ string, from, to Owner) { s.tell("handed %s to %s", from, to) },
		Released:  func(_ string, o Owner, d time.Duration) { plausible(d); s.tell("released %s", o) },
		Renewed:   func(_ string, o Owner, d time.Duration) { plausible(d); s.tell("renewed %s", o) },
		RenewFailed: func(_ string, o Owner, d time.Duration, err error) {
			plausible(d)
			s.tell("renew failed %s %t", o, err != nil)
		},
		Lost: func(_ string, o Owner, d time.Duration, cause error) {
			plausible(d)
			s.tell("lost %s %t", o, isErr(cause))
		},
	}
}

func isErr(err error) bool { return err != nil }

func TestTrace_TellsTheStory(t *testing.T) {
	t.Parallel()
	var s story
	c := onShared(t, WithTrace(s.trace(t)), WithHandoffLimit(64, time.Hour), WithWatchdogTimeout(2*time.Second))
	l := c.NewLock(unique("trace"))
	a, b := WithOwner(t.Context(), "a"), WithOwner(t.Context(), "b")
	require.NoError(t, l.Lock(a))
	require.NoError(t, l.Lock(a))
	got := async(func() error { return l.Lock(b) })
	s.has(t, "waiting b")
	taken, err := settled(t, func() (bool, error) { return l.TryLock(WithOwner(t.Context(), "c"), 20*time.Millisecond, 0) })
	require.NoError(t, err)
	require.False(t, taken)
	s.has(t, "failed c false")
	ctx, cancel := context.WithTimeout(WithOwner(t.Context(), "d"), 20*time.Millisecond)
	defer cancel()
	require.Error(t, l.Lock(ctx))
	s.has(t, "failed d true")
	s.has(t, "renewed a")
	require.NoError(t, l.Unlock(a))
	require.NoError(t, l.Unlock(a))
	require.NoError(t, recv(t, got, "the lock"))
	s.has(t, "acquired b")
	s.has(t, "released a")
	s.has(t, "handed a to b")
	remove(t, l.Key())
	s.has(t, "lost b true")
	require.ErrorIs(t, l.Unlock(b), ErrLost)

	require.Equal(t, 1, s.count("acquired a"), "a re-entry is not told")
	require.Equal(t, 1, s.count("released a"), "an inner Unlock is not told")
	require.Equal(t, 1, s.count("waiting b"))
	require.Zero(t, s.count("released b"), "what is lost is not released")
}

func TestTrace_RenewFailed(t *testing.T) {
	t.Parallel()
	var s story
	c, p := onProxy(t, WithTrace(s.trace(t)), WithWatchdogTimeout(3*time.Second))
	l := c.NewLock(unique("trace"))
	a := WithOwner(t.Context(), "a")
	require.NoError(t, l.Lock(a))
	p.On(redistest.ArgContains(l.Key()), redistest.Reply("-BUSY script\r\n"))
	s.has(t, "renew failed a true")
	s.has(t, "renewed a")
	require.NotZero(t, l.Validity(a), "BUSY is no loss")
	require.EqualValues(t, 1, c.Stats().RenewFailures)
	require.NoError(t, l.Unlock(a))
}

// TestTrace_APanicIsRecoveredAndLogged: every callback panics, and the locks
// neither notice nor stop.
func TestTrace_APanicIsRecoveredAndLogged(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var log bytes.Buffer
	h := slog.NewTextHandler(writer(func(b []byte) (int, error) { mu.Lock(); defer mu.Unlock(); return log.Write(b) }), nil)
	logged := func(what string) bool {
		mu.Lock()
		defer mu.Unlock()
		return bytes.Contains(log.Bytes(), []byte(what))
	}
	c, p := onProxy(t, WithLogger(slog.New(h)), WithWatchdogTimeout(2*time.Second), WithHandoffLimit(64, time.Hour), WithTrace(&Trace{
		Waiting:     func(string, Owner) { panic("in Waiting") },
		Acquired:    func(string, Owner, time.Duration) { panic("in Acquired") },
		Failed:      func(string, Owner, time.Duration, error) { panic("in Failed") },
		HandedOff:   func(string, Owner, Owner) { panic("in HandedOff") },
		Released:    func(string, Owner, time.Duration) { panic("in Released") },
		Renewed:     func(string, Owner, time.Duration) { panic("in Renewed") },
		RenewFailed: func(string, Owner, time.Duration, error) { panic("in RenewFailed") },
		Lost:        func(string, Owner, time.Duration, error) { panic("in Lost") },
	}))
	l := c.NewLock(unique("panic"))
	a, b := WithOwner(t.Context(), "a"), WithOwner(t.Context(), "b")
	require.NoError(t, l.Lock(a))
	got, err := l.TryLock(b, 0, 0)
	require.NoError(t, err)
	require.False(t, got)
	waiter := async(func() error { return l.Lock(b) })
	waitForWaiters(t, c, 1)
	eventually(t, func() bool { return logged("in Renewed") }, "Renewed")
	p.On(redistest.And(redistest.ArgContains(l.Key()), redistest.HasArg("2000")), redistest.Reply("-BUSY script\r\n"))
	eventually(t, func() bool { return logged("in RenewFailed") }, "RenewFailed")
	eventually(t, func() bool { return c.Stats().Renewals >= 3 }, "REN-10: renewals go on")
	require.NoError(t, l.Unlock(a))
	require.NoError(t, recv(t, waiter, "the lock"))
	lost := l.Lost(b)
	remove(t, l.Key())
	recv(t, lost, "the loss")
	require.ErrorIs(t, l.Unlock(b), ErrLost)
	for _, name := range []string{"Waiting", "Acquired", "Failed", "HandedOff", "Released", "Renewed", "RenewFailed", "Lost"} {
		eventually(t, func() bool { return logged("in " + name) }, "%s", name)
	}
	require.NoError(t, l.Lock(b))
	require.NoError(t, l.Unlock(b))
	free(t, l.Key())
}

// TestTrace_CallbacksMayUseTheLock: none is called with a mutex held.
func TestTrace_CallbacksMayUseTheLock(t *testing.T) {
	t.Parallel()
	var l *Lock
	var c *Client
	use := func(o Owner) {
		ctx := WithOwner(context.Background(), o)
		_ = l.Validity(ctx)
		_ = l.Lost(ctx)
		_ = c.Stats()
	}
	c = onShared(t, WithHandoffLimit(64, time.Hour), WithWatchdogTimeout(2*time.Second), WithTrace(&Trace{
		Waiting:   func(_ string, o Owner) { use(o) },
		Acquired:  func(_ string, o Owner, _ time.Duration) { use(o) },
		Failed:    func(_ string, o Owner, _ time.Duration, _ error) { use(o) },
		HandedOff: func(_ string, o, _ Owner) { use(o) },
		Released:  func(_ string, o Owner, _ time.Duration) { use(o) },
		Renewed:   func(_ string, o Owner, _ time.Duration) { use(o) },
		Lost:      func(_ string, o Owner, _ time.Duration, _ error) { use(o) },
	}))
	l = c.NewLock(unique("use"))
	a, b := WithOwner(t.Context(), "a"), WithOwner(t.Context(), "b")
	require.NoError(t, l.Lock(a))
	waiter := async(func() error { return l.Lock(b) })
	waitForWaiters(t, c, 1)
	eventually(t, func() bool { return c.Stats().Renewals > 0 }, "a renewal")
	require.NoError(t, l.Unlock(a))
	require.NoError(t, recv(t, waiter, "the lock"))
	remove(t, l.Key())
	require.ErrorIs(t, l.Unlock(b), ErrLost)
}

func TestStats(t *testing.T) {
	t.Parallel()
	c := onShared(t, WithHandoffLimit(64, time.Hour))
	require.Equal(t, Stats{}, c.Stats())
	l := c.NewLock(unique("stats"))
	a, b := WithOwner(t.Context(), "a"), WithOwner(t.Context(), "b")
	is := func(want Stats) {
		t.Helper()
		got := c.Stats()
		got.Scripts, got.Attempts = 0, 0
		require.Equal(t, want, got)
	}
	require.NoError(t, l.Lock(a))
	is(Stats{Held: 1, Acquired: 1})
	require.NoError(t, l.Lock(a))
	is(Stats{Held: 1, Acquired: 1})
	waiter := async(func() error { return l.Lock(b) })
	waitForWaiters(t, c, 1)
	is(Stats{Held: 1, Waiting: 1, Acquired: 1, Contended: 1})
	require.NoError(t, l.Unlock(a))
	is(Stats{Held: 1, Waiting: 1, Acquired: 1, Contended: 1})
	require.NoError(t, l.Unlock(a))
	require.NoError(t, recv(t, waiter, "the lock"))
	is(Stats{Held: 1, Acquired: 2, Contended: 1, Released: 1, HandedOff: 1})
	got, err := l.TryLock(a, 0, 0)
	require.NoError(t, err)
	require.False(t, got)
	is(Stats{Held: 1, Acquired: 2, Contended: 2, Released: 1, HandedOff: 1, Failed: 1})
	remove(t, l.Key())
	require.ErrorIs(t, l.Unlock(b), ErrLost)
	s := c.Stats()
	require.Zero(t, s.Held)
	require.EqualValues(t, 1, s.Released, "what is lost is not released")
	require.NotZero(t, s.Attempts)
	require.NotZero(t, s.Scripts)
}

// TestStats_ALossIsCounted whoever finds it.
func TestStats_ALossIsCounted(t *testing.T) {
	t.Parallel()
	c := onShared(t, WithWatchdogTimeout(1200*time.Millisecond))
	l := c.NewLock(unique("stats"))
	ctx := WithOwner(t.Context(), "a")
	require.NoError(t, l.Lock(ctx))
	remove(t, l.Key())
	recv(t, l.Lost(ctx), "the loss")
	eventually(t, func() bool { return c.Stats().Lost == 1 && c.Stats().Held == 0 }, "counted")
	require.ErrorIs(t, l.Unlock(ctx), ErrLost)
	require.EqualValues(t, 1, c.Stats().Lost)
	require.NoError(t, l.LockLease(ctx, 20*time.Millisecond))
	recv(t, l.Lost(ctx), "the end of the lease")
	eventually(t, func() bool { return c.Stats().Lost == 2 }, "leases that ran out included")
}
