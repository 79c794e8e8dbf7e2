package rlock

import (
	"context"
	"errors"
	"math"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/redistest"
	"github.com/relock-go/relock/internal/script"
)

var badLeases = []time.Duration{
	-1, -time.Second, math.MinInt64, // negative
	1, 999 * time.Microsecond, // below 1 ms
	longestLease + 1, math.MaxInt64, // above 10 years
}

// TestACQ11_BadLeasesAreRefusedBeforeAnythingIsSent: by every operation that
// takes a lease.
func TestACQ11_BadLeasesAreRefusedBeforeAnythingIsSent(t *testing.T) {
	t.Parallel()
	c, p := onProxy(t)
	ctx := t.Context()
	free, held := c.NewLock(unique("lease")), c.NewLock(unique("lease"))
	require.NoError(t, held.Lock(ctx))
	before := held.Validity(ctx)
	p.ResetCounts()
	for _, lease := range badLeases {
		for _, l := range []*Lock{free, held} {
			for _, wait := range []time.Duration{0, time.Second, -1} {
				got, err := l.TryLock(ctx, wait, lease)
				require.False(t, got)
				require.ErrorIs(t, err, ErrInvalidLease, "TryLock(%v, %v)", wait, lease)
			}
			require.ErrorIs(t, l.LockLease(ctx, lease), ErrInvalidLease, "LockLease(%v)", lease)
			require.ErrorIs(t, l.Extend(ctx, lease), ErrInvalidLease, "Extend(%v)", lease)
		}
	}
	require.Empty(t, p.Counts(), "nothing is sent")
	require.LessOrEqual(t, held.Validity(ctx), before)
	require.NotZero(t, held.Validity(ctx), "the hold is what it was")
	require.False(t, exists(t, free.Key()))
	require.NoError(t, held.Unlock(ctx))
}

// TestACQ11_AMillisecondIsLegalAndTooShort: the safety margin alone uses it up.
func TestACQ11_AMillisecondIsLegalAndTooShort(t *testing.T) {
	t.Parallel()
	c, p := onProxy(t)
	l := c.NewLock(unique("lease"))
	for _, lease := range []time.Duration{time.Millisecond, 1500 * time.Microsecond, 2 * time.Millisecond} {
		got, err := l.TryLock(t.Context(), -1, lease)
		require.False(t, got)
		require.ErrorIs(t, err, ErrInvalidLease)
		require.ErrorContains(t, err, "shorter than the round trip")
	}
	require.False(t, exists(t, l.Key()))
	require.LessOrEqual(t, p.CountCommand("evalsha"), 20, "not tried for ever")
}

func TestACQ11_TheLongestLeaseStands(t *testing.T) {
	t.Parallel()
	l := onShared(t).NewLock(unique("lease"))
	ctx := t.Context()
	require.NoError(t, l.LockLease(ctx, longestLease))
	between(t, longestLease-time.Minute, longestLease, pttl(t, l.Key()), "ten years")
	require.NoError(t, l.Unlock(ctx))
	free(t, l.Key())
}

// TestTryLock_ALeaseOfPartMillisecondsIsRoundedUp: Redis never ends it first.
func TestTryLock_ALeaseOfPartMillisecondsIsRoundedUp(t *testing.T) {
	t.Parallel()
	c, p := onProxy(t)
	l := c.NewLock(unique("lease"))
	got, err := l.TryLock(t.Context(), 0, 10*time.Second+time.Nanosecond)
	require.NoError(t, err)
	require.True(t, got)
	require.Equal(t, "10001", p.Requests()[0].Args[4])
	require.NoError(t, l.Unlock(t.Context()))
}

func TestTryLock_WaitsAndLeases(t *testing.T) {
	t.Parallel()
	for _, wait := range []time.Duration{0, 10 * time.Second, -1} {
		for _, lease := range []time.Duration{0, 10 * time.Second} {
			l := onShared(t).NewLock(unique("table"))
			ctx := t.Context()
			got, err := l.TryLock(ctx, wait, lease)
			require.NoError(t, err)
			require.True(t, got)
			ttl := 30 * time.Second // the watchdog's
			if lease > 0 {
				ttl = lease
			}
			between(t, ttl-5*time.Second, ttl, pttl(t, l.Key()), "lease")
			between(t, ttl-5*time.Second, ttl, l.Validity(ctx), "lease")
			require.NoError(t, l.Unlock(ctx))
		}
	}
}

