package rlock

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/record"
	"github.com/relock-go/relock/internal/redistest"
	"github.com/relock-go/relock/internal/script"
)

// One owner in several goroutines, with others waiting: each Lock is matched
// by one Unlock, so at the end nothing is held.
func TestInterleaving_OneLockCountsAsTwo(t *testing.T) {
	t.Parallel()
	c := onShared(t)
	l := c.NewLock(unique("h1"))
	var locks, unlocks atomic.Int64
	var wg sync.WaitGroup
	same := WithOwner(context.Background(), "same")
	stop := time.Now().Add(1500 * time.Millisecond)
	for i := range 5 {
		ctx := same
		if i == 4 {
			ctx = WithOwner(context.Background(), "other")
		}
		wg.Add(1)
		go func() {
			defer wg.Done()
			for time.Now().Before(stop) {
				tctx, cancel := ctx, context.CancelFunc(func() {})
				if i == 4 {
					tctx, cancel = context.WithTimeout(ctx, 4*time.Second)
				}
				if err := l.Lock(tctx); err != nil {
					t.Log("lock", err)
					cancel()
					return
				}
				locks.Add(1)
				if err := l.Unlock(ctx); err != nil {
					t.Log("unlock", err)
				} else {
					unlocks.Add(1)
				}
				cancel()
			}
		}()
	}
	wg.Wait()
	t.Log("locks", locks.Load(), "unlocks", unlocks.Load(), "stands", fields(t, l.Key()))
	time.Sleep(100 * time.Millisecond)
	require.Zero(t, c.Stats().Held)
	free(t, l.Key())
}

// Other goroutines of the process poll with TryLock(0). The holder's
// renewals are all answered, and it must not be lost.
func TestInterleaving_PollersKillTheHolder(t *testing.T) {
	t.Parallel()
	for _, lat := range []time.Duration{0, 3 * time.Millisecond} {
		t.Run(lat.String(), func(t *testing.T) {
			c, p := onProxy(t, WithWatchdogTimeout(1500*time.Millisecond))
			p.Latency(lat)
			l := c.NewLock(unique("h3"))
			ctx := WithOwner(context.Background(), "holder")
			require.NoError(t, l.Lock(ctx))
			var wg sync.WaitGroup
			stop := make(chan struct{})
			for i := range 3 {
				wg.Add(1)
				go func() {
					defer wg.Done()
					o := WithOwner(context.Background(), Owner(fmt.Sprint("p", i)))
					for {
						select {
						case <-stop:
							return
						case <-time.After(time.Millisecond):
						}
						_, _ = l.TryLock(o, 0, 0)
					}
				}()
			}
			lost := false
			select {
			case <-l.Lost(ctx):
				lost = true
			case <-time.After(2500 * time.Millisecond):
			}
			close(stop)
			wg.Wait()
			t.Log(lost, c.Stats(), fields(t, l.Key()), pttl(t, l.Key()), l.Unlock(ctx))
			require.False(t, lost)
		})
	}
}

// One waiter's attempt gets stuck for longer than the watchdog timeout.
// Renewals are answered all the time.
func TestInterleaving_AStuckAttemptOfAnotherKillsTheHolder(t *testing.T) {
	t.Parallel()
	c, p := onProxy(t, WithWatchdogTimeout(1500*time.Millisecond))
	l := c.NewLock(unique("h3b"))
	ctx := WithOwner(context.Background(), "holder")
	require.NoError(t, l.Lock(ctx))
	rule := p.On(sends(script.Acquire, l), redistest.HoldRequest).Times(0)
	defer rule.Off()
	wctx, cancel := context.WithTimeout(WithOwner(context.Background(), "waiter"), 2500*time.Millisecond)
	defer cancel()
	w := async(func() error { return l.Lock(wctx) })
	lost := false
	select {
	case <-l.Lost(ctx):
		lost = true
	case <-time.After(2500 * time.Millisecond):
	}
	s := c.Stats()
	t.Log(lost, s, fields(t, l.Key()), pttl(t, l.Key()))
	_ = w
	require.False(t, lost)
}

