package rlock

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/record"
	"github.com/relock-go/relock/internal/redistest"
	"github.com/relock-go/relock/internal/script"
)

// forAsLongAsTestsRun is a guard that refuses on every server of a test.
const forAsLongAsTestsRun = 24 * time.Hour

func TestGuard_Range(t *testing.T) {
	t.Parallel()
	rdb := nowhere(t)
	for _, d := range []time.Duration{-1, 1, time.Second - 1, 24*time.Hour + 1} {
		_, err := New(rdb, WithRestartGuard(d))
		require.ErrorContains(t, err, "WithRestartGuard", "%v", d)
	}
	for _, d := range []time.Duration{0, time.Second, 24 * time.Hour} {
		newClient(t, rdb, WithRestartGuard(d))
	}
}

// TestMULTI1_ARestartedServerGrantsNothingForAWhile. Lock waits for the end of it,
// exactly, and does not ask all the time meanwhile.
func TestMULTI1_ARestartedServerGrantsNothingForAWhile(t *testing.T) {
	t.Parallel()
	const guard = 2 * time.Second
	s := redistest.StartServer(t)
	rdb := s.Client(t)
	c := newClient(t, s.Client(t), WithRestartGuard(guard), WithRecheck(time.Hour))
	l := c.NewLock("a")
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	for range 2 {
		began := time.Now()
		require.NoError(t, s.Restart())
		require.NoError(t, rdb.Ping(ctx).Err())
		before := c.Stats().Attempts
		got, err := l.TryLock(ctx, 0, 0)
		require.False(t, got)
		require.ErrorIs(t, err, ErrRestarted)
		require.Zero(t, rdb.Exists(ctx, "a").Val())
		require.NoError(t, l.Lock(ctx))
		require.GreaterOrEqual(t, time.Since(began), guard)
		require.LessOrEqual(t, c.Stats().Attempts-before, uint64(10), "broken connections and a new subscription included")
		require.NoError(t, l.Unlock(ctx))

		before = c.Stats().Attempts
		got, err = l.TryLock(ctx, 0, 0) // it has run for long now
		require.NoError(t, err)
		require.True(t, got)
		require.EqualValues(t, 1, c.Stats().Attempts-before)
		require.NoError(t, l.Unlock(ctx))
	}
}

func TestMULTI1_WaitsThatEndFirst(t *testing.T) {
	t.Parallel()
	look(t)
	c := onShared(t, WithRestartGuard(forAsLongAsTestsRun), WithRecheck(20*time.Millisecond))
	l := c.NewLock(unique("guard"))
	refused := func(got bool, err error) {
		t.Helper()
		require.False(t, got)
		require.ErrorIs(t, err, ErrRestarted)
		var e *Error
		require.ErrorAs(t, err, &e)
		require.False(t, exists(t, l.Key()))
	}
	ctx := t.Context()
	refused(l.TryLock(ctx, 0, 0))
	refused(settled(t, func() (bool, error) { return l.TryLock(ctx, 100*time.Millisecond, time.Second) }))

	// The head of the line, and one behind it.
	long := async(func() error {
		_, err := settled(t, func() (bool, error) { return l.TryLock(WithOwner(ctx, "head"), 300*time.Millisecond, 0) })
		return err
	})
	waitForWaiters(t, c, 1)
	refused(settled(t, func() (bool, error) { return l.TryLock(ctx, 50*time.Millisecond, 0) }))
	require.ErrorIs(t, recv(t, long, "the head"), ErrRestarted)

	_, err := settled(t, func() (bool, error) {
		until, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
		defer cancel()
		return false, l.Lock(until)
	})
	refused(false, err)
	require.ErrorIs(t, err, context.DeadlineExceeded)

	why := errors.New("why")
	until, stop := context.WithCancelCause(ctx)
	waiting := async(func() error { return l.Lock(until) })
	waitForWaiters(t, c, 1)
	stop(why)
	err = recv(t, waiting, "Lock")
	refused(false, err)
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorIs(t, err, why)

	waiting = async(func() error { return l.Lock(context.Background()) })
	waitForWaiters(t, c, 1)
	require.NoError(t, c.Close(ctx))
	require.ErrorIs(t, recv(t, waiting, "Lock"), ErrClosed)
}

