package multilock

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/redistest"
	"github.com/relock-go/relock/rlock"
)

// refuse has the server say no to op.
func (f *fake) refuse(op string) {
	f.hook = func(_ context.Context, asked string) error {
		if asked == op {
			return errServer
		}
		return nil
	}
}

// A nested Lock that fails leaves no watchdog: the lease ends as agreed.
func TestNesting_Failed(t *testing.T) {
	for k := range 3 {
		synctest.Test(t, func(t *testing.T) {
			l, _ := fakes("a", "b", "c")
			g := group(t, l...)
			ctx := as(t, alice)
			require.NoError(t, g.LockLease(ctx, time.Second))
			l[k].refuse("lock")
			require.ErrorIs(t, g.Lock(ctx), errServer)
			require.ErrorIs(t, g.LockLease(ctx, time.Minute), errServer)
			require.Equal(t, []int{1, 1, 1}, depths(l))
			require.Positive(t, g.Validity(ctx))
			time.Sleep(time.Second + 10*trip)
			require.Zero(t, g.Validity(ctx))
			require.Equal(t, []int{0, 0, 0}, depths(l))
			require.ErrorIs(t, g.Unlock(ctx), rlock.ErrLost)
		})
	}
}

// What the owner holds of a member by itself stays as it is when the group's lease is
// shortened, and when an Extend or a nested Lock fails.
func TestExtend_LeavesTheOwnersHoldAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, _ := fakes("a", "b", "c")
		g := group(t, l...)
		ctx := as(t, alice)
		require.NoError(t, l[0].Lock(ctx))
		require.NoError(t, l[1].LockLease(ctx, time.Hour))
		require.NoError(t, g.LockLease(ctx, time.Minute))
		require.NoError(t, g.Extend(ctx, time.Second))
		same := func() {
			t.Helper()
			require.Equal(t, time.Duration(0), l[0].lease(), "by the watchdog")
			require.Equal(t, time.Hour, l[1].lease())
			require.Equal(t, []int{2, 2, 1}, depths(l))
		}
		same()
		require.Equal(t, time.Second, l[2].lease())
		l[2].refuse("extend")
		require.ErrorIs(t, g.Extend(ctx, 2*time.Second), errServer)
		same()
		l[2].refuse("lock")
		require.ErrorIs(t, g.LockLease(ctx, 2*time.Second), errServer)
		same()
		require.NoError(t, g.Unlock(ctx))
		require.Equal(t, []int{1, 1, 0}, depths(l))
		time.Sleep(59 * time.Minute)
		require.Equal(t, []int{1, 1, 0}, depths(l))
	})
}

// An Extend may fail when the lease is over, and some members have a watchdog by then.
// They go back, and the owner hears that the group is lost as often as Unlocks are due.
func TestExtend_FailsWhenTheLeaseIsOver(t *testing.T) {
	scene := func(t *testing.T) (*MultiLock, []*fake, context.Context) {
		l, _ := fakes("a", "b", "c")
		g := group(t, l...)
		ctx := as(t, alice)
		require.NoError(t, l[2].Lock(ctx))
		require.NoError(t, g.LockLease(ctx, time.Second))
		require.NoError(t, g.LockLease(ctx, time.Second))
		lost := g.Lost(ctx)
		l[1].hook = func(_ context.Context, op string) error {
			if op == "extend" {
				time.Sleep(2 * time.Second)
				return errServer
			}
			return nil
		}
		require.ErrorIs(t, g.Extend(ctx, 0), errServer)
		l[1].hook = nil
		require.Equal(t, []int{0, 0, 1}, depths(l))
		require.Zero(t, g.Validity(ctx))
		synctest.Wait()
		require.True(t, isClosed(lost))
		require.True(t, isClosed(g.Lost(ctx)))
		return g, l, ctx
	}
	t.Run("unlock", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			g, l, ctx := scene(t)
			require.NoError(t, l[0].Lock(ctx), "it is free, for the owner as for others")
			require.NoError(t, l[1].Lock(ctx))
			require.Zero(t, g.Validity(ctx), "that is not the group's")
			for range 2 {
				require.ErrorIs(t, g.Extend(ctx, time.Minute), rlock.ErrLost)
				require.ErrorIs(t, g.Unlock(ctx), rlock.ErrLost)
			}
			require.ErrorIs(t, g.Unlock(ctx), rlock.ErrNotHeld)
			require.Equal(t, []int{1, 1, 1}, depths(l))
		})
	})
	t.Run("lock", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			g, l, ctx := scene(t)
			require.NoError(t, g.Lock(ctx), "a lease that is over is no error")
			require.Equal(t, []int{1, 1, 2}, depths(l))
			require.NoError(t, g.Unlock(ctx))
			require.Equal(t, []int{0, 0, 1}, depths(l))
		})
	})
}

// slowExtend is a lock whose Extend fails late.
type slowExtend struct {
	rlock.Locker
	slow time.Duration
}

func (s *slowExtend) Extend(ctx context.Context, lease time.Duration) error {
	if s.slow > 0 {
		time.Sleep(s.slow)
		return errServer
	}
	return s.Locker.Extend(ctx, lease)
}

// The same with locks of rlock: no lease that is put back is one that it refuses, so
// that its watchdog goes on.
func TestExtend_FailsLate(t *testing.T) {
	mini := redistest.StartMini(t)
	c := onMini(t, mini.Addr(), rlock.WithWatchdogTimeout(300*time.Millisecond))
	for slow := 150 * time.Millisecond; slow <= 210*time.Millisecond; slow += 5 * time.Millisecond {
		b := &slowExtend{Locker: c.NewLock("b")}
		g, err := New(c.NewLock("a"), b)
		require.NoError(t, err)
		ctx := as(t, rlock.NewOwner())
		require.NoError(t, g.LockLease(ctx, 200*time.Millisecond))
		b.slow = slow
		require.ErrorIs(t, g.Extend(ctx, 0), errServer)
		require.Eventually(t, func() bool { return c.Stats().Held == 0 }, 10*time.Second, time.Millisecond)
		require.Zero(t, g.Validity(ctx))
		require.ErrorIs(t, g.Unlock(ctx), rlock.ErrLost)
	}
}

// A group enters once more also where a member is NonReentrant, whether that needs a
// new lease or not; and that member is not shortened.
func TestNesting_NonReentrant(t *testing.T) {
	mini := redistest.StartMini(t)
	c := onMini(t, mini.Addr())
	b := c.NewLock("b", rlock.NonReentrant())
	g, err := New(c.NewLock("a"), b)
	require.NoError(t, err)
	ctx := as(t, alice)
	require.NoError(t, g.LockLease(ctx, time.Minute))
	require.NoError(t, g.LockLease(ctx, time.Second))
	require.NoError(t, g.LockLease(ctx, time.Hour))
	require.Greater(t, g.Validity(ctx), 30*time.Minute)
	require.ErrorIs(t, b.Lock(ctx), rlock.ErrReentry)
	due, err := lengthen(ctx, g.held(alice).parts[1], time.Minute)
	require.NoError(t, err)
	require.False(t, due)
	require.Greater(t, b.Validity(ctx), 30*time.Minute)
	require.NoError(t, g.Lock(ctx))
	for range 4 {
		require.Positive(t, g.Validity(ctx))
		require.NoError(t, g.Unlock(ctx))
	}
	require.Empty(t, mini.Keys())
}