// A re-entry that Redis refused for the moment puts the renewal off beyond
// the deadline. Redis is well again long before the deadline.
func TestInterleaving_AFailedReentryStopsRenewal(t *testing.T) {
	t.Parallel()
	c, p := onProxy(t, WithWatchdogTimeout(1500*time.Millisecond))
	l := c.NewLock(unique("h4"))
	ctx := WithOwner(context.Background(), "holder")
	began := time.Now()
	require.NoError(t, l.Lock(ctx))
	down := p.On(redistest.HasArg(l.Key()), redistest.Reply("-LOADING Redis is loading the dataset in memory\r\n")).Times(0)
	time.Sleep(950*time.Millisecond - time.Since(began))
	tctx, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	t.Log("re-entry:", l.Lock(tctx))
	time.Sleep(1060*time.Millisecond - time.Since(began))
	down.Off()
	t.Log("redis is well again", time.Since(began), "left", l.Validity(ctx))
	select {
	case <-l.Lost(ctx):
		t.Fatal("lost at ", time.Since(began), fields(t, l.Key()), pttl(t, l.Key()), c.Stats())
	case <-time.After(1500 * time.Millisecond):
	}
}

// Keys x and {x} have one channel.
func TestInterleaving_TwoKeysOneChannel(t *testing.T) {
	c := onShared(t)
	name := unique("h5")
	a, b := c.NewLock("{"+name+"}"), c.NewLock(name)
	occupy(t, a.Key(), time.Minute)
	occupy(t, b.Key(), time.Minute)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	first := async(func() error { return a.Lock(WithOwner(ctx, "first")) })
	waitForWaiters(t, c, 1)
	time.Sleep(50 * time.Millisecond)
	second := async(func() error { return b.Lock(WithOwner(ctx, "second")) })
	waitForWaiters(t, c, 2)
	time.Sleep(50 * time.Millisecond)
	foreign := onShared(t, WithID("foreign"))
	began := time.Now()
	ok, err := foreign.NewLock(name).ForceUnlock(context.Background())
	require.NoError(t, err)
	require.True(t, ok)
	require.NoError(t, recv(t, second, "second"))
	took := time.Since(began)
	t.Log(took)
	cancel()
	<-first
	require.Less(t, took, time.Second)
}

// A late tidy of a forgotten entry.
func TestInterleaving_TidyForgetsAnotherEntry(t *testing.T) {
	c := onShared(t, WithWatchdogTimeout(300*time.Millisecond))
	l := c.NewLock(unique("h6"))
	ctx := WithOwner(context.Background(), "a")
	require.NoError(t, l.Lock(ctx))
	old := c.find(l.Key())
	c.leave(old)
	require.NoError(t, l.Unlock(ctx))
	require.Nil(t, c.find(l.Key()))
	require.NoError(t, l.Lock(ctx))
	c.tidy(old) // what sweep.run and hold.due do last
	require.NotZero(t, l.Validity(ctx))
	require.NoError(t, l.Unlock(ctx))
}

// Inner Unlock beside a renewal.
func TestInterleaving_RaceInnerUnlock(t *testing.T) {
	c := onShared(t)
	l := c.NewLock(unique("h7"))
	ctx := WithOwner(context.Background(), "a")
	require.NoError(t, l.Lock(ctx))
	e := c.find(l.Key())
	h := e.holds
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for range 8 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for {
				select {
				case <-stop:
					return
				default:
				}
				if n, ok := h.beginRenewal(); ok {
					h.renewed(n, true)
				}
			}
		}()
	}
	for range 300 {
		require.NoError(t, l.Lock(ctx))
		require.NoError(t, l.Unlock(ctx))
	}
	close(stop)
	wg.Wait()
	c.leave(e)
	require.NoError(t, l.Unlock(ctx))
}

// Close, with one connection that breaks.
func TestInterleaving_CloseAsksOnce(t *testing.T) {
	c, p := onProxy(t)
	l := c.NewLock(unique("h8"))
	ctx := WithOwner(context.Background(), "a")
	require.NoError(t, l.Lock(ctx))
	p.CutAll() // the pooled connections are stale: a server's timeout, a proxy's restart
	cctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	err := c.Close(cctx)
	t.Log(err)
	require.False(t, exists(t, l.Key()))
	require.NoError(t, err)
}

func TestInterleaving_CloseAsksOnceReply(t *testing.T) {
	c, p := onProxy(t)
	l := c.NewLock(unique("h8"))
	ctx := WithOwner(context.Background(), "a")
	require.NoError(t, l.Lock(ctx))
	rule := p.On(sends(script.Release, l), redistest.Reply("-LOADING Redis is loading the dataset in memory\r\n"))
	cctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	err := c.Close(cctx)
	t.Log(err, rule.Count())
	require.False(t, exists(t, l.Key()))
	require.NoError(t, err)
}

