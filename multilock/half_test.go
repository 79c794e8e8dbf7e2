package multilock

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/redistest"
	"github.com/relock-go/relock/rlock"
)

// Locks of a user's, around those of rlock.
type (
	tracedReader struct{ *rlock.ReadLock }
	tracedWriter struct{ *rlock.WriteLock }
	byInterface  struct{ known }
	byLocker     struct{ rlock.Locker } // says nothing of key and client
	deeper       struct {
		*tracedWriter
		again *rlock.ReadLock // not where its methods come from
	}
	itself struct { // its embedded pointer leads nowhere
		*itself
		known
	}
	// WriteLock has the name of what it is not.
	WriteLock struct{ *rlock.SpinLock }
)

// opaque has methods of its own, so nobody sees what is behind it.
type opaque struct{ to known }

func (o opaque) Name() string                   { return o.to.Name() }
func (o opaque) Lock(ctx context.Context) error { return o.to.Lock(ctx) }
func (o opaque) LockLease(ctx context.Context, lease time.Duration) error {
	return o.to.LockLease(ctx, lease)
}
func (o opaque) Unlock(ctx context.Context) error { return o.to.Unlock(ctx) }
func (o opaque) Extend(ctx context.Context, lease time.Duration) error {
	return o.to.Extend(ctx, lease)
}
func (o opaque) Validity(ctx context.Context) time.Duration   { return o.to.Validity(ctx) }
func (o opaque) Lost(ctx context.Context) <-chan struct{}     { return o.to.Lost(ctx) }
func (o opaque) Key() string                                  { return o.to.Key() }
func (o opaque) Client() *rlock.Client                        { return o.to.Client() }
func (o opaque) Info(ctx context.Context) (rlock.Info, error) { return o.to.Info(ctx) }
func (o opaque) TryLock(ctx context.Context, wait, lease time.Duration) (bool, error) {
	return o.to.TryLock(ctx, wait, lease)
}

func TestHalfOf(t *testing.T) {
	c := onMini(t, redistest.StartMini(t).Addr())
	rw, plain := c.NewReadWriteLock("x"), c.NewSpinLock("x")
	r, w := rw.ReadLock(), rw.WriteLock()
	l, _ := fakes("x")
	for _, test := range []struct {
		of   rlock.Locker
		want half
	}{
		{r, read},
		{w, write},
		{plain, whole},
		{c.NewFairLock("x"), whole},
		{c.NewFencedLock("x"), whole},
		{c.NewLock("x"), whole},
		{tracedReader{r}, read},
		{&tracedWriter{w}, write},
		{byInterface{r}, read},
		{byInterface{tracedWriter{w}}, write},
		{byLocker{w}, write},
		{deeper{&tracedWriter{w}, r}, write},
		{itself{itself: nil, known: r}, read},
		{WriteLock{plain}, whole},
		{opaque{w}, unsaid},
		{l[0], unsaid},
	} {
		require.Equal(t, test.want, halfOf(test.of), "%T", test.of)
	}
}

// Both halves of a read-write lock in wrappers are two members, whatever hides them, and
// the write half is taken first.
func TestReadWriteLock_Wrapped(t *testing.T) {
	mini := redistest.StartMini(t)
	c, foreign := onMini(t, mini.Addr()), onMini(t, mini.Addr())
	rw := c.NewReadWriteLock("x")
	r, w := rw.ReadLock(), rw.WriteLock()
	for name, halves := range map[string][]rlock.Locker{
		"embedded":            {tracedReader{r}, tracedWriter{w}},
		"behind an interface": {byInterface{r}, byInterface{w}},
		"without a key":       {byLocker{r}, byLocker{w}},
		"one of them":         {r, byInterface{w}},
		"nobody sees which":   {r, opaque{w}},
		"nor which it is":     {opaque{r}, w},
		"in the user's order": {opaque{w}, opaque{r}},
	} {
		t.Run(name, func(t *testing.T) {
			g, err := New(halves...)
			require.NoError(t, err)
			require.Len(t, g.members, 2)
			ctx := as(t, alice)
			require.NoError(t, g.Lock(ctx))
			require.Positive(t, r.Validity(ctx))
			require.Positive(t, w.Validity(ctx))
			got, err := foreign.NewReadWriteLock("x").ReadLock().TryLock(as(t, bob), 0, 0)
			require.NoError(t, err)
			require.False(t, got, "the group has the write half")
			require.NoError(t, g.Unlock(ctx))
			require.Empty(t, mini.Keys())
		})
	}
}

// A wrapper is the lock that it embeds. One that does not say what it is nests in it.
func TestDuplicates_Wrapped(t *testing.T) {
	mini := redistest.StartMini(t)
	c := onMini(t, mini.Addr())
	rw, plain := c.NewReadWriteLock("x"), c.NewSpinLock("y")
	g, err := New(tracedReader{rw.ReadLock()}, rw.ReadLock(), WriteLock{plain}, plain, opaque{plain}, opaque{plain})
	require.NoError(t, err)
	require.Len(t, g.members, 3)
	ctx := as(t, alice)
	require.NoError(t, g.Lock(ctx))
	n, err := plain.HoldCount(ctx)
	require.NoError(t, err)
	require.Equal(t, 2, n)
	require.NoError(t, g.Unlock(ctx))
	require.Empty(t, mini.Keys())
}