// TestMULTI1_OthersAreNoRestart: who finds the lock taken hears of that, whatever the
// guard said before, or would say.
func TestMULTI1_OthersAreNoRestart(t *testing.T) {
	t.Parallel()
	look(t)
	c := onShared(t, WithRestartGuard(forAsLongAsTestsRun), WithRecheck(100*time.Millisecond))
	l := c.NewLock(unique("guard"))
	ctx := t.Context()
	type result struct {
		got bool
		err error
	}
	// Its end is half-way between two looks: an attempt under way then would be unsettled.
	try := func() result {
		got, err := settled(t, func() (bool, error) { return l.TryLock(ctx, 450*time.Millisecond, 0) })
		return result{got, err}
	}
	waiting := async(try)
	waitForWaiters(t, c, 1)
	occupy(t, l.Key(), time.Minute)
	require.Equal(t, result{}, recv(t, waiting, "TryLock"))
	for _, wait := range []time.Duration{0, 50 * time.Millisecond} {
		got, err := settled(t, func() (bool, error) { return l.TryLock(ctx, wait, 0) })
		require.Equal(t, result{}, result{got, err})
	}
	// And the other way round.
	waiting = async(try)
	waitForWaiters(t, c, 1)
	remove(t, l.Key())
	r := recv(t, waiting, "TryLock")
	require.False(t, r.got)
	require.ErrorIs(t, r.err, ErrRestarted)
}

// TestMULTI1_ASharedAttempt: who takes part in the attempt of another one hears the
// same as that one.
func TestMULTI1_ASharedAttempt(t *testing.T) {
	t.Parallel()
	look(t)
	p := redistest.NewProxy(t, shared.server.Addr)
	c := newClient(t, redistest.NewClient(t, p.Addr), WithRestartGuard(forAsLongAsTestsRun))
	l := c.NewLock(unique("guard"))
	rule := p.On(redistest.HasArg(l.Key()), redistest.HoldReply)
	try := func(o Owner) <-chan error {
		return async(func() error { _, err := l.TryLock(WithOwner(context.Background(), o), 0, 0); return err })
	}
	first := try("first")
	rule.Wait(t)
	second := try("second")
	e := c.find(l.Key())
	defer c.leave(e)
	eventually(t, func() bool { e.lock(); defer e.unlock(); return e.asking != nil && e.asking.done != nil }, "the second one waits")
	rule.Release()
	require.ErrorIs(t, recv(t, first, "the first"), ErrRestarted)
	require.ErrorIs(t, recv(t, second, "the second"), ErrRestarted)
	require.EqualValues(t, 1, c.Stats().Attempts)
	require.False(t, exists(t, l.Key()))
}

// TestMULTI1_NoGuardByDefault: a server grants as soon as it answers.
func TestMULTI1_NoGuardByDefault(t *testing.T) {
	t.Parallel()
	s := redistest.StartServer(t)
	for _, opts := range [][]Option{nil, {WithRestartGuard(0)}} {
		c := newClient(t, s.Client(t), opts...)
		require.NoError(t, s.Restart())
		l := c.NewLock("a")
		got, err := l.TryLock(t.Context(), 0, 0)
		require.NoError(t, err)
		require.True(t, got)
		require.NoError(t, l.Unlock(t.Context()))
	}
}