// A Trace callback for one lock's loss takes a while.
func TestInterleaving_ASlowLostCallbackKillsOtherHolds(t *testing.T) {
	t.Parallel()
	var slow atomic.Bool
	c := onShared(t, WithWatchdogTimeout(600*time.Millisecond), WithTrace(&Trace{Lost: func(string, Owner, time.Duration, error) {
		if slow.CompareAndSwap(false, true) {
			time.Sleep(1500 * time.Millisecond) // it asks for the lock again, say
		}
	}}))
	a, b := c.NewLock(unique("h9")), c.NewLock(unique("h9"))
	ctx := WithOwner(context.Background(), "a")
	require.NoError(t, b.Lock(ctx))
	require.NoError(t, a.LockLease(ctx, 50*time.Millisecond))
	time.Sleep(1200 * time.Millisecond)
	v, key, closed := b.Validity(ctx), exists(t, b.Key()), false
	t.Log(v, key, closed, c.Stats())
	require.NotZero(t, v)
}

// An inner Unlock lengthens a fixed lease.
func TestInterleaving_InnerUnlockLengthensTheLease(t *testing.T) {
	t.Parallel()
	c, p := onProxy(t)
	l := c.NewLock(unique("h10"))
	ctx := WithOwner(context.Background(), "a")
	began := time.Now()
	require.NoError(t, l.LockLease(ctx, 3*time.Second))
	require.NoError(t, l.LockLease(ctx, time.Second))
	rule := p.On(sends(script.Keep, l), redistest.Reply("-LOADING Redis is loading the dataset in memory\r\n")).Times(0)
	done := async(func() error { return l.Unlock(ctx) })
	time.Sleep(1500 * time.Millisecond)
	rule.Off()
	require.NoError(t, recv(t, done, "inner unlock"))
	end := time.Since(began) + l.Validity(ctx)
	t.Log("the lease of 3s ends at", end, "pttl", pttl(t, l.Key()))
	require.Less(t, end, 3*time.Second)
}

// The hold is granted while the waiter gives up.
func TestInterleaving_GrantedAndAnError(t *testing.T) {
	t.Parallel()
	c, p := onProxy(t)
	l := c.NewLock(unique("h2"))
	bad := 0
	end := time.Now().Add(2 * time.Second)
	n := 0
	for ; time.Now().Before(end) && bad == 0; n++ {
		a, b := WithOwner(context.Background(), Owner(fmt.Sprint("a", n))), WithOwner(context.Background(), Owner(fmt.Sprint("b", n)))
		require.NoError(t, l.Lock(a))
		bctx, cancel := context.WithCancel(b)
		done := async(func() error { return l.Lock(bctx) })
		waitForWaiters(t, c, 1)
		e := c.find(l.Key())
		rule := p.On(sends(script.Pass, l), redistest.HoldReply)
		un := async(func() error { return l.Unlock(a) })
		rule.WaitExecuted(t, 1)
		e.lock()
		e.wakeHead() // the head's timer fires, or a message comes
		e.unlock()
		eventually(t, func() bool { e.lock(); defer e.unlock(); return len(e.turns) == 1 }, "it waits for its turn")
		rule.Off()
		cancel()
		err := recv(t, done, "b")
		require.NoError(t, recv(t, un, "a"))
		if err == nil {
			require.NoError(t, l.Unlock(b))
		} else {
			require.True(t, errors.Is(err, context.Canceled), err)
			for i := 0; i < 100 && exists(t, l.Key()); i++ {
				time.Sleep(10 * time.Millisecond)
			}
			if exists(t, l.Key()) {
				bad++
				t.Log("after", n, ":", err, l.Validity(b), fields(t, l.Key()))
			}
		}
		c.leave(e)
	}
	require.Zero(t, bad)
}

// "7.3" holds nothing; the numbered field of owner "7" looks like its own.
func TestInterleaving_IsHeldByAnOddName(t *testing.T) {
	c, p := onProxy(t)
	l := c.NewLock(unique("h11"))
	seven := WithOwner(context.Background(), "7")
	p.On(sends(script.Acquire, l), redistest.LoseReplyAndClose)
	require.NoError(t, l.Lock(seven)) // its field is burned
	require.NoError(t, l.Unlock(seven))
	require.NoError(t, l.Lock(seven))
	t.Log(fields(t, l.Key()))
	for f := range fields(t, l.Key()) {
		o := Owner(f[len(c.ID())+1:])
		held, err := l.IsHeldBy(context.Background(), o)
		require.NoError(t, err)
		require.False(t, held, "%s holds nothing", o)
	}
}

