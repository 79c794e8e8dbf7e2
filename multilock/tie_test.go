package multilock

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/redistest"
	"github.com/relock-go/relock/rlock"
)

// watched is a lock whose TryLock and Unlock are told of, before and after.
type watched struct {
	*rlock.WriteLock
	asked, freed func()
}

func (w watched) TryLock(ctx context.Context, wait, lease time.Duration) (bool, error) {
	w.asked()
	return w.WriteLock.TryLock(ctx, wait, lease)
}

func (w watched) Unlock(ctx context.Context) error {
	defer w.freed()
	return w.WriteLock.Unlock(ctx)
}

// Both halves on one server, and the same name on another. While that one is asked, the
// write half is lost to bob, who then keeps the read half from the group too. It must
// not be taken before its write half for that.
func TestTie_NotBeforeItsOwnWriteHalf(t *testing.T) {
	for name, wrap := range map[string]func(known) rlock.Locker{
		"rlock's":       func(l known) rlock.Locker { return l },
		"without a key": func(l known) rlock.Locker { return byLocker{l} },
	} {
		t.Run(name, func(t *testing.T) {
			first, second := redistest.StartMini(t), redistest.StartMini(t)
			one, two, foreign := onMini(t, first.Addr()), onMini(t, second.Addr()), onMini(t, first.Addr())
			x, theirs := one.NewReadWriteLock("x"), foreign.NewReadWriteLock("x").WriteLock()
			asked, freed := 0, make(chan struct{}, 100)
			between := watched{two.NewReadWriteLock("x").WriteLock(), func() {
				if asked++; asked > 1 {
					return
				}
				removed, err := theirs.ForceUnlock(as(t, bob))
				if err == nil {
					err = theirs.Lock(as(t, bob))
				}
				if !removed || err != nil {
					t.Errorf("bob has it not: %v", err)
				}
			}, func() { freed <- struct{}{} }}
			g, err := New(wrap(x.WriteLock()), between, wrap(x.ReadLock()))
			require.NoError(t, err)
			ctx := as(t, alice)
			locked := make(chan error, 1)
			go func() { locked <- g.Lock(ctx) }()
			<-freed // the read half was refused, and all given back
			require.NoError(t, theirs.Unlock(as(t, bob)))
			require.NoError(t, <-locked)
			require.NoError(t, g.Unlock(ctx))
			require.Empty(t, first.Keys())
		})
	}
}

// Only what is on another server comes after what others had.
func TestTie_Order(t *testing.T) {
	one, two := onMini(t, redistest.StartMini(t).Addr()), onMini(t, redistest.StartMini(t).Addr())
	x, y := one.NewReadWriteLock("x"), two.NewReadWriteLock("x")
	g, err := New(one.NewLock("w"), x.WriteLock(), y.WriteLock(), x.ReadLock(), y.ReadLock(), one.NewLock("z"))
	require.NoError(t, err)
	for refused, want := range [][]int{
		{1, 2, 3, 4, 5, 6}, // the first has nothing before it
		{1, 2, 3, 4, 5, 6},
		{1, 3, 2, 4, 5, 6},
		{1, 2, 3, 4, 5, 6},
		{1, 2, 3, 4, 5, 6},
		{1, 2, 3, 4, 5, 6},
	} {
		a := &attempt{g: g, order: g.members}
		var parts []part
		for _, m := range a.order[:refused] {
			parts = append(parts, part{member: m})
		}
		moved := a.tie(a.order[refused], parts)
		var got []int
		for _, m := range a.order {
			got = append(got, m.place)
		}
		require.Equal(t, want, got, "refused: %d", refused+1)
		require.Equal(t, !slices.IsSorted(want), moved)
	}
}
