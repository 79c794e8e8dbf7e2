package rlock

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestOWN3_AnOwnerInCtxWorksFromAnyGoroutine(t *testing.T) {
	t.Parallel()
	c := onShared(t)
	l := c.NewLock(unique("moves"))
	ctx := WithOwner(t.Context(), NewOwner())
	require.NoError(t, l.Lock(ctx))
	require.NoError(t, elsewhere(t, func() error { return l.Lock(ctx) }), "one owner: a re-entry")
	require.Equal(t, "2", fields(t, l.Key())[c.ID()+":"+string(OwnerOf(ctx))])
	require.NotZero(t, elsewhere(t, func() time.Duration { return l.Validity(ctx) }))
	require.NoError(t, elsewhere(t, func() error { return l.Unlock(ctx) }))
	require.NoError(t, elsewhere(t, func() error { return l.Unlock(ctx) }))
	free(t, l.Key())
}

func TestOWN3_AStrangersUnlockNamesTheOwnerAndChangesNothing(t *testing.T) {
	t.Parallel()
	c, p := onProxy(t)
	l := c.NewLock(unique("stranger"))
	ctx := t.Context()
	require.NoError(t, l.Lock(ctx))
	before := fields(t, l.Key())
	p.ResetCounts()
	type result struct {
		id  string
		err error
	}
	r := elsewhere(t, func() result { return result{goroutineID(), l.Unlock(ctx)} })
	require.ErrorIs(t, r.err, ErrNotHeld)
	require.ErrorContains(t, r.err, "owner "+r.id, "the stranger")
	require.ErrorContains(t, r.err, "owner "+goroutineID(), "the holder")
	var e *Error
	require.ErrorAs(t, r.err, &e)
	require.Equal(t, Owner(r.id), e.Owner)

	err := elsewhere(t, func() error { return l.Unlock(WithOwner(ctx, bystander)) })
	require.ErrorIs(t, err, ErrNotHeld)
	require.ErrorContains(t, err, string(bystander))
	require.ErrorIs(t, elsewhere(t, func() error { return l.Extend(ctx, time.Minute) }), ErrNotHeld)
	require.Zero(t, elsewhere(t, func() time.Duration { return l.Validity(ctx) }))
	require.True(t, elsewhere(t, func() bool { return isClosed(l.Lost(ctx)) }), "Lost of who holds nothing")

	require.Empty(t, p.Counts(), "nothing was sent")
	require.Equal(t, before, fields(t, l.Key()))
	require.NotZero(t, l.Validity(ctx))
	require.NoError(t, l.Unlock(ctx))
}

func TestOwner_UnlockWithoutLockAndOnceTooOften(t *testing.T) {
	t.Parallel()
	l := onShared(t).NewLock(unique("twice"))
	ctx := t.Context()
	require.ErrorIs(t, l.Unlock(ctx), ErrNotHeld)
	require.NoError(t, l.Lock(ctx))
	require.NoError(t, l.Unlock(ctx))
	require.ErrorIs(t, l.Unlock(ctx), ErrNotHeld)
	occupy(t, l.Key(), time.Minute)
	require.ErrorIs(t, l.Unlock(ctx), ErrNotHeld)
	require.Equal(t, map[string]string{"foreign:1": "1"}, fields(t, l.Key()))
}

// TestOWN1_TwoGoroutinesAreTwoOwners on one object.
func TestOWN1_TwoGoroutinesAreTwoOwners(t *testing.T) {
	t.Parallel()
	l := onShared(t).NewLock(unique("two"))
	ctx := t.Context()
	require.NoError(t, l.Lock(ctx))
	type result struct {
		got bool
		err error
	}
	r := elsewhere(t, func() result { got, err := l.TryLock(ctx, 0, 0); return result{got, err} })
	require.NoError(t, r.err)
	require.False(t, r.got)
	require.NoError(t, l.Unlock(ctx))
}

// TestOwner_OneOwnerThatWaitsTwice is inside twice when its turn comes.
func TestOwner_OneOwnerThatWaitsTwice(t *testing.T) {
	t.Parallel()
	for name, opts := range map[string][]Option{
		"handed over": {WithHandoffLimit(64, time.Hour)},
		"released":    {WithHandoffLimit(0, 0)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := onShared(t, opts...)
			l := c.NewLock(unique("both"))
			holder, both := WithOwner(t.Context(), "holder"), WithOwner(t.Context(), "both")
			require.NoError(t, l.Lock(holder))
			one := async(func() error { return l.Lock(both) })
			waitForWaiters(t, c, 1)
			between, cancel := context.WithCancel(WithOwner(t.Context(), bystander))
			other := async(func() error { return l.Lock(between) })
			waitForWaiters(t, c, 2)
			two := async(func() error { return l.LockLease(both, time.Minute) })
			waitForWaiters(t, c, 3)
			require.NoError(t, l.Unlock(holder))
			require.NoError(t, recv(t, one, "the first"))
			require.NoError(t, recv(t, two, "the second, past the one between"))
			cancel()
			require.ErrorIs(t, recv(t, other, "the one between"), context.Canceled)
			require.Equal(t, map[string]string{c.ID() + ":both": "2"}, fields(t, l.Key()))
			require.NoError(t, l.Unlock(both))
			require.NoError(t, l.Unlock(both))
			free(t, l.Key())
		})
	}
}

