package rlock

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/redistest"
)

func TestError(t *testing.T) {
	t.Parallel()
	cause := errors.New("cause")
	err := error(&Error{Op: "lock", Lock: "orders", Owner: "7", Err: fmt.Errorf("%w: %w", ErrUnsettled, cause)})
	require.EqualError(t, err, `rlock: lock "orders" as owner 7: rlock: outcome unknown: cause`)
	require.ErrorIs(t, err, ErrUnsettled)
	require.ErrorIs(t, err, cause)
	require.EqualError(t, &Error{Op: "lock", Lock: "orders", Err: cause}, `rlock: lock "orders": cause`)
}

// TestError_SaysWhatWhichAndWho.
func TestError_SaysWhatWhichAndWho(t *testing.T) {
	t.Parallel()
	l := onShared(t).NewLock(unique("error"))
	ctx := WithOwner(t.Context(), "someone")
	for op, err := range map[string]error{"unlock": l.Unlock(ctx), "extend": l.Extend(ctx, time.Second)} {
		var e *Error
		require.ErrorAs(t, err, &e)
		require.Equal(t, op, e.Op)
		require.Equal(t, l.Name(), e.Lock)
		require.Equal(t, Owner("someone"), e.Owner)
		require.Contains(t, err.Error(), l.Name())
		require.Contains(t, err.Error(), "someone")
	}
}

// TestCTX6_TheErrorNamesAllCauses: the ctx's, ours and the server's at once.
func TestCTX6_TheErrorNamesAllCauses(t *testing.T) {
	t.Parallel()
	why := errors.New("because")
	c, p := onProxy(t)
	l := c.NewLock(unique("causes"))
	rule := p.On(redistest.HasArg(l.Key()), redistest.HoldRequest)
	ctx, cancel := context.WithCancelCause(t.Context())
	err := async(func() error { return l.Lock(ctx) })
	rule.Wait(t)
	cancel(why)
	got := recv(t, err, "Lock")
	for _, want := range []error{ErrUnsettled, context.Canceled, why} {
		require.ErrorIs(t, got, want)
	}
	rule.Release()

	l = c.NewLock(unique("causes"))
	p.On(redistest.HasArg(l.Key()), redistest.Reply("-OOM command not allowed when used memory > 'maxmemory'.\r\n"))
	got = l.Lock(t.Context())
	var server redis.Error
	require.ErrorAs(t, got, &server)
	require.ErrorContains(t, got, "OOM")
	require.NotErrorIs(t, got, ErrUnsettled, "a refusal is definite")
}

// TestACQ14_AKeyOfAnotherType: every operation says so and changes nothing.
func TestACQ14_AKeyOfAnotherType(t *testing.T) {
	t.Parallel()
	c := onShared(t)
	for kind, make := range map[string]func(key string) error{
		"string": func(key string) error { return shared.rdb.Set(context.Background(), key, "precious", 0).Err() },
		"hash":   func(key string) error { return shared.rdb.HSet(context.Background(), key, "name", "precious").Err() },
		"list":   func(key string) error { return shared.rdb.RPush(context.Background(), key, "precious").Err() },
		"zset": func(key string) error {
			return shared.rdb.ZAdd(context.Background(), key, redis.Z{Member: "precious"}).Err()
		},
	} {
		l := c.NewLock(unique("type"))
		require.NoError(t, make(l.Key()))
		before, err := shared.rdb.Dump(t.Context(), l.Key()).Result()
		require.NoError(t, err)
		unchanged := func(op string) {
			t.Helper()
			after, err := shared.rdb.Dump(t.Context(), l.Key()).Result()
			require.NoError(t, err)
			require.Equal(t, before, after, "%s on a %s", op, kind)
			require.EqualValues(t, -1, pttl(t, l.Key()), "%s on a %s", op, kind)
		}
		for name, op := range operations(l) {
			err := op(t.Context())
			switch name {
			case "Unlock", "Extend": // nothing held: nobody is asked
				require.ErrorIs(t, err, ErrNotHeld, name)
			default:
				require.ErrorIs(t, err, ErrWrongType, name)
				require.ErrorContains(t, err, l.Key(), name)
			}
			unchanged(name)
		}
		remove(t, l.Key())
	}
}

// TestACQ14_TheKeyOfAHoldBecomesAnotherType.
func TestACQ14_TheKeyOfAHoldBecomesAnotherType(t *testing.T) {
	t.Parallel()
	c := onShared(t, WithWatchdogTimeout(1200*time.Millisecond))
	for name, op := range operations(c.NewLock(unique("type"))) {
		_ = op
		l := c.NewLock(unique("type"))
		ctx := WithOwner(t.Context(), NewOwner())
		require.NoError(t, l.Lock(ctx))
		lost := l.Lost(ctx)
		require.NoError(t, shared.rdb.Set(ctx, l.Key(), "precious", 0).Err())
		require.Error(t, operations(l)[name](ctx), name)
		if name != "Unlock" {
			recv(t, lost, "the loss")
			require.Error(t, l.Unlock(ctx))
		}
		require.Equal(t, "precious", shared.rdb.Get(ctx, l.Key()).Val())
		remove(t, l.Key())
	}
}
