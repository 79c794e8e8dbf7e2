package rlock

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/redistest"
)

// newClient is a client that the test closes.
func newClient(t testing.TB, rdb redis.UniversalClient, opts ...Option) *Client {
	t.Helper()
	c, err := New(rdb, opts...)
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		_ = c.Close(ctx)
	})
	return c
}

func TestLockReentersAndFrees(t *testing.T) {
	s := redistest.StartServer(t)
	rdb := s.Client(t)
	c := newClient(t, rdb)
	ctx := t.Context()
	l := c.NewLock("a")
	require.NoError(t, l.Lock(ctx))
	require.NoError(t, l.Lock(ctx))
	field := c.ID() + ":" + string(OwnerOf(ctx))
	require.Equal(t, map[string]string{field: "2"}, rdb.HGetAll(ctx, "a").Val())
	n, err := l.HoldCount(ctx)
	require.NoError(t, err)
	require.Equal(t, 2, n)
	require.NoError(t, l.Unlock(ctx))
	require.Equal(t, map[string]string{field: "1"}, rdb.HGetAll(ctx, "a").Val())
	require.NoError(t, l.Unlock(ctx))
	require.Zero(t, rdb.Exists(ctx, "a").Val())
	require.ErrorIs(t, l.Unlock(ctx), ErrNotHeld)
}

func TestManyGoroutinesOneKey(t *testing.T) {
	s := redistest.StartServer(t)
	rdb := s.Client(t)
	c := newClient(t, rdb)
	c2 := newClient(t, s.Client(t))
	ctx := t.Context()
	var wg sync.WaitGroup
	n := 0
	for i := range 64 {
		wg.Go(func() {
			cl := c
			if i%2 == 1 {
				cl = c2
			}
			l := cl.NewLock("a")
			for range 50 {
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
	require.Equal(t, 64*50, n)
	t.Logf("%+v", c.Stats())
	t.Logf("%+v", c2.Stats())
}
