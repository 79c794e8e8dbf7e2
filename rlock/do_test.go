package rlock

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

var errFn = errors.New("fn failed")

func TestDo_LocksRunsUnlocks(t *testing.T) {
	t.Parallel()
	c := onShared(t)
	l := c.NewLock(unique("do"))
	type key struct{}
	ctx := context.WithValue(t.Context(), key{}, "value")
	require.NoError(t, l.Do(ctx, func(inner context.Context) error {
		require.Equal(t, map[string]string{c.ID() + ":" + goroutineID(): "1"}, fields(t, l.Key()))
		require.Equal(t, OwnerOf(ctx), OwnerOf(inner))
		require.Equal(t, "value", inner.Value(key{}))
		require.NoError(t, inner.Err())
		require.NotZero(t, l.Validity(inner))
		return nil
	}))
	free(t, l.Key())
	require.ErrorIs(t, l.Do(ctx, func(context.Context) error { return errFn }), errFn)
	free(t, l.Key())
}

func TestDo_AnErrorOfLockComesAlone(t *testing.T) {
	t.Parallel()
	l := onShared(t).NewLock(unique("do"))
	occupy(t, l.Key(), time.Minute)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	ran := false
	err := l.Do(ctx, func(context.Context) error { ran = true; return nil })
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.NotErrorIs(t, err, ErrNotHeld)
	require.False(t, ran)
}

func TestDo_Panic(t *testing.T) {
	t.Parallel()
	l := onShared(t).NewLock(unique("do"))
	var leaked context.Context
	require.PanicsWithValue(t, "boom", func() {
		_ = l.Do(t.Context(), func(ctx context.Context) error { leaked = ctx; panic("boom") })
	})
	free(t, l.Key())
	require.Error(t, leaked.Err())
}

// TestDo_PanicIsNotCoveredByAnUnlockThatFails: that goes to the log.
func TestDo_PanicIsNotCoveredByAnUnlockThatFails(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var log bytes.Buffer
	h := slog.NewTextHandler(writer(func(b []byte) (int, error) { mu.Lock(); defer mu.Unlock(); return log.Write(b) }), nil)
	l := onShared(t, WithLogger(slog.New(h))).NewLock(unique("do"))
	require.PanicsWithValue(t, "boom", func() {
		_ = l.Do(t.Context(), func(context.Context) error { remove(t, l.Key()); panic("boom") })
	})
	mu.Lock()
	defer mu.Unlock()
	require.Contains(t, log.String(), l.Name())
	require.Contains(t, log.String(), "unlock after a panic failed")
}

type writer func([]byte) (int, error)

func (w writer) Write(b []byte) (int, error) { return w(b) }

func TestDo_Goexit(t *testing.T) {
	t.Parallel()
	l := onShared(t).NewLock(unique("do"))
	var leaked context.Context
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = l.Do(t.Context(), func(ctx context.Context) error { leaked = ctx; runtime.Goexit(); return nil })
	}()
	recv(t, done, "the goroutine's end")
	free(t, l.Key())
	require.Error(t, leaked.Err())
}

// TestDo_ALeakedCtxIsWorthNothing once Do has returned, also when its end is
// taken off it, and when its owner is inside again.
func TestDo_ALeakedCtxIsWorthNothing(t *testing.T) {
	t.Parallel()
	for name, base := range map[string]context.Context{
		"goroutine": t.Context(),
		"owner":     WithOwner(t.Context(), NewOwner()),
	} {
		c, p := onProxy(t)
		l, another := c.NewLock(unique("do")), c.NewLock(unique("do"))
		var leaked context.Context
		require.NoError(t, l.Do(base, func(ctx context.Context) error { leaked = ctx; return nil }))
		recv(t, leaked.Done(), "the end of ctx")
		require.NotErrorIs(t, context.Cause(leaked), ErrLost)

		check := func(when string) {
			t.Helper()
			p.ResetCounts()
			for _, l := range []*Lock{l, another} {
				for ctxName, ctx := range map[string]context.Context{
					"leaked": leaked, "without cancel": context.WithoutCancel(leaked),
				} {
					for op, f := range operations(l) {
						if op == "IsHeldBy" {
							continue // names its owner itself
						}
						require.Error(t, f(ctx), "%s, %s with %s, %s", name, op, ctxName, when)
					}
					require.Zero(t, l.Validity(ctx))
					require.True(t, isClosed(l.Lost(ctx)))
				}
			}
			require.Empty(t, p.Counts(), "nothing is sent")
		}
		check("nothing held")
		require.NoError(t, l.Lock(base))
		check("held again")
		require.NotZero(t, l.Validity(base))
		require.NoError(t, l.Unlock(base))
		require.ErrorIs(t, l.Unlock(context.WithoutCancel(leaked)), ErrNotHeld)
	}
}

func TestDo_Nested(t *testing.T) {
	t.Parallel()
	c := onShared(t)
	l := c.NewLock(unique("do"))
	field := c.ID() + ":" + goroutineID()
	var inner context.Context
	require.NoError(t, l.Do(t.Context(), func(outer context.Context) error {
		require.NoError(t, l.Do(outer, func(ctx context.Context) error {
			inner = ctx
			require.Equal(t, "2", fields(t, l.Key())[field])
			return nil
		}))
		require.Equal(t, "1", fields(t, l.Key())[field])
		require.Error(t, inner.Err(), "the inner ctx is done")
		require.Error(t, l.Lock(inner))
		require.NoError(t, outer.Err(), "the outer one is not")
		require.NoError(t, l.Lock(outer))
		require.NoError(t, l.Unlock(outer))
		require.NotZero(t, l.Validity(outer))
		return nil
	}))
	free(t, l.Key())
}