// Lock failed, so its owner holds nothing.
func TestInterleaving_IsHeldAfterAnError(t *testing.T) {
	t.Parallel()
	c, p := onProxy(t)
	l := c.NewLock(unique("h11b"))
	ctx := WithOwner(context.Background(), "a")
	p.On(sends(script.Acquire, l), redistest.HoldReply)
	down := p.On(sends(script.Release, l), redistest.Reply("-LOADING x\r\n")).Times(0)
	tctx, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
	defer cancel()
	require.Error(t, l.Lock(tctx))
	held, err := l.IsHeld(ctx)
	require.NoError(t, err)
	down.Off()
	require.False(t, held)
}

// Testify's require in a Trace callback.
func TestInterleaving_GoexitInACallback(t *testing.T) {
	c := onShared(t, WithTrace(&Trace{Acquired: func(string, Owner, time.Duration) { runtime.Goexit() }}))
	l := c.NewLock(unique("h13"))
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = l.Lock(context.Background())
	}()
	recv(t, done, "the goroutine")
}

// A late tidy, beside sweeps and callers that leave.
func TestInterleaving_TidyStress(t *testing.T) {
	t.Parallel()
	c, _ := onProxy(t, WithWatchdogTimeout(500*time.Millisecond))
	l := c.NewLock(unique("h6b"))
	var wg sync.WaitGroup
	var bad atomic.Int64
	stop := time.Now().Add(2 * time.Second)
	for i := range 4 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for n := 0; time.Now().Before(stop) && bad.Load() == 0; n++ {
				o := WithOwner(context.Background(), Owner(fmt.Sprint("o", i)))
				ctx, cancel := context.WithTimeout(o, time.Duration(50+n%400)*time.Microsecond)
				if l.Lock(ctx) == nil {
					if err := l.Unlock(o); errors.Is(err, ErrNotHeld) {
						bad.Add(1)
						t.Log(err, c.Stats(), fields(t, l.Key()))
					}
				}
				cancel()
			}
		}()
	}
	wg.Wait()
	require.Zero(t, bad.Load())
}

// A key is removed while an attempt on it is under way.
func TestInterleaving_ARemovalDuringAnAttempt(t *testing.T) {
	t.Parallel()
	c, p := onProxy(t, WithWatchdogTimeout(600*time.Millisecond))
	l := c.NewLock(unique("h15c"))
	a, b := WithOwner(context.Background(), "a"), WithOwner(context.Background(), "b")
	require.NoError(t, l.LockLease(a, time.Minute))
	rule := p.On(sends(script.Acquire, l), redistest.HoldReply)
	done := async(func() error { return l.Lock(b) })
	rule.WaitExecuted(t, 1)
	remove(t, l.Key())
	recv(t, l.Lost(a), "the loss")
	lost := time.Now()
	rule.Off()
	require.NoError(t, recv(t, done, "b"))
	took := time.Since(lost)
	t.Log(took, c.Stats(), rule.Replies())
	require.Less(t, took, time.Second)
}

// Extends whose callers leave must not put the renewal off.
func TestInterleaving_AbandonedExtendsStopRenewal(t *testing.T) {
	t.Parallel()
	c, p := onProxy(t, WithWatchdogTimeout(1500*time.Millisecond))
	l := c.NewLock(unique("h16"))
	ctx := WithOwner(context.Background(), "holder")
	require.NoError(t, l.Lock(ctx))
	lost := l.Lost(ctx)
	p.On(sends(script.Keep, l), redistest.DelayReply(40*time.Millisecond)).Times(0)
	began := time.Now()
	for time.Since(began) < 3*time.Second {
		tctx, cancel := context.WithTimeout(ctx, 10*time.Millisecond)
		err := l.Extend(tctx, 0)
		cancel()
		select {
		case <-lost:
			t.Fatal("lost after ", time.Since(began), err, pttl(t, l.Key()), c.Stats())
		case <-time.After(300 * time.Millisecond):
		}
	}
	require.NoError(t, l.Unlock(ctx))
}