// TestMULTI1_AHoldSurvivesARestartWithData: what the server still has goes on, and
// only a new grant is refused.
func TestMULTI1_AHoldSurvivesARestartWithData(t *testing.T) {
	t.Parallel()
	s := redistest.StartServer(t, "--appendonly", "yes", "--appendfsync", "always")
	trace, renewed := renewals()
	c := newClient(t, s.Client(t), WithRestartGuard(2*time.Second), WithTrace(trace), WithWatchdogTimeout(3*time.Second))
	l := c.NewLock("a")
	a, b := WithOwner(context.Background(), "a"), WithOwner(context.Background(), "b")
	require.NoError(t, l.Lock(a))
	waiting := async(func() error { return l.Lock(b) })
	waitForWaiters(t, c, 1)
	require.NoError(t, s.Restart())
	require.NoError(t, l.Lock(a), "a re-entry")
	require.NoError(t, l.Extend(a, 0))
	require.NoError(t, l.Unlock(a))
	for len(renewed) > 0 {
		<-renewed
	}
	recv(t, renewed, "a renewal")
	require.NoError(t, s.Restart())
	require.NoError(t, l.Unlock(a))
	require.NoError(t, recv(t, waiting, "a hand-over"))
	require.EqualValues(t, 1, c.Stats().HandedOff)
	require.NoError(t, l.Unlock(b))
	_, err := l.TryLock(a, 0, 0)
	require.ErrorIs(t, err, ErrRestarted)
	require.Zero(t, c.Stats().Lost)
}

// TestMULTI1_NothingIsCreatedAfterARestart: whatever prolongs a hold, or passes it
// on, finds that it is gone, and leaves it so. No guard has a part in that.
func TestMULTI1_NothingIsCreatedAfterARestart(t *testing.T) {
	t.Parallel()
	s := redistest.StartServer(t)
	admin := s.Client(t)
	ctx := context.Background()
	a, b := WithOwner(ctx, "a"), WithOwner(ctx, "b")
	empty := func(what string) {
		t.Helper()
		require.Zero(t, admin.DBSize(ctx).Val(), what)
	}
	restart := func() {
		t.Helper()
		require.NoError(t, s.Restart())
		require.NoError(t, admin.Ping(ctx).Err())
	}
	// Nobody renews during the test.
	slow := newClient(t, s.Client(t), WithWatchdogTimeout(10*time.Minute))
	for what, prolong := range map[string]func(*Lock) error{
		"Extend":          func(l *Lock) error { return l.Extend(a, time.Minute) },
		"a re-entry":      func(l *Lock) error { return l.Lock(a) },
		"an inner Unlock": func(l *Lock) error { return l.Unlock(a) },
	} {
		l := slow.NewLock(what)
		require.NoError(t, l.Lock(a))
		require.NoError(t, l.Lock(a))
		lost := l.Lost(a)
		restart()
		require.ErrorIs(t, prolong(l), ErrLost, what)
		recv(t, lost, what)
		empty(what)
	}

	quick := newClient(t, s.Client(t), WithWatchdogTimeout(time.Second))
	for what, lease := range map[string]time.Duration{"a renewal": 0, "a check": time.Hour} {
		l := quick.NewLock(what)
		require.NoError(t, l.LockLease(a, lease))
		lost := l.Lost(a)
		restart()
		recv(t, lost, what)
		empty(what)
		require.ErrorIs(t, l.Unlock(a), ErrLost, what)
		empty(what)
	}

	// The next in line asks as soon as the hold is lost, so it needs a guard.
	guarded := newClient(t, s.Client(t), WithWatchdogTimeout(10*time.Minute), WithRestartGuard(2*time.Second))
	l := guarded.NewLock("a hand-over")
	require.NoError(t, l.Lock(a))
	waiting := async(func() error { return l.Lock(b) })
	waitForWaiters(t, guarded, 1)
	began := time.Now()
	restart()
	require.ErrorIs(t, l.Unlock(a), ErrLost)
	empty("a hand-over")
	require.NoError(t, recv(t, waiting, "the next one"))
	require.GreaterOrEqual(t, time.Since(began), 2*time.Second)
	require.Zero(t, guarded.Stats().HandedOff)
	require.NoError(t, l.Unlock(b))
}

