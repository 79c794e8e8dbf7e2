package rlock

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// as is a ctx that carries an owner of that name.
func as(name Owner) context.Context { return WithOwner(context.Background(), name) }

func TestRW_ReadersTogetherWritersAlone(t *testing.T) {
	t.Parallel()
	c := onShared(t)
	l := c.NewReadWriteLock(unique("rw"))
	r, w := l.ReadLock(), l.WriteLock()
	require.NoError(t, r.Lock(as("a")))
	require.NoError(t, r.Lock(as("b")))
	got, err := w.TryLock(as("c"), 0, 0)
	require.NoError(t, err)
	require.False(t, got, "a writer among readers")
	require.NoError(t, r.Unlock(as("a")))
	got, err = w.TryLock(as("c"), 0, 0)
	require.NoError(t, err)
	require.False(t, got, "a writer beside a reader")
	require.NoError(t, r.Unlock(as("b")))
	require.NoError(t, w.Lock(as("c")))
	got, err = r.TryLock(as("a"), 0, 0)
	require.NoError(t, err)
	require.False(t, got, "a reader beside a writer")
	require.NoError(t, w.Unlock(as("c")))
	require.Empty(t, fields(t, r.Key()))
}

// A writer that reads too goes on as a reader, and readers that wait come in then.
func TestRW_DowngradeLetsReadersIn(t *testing.T) {
	t.Parallel()
	c, other := onShared(t), onShared(t)
	name := unique("rw")
	l, far := c.NewReadWriteLock(name), other.NewReadWriteLock(name)
	require.NoError(t, l.WriteLock().Lock(as("w")))
	require.NoError(t, l.ReadLock().Lock(as("w")))
	near := async(func() error { return l.ReadLock().Lock(as("r1")) })
	away := async(func() error { return far.ReadLock().Lock(as("r2")) })
	eventually(t, func() bool { return c.Stats().Waiting == 1 && other.Stats().Waiting == 1 }, "both wait")
	require.NoError(t, l.WriteLock().Unlock(as("w")))
	require.NoError(t, recv(t, near, "the reader here"))
	require.NoError(t, recv(t, away, "the reader of another client"))
	require.Equal(t, "read", fields(t, l.ReadLock().Key())["mode"])
	for _, o := range []Owner{"w", "r1"} {
		require.NoError(t, l.ReadLock().Unlock(as(o)))
	}
	require.NoError(t, far.ReadLock().Unlock(as("r2")))
	require.Empty(t, fields(t, l.ReadLock().Key()))
}

func TestRW_UpgradeIsRefused(t *testing.T) {
	t.Parallel()
	l := onShared(t).NewReadWriteLock(unique("rw"))
	require.NoError(t, l.ReadLock().Lock(as("a")))
	require.ErrorIs(t, l.WriteLock().Lock(as("a")), ErrUpgrade)
	require.NoError(t, l.ReadLock().Unlock(as("a")))
	require.NoError(t, l.WriteLock().Lock(as("a")))
	require.NoError(t, l.WriteLock().Unlock(as("a")))
}

// Within a process a waiting writer goes before readers that came after it, and a run
// of readers goes together.
func TestWAIT12_RunsOfReaders(t *testing.T) {
	t.Parallel()
	c := onShared(t)
	l := c.NewReadWriteLock(unique("rw"))
	require.NoError(t, l.WriteLock().Lock(as("first")))
	var readers []<-chan error
	for _, o := range []Owner{"r1", "r2", "r3"} {
		readers = append(readers, async(func() error { return l.ReadLock().Lock(as(o)) }))
	}
	eventually(t, func() bool { return c.Stats().Waiting == 3 }, "three readers wait")
	writer := async(func() error { return l.WriteLock().Lock(as("w")) })
	eventually(t, func() bool { return c.Stats().Waiting == 4 }, "the writer waits")
	late := async(func() error { return l.ReadLock().Lock(as("late")) })
	eventually(t, func() bool { return c.Stats().Waiting == 5 }, "the late reader waits")

	require.NoError(t, l.WriteLock().Unlock(as("first")))
	for _, r := range readers {
		require.NoError(t, recv(t, r, "a reader of the run"))
	}
	require.Len(t, fields(t, l.ReadLock().Key()), 4, "three readers are inside together")
	for _, o := range []Owner{"r1", "r2", "r3"} {
		require.NoError(t, l.ReadLock().Unlock(as(o)))
	}
	require.NoError(t, recv(t, writer, "the writer"))
	require.NoError(t, l.WriteLock().Unlock(as("w")))
	require.NoError(t, recv(t, late, "the late reader"))
	require.NoError(t, l.ReadLock().Unlock(as("late")))
}

func TestRW_DepthAndHoldKeys(t *testing.T) {
	t.Parallel()
	c := onShared(t)
	l := c.NewReadWriteLock(unique("rw")).ReadLock()
	key := "{" + l.Key() + "}:" + c.ID() + ":a:rwlock_timeout:"
	for range 3 {
		require.NoError(t, l.Lock(as("a")))
	}
	for _, n := range []string{"1", "2", "3"} {
		require.Greater(t, pttl(t, key+n), 25*time.Second)
	}
	n, err := l.HoldCount(as("a"))
	require.NoError(t, err)
	require.Equal(t, 3, n)
	require.NoError(t, l.Unlock(as("a")))
	require.Less(t, pttl(t, key+"3"), time.Duration(0))
	require.NoError(t, l.Unlock(as("a")))
	require.NoError(t, l.Unlock(as("a")))
	require.ErrorIs(t, l.Unlock(as("a")), ErrNotHeld)
	require.Less(t, pttl(t, key+"1"), time.Duration(0))
}
