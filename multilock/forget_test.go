package multilock

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/rlock"
)

// A hold that is lost and never unlocked is forgotten some time after somebody has seen
// that, whoever it was, and what is left of it is given back.
func TestForget(t *testing.T) {
	sees := map[string]func(t *testing.T, g *MultiLock, ctx context.Context){
		"lock": func(t *testing.T, g *MultiLock, ctx context.Context) { require.ErrorIs(t, g.Lock(ctx), rlock.ErrLost) },
		"extend": func(t *testing.T, g *MultiLock, ctx context.Context) {
			require.ErrorIs(t, g.Extend(ctx, time.Second), rlock.ErrLost)
		},
		"unlock": func(t *testing.T, g *MultiLock, ctx context.Context) {
			require.ErrorIs(t, g.Unlock(ctx), rlock.ErrLost)
		},
		"validity": func(t *testing.T, g *MultiLock, ctx context.Context) { require.Zero(t, g.Validity(ctx)) },
		"lost":     func(t *testing.T, g *MultiLock, ctx context.Context) { require.True(t, isClosed(g.Lost(ctx))) },
		"others": func(t *testing.T, g *MultiLock, ctx context.Context) {
			for range 20 {
				g.sit(rlock.NewOwner())
			}
		},
	}
	for name, see := range sees {
		for _, lease := range []time.Duration{0, time.Hour} {
			t.Run(name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					l, _ := fakes("a", "b", "c")
					g := group(t, l...)
					ctx := as(t, alice)
					require.NoError(t, l[2].Lock(ctx), "the owner has one by itself")
					require.NoError(t, g.LockLease(ctx, lease))
					require.NoError(t, g.Lock(ctx))
					l[0].remove()
					time.Sleep(time.Minute)
					see(t, g, ctx)
					time.Sleep(remembered - time.Second)
					require.Equal(t, []int{0, 1, 2}, depths(l), "its Unlocks may come")
					see(t, g, ctx)
					if name == "unlock" { // that was the last one
						require.ErrorIs(t, g.Unlock(ctx), rlock.ErrNotHeld)
						return
					}
					time.Sleep(2 * time.Second)
					synctest.Wait()
					require.Equal(t, []int{0, 0, 1}, depths(l))
					require.NotContains(t, g.seats, alice)
					require.ErrorIs(t, g.Unlock(ctx), rlock.ErrNotHeld)
					require.NoError(t, g.Lock(ctx))
					time.Sleep(time.Hour)
					require.Positive(t, g.Validity(ctx))
					require.NoError(t, g.Unlock(ctx))
					require.Equal(t, []int{0, 0, 1}, depths(l))
				})
			})
		}
	}
}

// Somebody who waits for the loss sees it. What the owner has taken by itself since stays.
func TestForget_ByTheChannel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, _ := fakes("a", "b")
		g := group(t, l...)
		ctx := as(t, alice)
		require.NoError(t, g.Lock(ctx))
		lost := g.Lost(ctx)
		l[1].remove()
		<-lost
		require.ErrorIs(t, l[1].Unlock(ctx), rlock.ErrLost)
		require.NoError(t, l[1].Lock(ctx))
		time.Sleep(remembered + time.Second)
		require.Equal(t, []int{0, 1}, depths(l))
		synctest.Wait()
		require.Empty(t, g.seats)
	})
}

// seem has f say that it has no time left, though it has.
func (f *fake) seem(over bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.over = over
}

// Unlocks that are made in time are all that there is; the next hold is another one.
func TestForget_NotTheNextHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, _ := fakes("a", "b")
		g := group(t, l...)
		ctx := as(t, alice)
		require.NoError(t, g.Lock(ctx))
		l[1].remove()
		require.Zero(t, g.Validity(ctx))
		require.ErrorIs(t, g.Unlock(ctx), rlock.ErrLost)
		require.NoError(t, g.Lock(ctx))
		time.Sleep(time.Hour)
		require.Positive(t, g.Validity(ctx))
		require.Equal(t, []int{1, 1}, depths(l))

		// What only seems to be lost is not forgotten, unless it is.
		l[0].seem(true)
		require.Zero(t, g.Validity(ctx))
		l[0].seem(false)
		time.Sleep(time.Hour)
		require.Positive(t, g.Validity(ctx))
		l[0].remove()
		require.Zero(t, g.Validity(ctx))
		time.Sleep(time.Hour)
		require.Equal(t, []int{0, 0}, depths(l))
		synctest.Wait()
		require.Empty(t, g.seats)
	})
}

// A hold may be forgotten while its owner asks for another lease of it.
func TestForget_WhileItIsExtended(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, _ := fakes("a", "b")
		g := group(t, l...)
		ctx := as(t, alice)
		require.NoError(t, g.LockLease(ctx, time.Hour))
		l[1].once("extend", func(ctx context.Context) error { return sleep(ctx, time.Hour) })
		extended := make(chan error, 1)
		go func() { extended <- g.Extend(ctx, 2*time.Hour) }()
		synctest.Wait()
		l[1].remove()
		require.Zero(t, g.Validity(ctx))
		require.ErrorIs(t, <-extended, rlock.ErrLost)
		time.Sleep(10 * trip)
		require.Equal(t, []int{0, 0}, depths(l))
		require.NoError(t, g.Lock(ctx))
	})
}
