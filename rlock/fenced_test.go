package rlock

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestFenced_TokensRise(t *testing.T) {
	t.Parallel()
	c := onShared(t)
	l := c.NewFencedLock(unique("fenced"))
	_, err := l.Token(as("a"))
	require.ErrorIs(t, err, ErrNotHeld)
	var last uint64
	for range 3 {
		require.NoError(t, l.Lock(as("a")))
		token, err := l.Token(as("a"))
		require.NoError(t, err)
		require.Greater(t, token, last)
		require.NoError(t, l.Lock(as("a")))
		again, err := l.Token(as("a"))
		require.NoError(t, err)
		require.Equal(t, token, again, "a nested Lock has the token of the hold")
		require.NoError(t, l.Unlock(as("a")))
		require.NoError(t, l.Unlock(as("a")))
		last = token
	}
	require.NoError(t, l.Do(as("b"), func(ctx context.Context) error {
		token, ok := TokenFrom(ctx)
		require.True(t, ok)
		require.Greater(t, token, last)
		return nil
	}))
	plain := c.NewLock(l.Name())
	require.NoError(t, plain.Lock(as("a")))
	_, err = l.Token(as("a"))
	require.ErrorIs(t, err, ErrNotHeld)
	require.NoError(t, l.Lock(as("a")))
	token, err := l.Token(as("a"))
	require.NoError(t, err)
	require.Greater(t, token, last)
	// passed on
	next := async(func() error { return l.Lock(as("c")) })
	eventually(t, func() bool { return c.Stats().Waiting == 1 }, "it waits")
	require.NoError(t, plain.Unlock(as("a")))
	require.NoError(t, l.Unlock(as("a")))
	require.NoError(t, recv(t, next, "the next one"))
	passed, err := l.Token(as("c"))
	require.NoError(t, err)
	require.Greater(t, passed, token)
	require.NoError(t, l.Unlock(as("c")))
}