// TestOwner_AGoroutineThatWouldWaitForItself gets ErrReentry instead.
func TestOwner_AGoroutineThatWouldWaitForItself(t *testing.T) {
	t.Parallel()
	c, p := onProxy(t)
	l := c.NewLock(unique("self"))
	require.NoError(t, l.Lock(t.Context()))
	p.ResetCounts()
	bounded, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	ctx := WithOwner(bounded, bystander)
	for name, op := range map[string]func() error{
		"Lock":         func() error { return l.Lock(ctx) },
		"LockLease":    func() error { return l.LockLease(ctx, time.Minute) },
		"TryLock":      func() error { _, err := l.TryLock(ctx, -1, 0); return err },
		"TryLock 0":    func() error { _, err := l.TryLock(ctx, 0, 0); return err },
		"Do":           func() error { return l.Do(ctx, func(context.Context) error { return nil }) },
		"other object": func() error { return c.NewLock(l.Name()).Lock(ctx) },
	} {
		err := op()
		require.ErrorIs(t, err, ErrReentry, name)
		require.ErrorContains(t, err, goroutineID(), name)
		require.ErrorContains(t, err, string(bystander), name)
	}
	require.Empty(t, p.Counts(), "nothing is sent")
	// From another goroutine the same owner waits as anybody does.
	require.NoError(t, elsewhere(t, func() error {
		got, err := settled(t, func() (bool, error) { return l.TryLock(ctx, 10*time.Millisecond, 0) })
		if got {
			t.Error("granted")
		}
		return err
	}))
	require.NoError(t, l.Unlock(t.Context()))
	require.NoError(t, l.Lock(ctx))
	require.NoError(t, l.Unlock(ctx))
}

// TestOwner_AGoroutinesIDCanBePassedOn.
func TestOwner_AGoroutinesIDCanBePassedOn(t *testing.T) {
	t.Parallel()
	l := onShared(t).NewLock(unique("passed"))
	require.Equal(t, Owner(goroutineID()), OwnerOf(t.Context()))
	require.NoError(t, l.Lock(t.Context()))
	ctx := WithOwner(t.Context(), OwnerOf(t.Context()))
	require.NoError(t, l.Lock(ctx), "the same owner: a re-entry")
	require.NoError(t, elsewhere(t, func() error { return l.Unlock(ctx) }))
	require.NoError(t, elsewhere(t, func() error { return l.Unlock(ctx) }))
	free(t, l.Key())
}

func TestOwner_OwnerOf(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	require.Equal(t, Owner(goroutineID()), OwnerOf(ctx))
	require.NotEqual(t, OwnerOf(ctx), elsewhere(t, func() Owner { return OwnerOf(ctx) }))
	ctx = WithOwner(ctx, "outer")
	require.Equal(t, Owner("outer"), OwnerOf(ctx))
	require.Equal(t, Owner("inner"), OwnerOf(WithOwner(ctx, "inner")), "the innermost counts")
	require.Equal(t, Owner("outer"), OwnerOf(context.WithoutCancel(ctx)))
}

func TestOwner_NewOwner(t *testing.T) {
	t.Parallel()
	seen := map[Owner]bool{}
	l := onShared(t).NewLock(unique("legal"))
	for range 1000 {
		o := NewOwner()
		require.False(t, seen[o])
		seen[o] = true
		require.NotEmpty(t, strings.Trim(string(o), "0123456789"), "never all digits: %s", o)
	}
	require.NoError(t, l.Do(WithOwner(t.Context(), NewOwner()), func(context.Context) error { return nil }))
}

func TestOwner_IllegalOnesAreReportedByTheOperation(t *testing.T) {
	t.Parallel()
	c, p := onProxy(t)
	l := c.NewLock(unique("illegal"))
	for _, o := range []Owner{"", " ", "a b", "a:b", "a:write", "ä", "a\x00", "a\n", "{a}", "a/b", Owner(strings.Repeat("x", 129))} {
		ctx := WithOwner(t.Context(), o)
		for name, op := range operations(l) {
			if name == "IsHeldBy" {
				op = func(ctx context.Context) error { _, err := l.IsHeldBy(ctx, o); return err }
			}
			require.ErrorIs(t, op(ctx), ErrInvalidOwner, "%s as %q", name, o)
		}
		require.Zero(t, l.Validity(ctx))
		require.True(t, isClosed(l.Lost(ctx)))
	}
	require.Empty(t, p.Counts(), "nothing is sent")

	for _, o := range []Owner{"x", "A-z_0.9a", "42", Owner(strings.Repeat("x", 128))} {
		ctx := WithOwner(t.Context(), o)
		require.NoError(t, l.Lock(ctx), "%q is legal", o)
		require.Equal(t, map[string]string{c.ID() + ":" + string(o): "1"}, fields(t, l.Key()))
		require.NoError(t, l.Unlock(ctx))
	}
}

