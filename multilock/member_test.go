package multilock

import (
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/redistest"
	"github.com/relock-go/relock/rlock"
)

// onMini is a client of an embedded Redis.
func onMini(t testing.TB, addr string, opts ...rlock.Option) *rlock.Client {
	t.Helper()
	c, err := rlock.New(redistest.NewClient(t, addr), opts...)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close(context.Background())) })
	return c
}

func keysOf(g *MultiLock) (keys []string) {
	for _, m := range g.members {
		keys = append(keys, m.key)
	}
	return keys
}

func TestDuplicates(t *testing.T) {
	mini := redistest.StartMini(t)
	one, two := onMini(t, mini.Addr()), onMini(t, mini.Addr())
	a := one.NewLock("a")

	// All kinds that nest into each other are one lock, and the first of them is asked.
	g, err := New(a, a, one.NewLock("a"), one.NewFairLock("a"), one.NewLock("b"), one.NewFencedLock("a"), one.NewSpinLock("b"))
	require.NoError(t, err)
	require.Equal(t, "a, b", g.Name())
	require.Equal(t, []string{"a", "b"}, keysOf(g))
	ctx := as(t, alice)
	require.NoError(t, g.Lock(ctx))
	n, err := a.HoldCount(ctx)
	require.NoError(t, err)
	require.Equal(t, 1, n)
	require.NoError(t, g.Unlock(ctx))
	require.Empty(t, mini.Keys())

	// Another client is another lock.
	g, err = New(a, two.NewLock("a"))
	require.NoError(t, err)
	require.Len(t, g.members, 2)

	// Lockers that do not say what they are.
	l, _ := fakes("a", "a")
	require.Len(t, group(t, l[0], l[1], l[0]).members, 2)
	type odd struct { // cannot be compared
		*fake
		_ []int
	}
	g, err = New(odd{fake: l[0]}, odd{fake: l[0]})
	require.NoError(t, err)
	require.Len(t, g.members, 2)
}

// Both halves of a read-write lock are members, and the write half comes first: a
// reader cannot become a writer.
func TestReadWriteLock(t *testing.T) {
	mini := redistest.StartMini(t)
	c := onMini(t, mini.Addr())
	rw, again := c.NewReadWriteLock("rw"), c.NewReadWriteLock("rw")
	g, err := New(rw.ReadLock(), c.NewLock("zero"), again.WriteLock(), again.ReadLock(), rw.WriteLock(), c.NewLock("a"))
	require.NoError(t, err)
	require.Equal(t, []string{"a", "rw", "rw", "zero"}, keysOf(g))
	ctx := as(t, alice)
	for _, lease := range []time.Duration{0, time.Minute} {
		require.NoError(t, g.LockLease(ctx, lease))
		require.Positive(t, rw.ReadLock().Validity(ctx))
		require.Positive(t, rw.WriteLock().Validity(ctx))
		require.Positive(t, g.Validity(ctx))
		require.NoError(t, g.Unlock(ctx))
		require.Empty(t, mini.Keys())
	}

	// What only reads lets other readers in.
	g, err = New(rw.ReadLock(), c.NewLock("a"))
	require.NoError(t, err)
	require.NoError(t, again.ReadLock().Lock(as(t, bob)))
	require.NoError(t, g.Lock(ctx))
	require.NoError(t, g.Unlock(ctx))
	require.NoError(t, again.ReadLock().Unlock(as(t, bob)))
	require.Empty(t, mini.Keys())
}

// What counts for the order is what stands in Redis.
func TestOrder_ByKey(t *testing.T) {
	mini := redistest.StartMini(t)
	c := onMini(t, mini.Addr(), rlock.WithNameMapper(func(n string) string {
		return map[string]string{"a": "z", "b": "y"}[n]
	}))
	plain := onMini(t, mini.Addr())
	g, err := New(c.NewLock("a"), plain.NewLock("yy"), c.NewLock("b"))
	require.NoError(t, err)
	require.Equal(t, []string{"y", "yy", "z"}, keysOf(g))
	require.Equal(t, "a, yy, b", g.Name())
}

