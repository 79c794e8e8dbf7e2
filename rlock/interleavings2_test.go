package rlock

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/redistest"
	"github.com/relock-go/relock/internal/script"
)

func own(o string) context.Context { return WithOwner(context.Background(), Owner(o)) }

// healthy Redis, only busy: TryLock with a wait must be (false, nil).
func TestInterleaving_TryLockUnsettledOnHealthyRedis(t *testing.T) {
	for _, lat := range []time.Duration{0, 3 * time.Millisecond} {
		t.Run(lat.String(), func(t *testing.T) {
			c, p := onProxy(t)
			p.Latency(lat)
			l := c.NewLock(unique("u1"))
			var wg sync.WaitGroup
			stop := time.Now().Add(time.Second)
			var got, no, unsettled, other atomic.Int64
			var one atomic.Value
			for i := range 4 { // these hold it in turns
				wg.Add(1)
				go func() {
					defer wg.Done()
					o := own(fmt.Sprint("h", i))
					for time.Now().Before(stop) {
						if l.Lock(o) == nil {
							time.Sleep(20 * time.Millisecond)
							_ = l.Unlock(o)
						}
					}
				}()
			}
			for i := range 4 {
				wg.Add(1)
				go func() {
					defer wg.Done()
					o := own(fmt.Sprint("t", i))
					for time.Now().Before(stop) {
						ok, err := l.TryLock(o, 15*time.Millisecond, 0)
						switch {
						case ok:
							got.Add(1)
							_ = l.Unlock(o)
						case err == nil:
							no.Add(1)
						case errors.Is(err, ErrUnsettled):
							unsettled.Add(1)
							one.Store(err.Error())
						default:
							other.Add(1)
						}
					}
				}()
			}
			wg.Wait()
			t.Log("got", got.Load(), "no", no.Load(), "unsettled", unsettled.Load(), "other", other.Load(), one.Load())
			require.Zero(t, unsettled.Load())
		})
	}
}

func TestInterleaving_TryLockUnsettledDeterministic(t *testing.T) {
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
	time.Sleep(50 * time.Millisecond)
	cancel()
	require.Error(t, recv(t, w, "w"))
	time.Sleep(50 * time.Millisecond)
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
	c, p := onProxy(t, WithReleaseTimeout(10*time.Millisecond))
	p.Latency(20 * time.Millisecond)
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
					t.Log(err)
				}
			}
		}()
	}
	wg.Wait()
	time.Sleep(500 * time.Millisecond)
	c.mu.Lock()
	after := len(c.entries)
	burned := 0
	for _, e := range c.entries {
		e.mu.Lock()
		if idle, b := e.idle(); b || !idle {
			burned++
		}
		e.mu.Unlock()
	}
	c.mu.Unlock()
	t.Log("entries", before, after, "burned", burned)
	require.LessOrEqual(t, after, before)
}
