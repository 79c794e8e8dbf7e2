package rlock

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// leaseStep is one call on a hold, and what Redis's TTL and the local deadline
// are after it. The watchdog timeout is 30 s.
type leaseStep struct {
	call          string
	ttl, validity time.Duration
}

const (
	sec   = time.Second
	slack = 4 * sec // for what the steps take
)

func (s leaseStep) do(t *testing.T, ctx context.Context, l *Lock) {
	t.Helper()
	var lease int
	var err error
	switch n, _ := fmt.Sscanf(s.call, "LockLease %d", &lease); {
	case n == 1:
		err = l.LockLease(ctx, time.Duration(lease)*sec)
	case s.call == "Lock":
		err = l.Lock(ctx)
	case s.call == "Unlock":
		err = l.Unlock(ctx)
	default:
		_, err = fmt.Sscanf(s.call, "Extend %d", &lease)
		require.NoError(t, err, s.call)
		err = l.Extend(ctx, time.Duration(lease)*sec)
	}
	require.NoError(t, err, s.call)
}

// TestACQ12_OneHoldOneLease: every step on one object, and in turns on two
// objects of the same name.
func TestACQ12_OneHoldOneLease(t *testing.T) {
	t.Parallel()
	for name, steps := range map[string][]leaseStep{
		"a nested longer one replaces a shorter one": {
			{"LockLease 10", 10 * sec, 10 * sec}, {"LockLease 60", 60 * sec, 60 * sec},
			{"Unlock", 60 * sec, 60 * sec}, {"Unlock", 0, 0},
		},
		"a nested shorter one changes nothing": {
			{"LockLease 60", 60 * sec, 60 * sec}, {"LockLease 10", 60 * sec, 60 * sec},
			{"Unlock", 60 * sec, 60 * sec}, {"Unlock", 0, 0},
		},
		"the watchdog replaces a shorter one": {
			{"LockLease 10", 10 * sec, 10 * sec}, {"Lock", 30 * sec, 30 * sec},
			{"Unlock", 30 * sec, 30 * sec}, {"Unlock", 0, 0},
		},
		"the watchdog replaces a longer one, and lowers nothing": {
			{"LockLease 60", 60 * sec, 60 * sec}, {"Lock", 60 * sec, 60 * sec}, {"Unlock", 60 * sec, 60 * sec}, {"Unlock", 0, 0},
		},
		"nothing replaces the watchdog": {
			{"Lock", 30 * sec, 30 * sec}, {"LockLease 10", 30 * sec, 30 * sec}, {"LockLease 60", 30 * sec, 30 * sec},
			{"Unlock", 30 * sec, 30 * sec}, {"Unlock", 30 * sec, 30 * sec}, {"Unlock", 0, 0},
		},
		"Extend longer": {{"LockLease 10", 10 * sec, 10 * sec}, {"Extend 60", 60 * sec, 60 * sec}, {"Unlock", 0, 0}},
		"Extend shorter counts here at once, in Redis the old one ends": {
			{"LockLease 60", 60 * sec, 60 * sec}, {"Extend 10", 60 * sec, 10 * sec}, {"Unlock", 0, 0},
		},
		"Extend 0 hands it to the watchdog": {
			{"LockLease 10", 10 * sec, 10 * sec}, {"Extend 0", 30 * sec, 30 * sec}, {"Unlock", 0, 0},
		},
		"Extend 0 of a longer one": {
			{"LockLease 60", 60 * sec, 60 * sec}, {"Extend 0", 60 * sec, 30 * sec}, {"Unlock", 0, 0},
		},
		"Extend takes it from the watchdog": {
			{"Lock", 30 * sec, 30 * sec}, {"Extend 10", 30 * sec, 10 * sec}, {"Unlock", 0, 0},
		},
		"Extend takes it from the watchdog, for longer": {
			{"Lock", 30 * sec, 30 * sec}, {"Extend 60", 60 * sec, 60 * sec}, {"Unlock", 0, 0},
		},
		"all of them": {
			{"LockLease 10", 10 * sec, 10 * sec}, {"Lock", 30 * sec, 30 * sec}, {"Extend 20", 30 * sec, 20 * sec},
			{"LockLease 10", 30 * sec, 20 * sec}, {"LockLease 60", 60 * sec, 60 * sec}, {"Unlock", 60 * sec, 60 * sec},
			{"Extend 10", 60 * sec, 10 * sec}, {"Lock", 60 * sec, 30 * sec}, {"Unlock", 60 * sec, 30 * sec},
			{"Unlock", 60 * sec, 30 * sec}, {"Unlock", 60 * sec, 30 * sec}, {"Unlock", 0, 0},
		},
		"the next hold begins anew": {
			{"LockLease 60", 60 * sec, 60 * sec}, {"Unlock", 0, 0}, {"Lock", 30 * sec, 30 * sec}, {"Unlock", 0, 0},
			{"LockLease 10", 10 * sec, 10 * sec}, {"Unlock", 0, 0}, {"Lock", 30 * sec, 30 * sec}, {"Unlock", 0, 0},
		},
	} {
		for objects := 1; objects <= 2; objects++ {
			t.Run(fmt.Sprintf("%s/%d objects", name, objects), func(t *testing.T) {
				t.Parallel()
				c := onShared(t)
				ctx := t.Context()
				key := unique("lease")
				locks := []*Lock{c.NewLock(key), c.NewLock(key)}
				for i, s := range steps {
					l := locks[i%objects]
					s.do(t, ctx, l)
					at := fmt.Sprintf("step %d, %s", i, s.call)
					if s.ttl == 0 {
						require.False(t, exists(t, key), at)
						require.Zero(t, l.Validity(ctx), at)
						continue
					}
					ttl := pttl(t, key)
					left := l.Validity(ctx)
					between(t, s.ttl-slack, s.ttl, ttl, at)
					between(t, s.validity-slack, s.validity, left, at)
					require.Less(t, left, ttl, "%s: the local deadline is before Redis's", at)
				}
			})
		}
	}
}

