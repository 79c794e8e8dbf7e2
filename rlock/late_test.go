package rlock

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/redistest"
	"github.com/relock-go/relock/internal/script"
)

// sends matches the calls of s that are about l.
func sends(s *script.Script, l *Lock) redistest.Match {
	return redistest.And(redistest.Command("evalsha"), redistest.HasArg(s.SHA), redistest.HasArg(l.Key()))
}

// TestACQ15_ALateCopyFindsNothingToDo: the first copy of a request gets stuck, the
// second is answered, and the first arrives when the same owner, another one, or
// nobody is inside.
func TestACQ15_ALateCopyFindsNothingToDo(t *testing.T) {
	t.Parallel()
	for request, tc := range map[string]struct {
		script *script.Script
		before int // Locks before the call
		call   func(context.Context, *Lock) error
		after  int // depth after it
	}{
		"acquire":      {script.Acquire, 0, func(ctx context.Context, l *Lock) error { return l.Lock(ctx) }, 1},
		"re-entry":     {script.Keep, 1, func(ctx context.Context, l *Lock) error { return l.Lock(ctx) }, 2},
		"extend":       {script.Keep, 1, func(ctx context.Context, l *Lock) error { return l.Extend(ctx, 10*time.Second) }, 1},
		"inner unlock": {script.Keep, 2, func(ctx context.Context, l *Lock) error { return l.Unlock(ctx) }, 1},
		"last unlock":  {script.Release, 1, func(ctx context.Context, l *Lock) error { return l.Unlock(ctx) }, 0},
	} {
		for _, inside := range []string{"same", "other", "nobody"} {
			t.Run(request+"/"+inside, func(t *testing.T) {
				t.Parallel()
				c, p := onProxy(t)
				l := c.NewLock(unique("late"))
				ctx := WithOwner(t.Context(), NewOwner())
				for range tc.before {
					require.NoError(t, l.Lock(ctx))
				}
				late := p.On(sends(tc.script, l), redistest.HoldRequest)
				require.NoError(t, tc.call(ctx, l), "the second copy is answered")
				require.Equal(t, 1, late.Count())
				for range tc.after {
					require.NoError(t, l.Unlock(ctx))
				}

				now := ctx
				switch inside {
				case "other":
					now = WithOwner(t.Context(), NewOwner())
					fallthrough
				case "same":
					require.NoError(t, l.LockLease(now, time.Minute))
					require.NoError(t, l.Lock(now))
				}
				before := fields(t, l.Key())
				late.Release()
				late.WaitExecuted(t, 1)
				if inside == "nobody" {
					eventually(t, func() bool { return !exists(t, l.Key()) }, "what it made is swept")
					return
				}
				require.Equal(t, before, fields(t, l.Key()))
				between(t, 50*time.Second, time.Minute, pttl(t, l.Key()), "the TTL is not undercut")
				require.NotZero(t, l.Validity(now))
				held, err := l.IsHeld(now)
				require.NoError(t, err)
				require.True(t, held)
				require.NoError(t, l.Unlock(now))
				require.NoError(t, l.Unlock(now))
				eventually(t, func() bool { return !exists(t, l.Key()) }, "free")
			})
		}
	}
}

// TestACQ15_ALateHandover arrives when somebody else is inside.
func TestACQ15_ALateHandover(t *testing.T) {
	t.Parallel()
	c, p := onProxy(t, WithHandoffLimit(64, time.Hour))
	l := c.NewLock(unique("late"))
	a, b := WithOwner(t.Context(), "a"), WithOwner(t.Context(), "b")
	require.NoError(t, l.Lock(a))
	got := async(func() error { return l.Lock(b) })
	waitForWaiters(t, c, 1)
	late := p.On(sends(script.Pass, l), redistest.HoldRequest)
	require.NoError(t, l.Unlock(a))
	require.NoError(t, recv(t, got, "the lock"))
	require.Equal(t, 1, late.Count())
	require.NoError(t, l.Unlock(b))
	require.NoError(t, l.Lock(a))
	before := fields(t, l.Key())
	late.Release()
	late.WaitExecuted(t, 1)
	require.Equal(t, before, fields(t, l.Key()))
	require.NoError(t, l.Unlock(a))
	eventually(t, func() bool { return !exists(t, l.Key()) }, "free")
}