// TestMULTI1_TheGuardMayNotLook: a clear error, at once.
func TestMULTI1_TheGuardMayNotLook(t *testing.T) {
	t.Parallel()
	s := redistest.StartServer(t)
	require.NoError(t, s.Client(t).ACLSetUser(t.Context(), "plain", "on", ">pw", "~*", "&*", "+@all", "-@dangerous").Err())
	for name, rdb := range map[string]*redis.Client{
		"miniredis": redistest.NewClient(t, redistest.StartMini(t).Addr()),
		"ACL":       s.Client(t, func(o *redis.Options) { o.Username, o.Password = "plain", "pw" }),
	} {
		c := newClient(t, rdb, WithRestartGuard(time.Second))
		l := c.NewLock("a")
		err := l.Lock(t.Context())
		require.ErrorContains(t, err, "restart guard", name)
		require.ErrorContains(t, err, "TIME and INFO", name)
		require.NotErrorIs(t, err, ErrRestarted, name)
		require.NotErrorIs(t, err, ErrUnsettled, name)
		require.EqualValues(t, 1, c.Stats().Attempts, name)
		_, err = l.TryLock(t.Context(), 0, 0)
		require.ErrorContains(t, err, "TIME and INFO", name)
		require.Zero(t, rdb.Exists(t.Context(), "a").Val(), name)
	}
}

// TestMULTI1_TheGuardIsLogged once, however often it refuses.
func TestMULTI1_TheGuardIsLogged(t *testing.T) {
	t.Parallel()
	look(t)
	var mu sync.Mutex
	var log strings.Builder
	h := slog.NewTextHandler(writer(func(b []byte) (int, error) { mu.Lock(); defer mu.Unlock(); return log.Write(b) }), nil)
	c := onShared(t, WithRestartGuard(forAsLongAsTestsRun), WithLogger(slog.New(h)), WithRecheck(10*time.Millisecond))
	l := c.NewLock(unique("guard"))
	ctx, cancel := context.WithCancel(t.Context())
	waiting := async(func() error { return l.Lock(ctx) })
	eventually(t, func() bool { return c.Stats().Attempts >= 3 }, "three attempts")
	cancel()
	require.ErrorIs(t, recv(t, waiting, "Lock"), ErrRestarted)
	mu.Lock()
	defer mu.Unlock()
	require.Equal(t, 1, strings.Count(log.String(), "the restart guard refuses"), log.String())
}

// A reply to an acquire that is neither granted nor refused in due form is none.
func TestMULTI1_OnlyWholeAnswersCount(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]reply{
		"held:-1":        {left: -time.Millisecond},
		"held:0":         {},
		"restarted:1500": {left: 1500 * time.Millisecond, young: true},
	} {
		r, ok := meaning(&record.Request{Op: record.Acquire}, script.Answer{Text: text})
		require.True(t, ok, text)
		require.Equal(t, want, r, text)
	}
	for _, text := range []string{"", "held", "held:", "held:-2", "held:x", "restarted", "restarted:", "restarted:0", "restarted:-1", "gone"} {
		_, ok := meaning(&record.Request{Op: record.Acquire}, script.Answer{Text: text})
		require.False(t, ok, text)
	}
	one, five := time.Second, 5*time.Second
	fairs := &record.Request{Op: record.Acquire, Hold: &record.Hold{Fair: true}}
	for text, want := range map[string]reply{
		"queued:1000:5000":    {left: one, queued: true, ahead: five},
		"restarted:1000:5000": {left: one, queued: true, ahead: five, young: true},
		"restarted:1000":      {left: one, young: true}, // its only attempt
	} {
		r, ok := meaning(fairs, script.Answer{Text: text})
		require.True(t, ok, text)
		require.Equal(t, want, r, text)
		if want.queued {
			_, ok = meaning(&record.Request{Op: record.Acquire, Hold: &record.Hold{}}, script.Answer{Text: text})
			require.False(t, ok, "a lock without a queue: %s", text)
		}
	}
	for _, text := range []string{"queued:1000", "queued:1000:", "queued:x:5000", "held:1000:5000", "restarted:0:5000", "restarted:1000:x"} {
		_, ok := meaning(fairs, script.Answer{Text: text})
		require.False(t, ok, text)
	}
}

