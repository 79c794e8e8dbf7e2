package rlock

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/redistest"
	"github.com/relock-go/relock/internal/script"
)

// answers are those to all questions.
type answers struct {
	locked, held, heldBy bool
	count                int
	ttl                  time.Duration
	info                 Info
}

func questions(t *testing.T, ctx context.Context, l *Lock, by Owner) (a answers) {
	t.Helper()
	var err error
	a.locked, err = l.IsLocked(ctx)
	require.NoError(t, err)
	a.held, err = l.IsHeld(ctx)
	require.NoError(t, err)
	a.heldBy, err = l.IsHeldBy(ctx, by)
	require.NoError(t, err)
	a.count, err = l.HoldCount(ctx)
	require.NoError(t, err)
	a.ttl, err = l.TTL(ctx)
	require.NoError(t, err)
	a.info, err = l.Info(ctx)
	require.NoError(t, err)
	return a
}

func TestQuestions(t *testing.T) {
	t.Parallel()
	c := onShared(t)
	l := c.NewLock(unique("ask"))
	mine, other := WithOwner(t.Context(), "mine"), WithOwner(t.Context(), "other")
	require.Equal(t, answers{}, questions(t, mine, l, "mine"), "free")

	require.NoError(t, l.LockLease(mine, time.Minute))
	require.NoError(t, l.Lock(mine))
	a := questions(t, mine, l, "mine")
	require.True(t, a.locked && a.held && a.heldBy)
	require.Equal(t, 2, a.count)
	between(t, 50*time.Second, time.Minute, a.ttl, "TTL")
	between(t, 50*time.Second, time.Minute, a.info.TTL, "TTL")
	require.Equal(t, "lock", a.info.Kind)
	require.Equal(t, []Holder{{Client: c.ID(), Owner: "mine", Depth: 2}}, a.info.Holders)
	require.Empty(t, a.info.Queue)

	a = questions(t, other, l, "nobody")
	require.True(t, a.locked)
	require.False(t, a.held || a.heldBy)
	require.Zero(t, a.count)
	held, err := l.IsHeldBy(other, "mine")
	require.NoError(t, err)
	require.True(t, held)

	// Another client sees who holds it, and that it does not.
	foreign := onShared(t).NewLock(l.Name())
	a = questions(t, mine, foreign, "mine")
	require.True(t, a.locked)
	require.False(t, a.held || a.heldBy, "an owner of that name, of another client")
	require.Zero(t, a.count)
	require.Equal(t, []Holder{{Client: c.ID(), Owner: "mine", Depth: 2}}, a.info.Holders)

	require.NoError(t, l.Unlock(mine))
	n, err := l.HoldCount(mine)
	require.NoError(t, err)
	require.Equal(t, 1, n)
	require.NoError(t, l.Unlock(mine))
	require.Equal(t, answers{}, questions(t, mine, l, "mine"), "free again")
}

func TestQuestions_AKeyWithoutExpiry(t *testing.T) {
	t.Parallel()
	l := onShared(t).NewLock(unique("persist"))
	occupy(t, l.Key(), 0)
	a := questions(t, t.Context(), l, "1")
	require.True(t, a.locked)
	require.EqualValues(t, -1, a.ttl)
	require.EqualValues(t, -1, a.info.TTL)
	require.Equal(t, []Holder{{Client: "foreign", Owner: "1", Depth: 1}}, a.info.Holders)
}

// TestQuestions_AHoldThatIsLostHere is false and 0, whatever Redis says.
func TestQuestions_AHoldThatIsLostHere(t *testing.T) {
	t.Parallel()
	c := onShared(t)
	l := c.NewLock(unique("lost"))
	ctx := WithOwner(t.Context(), "mine")
	require.NoError(t, l.LockLease(ctx, time.Minute))
	require.NoError(t, l.Extend(ctx, 30*time.Millisecond))
	recv(t, l.Lost(ctx), "the end here")
	require.Equal(t, map[string]string{c.ID() + ":mine": "1"}, fields(t, l.Key()), "Redis still has it")
	a := questions(t, ctx, l, "mine")
	require.True(t, a.locked, "as Redis has it")
	require.False(t, a.held || a.heldBy)
	require.Zero(t, a.count)
	held, err := l.IsHeldBy(t.Context(), "mine")
	require.NoError(t, err)
	require.False(t, held)
	require.ErrorIs(t, l.Unlock(ctx), ErrLost)
	eventually(t, func() bool { return !exists(t, l.Key()) }, "nobody is inside, so it is swept")
}

// TestQuestions_AHoldThatIsLostWhileTheyAreAsked.
func TestQuestions_AHoldThatIsLostWhileTheyAreAsked(t *testing.T) {
	t.Parallel()
	c, p := onProxy(t)
	l := c.NewLock(unique("lost"))
	ctx := WithOwner(t.Context(), "mine")
	require.NoError(t, l.LockLease(ctx, time.Minute))
	rule := p.On(redistest.HasArg(script.Info.SHA), redistest.HoldReply)
	n := async(func() int {
		n, err := l.HoldCount(ctx)
		if err != nil {
			t.Error(err)
		}
		return n
	})
	rule.WaitExecuted(t, 1)
	require.NoError(t, l.Extend(ctx, 10*time.Millisecond))
	recv(t, l.Lost(ctx), "the end here")
	rule.Release()
	require.Zero(t, recv(t, n, "the answer"))
}

// TestQuestions_RedisIsTheOneWhoKnows: a hold that was removed there counts for
// nothing, though this client has not noticed.
func TestQuestions_RedisIsTheOneWhoKnows(t *testing.T) {
	t.Parallel()
	l := onShared(t).NewLock(unique("removed"))
	ctx := WithOwner(t.Context(), "mine")
	require.NoError(t, l.Lock(ctx))
	remove(t, l.Key())
	require.Equal(t, answers{}, questions(t, ctx, l, "mine"))
	require.ErrorIs(t, l.Unlock(ctx), ErrLost)
}

// TestQuestions_EndWithCtx, which go-redis alone does not look at.
func TestQuestions_EndWithCtx(t *testing.T) {
	t.Parallel()
	c, p := onProxy(t)
	l := c.NewLock(unique("silent"))
	p.BlackHole(true)
	defer p.BlackHole(false)
	for name, op := range operations(l) {
		switch name {
		case "IsLocked", "IsHeld", "IsHeldBy", "HoldCount", "TTL", "Info":
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
			require.ErrorIs(t, op(ctx), context.DeadlineExceeded, name)
			cancel()
		}
	}
}

func TestForceUnlock(t *testing.T) {
	t.Parallel()
	c := onShared(t)
	l := c.NewLock(unique("force"))
	got, err := l.ForceUnlock(t.Context())
	require.NoError(t, err)
	require.False(t, got, "nobody held it")

	occupy(t, l.Key(), time.Hour)
	waiter := async(func() error { return l.LockLease(WithOwner(context.Background(), bystander), time.Minute) })
	waitForWaiters(t, c, 1)
	got, err = l.ForceUnlock(t.Context())
	require.NoError(t, err)
	require.True(t, got)
	require.NoError(t, recv(t, waiter, "a waiter is told"))
	require.NoError(t, l.Unlock(WithOwner(t.Context(), bystander)))

	// A read-write lock has channels of its own.
	rw := c.NewLock(unique("force"))
	require.NoError(t, look(t).HSet(t.Context(), rw.Key(), "mode", "read", "foreign:1", "1").Err())
	_, err = rw.ForceUnlock(t.Context())
	require.ErrorIs(t, err, ErrWrongType)
	remove(t, rw.Key())
}