func TestTryLock_FalseWithoutErrorMeansThatOthersHadIt(t *testing.T) {
	t.Parallel()
	c, p := onProxy(t)
	l := c.NewLock(unique("taken"))
	occupy(t, l.Key(), time.Minute)

	got, err := l.TryLock(t.Context(), 0, 0)
	require.NoError(t, err)
	require.False(t, got)
	require.Equal(t, 1, p.CountCommand("evalsha"), "wait 0 is one attempt")

	began := time.Now()
	got, err = settled(t, func() (bool, error) { return l.TryLock(t.Context(), 700*time.Millisecond, 0) })
	require.NoError(t, err)
	require.False(t, got)
	require.GreaterOrEqual(t, time.Since(began), 700*time.Millisecond, "not given up early")
	require.Less(t, time.Since(began), limit)
	require.Equal(t, map[string]string{"foreign:1": "1"}, fields(t, l.Key()), "nothing was changed")
}

func TestTryLock_AnEndlessWaitEndsWithCtx(t *testing.T) {
	t.Parallel()
	l := onShared(t).NewLock(unique("taken"))
	occupy(t, l.Key(), time.Minute)

	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	got, err := l.TryLock(ctx, -1, 0)
	require.False(t, got)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.NotErrorIs(t, err, ErrUnsettled, "every attempt was answered")

	why := errors.New("the user has left")
	ctx, stop := context.WithCancelCause(t.Context())
	time.AfterFunc(50*time.Millisecond, func() { stop(why) })
	got, err = l.TryLock(ctx, -1, 0)
	require.False(t, got)
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorIs(t, err, why, "CTX-6: the cause is in the chain")
}

func TestTryLock_ACtxThatEndsBeforeTheWaitIsAnError(t *testing.T) {
	t.Parallel()
	l := onShared(t).NewLock(unique("taken"))
	occupy(t, l.Key(), time.Minute)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	got, err := l.TryLock(ctx, time.Minute, 0)
	require.False(t, got)
	require.ErrorIs(t, err, context.DeadlineExceeded)
}

// TestTryLock_AnEndedCtxSendsNothing: no operation does, Unlock apart.
func TestTryLock_AnEndedCtxSendsNothing(t *testing.T) {
	t.Parallel()
	c, p := onProxy(t)
	l := c.NewLock(unique("ended"))
	require.NoError(t, l.Lock(t.Context()))
	p.ResetCounts()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for name, op := range operations(l) {
		if name == "Unlock" {
			continue
		}
		err := op(ctx)
		require.ErrorIs(t, err, context.Canceled, name)
		var e *Error
		require.ErrorAs(t, err, &e, name)
	}
	require.Empty(t, p.Counts())
	require.NoError(t, l.Unlock(ctx), "Unlock works")
	require.Equal(t, map[string]int{"evalsha": 1}, p.Counts())
	free(t, l.Key())
}

// operations are all that send something.
func operations(l *Lock) map[string]func(context.Context) error {
	return map[string]func(context.Context) error{
		"Lock":        l.Lock,
		"LockLease":   func(ctx context.Context) error { return l.LockLease(ctx, time.Minute) },
		"TryLock":     func(ctx context.Context) error { _, err := l.TryLock(ctx, 0, 0); return err },
		"TryLockWait": func(ctx context.Context) error { _, err := l.TryLock(ctx, time.Second, time.Minute); return err },
		"Unlock":      l.Unlock,
		"Extend":      func(ctx context.Context) error { return l.Extend(ctx, time.Minute) },
		"Do":          func(ctx context.Context) error { return l.Do(ctx, func(context.Context) error { return nil }) },
		"ForceUnlock": func(ctx context.Context) error { _, err := l.ForceUnlock(ctx); return err },
		"IsLocked":    func(ctx context.Context) error { _, err := l.IsLocked(ctx); return err },
		"IsHeld":      func(ctx context.Context) error { _, err := l.IsHeld(ctx); return err },
		"IsHeldBy":    func(ctx context.Context) error { _, err := l.IsHeldBy(ctx, bystander); return err },
		"HoldCount":   func(ctx context.Context) error { _, err := l.HoldCount(ctx); return err },
		"TTL":         func(ctx context.Context) error { _, err := l.TTL(ctx); return err },
		"Info":        func(ctx context.Context) error { _, err := l.Info(ctx); return err },
	}
}

