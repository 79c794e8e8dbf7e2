package multilock

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/redistest"
	"github.com/relock-go/relock/rlock"
)

// once has f called instead of the server, the first time that it is asked op.
func (f *fake) once(op string, call func(ctx context.Context) error) {
	f.hook = func(ctx context.Context, asked string) error {
		if asked != op {
			return nil
		}
		f.hook = nil
		return call(ctx)
	}
}

// The last Unlock does not wait for what another goroutine of the owner asks of a silent
// server: it calls that off.
func TestUnlock_CallsOffAnExtend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, _ := fakes("a", "b")
		g := group(t, l...)
		ctx := as(t, alice)
		require.NoError(t, g.Lock(ctx))
		l[1].once("extend", func(ctx context.Context) error { return sleep(ctx, time.Hour) })
		extended := make(chan error, 1)
		go func() { extended <- g.Extend(ctx, time.Minute) }()
		synctest.Wait()
		began := time.Now()
		require.NoError(t, g.Unlock(ctx))
		require.Less(t, time.Since(began), 10*trip)
		require.Equal(t, []int{0, 0}, depths(l))
		require.ErrorIs(t, <-extended, rlock.ErrNotHeld)
		require.Empty(t, g.seats)
	})
}

// A nested Lock that is called off begins anew.
func TestUnlock_CallsOffANestedLock(t *testing.T) {
	for _, k := range []int{0, 1} {
		synctest.Test(t, func(t *testing.T) {
			l, _ := fakes("a", "b")
			g := group(t, l...)
			ctx := as(t, alice)
			require.NoError(t, l[0].Lock(ctx), "the owner has one by itself")
			require.NoError(t, g.LockLease(ctx, time.Minute))
			l[k].once("lock", func(ctx context.Context) error { return sleep(ctx, time.Hour) })
			locked := make(chan error, 1)
			go func() { locked <- g.LockLease(ctx, 2*time.Minute) }()
			synctest.Wait()
			began := time.Now()
			require.NoError(t, g.Unlock(ctx))
			require.Less(t, time.Since(began), 10*trip)
			require.NoError(t, <-locked)
			require.Less(t, time.Since(began), 20*trip)
			require.Equal(t, []int{2, 1}, depths(l))
			require.Equal(t, 2*time.Minute, l[1].lease())
			require.NoError(t, g.Unlock(ctx))
			require.Equal(t, []int{1, 0}, depths(l))
			require.Empty(t, g.seats)

			// One attempt does not wait for it.
			require.NoError(t, g.LockLease(ctx, time.Minute))
			l[k].once("lock", func(ctx context.Context) error { return sleep(ctx, time.Hour) })
			got := make(chan bool, 1)
			go func() {
				in, err := g.TryLock(ctx, 0, time.Hour)
				locked <- err
				got <- in
			}()
			synctest.Wait()
			l[1].once("unlock", func(ctx context.Context) error { return sleep(ctx, time.Second) })
			require.NoError(t, g.Unlock(ctx))
			require.NoError(t, <-locked)
			require.False(t, <-got)
			require.Equal(t, []int{1, 0}, depths(l))
		})
	}
}

// The Unlock that a nested Lock owes to a member does not keep the group's waiting, but
// is made when that returns: what the owner takes then is not nested in what is left.
func TestUnlock_BesideTheUnlockOfANestedLock(t *testing.T) {
	for _, both := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			l, _ := fakes("a", "b")
			g := group(t, l...)
			ctx := as(t, alice)
			require.NoError(t, g.LockLease(ctx, time.Minute))
			slow := true
			l[1].hook = func(_ context.Context, op string) error {
				if slow && op == "unlock" { // as long as a release may take
					slow = both
					time.Sleep(time.Second)
				}
				return nil
			}
			locked := make(chan error, 1)
			go func() { locked <- g.LockLease(ctx, 2*time.Minute) }()
			time.Sleep(2 * trip)
			synctest.Wait() // its Unlock of b is under way
			require.Equal(t, []int{1, 2}, depths(l))
			began := time.Now()
			require.NoError(t, g.Unlock(ctx))
			require.Less(t, time.Since(began), time.Second+10*trip)
			require.Zero(t, l[1].depth())
			require.NoError(t, <-locked)
			require.NoError(t, g.Unlock(ctx))
			require.Equal(t, []int{0, 0}, depths(l))
		})
	}
}