func own(o string) context.Context { return WithOwner(context.Background(), Owner(o)) }

// The wait is over while the lock passes from one to another: both had it.
func TestInterleaving_TheWaitIsOverDuringAHandOver(t *testing.T) {
	c, p := onProxy(t)
	l := c.NewLock(unique("u1d"))
	a := own("a")
	require.NoError(t, l.Lock(a))
	w1 := async(func() error { return l.Lock(own("w1")) })
	waitForWaiters(t, c, 1)
	time.Sleep(100 * time.Millisecond)
	type res struct {
		ok  bool
		err error
	}
	w2 := async(func() res { ok, err := l.TryLock(own("w2"), 300*time.Millisecond, 0); return res{ok, err} })
	waitForWaiters(t, c, 2)
	time.Sleep(250 * time.Millisecond) // "a" held it all the time
	p.On(sends(script.Pass, l), redistest.DelayReply(150*time.Millisecond))
	require.NoError(t, l.Unlock(a))
	r := recv(t, w2, "w2")
	require.NoError(t, recv(t, w1, "w1"))
	require.NoError(t, l.Unlock(own("w1")))
	require.NoError(t, r.err)
	require.False(t, r.ok)
}

// A waiter's cancellation must not make the Unlock of the holder fail.
func TestInterleaving_ACancelledWaiterFailsTheUnlock(t *testing.T) {
	c, p := onProxy(t)
	l := c.NewLock(unique("u2"))
	a := own("a")
	require.NoError(t, l.Lock(a))
	wctx, cancel := context.WithCancel(own("w"))
	w := async(func() error { return l.Lock(wctx) })
	waitForWaiters(t, c, 1)
	down := p.On(sends(script.Pass, l), redistest.Reply("-LOADING Redis is loading the dataset in memory\r\n")).Times(0)
	un := async(func() error { return l.Unlock(a) })
	down.WaitCount(t, 2)
	cancel()
	require.Error(t, recv(t, w, "w"))
	down.WaitCount(t, down.Count()+2)
	down.Off()
	require.NoError(t, recv(t, un, "unlock"))
}

// TryLock without a wait while the client closes.
func TestInterleaving_TryLockDuringClose(t *testing.T) {
	c, p := onProxy(t)
	l := c.NewLock(unique("u3"))
	rule := p.On(sends(script.Acquire, l), redistest.HoldReply)
	done := async(func() error { _, err := l.TryLock(own("a"), 0, 0); return err })
	rule.WaitExecuted(t, 1)
	cl := async(func() error { return c.Close(context.Background()) })
	eventually(t, c.isClosing, "closing")
	rule.Off()
	err := recv(t, done, "trylock")
	t.Log(err, c.Stats().Attempts)
	require.NoError(t, recv(t, cl, "close"))
	require.ErrorIs(t, err, ErrClosed)
}

// A Lock whose attempts fail when the client closes.
func TestInterleaving_LockErrorDuringClose(t *testing.T) {
	for name, ctx := range map[string]context.Context{"endless": own("a"), "bounded": func() context.Context {
		ctx, cancel := context.WithTimeout(own("a"), time.Minute)
		t.Cleanup(cancel)
		return ctx
	}()} {
		t.Run(name, func(t *testing.T) {
			c, p := onProxy(t)
			l := c.NewLock(unique("u4"))
			rule := p.On(sends(script.Acquire, l), redistest.Reply("-LOADING Redis is loading the dataset in memory\r\n")).Times(0)
			done := async(func() error { return l.Lock(ctx) })
			rule.WaitCount(t, 2)
			require.NoError(t, c.Close(context.Background()))
			err := recv(t, done, "lock")
			require.ErrorIs(t, err, ErrClosed)
		})
	}
}

// Close with a slow Lost callback.
func TestInterleaving_CloseBehindACallback(t *testing.T) {
	block := make(chan struct{})
	c := onShared(t, WithTrace(&Trace{Lost: func(string, Owner, time.Duration, error) { <-block }}))
	a, b := c.NewLock(unique("u5")), c.NewLock(unique("u5"))
	ctx := own("a")
	require.NoError(t, a.Lock(ctx))
	require.NoError(t, b.Lock(ctx))
	lostA, lostB := a.Lost(ctx), b.Lost(ctx)
	cctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
	defer cancel()
	cl := async(func() error { return c.Close(cctx) })
	time.Sleep(1500 * time.Millisecond)
	both, left, ret := isClosed(lostA) && isClosed(lostB), max(a.Validity(ctx), b.Validity(ctx)), len(cl) == 1
	keys := exists(t, a.Key()) || exists(t, b.Key())
	close(block)
	<-cl
	t.Log("both told:", both, "validity of one:", left, "Close returned:", ret, "keys stand:", keys)
	require.True(t, both && left == 0 && ret)
}