// TestOwner_OneThatLooksNumbered stands with a number of its own, and the API
// still says the owner.
func TestOwner_OneThatLooksNumbered(t *testing.T) {
	t.Parallel()
	c := onShared(t)
	l := c.NewLock(unique("numbered"))
	ctx := WithOwner(t.Context(), "worker.7")
	require.NoError(t, l.Lock(ctx))
	require.NoError(t, l.Lock(ctx))
	n, err := l.HoldCount(ctx)
	require.NoError(t, err)
	require.Equal(t, 2, n)
	held, err := l.IsHeldBy(t.Context(), "worker.7")
	require.NoError(t, err)
	require.True(t, held)
	info, err := l.Info(t.Context())
	require.NoError(t, err)
	require.Equal(t, []Holder{{Client: c.ID(), Owner: "worker.7", Depth: 2}}, info.Holders)
	require.NoError(t, l.Unlock(ctx))
	require.NoError(t, l.Unlock(ctx))
	free(t, l.Key())
}

// TestOWN2_AHundredGoroutinesShareOneObject: each its own depth and lease.
func TestOWN2_AHundredGoroutinesShareOneObject(t *testing.T) {
	t.Parallel()
	l := onShared(t).NewLock(unique("hundred"))
	ctx := t.Context()
	var wg sync.WaitGroup
	var inside, n int
	for i := range 100 {
		wg.Go(func() {
			for depth := range 1 + i%3 {
				if err := l.LockLease(ctx, time.Duration(10+i+depth)*time.Second); err != nil {
					t.Error(err)
					return
				}
			}
			if inside++; inside != 1 {
				t.Error("two inside")
			}
			n++
			inside--
			for range 1 + i%3 {
				if err := l.Unlock(ctx); err != nil {
					t.Error(err)
				}
			}
			if err := l.Unlock(ctx); err == nil {
				t.Error("one Unlock too many worked")
			}
		})
	}
	wg.Wait()
	require.Equal(t, 100, n)
	free(t, l.Key())
}

// TestACQ17_TwoObjectsOnOneName nest, in every order of Locks and Unlocks.
func TestACQ17_TwoObjectsOnOneName(t *testing.T) {
	t.Parallel()
	c := onShared(t)
	name := unique("objects")
	a, b := c.NewLock(name), c.NewLock(name)
	ctx := t.Context()
	for _, order := range [][4]*Lock{{a, b, a, b}, {a, b, b, a}, {a, a, b, b}, {b, a, a, b}} {
		require.NoError(t, order[0].Lock(ctx))
		require.NoError(t, order[1].Lock(ctx))
		require.Equal(t, "2", fields(t, name)[c.ID()+":"+goroutineID()])
		require.NoError(t, order[2].Unlock(ctx))
		require.Equal(t, "1", fields(t, name)[c.ID()+":"+goroutineID()])
		require.NotZero(t, a.Validity(ctx))
		require.NotZero(t, b.Validity(ctx))
		require.NoError(t, order[3].Unlock(ctx))
		free(t, name)
	}
}

func TestNonReentrant(t *testing.T) {
	t.Parallel()
	c, p := onProxy(t, WithWatchdogTimeout(3*time.Second))
	name := unique("strict")
	strict, plain := c.NewLock(name, NonReentrant()), c.NewLock(name)
	ctx := t.Context()
	require.NoError(t, strict.Lock(ctx))
	p.ResetCounts()
	require.ErrorIs(t, strict.Lock(ctx), ErrReentry)
	require.ErrorIs(t, strict.LockLease(ctx, time.Minute), ErrReentry)
	got, err := strict.TryLock(ctx, 0, 0)
	require.False(t, got)
	require.ErrorIs(t, err, ErrReentry)
	require.ErrorIs(t, strict.Do(ctx, func(context.Context) error { return nil }), ErrReentry)
	require.Empty(t, p.Counts(), "nothing is sent")
	require.NoError(t, plain.Lock(ctx), "through another object it may")
	require.NoError(t, plain.Unlock(ctx))
	require.NoError(t, strict.Extend(ctx, time.Minute))
	require.NoError(t, strict.Unlock(ctx))
	require.NoError(t, plain.Lock(ctx))
	require.ErrorIs(t, strict.Lock(ctx), ErrReentry)
	require.NoError(t, plain.Unlock(ctx))
	require.NoError(t, strict.Lock(ctx), "again")
	require.NoError(t, strict.Unlock(ctx))

	require.NoError(t, strict.LockLease(ctx, 50*time.Millisecond))
	recv(t, strict.Lost(ctx), "the end of the lease")
	require.NoError(t, strict.Lock(ctx), "a lease that ran out is no hold")
	require.NoError(t, strict.Unlock(ctx))
}