// TestACQ15_AnAPIThatStillSaysTheOwner though the field carries a number.
func TestACQ15_TheAPIStillSaysTheOwner(t *testing.T) {
	t.Parallel()
	c, p := onProxy(t)
	l := c.NewLock(unique("number"))
	ctx := WithOwner(t.Context(), "worker")
	require.NoError(t, l.Lock(ctx))
	p.On(sends(script.Release, l), redistest.LoseReplyAndClose)
	require.NoError(t, l.Unlock(ctx))
	require.NoError(t, l.Lock(ctx))
	require.NotContains(t, fields(t, l.Key()), c.ID()+":worker", "that field is burned")
	a := questions(t, ctx, l, "worker")
	require.True(t, a.held && a.heldBy)
	require.Equal(t, 1, a.count)
	require.Equal(t, []Holder{{Client: c.ID(), Owner: "worker", Depth: 1}}, a.info.Holders)
	err := l.Unlock(WithOwner(t.Context(), "stranger"))
	require.ErrorContains(t, err, "owner worker of this client")
	require.NoError(t, l.Unlock(ctx))
}

// TestREN15_AnOvertakenRenewal: its answer comes after an Extend, after Unlock
// and Lock, after a hand-over. It sets no deadline and tells no loss.
func TestREN15_AnOvertakenRenewal(t *testing.T) {
	t.Parallel()
	const timeout = 3 * time.Second
	a, b := WithOwner(context.Background(), "a"), WithOwner(context.Background(), "b")
	for name, tc := range map[string]struct {
		action   redistest.Action // what happens to the renewal
		overtake func(*testing.T, *Client, *Lock)
		inside   context.Context
		lease    time.Duration
	}{
		"Extend shorter": {redistest.HoldReply, func(t *testing.T, _ *Client, l *Lock) {
			require.NoError(t, l.Extend(a, 2500*time.Millisecond))
		}, a, 2500 * time.Millisecond},
		"Extend longer": {redistest.HoldReply, func(t *testing.T, _ *Client, l *Lock) {
			require.NoError(t, l.Extend(a, time.Minute))
		}, a, time.Minute},
		"Unlock and Lock": {redistest.HoldReply, func(t *testing.T, _ *Client, l *Lock) {
			require.NoError(t, l.Unlock(a))
			require.NoError(t, l.Lock(a))
		}, a, timeout},
		"Unlock and Lock, request held": {redistest.HoldRequest, func(t *testing.T, _ *Client, l *Lock) {
			require.NoError(t, l.Unlock(a))
			require.NoError(t, l.Lock(a))
		}, a, timeout},
		"hand-over, request held": {redistest.HoldRequest, func(t *testing.T, c *Client, l *Lock) {
			got := async(func() error { return l.Lock(b) })
			waitForWaiters(t, c, 1)
			require.NoError(t, l.Unlock(a))
			require.NoError(t, recv(t, got, "the lock"))
		}, b, timeout},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, p := onProxy(t, WithWatchdogTimeout(timeout), WithHandoffLimit(64, time.Hour))
			l := c.NewLock(unique("overtaken"))
			require.NoError(t, l.Lock(a))
			rule := p.On(sends(script.Renew, l), tc.action)
			rule.Wait(t)
			tc.overtake(t, c, l)
			lost := l.Lost(tc.inside)
			before := l.Validity(tc.inside)
			rule.Release()
			rule.WaitExecuted(t, 1)
			for range 20 { // while its answer is dealt with
				require.LessOrEqual(t, l.Validity(tc.inside), max(before, timeout), name)
				require.False(t, isClosed(lost), "no false loss")
				time.Sleep(5 * time.Millisecond)
			}
			left := l.Validity(tc.inside)
			between(t, 0, tc.lease, left, name)
			require.LessOrEqual(t, l.Validity(tc.inside), pttl(t, l.Key())+50*time.Millisecond)
			require.Zero(t, c.Stats().Lost)
			require.NoError(t, l.Unlock(tc.inside))
			eventually(t, func() bool { return !exists(t, l.Key()) }, "free")
		})
	}
}