// Entries that nobody forgets.
func TestInterleaving_EntriesLeak(t *testing.T) {
	c, p := onProxy(t, WithReleaseTimeout(300*time.Millisecond))
	p.Latency(600 * time.Millisecond) // a round trip is longer than the timeout
	c.mu.Lock()
	before := len(c.entries)
	c.mu.Unlock()
	var wg sync.WaitGroup
	for range 20 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			l := c.NewLock(unique("u6"))
			if l.Lock(own("a")) == nil {
				if err := l.Unlock(own("a")); !errors.Is(err, ErrUnsettled) {
					t.Error("the Unlock was to be left behind:", err)
				}
			}
		}()
	}
	wg.Wait()
	eventually(t, func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return len(c.entries) <= before
	}, "the entries are forgotten")
}

func TestInterleaving_SilentRelease(t *testing.T) {
	c, p := onProxy(t, WithReleaseTimeout(50*time.Millisecond))
	l := c.NewLock(unique("s1"))
	require.NoError(t, l.Lock(own("a")))
	r := p.On(redistest.HasArg(l.Key()), redistest.HoldReply).Times(0)
	require.ErrorIs(t, l.Unlock(own("a")), ErrUnsettled)
	ok, err := l.TryLock(own("b"), 300*time.Millisecond, 0)
	t.Log(ok, err, "stands", fields(t, l.Key()))
	r.Off()
	require.ErrorIs(t, err, ErrUnsettled)
}

// The lock is being passed to w itself, and that is not answered when its wait is over.
func TestInterleaving_UnansweredPassToMe(t *testing.T) {
	c, p := onProxy(t)
	l := c.NewLock(unique("s2"))
	require.NoError(t, l.Lock(own("a")))
	type res struct {
		ok  bool
		err error
	}
	w := async(func() res { ok, err := l.TryLock(own("b"), 400*time.Millisecond, 0); return res{ok, err} })
	waitForWaiters(t, c, 1)
	r := p.On(sends(script.Pass, l), redistest.HoldReply)
	un := async(func() error { return l.Unlock(own("a")) })
	got := recv(t, w, "w")
	t.Log(got, fields(t, l.Key()))
	r.Off()
	require.NoError(t, recv(t, un, "unlock"))
	require.ErrorIs(t, got.err, ErrUnsettled)
}

// A callback that asks for the key, run by a goroutine that waits for its turn.
func TestInterleaving_CallbackInTakeTurn(t *testing.T) {
	var l *Lock
	took := make(chan string, 4)
	c, p := onProxy(t, WithTrace(&Trace{Lost: func(_ string, o Owner, _ time.Duration, _ error) {
		began := time.Now()
		cctx, cancel := context.WithTimeout(own("again"), 10*time.Second)
		defer cancel()
		err := l.Lock(cctx)
		ok := err == nil
		took <- fmt.Sprint(time.Since(began), ok, err)
		if ok {
			_ = l.Unlock(own("again"))
		}
	}}))
	l = c.NewLock(unique("u8"))
	a := own("a")
	require.NoError(t, l.LockLease(a, 300*time.Millisecond))
	e := c.find(l.Key())
	defer c.leave(e)
	// somebody's request is on its way for a moment
	p.On(sends(script.Acquire, l), redistest.DelayReply(350*time.Millisecond))
	x := async(func() error { _, err := l.TryLock(own("x"), 0, 0); return err })
	eventually(t, func() bool { e.lock(); defer e.unlock(); return e.asking != nil }, "asking")
	// the owner comes back in the very millisecond: found by the caller, not by the wheel
	e.lock()
	h := e.hold("a", record.Whole)
	c.dog.Drop(&h.lease)
	e.unlock()
	time.Sleep(310 * time.Millisecond)
	began := time.Now()
	err := l.Lock(a)
	lt := time.Since(began)
	t.Log("lock took", lt, err, <-x, <-took)
	require.Less(t, lt, time.Second)
}