// TestACQ6_AnUnansweredAttemptIsAnErrorAndIsUndone: for a wait that ends, a ctx
// that ends, and a read timeout of go-redis that comes first.
func TestACQ6_AnUnansweredAttemptIsAnErrorAndIsUndone(t *testing.T) {
	t.Parallel()
	for name, try := range map[string]func(*Lock) (bool, error){
		"wait": func(l *Lock) (bool, error) { return l.TryLock(context.Background(), 100*time.Millisecond, 0) },
		"ctx": func(l *Lock) (bool, error) {
			ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
			defer cancel()
			return l.TryLock(ctx, -1, 0)
		},
		"one attempt": func(l *Lock) (bool, error) { return l.TryLock(context.Background(), 0, 0) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, p := onProxy(t) // ReadTimeout 1 s
			l := c.NewLock(unique("silent"))
			told := messages(t, l.Key())
			// Redis runs it, and nobody hears of it.
			rule := p.On(redistest.And(redistest.Command("evalsha"), redistest.HasArg(l.Key())), redistest.LoseReplyAndHang).Times(1)
			got, err := try(l)
			require.False(t, got)
			require.ErrorIs(t, err, ErrUnsettled)
			switch name {
			case "ctx":
				require.ErrorIs(t, err, context.DeadlineExceeded)
			case "one attempt":
				require.Len(t, asked(p, l), 1)
			}
			rule.WaitExecuted(t, 1)
			require.Zero(t, l.Validity(t.Context()))
			eventually(t, func() bool { return !exists(t, l.Key()) }, "undone, long before its lease")
			eventually(t, func() bool { return len(told()) > 0 }, "PEER-1: waiters are told")
		})
	}
}

// asked are the acquire requests for l that p has seen.
func asked(p *redistest.Proxy, l *Lock) (all []redistest.Request) {
	for _, r := range p.Requests() {
		if len(r.Args) > 5 && r.Args[2] == "1" && r.Args[3] == l.Key() && r.Args[4] == "30000" {
			all = append(all, r)
		}
	}
	return all
}

// TestCTX4_EachCallRespectsItsBudget against a server that is silent.
func TestCTX4_EachCallRespectsItsBudget(t *testing.T) {
	t.Parallel()
	c, p := onProxy(t)
	l := c.NewLock(unique("budget"))
	p.BlackHole(true)
	defer p.BlackHole(false)

	began := time.Now()
	got, err := l.TryLock(t.Context(), 200*time.Millisecond, 0)
	require.False(t, got)
	require.ErrorIs(t, err, ErrUnsettled)
	require.GreaterOrEqual(t, time.Since(began), 190*time.Millisecond)
	require.Less(t, time.Since(began), 3*time.Second)

	// The first one is still unanswered. Another owner of this process waits
	// for its end, within its own budget, and must not call it "taken".
	began = time.Now()
	got, err = l.TryLock(WithOwner(t.Context(), bystander), 200*time.Millisecond, 0)
	require.False(t, got)
	require.ErrorIs(t, err, ErrUnsettled)
	require.Less(t, time.Since(began), 3*time.Second)
}

func TestTryLock_AServerThatIsDownIsAnError(t *testing.T) {
	t.Parallel()
	rdb := redistest.NewClient(t, "127.0.0.1:1", func(o *redis.Options) { o.DialerRetries = 1 })
	l := newClient(t, rdb).NewLock("a")
	for _, wait := range []time.Duration{0, 300 * time.Millisecond} {
		got, err := l.TryLock(t.Context(), wait, 0)
		require.False(t, got)
		require.Error(t, err, "ACQ-3: never 'taken', never 'granted'")
	}
	err := l.Lock(t.Context())
	require.ErrorIs(t, err, syscall.ECONNREFUSED, "CTX-6: the cause is in the chain")
	require.NotErrorIs(t, err, ErrUnsettled, "a dial that failed proves that nothing ran")
	require.Zero(t, l.Validity(t.Context()))
	require.ErrorIs(t, l.Unlock(t.Context()), ErrNotHeld)
}

// TestACQ3_OnlyOneReplyIsAGrant feeds the client what no script of ours says.
func TestACQ3_OnlyOneReplyIsAGrant(t *testing.T) {
	t.Parallel()
	for _, reply := range []string{
		"$-1\r\n", "_\r\n", ":0\r\n", ":1\r\n", "+OK\r\n", "$0\r\n\r\n", "$4\r\nheld\r\n", "$5\r\nheld:\r\n",
		"$7\r\nheld:-2\r\n", "*0\r\n", "-ERR something\r\n",
	} {
		c, p := onProxy(t)
		l := c.NewLock(unique("reply"))
		rule := p.On(redistest.HasArg(l.Key()), redistest.Reply(reply)).Times(0)
		got, err := l.TryLock(t.Context(), 50*time.Millisecond, 0)
		rule.Off()
		require.False(t, got, "%q", reply)
		require.Error(t, err, "%q", reply)
		require.Zero(t, l.Validity(t.Context()))
	}
}

// TestACQ6_TheLastAttemptIsUnanswered, though those before it were refused: this
// one may have been granted.
func TestACQ6_TheLastAttemptIsUnanswered(t *testing.T) {
	t.Parallel()
	c, p := onProxy(t, WithRecheck(50*time.Millisecond))
	l := c.NewLock(unique("last"))
	occupy(t, l.Key(), time.Minute)
	p.On(sends(script.Acquire, l), redistest.LoseReplyAndHang).Skip(2).Times(0)
	got, err := l.TryLock(t.Context(), 900*time.Millisecond, 0) // go-redis gives up later
	require.False(t, got)
	require.ErrorIs(t, err, ErrUnsettled)
	require.Equal(t, map[string]string{"foreign:1": "1"}, fields(t, l.Key()))
}