// TestREN5_ALateSuccessRevivesNothing: the renewal runs, and its answer comes
// after the deadline.
func TestREN5_ALateSuccessRevivesNothing(t *testing.T) {
	t.Parallel()
	c, p := onProxy(t, WithWatchdogTimeout(900*time.Millisecond))
	l := c.NewLock(unique("revive"))
	ctx := WithOwner(t.Context(), NewOwner())
	require.NoError(t, l.Lock(ctx))
	lost := l.Lost(ctx)
	rule := p.On(sends(script.Renew, l), redistest.HoldReply).Times(0)
	recv(t, lost, "the loss")
	rule.Off()
	for range 20 {
		require.Zero(t, l.Validity(ctx))
		time.Sleep(5 * time.Millisecond)
	}
	require.ErrorIs(t, l.Lock(ctx), ErrLost)
	require.ErrorIs(t, l.Unlock(ctx), ErrLost)
	eventually(t, func() bool { return !exists(t, l.Key()) }, "swept")
	require.NoError(t, l.Lock(ctx))
	require.NoError(t, l.Unlock(ctx))
}

// TestACQ7_TheUndoDoesNotOvertake: the request of a cancelled acquire is delivered
// late, when the undo has long been answered.
func TestACQ7_TheUndoDoesNotOvertake(t *testing.T) {
	t.Parallel()
	for i := range 3 {
		c, p := onProxy(t, WithWatchdogTimeout(5*time.Second))
		l := c.NewLock(unique("undo"))
		ctx := WithOwner(t.Context(), NewOwner())
		rule := p.On(sends(script.Acquire, l), redistest.HoldRequest)
		bounded, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
		require.ErrorIs(t, l.Lock(bounded), context.DeadlineExceeded, fmt.Sprint(i))
		cancel()
		// go-redis gives up on it after a second; the undo is answered then.
		eventually(t, func() bool { return len(matching(p, sends(script.Release, l))) > 0 }, "the undo")
		rule.Release()
		rule.WaitExecuted(t, 1)
		eventually(t, func() bool { return !exists(t, l.Key()) }, "undone, before its lease is over")
	}
}

func matching(p *redistest.Proxy, m redistest.Match) (all []redistest.Request) {
	for _, r := range p.Requests() {
		if m(r) {
			all = append(all, r)
		}
	}
	return all
}

// TestACQ15_ALateGrantUndoesNoReentry: a copy of the request that brought the owner in,
// an acquire or a hand-over, arrives when that has entered once more.
func TestACQ15_ALateGrantUndoesNoReentry(t *testing.T) {
	t.Parallel()
	for what, k := range kindsOfLocks {
		for _, passed := range []bool{false, true} {
			if passed && what == "read" {
				continue // a read hold is never passed
			}
			t.Run(fmt.Sprintf("%s, passed: %v", what, passed), func(t *testing.T) {
				t.Parallel()
				c, p := onProxy(t, WithHandoffLimit(64, time.Hour))
				l := k.lock(c, unique("late"))
				acquire, pass := script.Acquire, script.Pass
				switch what {
				case "fair":
					acquire, pass = script.FairAcquire, script.FairPass
				case "read", "write":
					acquire, pass = script.RWAcquire, script.RWPass
				}
				copies := func(s *script.Script) redistest.Match {
					return redistest.And(redistest.Command("evalsha"), redistest.HasArg(s.SHA), redistest.HasArg(l.Key()))
				}
				a := as("a")
				var late *redistest.Rule
				if passed {
					require.NoError(t, l.Lock(as("before")))
					got := async(func() error { return l.Lock(a) })
					waitForWaiters(t, c, 1)
					late = p.On(copies(pass), redistest.HoldRequest)
					require.NoError(t, l.Unlock(as("before")))
					require.NoError(t, recv(t, got, "the lock"))
				} else {
					late = p.On(copies(acquire), redistest.HoldRequest)
					require.NoError(t, l.Lock(a))
				}
				require.Equal(t, 1, late.Count())
				require.NoError(t, l.Lock(a))
				late.Release()
				late.WaitExecuted(t, 1)
				n, err := l.HoldCount(a)
				require.NoError(t, err)
				require.Equal(t, 2, n)
				require.NoError(t, l.Unlock(a))
				require.NoError(t, l.Unlock(a))
				nothingLeft(t, l)
			})
		}
	}
}