// MULTI-7: one server by two clients is an error, at once, and not a wait for
// oneself.
func TestSameServerTwice(t *testing.T) {
	mini := redistest.StartMini(t)
	one, two := onMini(t, mini.Addr()), onMini(t, mini.Addr())
	g, err := New(one.NewLock("a"), one.NewLock("b"), two.NewLock("b"))
	require.NoError(t, err)
	ctx := as(t, alice)
	for _, wait := range []time.Duration{0, time.Hour, -1} {
		for _, lease := range []time.Duration{0, time.Minute} {
			got, err := g.TryLock(ctx, wait, lease)
			require.False(t, got)
			require.ErrorIs(t, err, rlock.ErrReentry)
			require.ErrorContains(t, err, `member 3 ("b")`)
			require.ErrorContains(t, err, "member 2, on the same server")
			require.Empty(t, mini.Keys())
		}
	}

	// Somebody else who holds it is no error; nor is the same name elsewhere.
	other := redistest.StartMini(t)
	three := onMini(t, other.Addr())
	g, err = New(one.NewLock("b"), three.NewLock("b"))
	require.NoError(t, err)
	require.NoError(t, three.NewLock("b").Lock(as(t, bob)))
	require.NoError(t, try(t, g))
	require.NoError(t, three.NewLock("b").Unlock(as(t, bob)))

	// Nor is an owner of that name in another process,
	stranger := onMini(t, other.Addr())
	require.NoError(t, stranger.NewLock("b").Lock(ctx))
	require.NoError(t, try(t, g))
	require.NoError(t, stranger.NewLock("b").Unlock(ctx))

	// or another owner of clients that were given one id.
	here, there := onMini(t, mini.Addr(), rlock.WithID("one")), onMini(t, other.Addr(), rlock.WithID("one"))
	same, err := New(here.NewLock("b"), there.NewLock("b"))
	require.NoError(t, err)
	require.NoError(t, there.NewLock("b").Lock(as(t, bob)))
	require.NoError(t, try(t, same))
	require.NoError(t, there.NewLock("b").Unlock(as(t, bob)))
	require.NoError(t, g.Lock(ctx))
	require.NoError(t, g.Unlock(ctx))
	require.Empty(t, other.Keys())
}

// rlock may have put a number behind an owner.
func TestSameOwner(t *testing.T) {
	a := &attempt{owner: alice}
	for o, want := range map[rlock.Owner]bool{
		"alice": true, "alice.1": true, "alice.23": true,
		"alic": false, "alice2": false, "alice.b": false, "alice.1b": false, "bob": false, "": false,
	} {
		require.Equal(t, want, a.is(o), o)
	}
}

// A goroutine that holds a member as itself, and asks as somebody else, would wait
// for itself.
func TestWaitsForItself(t *testing.T) {
	mini := redistest.StartMini(t)
	c := onMini(t, mini.Addr())
	a, b := c.NewLock("a"), c.NewLock("b")
	g, err := New(a, b)
	require.NoError(t, err)
	require.NoError(t, b.Lock(t.Context()))
	require.ErrorIs(t, g.Lock(as(t, alice)), rlock.ErrReentry)
	require.NoError(t, g.Lock(t.Context()))
	require.ErrorIs(t, g.Lock(as(t, alice)), rlock.ErrReentry)
	require.NoError(t, g.Unlock(t.Context()))
	require.NoError(t, b.Unlock(t.Context()))
	require.Empty(t, mini.Keys())
}

// A ctx of a Do that has returned is refused, as by a single lock.
func TestCtxOfAnotherDo(t *testing.T) {
	mini := redistest.StartMini(t)
	c := onMini(t, mini.Addr())
	g, err := New(c.NewLock("a"), c.NewLock("b"))
	require.NoError(t, err)
	var leaked context.Context
	require.NoError(t, c.NewLock("around").Do(t.Context(), func(ctx context.Context) error {
		leaked = context.WithoutCancel(ctx)
		require.NoError(t, g.Lock(ctx))
		return g.Unlock(ctx)
	}))
	require.ErrorIs(t, g.Lock(leaked), rlock.ErrNotHeld)
	require.Empty(t, mini.Keys())
}

// What rlock checks is checked before anything is taken, or undone.
func TestBadMember(t *testing.T) {
	mini := redistest.StartMini(t)
	c := onMini(t, mini.Addr())
	g, err := New(c.NewLock("a"), c.NewLock(""))
	require.NoError(t, err)
	require.ErrorIs(t, g.Lock(as(t, alice)), rlock.ErrInvalidName)
	g, err = New(c.NewLock("a"), c.NewLock("b"))
	require.NoError(t, err)
	require.ErrorIs(t, g.Lock(as(t, "no owner")), rlock.ErrInvalidOwner)
	require.Empty(t, mini.Keys())

	// A Redis that is not there.
	gone := redistest.StartMini(t)
	far := redis.NewClient(&redis.Options{Addr: gone.Addr(), MaxRetries: -1, DialTimeout: time.Second, ReadTimeout: time.Second})
	t.Cleanup(func() { _ = far.Close() })
	d, err := rlock.New(far)
	require.NoError(t, err)
	t.Cleanup(func() { _ = d.Close(context.Background()) })
	gone.Close()
	g, err = New(c.NewLock("a"), d.NewLock("b"))
	require.NoError(t, err)
	err = g.Lock(as(t, alice))
	require.ErrorContains(t, err, `member 2 ("b")`)
	require.Empty(t, mini.Keys())
}
