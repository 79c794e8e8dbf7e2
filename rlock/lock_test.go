package rlock

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestLock_ReentersAndFrees(t *testing.T) {
	t.Parallel()
	c := onShared(t)
	ctx := t.Context()
	l := c.NewLock(unique("lock"))
	require.NoError(t, l.Lock(ctx))
	require.NoError(t, l.Lock(ctx))
	n, err := l.HoldCount(ctx)
	require.NoError(t, err)
	require.Equal(t, 2, n)
	require.NoError(t, l.Unlock(ctx))
	require.NoError(t, l.Unlock(ctx))
	free(t, l.Key())
	require.ErrorIs(t, l.Unlock(ctx), ErrNotHeld)
}

// TestLock_NoIncrementIsLost: 64 goroutines of two clients and an unprotected
// counter.
func TestLock_NoIncrementIsLost(t *testing.T) {
	t.Parallel()
	clients := []*Client{onShared(t), onShared(t)}
	ctx := t.Context()
	name := unique("many")
	var wg sync.WaitGroup
	n := 0
	for i := range 64 {
		wg.Go(func() {
			l := clients[i%2].NewLock(name)
			for range 20 {
				if err := l.Lock(ctx); err != nil {
					t.Error(err)
					return
				}
				n++
				if err := l.Unlock(ctx); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	require.Equal(t, 64*20, n)
	free(t, name)
	for _, c := range clients {
		stats := c.Stats()
		require.EqualValues(t, 32*20, stats.Acquired)
		require.EqualValues(t, 32*20, stats.Released)
		require.Zero(t, stats.Held)
		require.Zero(t, stats.Waiting)
		require.Zero(t, stats.Lost)
	}
}
