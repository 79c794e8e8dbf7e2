package multilock

import (
	"context"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/rlock"
)

// suspended is t as it looks after the machine has slept for d, whole seconds: by the wall
// clock that much sooner, by the monotonic one as before.
func suspended(t *testing.T, at time.Time, d time.Duration) time.Time {
	raw := (*struct { // time.Time's own
		wall uint64
		ext  int64
		loc  *time.Location
	})(unsafe.Pointer(&at))
	before := at
	raw.wall -= uint64(d/time.Second) << 30
	require.Equal(t, d, before.Round(0).Sub(at.Round(0)), "the layout of time.Time is another one")
	require.Zero(t, before.Sub(at))
	return at
}

// sleptThrough has alice's hold of g, with a lease, end while the machine sleeps for d.
func sleptThrough(t *testing.T, g *MultiLock, l []*fake, d time.Duration) {
	h := g.held(alice)
	h.until = suspended(t, h.until, d)
	for _, f := range l { // they look at both clocks
		f.mu.Lock()
		f.hold.until = suspended(t, f.hold.until, d)
		f.drop()
		f.mu.Unlock()
	}
	require.Zero(t, g.Validity(as(t, alice)))
}

// A lease that ran out while the machine slept was agreed as any other.
func TestLease_RunsOutInSleep(t *testing.T) {
	l, _ := fakes("a", "b")
	g := group(t, l...)
	ctx := as(t, alice)
	require.NoError(t, g.LockLease(ctx, time.Minute))
	sleptThrough(t, g, l, time.Hour)
	require.NoError(t, g.Lock(ctx))
	require.Equal(t, []int{1, 1}, depths(l))
	require.NoError(t, g.Unlock(ctx))
	require.Equal(t, []int{0, 0}, depths(l))
}

// And is forgotten as any other.
func TestSweep_AfterSleep(t *testing.T) {
	for slept, want := range map[time.Duration]bool{remembered: true, remembered + 2*time.Minute: false} {
		l, _ := fakes("a", "b")
		g := group(t, l...)
		require.NoError(t, g.LockLease(as(t, alice), time.Minute))
		sleptThrough(t, g, l, slept)
		for range 20 { // calls of others
			g.sit(rlock.NewOwner())
		}
		require.Equal(t, want, g.held(alice) != nil)
	}
}

// An Extend that fails after a sleep finds the lease over, and leaves no watchdog.
func TestExtend_FailsAfterSleep(t *testing.T) {
	l, _ := fakes("a", "b")
	g := group(t, l...)
	ctx := as(t, alice)
	require.NoError(t, g.LockLease(ctx, time.Minute))
	l[1].once("extend", func(context.Context) error {
		for l[0].lease() != 0 { // it has a watchdog then
			time.Sleep(trip)
		}
		h := g.held(alice)
		h.until = suspended(t, h.until, time.Hour)
		l[1].mu.Lock()
		defer l[1].mu.Unlock()
		l[1].over = true
		return errServer
	})
	require.ErrorIs(t, g.Extend(ctx, 0), errServer)
	require.Zero(t, l[0].depth(), "nobody puts back what was left of the lease")
	require.ErrorIs(t, g.Unlock(ctx), rlock.ErrLost)
}