// renewals is a Trace that tells each renewal.
func renewals() (*Trace, chan time.Duration) {
	c := make(chan time.Duration, 10_000)
	return &Trace{Renewed: func(_ string, _ Owner, left time.Duration) { c <- left }}, c
}

// TestLease_TheWatchdogKeepsWhatIsItsOwn until the last Unlock, whatever made it so.
func TestLease_TheWatchdogKeepsWhatIsItsOwn(t *testing.T) {
	t.Parallel()
	const timeout = 1500 * time.Millisecond
	for name, take := range map[string]func(context.Context, *Lock) (depth int, err error){
		"Lock":        func(ctx context.Context, l *Lock) (int, error) { return 1, l.Lock(ctx) },
		"LockLease 0": func(ctx context.Context, l *Lock) (int, error) { return 1, l.LockLease(ctx, 0) },
		"TryLock":     func(ctx context.Context, l *Lock) (int, error) { _, err := l.TryLock(ctx, 0, 0); return 1, err },
		"LockLease, Lock, Unlock": func(ctx context.Context, l *Lock) (int, error) {
			return 1, firstErr(l.LockLease(ctx, timeout), l.Lock(ctx), l.Unlock(ctx))
		},
		"Lock, LockLease": func(ctx context.Context, l *Lock) (int, error) {
			return 2, firstErr(l.Lock(ctx), l.LockLease(ctx, time.Second))
		},
		"LockLease, Extend 0": func(ctx context.Context, l *Lock) (int, error) {
			return 1, firstErr(l.LockLease(ctx, timeout), l.Extend(ctx, 0))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			trace, renewed := renewals()
			c := onShared(t, WithWatchdogTimeout(timeout), WithTrace(trace))
			l := c.NewLock(unique("kept"))
			// CTX-3: the ctx that acquired it bounds acquiring and nothing else.
			ctx, cancel := context.WithTimeout(t.Context(), limit)
			depth, err := take(ctx, l)
			require.NoError(t, err)
			lost := l.Lost(ctx)
			cancel()
			ctx = t.Context()
			for began := time.Now(); time.Since(began) < timeout*3/2; {
				left := recv(t, renewed, "a renewal")
				between(t, 0, timeout, left, "left after a renewal")
			}
			require.NotZero(t, l.Validity(ctx))
			require.False(t, isClosed(lost))
			between(t, 0, timeout, pttl(t, l.Key()), "PTTL")
			for range depth {
				require.NoError(t, l.Unlock(ctx))
			}
			free(t, l.Key())
		})
	}
}

func firstErr(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// TestLease_AFixedOneIsNotKept: checked on the way, and never prolonged.
func TestLease_AFixedOneIsNotKept(t *testing.T) {
	t.Parallel()
	for name, take := range map[string]func(context.Context, *Lock) error{
		"LockLease":    func(ctx context.Context, l *Lock) error { return l.LockLease(ctx, time.Second) },
		"TryLock":      func(ctx context.Context, l *Lock) error { _, err := l.TryLock(ctx, -1, time.Second); return err },
		"Lock, Extend": func(ctx context.Context, l *Lock) error { return firstErr(l.Lock(ctx), l.Extend(ctx, time.Second)) },
		"LockLease, LockLease": func(ctx context.Context, l *Lock) error {
			return firstErr(l.LockLease(ctx, time.Minute), l.Extend(ctx, time.Second), l.LockLease(ctx, 500*time.Millisecond))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := onShared(t, WithWatchdogTimeout(600*time.Millisecond))
			l := c.NewLock(unique("fixed"))
			ctx := t.Context()
			began := time.Now()
			require.NoError(t, take(ctx, l))
			recv(t, l.Lost(ctx), "the end of the lease")
			require.Zero(t, l.Validity(ctx))
			require.GreaterOrEqual(t, time.Since(began), 900*time.Millisecond, "not before its time")
		})
	}
}