func TestDo_GoroutinesOfFnShareTheHold(t *testing.T) {
	t.Parallel()
	c := onShared(t)
	l := c.NewLock(unique("do"))
	require.NoError(t, l.Do(t.Context(), func(ctx context.Context) error {
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				if l.Validity(ctx) == 0 {
					t.Error("not held")
				}
				if err := l.Do(ctx, func(context.Context) error { return nil }); err != nil {
					t.Error(err)
				}
				if got, err := l.TryLock(ctx, 0, 0); !got || err != nil {
					t.Error(got, err)
				}
				if err := l.Unlock(ctx); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		require.Equal(t, map[string]string{c.ID() + ":" + goroutineID(): "1"}, fields(t, l.Key()))
		return nil
	}))
	free(t, l.Key())
}

// TestDo_ErrLostWheneverTheHoldWasLostBeforeFnReturned, though nobody noticed
// before; joined with fn's error.
func TestDo_ErrLostWheneverTheHoldWasLostBeforeFnReturned(t *testing.T) {
	t.Parallel()
	c := onShared(t) // the watchdog comes in ten seconds only
	for _, fnErr := range []error{nil, errFn} {
		l := c.NewLock(unique("do"))
		err := l.Do(t.Context(), func(context.Context) error { remove(t, l.Key()); return fnErr })
		require.ErrorIs(t, err, ErrLost)
		if fnErr != nil {
			require.ErrorIs(t, err, errFn)
		}

		// Nested: the loss is in the chain of both.
		err = l.Do(t.Context(), func(ctx context.Context) error {
			inner := l.Do(ctx, func(context.Context) error { remove(t, l.Key()); return nil })
			require.ErrorIs(t, inner, ErrLost)
			recv(t, ctx.Done(), "the end of the outer ctx")
			require.ErrorIs(t, context.Cause(ctx), ErrLost)
			return fnErr
		})
		require.ErrorIs(t, err, ErrLost)

		// Somebody else has it by now.
		err = l.Do(t.Context(), func(context.Context) error {
			remove(t, l.Key())
			occupy(t, l.Key(), time.Minute)
			return fnErr
		})
		require.ErrorIs(t, err, ErrLost)
		require.Equal(t, map[string]string{"foreign:1": "1"}, fields(t, l.Key()))
	}
}

// TestDo_AHoldThatWasLostByItsLease: Do re-entered a fixed lease and took it over
// for the watchdog, so it is not lost; one that is extended to a short one is.
func TestDo_AHoldThatWasLostByItsLease(t *testing.T) {
	t.Parallel()
	l := onShared(t).NewLock(unique("do"))
	err := l.Do(t.Context(), func(ctx context.Context) error {
		require.NoError(t, l.Extend(ctx, 50*time.Millisecond))
		recv(t, ctx.Done(), "the end")
		require.ErrorIs(t, context.Cause(ctx), ErrLost)
		return nil
	})
	require.ErrorIs(t, err, ErrLost)
}

// TestDo_CtxThatEndsOutside ends fn's ctx with its own cause, and loses nothing.
func TestDo_CtxThatEndsOutside(t *testing.T) {
	t.Parallel()
	l := onShared(t).NewLock(unique("do"))
	outer, cancel := context.WithCancelCause(t.Context())
	require.NoError(t, l.Do(outer, func(ctx context.Context) error {
		cancel(errFn)
		recv(t, ctx.Done(), "the end")
		require.ErrorIs(t, context.Cause(ctx), errFn)
		require.NotZero(t, l.Validity(ctx), "CTX-3: the hold goes on")
		require.False(t, isClosed(l.Lost(ctx)))
		return nil
	}), "CTX-2: and Unlock works")
	free(t, l.Key())
}

func TestDo_CauseErrClosed(t *testing.T) {
	t.Parallel()
	c := onShared(t)
	l := c.NewLock(unique("do"))
	err := l.Do(t.Context(), func(ctx context.Context) error {
		require.NoError(t, c.Close(context.Background()))
		recv(t, ctx.Done(), "the end")
		require.ErrorIs(t, context.Cause(ctx), ErrClosed)
		require.Zero(t, l.Validity(ctx))
		return errFn
	})
	require.ErrorIs(t, err, ErrClosed)
	require.ErrorIs(t, err, errFn)
}

// What was locked with the ctx of a Do can be unlocked with it when the Do has returned,
// whatever lock it is, and what its owner has locked since cannot.
func TestDo_UnlockOfOtherLocksAfterwards(t *testing.T) {
	t.Parallel()
	c, d := onShared(t), onShared(t)
	a, b, other := c.NewLock(unique("a")), c.NewLock(unique("b")), d.NewLock(unique("other"))
	var inner context.Context
	require.NoError(t, a.Do(as("x"), func(ctx context.Context) error {
		inner = ctx
		return errors.Join(b.Lock(ctx), other.Lock(ctx))
	}))
	require.NoError(t, b.Unlock(inner))
	require.NoError(t, other.Unlock(inner))
	require.NoError(t, b.Lock(as("x")))
	require.ErrorIs(t, b.Unlock(inner), ErrNotHeld)
	require.NoError(t, b.Unlock(as("x")))
}