// TestWAIT7_OneAttemptTakesPartInTheOneUnderWay, if that finds the lock taken.
func TestWAIT7_OneAttemptTakesPartInTheOneUnderWay(t *testing.T) {
	t.Parallel()
	for name, taken := range map[string]bool{"taken": true, "granted": false} {
		c, p := onProxy(t)
		l := c.NewLock(unique("part"))
		a, b := WithOwner(t.Context(), "a"), WithOwner(t.Context(), "b")
		if taken {
			occupy(t, l.Key(), time.Minute)
		}
		rule := p.On(sends(script.Acquire, l), redistest.HoldRequest)
		ctx, cancel := context.WithCancel(a)
		first := async(func() error { return l.Lock(ctx) })
		rule.Wait(t)
		tried := async(func() error {
			got, err := l.TryLock(b, 0, 0)
			if got {
				t.Error("granted")
			}
			return err
		})
		time.Sleep(20 * time.Millisecond) // let it join
		p.ResetCounts()
		rule.Release()
		require.NoError(t, recv(t, tried, "TryLock"), name)
		asB := 0
		for _, r := range matching(p, sends(script.Acquire, l)) {
			if strings.HasSuffix(r.Args[5], ":b") {
				asB++
			}
		}
		if taken {
			require.Zero(t, asB, "it asked nobody itself")
			cancel()
			require.ErrorIs(t, recv(t, first, "Lock"), context.Canceled)
			continue
		}
		require.NoError(t, recv(t, first, "Lock"))
		require.Equal(t, 1, asB, "one attempt of its own")
		require.NoError(t, l.Unlock(a))
		cancel()
	}
}

// TestTryLock_AGrantThatComesTooLateIsUndone: the lease is shorter than the
// round trip.
func TestTryLock_AGrantThatComesTooLateIsUndone(t *testing.T) {
	t.Parallel()
	c, p := onProxy(t)
	p.On(redistest.Command("evalsha"), redistest.DelayReply(60*time.Millisecond)).Times(0)
	l := c.NewLock(unique("late"))
	err := l.LockLease(t.Context(), 30*time.Millisecond)
	require.ErrorIs(t, err, ErrInvalidLease)
	require.ErrorContains(t, err, "shorter than the round trip")
	got, err := l.TryLock(t.Context(), 0, 30*time.Millisecond)
	require.False(t, got)
	require.ErrorIs(t, err, ErrInvalidLease)
	require.LessOrEqual(t, p.CountCommand("evalsha"), 30, "not tried for ever")
	eventually(t, func() bool { return !exists(t, l.Key()) }, "undone")
	require.NoError(t, l.LockLease(t.Context(), time.Minute), "a longer one is fine")
	require.NoError(t, l.Unlock(t.Context()))
}

// TestTryLock_BehindOneThatSleeps: nobody asks Redis in the time of the second one,
// because the first was told that others have the lock.
func TestTryLock_BehindOneThatSleeps(t *testing.T) {
	t.Parallel()
	c := onShared(t)
	l := c.NewLock(unique("behind"))
	occupy(t, l.Key(), time.Hour)
	ctx, cancel := context.WithCancel(WithOwner(context.Background(), "first"))
	got := async(func() error { return l.Lock(ctx) })
	waitForWaiters(t, c, 1)
	for range 2 { // the first one asks once more when it listens, but not twice
		ok, err := settled(t, func() (bool, error) {
			return l.TryLock(WithOwner(t.Context(), "second"), 100*time.Millisecond, 0)
		})
		require.NoError(t, err)
		require.False(t, ok)
	}
	cancel()
	require.ErrorIs(t, recv(t, got, "the first"), context.Canceled)
	remove(t, l.Key())
}

// TestTryLock_FindsThatOneOfOursIsGone: short waits in a row are no reason never to ask.
func TestTryLock_FindsThatOneOfOursIsGone(t *testing.T) {
	t.Parallel()
	c := onShared(t, WithRecheck(100*time.Millisecond))
	l := c.NewLock(unique("gone"))
	require.NoError(t, l.LockLease(WithOwner(t.Context(), "first"), 9*time.Second)) // shorter than a period
	remove(t, l.Key())
	eventually(t, func() bool {
		ok, err := settled(t, func() (bool, error) {
			return l.TryLock(WithOwner(t.Context(), "second"), 50*time.Millisecond, 0)
		})
		require.NoError(t, err)
		return ok
	}, "the recheck bound is over")
}