// TestLease_EndsHereBeforeItEndsInRedis.
func TestLease_EndsHereBeforeItEndsInRedis(t *testing.T) {
	t.Parallel()
	l := onShared(t).NewLock(unique("order"))
	ctx := t.Context()
	for range 3 {
		require.NoError(t, l.LockLease(ctx, 400*time.Millisecond))
		lost := l.Lost(ctx)
		eventually(t, func() bool { return !exists(t, l.Key()) }, "its end")
		require.Zero(t, l.Validity(ctx))
		require.True(t, isClosed(lost), "told before the key was gone")
	}
}

// TestCLK5_TheLeaseCountsFromTheAttemptThatSucceeded.
func TestCLK5_TheLeaseCountsFromTheAttemptThatSucceeded(t *testing.T) {
	t.Parallel()
	c := onShared(t)
	l := c.NewLock(unique("start"))
	occupy(t, l.Key(), 2*time.Second)
	ctx := t.Context()
	require.NoError(t, l.LockLease(ctx, 10*time.Second), "waited for two seconds")
	between(t, 9*time.Second, 10*time.Second, l.Validity(ctx), "nearly all of it")
	require.NoError(t, l.Unlock(ctx))
}

// TestREN9_NestedLocksAreRenewedOnce: five deep is one renewal a period.
func TestREN9_NestedLocksAreRenewedOnce(t *testing.T) {
	t.Parallel()
	const period = 300 * time.Millisecond
	trace, renewed := renewals()
	c := onShared(t, WithWatchdogTimeout(3*period), WithTrace(trace))
	l := c.NewLock(unique("nested"))
	ctx := t.Context()
	for range 5 {
		require.NoError(t, l.Lock(ctx))
	}
	began := time.Now()
	for range 4 {
		require.NoError(t, l.Unlock(ctx))
		recv(t, renewed, "still renewed")
	}
	most := uint64(time.Since(began)/period) + 2
	require.LessOrEqual(t, c.Stats().Renewals, most)
	require.NoError(t, l.Unlock(ctx))
	for len(renewed) > 0 {
		<-renewed
	}
	select {
	case <-renewed:
		require.Fail(t, "renewed after the last Unlock")
	case <-time.After(3 * period):
	}
}

// TestREN4_ARenewalNeverMakesAKey, and never prolongs a stranger's.
func TestREN4_ARenewalNeverMakesAKey(t *testing.T) {
	t.Parallel()
	c := onShared(t, WithWatchdogTimeout(900*time.Millisecond))
	ctx := t.Context()
	gone, taken := c.NewLock(unique("gone")), c.NewLock(unique("taken"))
	for _, l := range []*Lock{gone, taken} {
		require.NoError(t, l.Lock(ctx))
	}
	goneLost, takenLost := gone.Lost(ctx), taken.Lost(ctx)
	remove(t, gone.Key())
	remove(t, taken.Key())
	occupy(t, taken.Key(), 1500*time.Millisecond)
	recv(t, goneLost, "the loss")
	recv(t, takenLost, "the loss")
	require.False(t, exists(t, gone.Key()))
	eventually(t, func() bool { return !exists(t, taken.Key()) }, "the stranger's end")
}

// TestREN11_OneOfABatchIsGone: the others of the call are not lost with it.
func TestREN11_OneOfABatchIsGone(t *testing.T) {
	t.Parallel()
	const n = 30
	c := onShared(t, WithWatchdogTimeout(1500*time.Millisecond))
	ctx := WithOwner(t.Context(), NewOwner())
	var locks []*Lock
	for range n {
		l := c.NewLock(unique("batch"))
		require.NoError(t, l.Lock(ctx))
		locks = append(locks, l)
	}
	for _, l := range locks[:3] {
		remove(t, l.Key())
	}
	for _, l := range locks[:3] {
		recv(t, l.Lost(ctx), "the loss")
		require.ErrorIs(t, l.Unlock(ctx), ErrLost)
	}
	before := c.Stats().Renewals
	eventually(t, func() bool { return c.Stats().Renewals >= before+2*n }, "two more rounds")
	for _, l := range locks[3:] {
		require.NotZero(t, l.Validity(ctx))
		require.NoError(t, l.Unlock(ctx))
	}
	require.EqualValues(t, 3, c.Stats().Lost)
}