// TestMULTI1_BehindOneThatSleeps: the guard's refusal counts for those in line too.
func TestMULTI1_BehindOneThatSleeps(t *testing.T) {
	t.Parallel()
	c := newClient(t, redistest.StartServer(t).Client(t), WithRestartGuard(time.Hour))
	l := c.NewLock("guarded")
	first, cancel := context.WithCancel(WithOwner(context.Background(), "first"))
	defer cancel()
	go func() { _ = l.Lock(first) }()
	waitForWaiters(t, c, 1)
	_, err := settled(t, func() (bool, error) {
		return l.TryLock(WithOwner(t.Context(), "second"), 100*time.Millisecond, 0)
	})
	require.ErrorIs(t, err, ErrRestarted)
	ctx, end := context.WithTimeout(WithOwner(t.Context(), "third"), 100*time.Millisecond)
	defer end()
	require.ErrorIs(t, l.Lock(ctx), ErrRestarted)
}

// While the guard refuses, those who want a fair lock stand in its queue, and come in
// afterwards in the order in which they came.
func TestMULTI1_FairOrderUnderTheGuard(t *testing.T) {
	t.Parallel()
	look(t)
	s := redistest.StartServer(t)
	rdb := s.Client(t)
	const n, name = 6, "guarded"
	order := make(chan int, n)
	for i := range n {
		c := newClient(t, s.Client(t), WithRestartGuard(3*time.Second))
		o, l := as(Owner(fmt.Sprint("w", i))), c.NewFairLock(name)
		go func() {
			if l.Lock(o) == nil {
				order <- i
				_ = l.Unlock(o)
			}
		}()
		eventually(t, func() bool {
			return c.Stats().Waiting == 1 || len(order) > i // the guard is over already
		}, "waiter %d was refused", i)
	}
	for i := range n {
		require.Equal(t, i, recv(t, order, "the next one"))
	}
	eventually(t, func() bool { return rdb.Exists(context.Background(), name, script.QueueKey(name)).Val() == 0 }, "nobody is left")
}

// Whoever gives up while the guard refuses hears of it, wherever it stands in the queue,
// and leaves it.
func TestMULTI1_FairWaitersThatEndFirst(t *testing.T) {
	t.Parallel()
	c, d := onShared(t, WithRestartGuard(forAsLongAsTestsRun)), onShared(t, WithRestartGuard(forAsLongAsTestsRun))
	l := c.NewFairLock(unique("guard"))
	ctx, cancel := context.WithCancel(as("first"))
	first := async(func() error { return l.Lock(ctx) })
	eventually(t, func() bool { return queued(t, l) == 1 }, "the first stands in the queue")
	for _, wait := range []time.Duration{0, 50 * time.Millisecond} {
		for _, other := range []*Client{c, d} {
			_, err := settled(t, func() (bool, error) { return other.NewFairLock(l.Name()).TryLock(as("b"), wait, 0) })
			require.ErrorIs(t, err, ErrRestarted)
		}
	}
	eventually(t, func() bool { return queued(t, l) == 1 }, "the others have left")
	cancel()
	err := recv(t, first, "the first")
	require.ErrorIs(t, err, ErrRestarted)
	require.ErrorIs(t, err, context.Canceled)
	eventually(t, func() bool { return queued(t, l) == 0 }, "and so has it")
	require.False(t, exists(t, l.Key()))
}