// A lock that takes no notice of a ctx that ends is unlocked when its Extend has
// returned; the others at once. When the Extend fails nothing is put back: what the owner
// has by then is not what was extended.
func TestUnlock_BeforeAnExtendFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, log := fakes("a", "b")
		g := group(t, l...)
		ctx := as(t, alice)
		require.NoError(t, g.LockLease(ctx, time.Hour))
		l[1].once("extend", func(context.Context) error {
			time.Sleep(time.Minute)
			return errServer
		})
		extended, unlocked, locked := make(chan error, 1), make(chan error, 1), make(chan error, 1)
		go func() { extended <- g.Extend(ctx, 0) }()
		time.Sleep(2 * trip)
		go func() { unlocked <- g.Unlock(ctx) }()
		time.Sleep(2 * trip)
		require.Equal(t, []int{0, 1}, depths(l))
		require.ErrorIs(t, g.Extend(ctx, time.Hour), rlock.ErrNotHeld)
		require.ErrorIs(t, g.Unlock(ctx), rlock.ErrNotHeld)
		require.NoError(t, try(t, g), "it is being given back")

		require.NoError(t, l[0].LockLease(ctx, 30*time.Second))
		go func() { locked <- g.LockLease(ctx, time.Second) }() // the next hold waits for that
		log.take()
		time.Sleep(29 * time.Second)
		require.Equal(t, 30*time.Second, l[0].lease())
		require.Equal(t, []int{1, 1}, depths(l))
		require.NoError(t, l[0].Unlock(ctx))
		require.ErrorIs(t, <-extended, rlock.ErrNotHeld)
		require.NoError(t, <-unlocked)
		require.NoError(t, <-locked)
		require.Equal(t, []string{"unlock a", "unlock b", "lock a", "lock b"}, log.take()[:4])
		require.Equal(t, []int{1, 1}, depths(l))
		require.NoError(t, g.Unlock(ctx))
		require.Equal(t, []int{0, 0}, depths(l))
	})
}

// Unlocks that come while the last one is under way are too many.
func TestUnlock_TooOften(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, log := fakes("a", "b")
		g := group(t, l...)
		ctx := as(t, alice)
		require.NoError(t, l[0].Lock(ctx))
		for range 20 {
			require.NoError(t, g.LockLease(ctx, time.Minute))
			log.take()
			errs := make(chan error, 5)
			go func() { errs <- g.Extend(ctx, time.Hour) }()
			synctest.Wait()
			for range cap(errs) - 1 {
				go func() { errs <- g.Unlock(ctx) }()
			}
			fine := 0
			for range cap(errs) {
				if err := <-errs; err == nil {
					fine++
				} else {
					require.ErrorIs(t, err, rlock.ErrNotHeld)
				}
			}
			require.Equal(t, 1, fine)
			require.Equal(t, []int{1, 0}, depths(l))
		}
	})
}

// The same with locks of rlock: Unlock returns within the release timeout, and what is on
// a server that answers is free then.
func TestUnlock_OfASilentServer(t *testing.T) {
	const readTimeout = 10 * time.Second
	healthy, silent := redistest.StartMini(t), redistest.StartMini(t)
	p := redistest.NewProxy(t, silent.Addr())
	client := func(addr string) *rlock.Client {
		rdb := redistest.NewClient(t, addr, func(o *redis.Options) { o.ReadTimeout = readTimeout })
		c, err := rlock.New(rdb, rlock.WithReleaseTimeout(100*time.Millisecond))
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, c.Close(context.Background())) })
		return c
	}
	g, err := New(client(healthy.Addr()).NewLock("a"), client(p.Addr).NewLock("b"))
	require.NoError(t, err)
	ctx := as(t, alice)
	for name, call := range map[string]func(context.Context) error{
		"extend": func(ctx context.Context) error { return g.Extend(ctx, time.Hour) },
		"nested": func(ctx context.Context) error { return g.LockLease(ctx, time.Hour) },
	} {
		require.NoError(t, g.LockLease(ctx, time.Minute), name)
		p.BlackHole(true)
		bounded, cancel := context.WithCancel(ctx)
		called := make(chan error, 1)
		go func() { called <- call(bounded) }()
		require.Eventually(t, func() bool {
			g.mu.Lock()
			defer g.mu.Unlock()
			return g.seats[alice].hold.asking != nil
		}, time.Minute, time.Millisecond)
		began := time.Now()
		require.ErrorIs(t, g.Unlock(ctx), rlock.ErrUnsettled, name)
		require.Less(t, time.Since(began), readTimeout/2, name)
		if name == "extend" { // the nested one begins anew
			require.False(t, healthy.Exists("a"))
		}
		cancel()
		require.Error(t, <-called, name)
		p.BlackHole(false)
		require.Eventually(t, func() bool { return !silent.Exists("b") && !healthy.Exists("a") }, time.Minute, time.Millisecond, name)
	}
}
