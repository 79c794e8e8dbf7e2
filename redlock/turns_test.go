package redlock

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/rlock"
)

// A hung node costs a call and one that waits for it, not one for each attempt.
func TestHungNodeCostsOneCall(t *testing.T) {
	t.Run("lock and unlock", inBubble(func(t *testing.T) {
		f := redlockOn(t, "a", servers(3))
		ctx := as(t, "o")
		require.NoError(t, f.Lock(ctx))
		require.NoError(t, f.Unlock(ctx))
		time.Sleep(time.Second)
		f.servers[2].hang()
		most := 0
		for range 500 {
			require.NoError(t, f.Lock(ctx))
			require.NoError(t, f.Unlock(ctx))
			synctest.Wait()
			most = max(most, goroutines("askLocked"))
		}
		require.LessOrEqual(t, most, 2)
		f.servers[2].wake()
	}))
	t.Run("waiting", inBubble(func(t *testing.T) {
		ss := servers(3)
		f := redlockOn(t, "a", ss, WithNodeTimeout(10*time.Second), WithRetryDelay(time.Millisecond, 5*time.Millisecond))
		other := redlockOn(t, "b", ss)
		require.NoError(t, other.Lock(as(t, "other")))
		time.Sleep(time.Second)
		ss[2].hang()
		done := make(chan error)
		go func() {
			_, err := f.TryLock(as(t, "o"), 20*time.Second, 0)
			done <- err
		}()
		for range 500 {
			time.Sleep(10 * time.Millisecond)
			require.LessOrEqual(t, goroutines("askLocked"), 2+2) // two others are being asked
		}
		ss[2].wake()
		require.NoError(t, <-done)
	}))
}

// When it answers again it is not asked what nobody needs any more.
func TestWokenNodeIsNotAskedForThePast(t *testing.T) {
	bubble(t, func(t *testing.T) {
		ss := servers(3)
		f, other := redlockOn(t, "a", ss, WithNodeTimeout(5*time.Second)), redlockOn(t, "b", ss)
		require.NoError(t, other.Lock(as(t, "other")))
		time.Sleep(time.Second)
		f.locks[2].deaf = true
		ss[2].hang()
		for range 30 {
			got, err := f.TryLock(as(t, "o"), 0, 0)
			require.NoError(t, err)
			require.False(t, got)
		}
		asked := f.locks[2].count("trylock")
		ss[2].wake()
		time.Sleep(10 * time.Second)
		require.Equal(t, asked, f.locks[2].count("trylock"))
		require.Equal(t, 1, asked)
	})
}

// A slow release does not cost the next hold the node.
func TestNextHoldWaitsForTheRelease(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := redlockOn(t, "a", servers(3), WithNodeTimeout(time.Second))
		ctx := as(t, "o")
		require.NoError(t, f.Lock(ctx))
		f.servers[2].delay(400 * time.Millisecond)
		require.NoError(t, f.Unlock(ctx))
		require.NoError(t, f.Lock(ctx))
		time.Sleep(2 * time.Second)
		require.Equal(t, []int{1, 1, 1}, f.held("o"))
		f.locks[0].lose("o")
		require.Positive(t, f.Validity(ctx), "the slow one counts")
		require.NoError(t, f.Unlock(ctx))
	})
}

// strange is a Locker with a mind of its own.
type strange struct {
	*fakeLock
	mu            sync.Mutex
	before, after deed
}

// deed is what it does before or after a call.
type deed func(ctx context.Context, what string) error

func nothing(context.Context, string) error { return nil }

func (s *strange) set(before, after deed) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.before, s.after = before, after
}

func (s *strange) do(ctx context.Context, what string, call func() error) error {
	s.mu.Lock()
	before, after := s.before, s.after
	s.mu.Unlock()
	if err := before(ctx, what); err != nil {
		return err
	}
	return errors.Join(call(), after(ctx, what))
}

func (s *strange) TryLock(ctx context.Context, wait, lease time.Duration) (got bool, err error) {
	err = s.do(ctx, "trylock", func() (err error) {
		got, err = s.fakeLock.TryLock(ctx, wait, lease)
		return err
	})
	return got, err
}

func (s *strange) Extend(ctx context.Context, lease time.Duration) error {
	return s.do(ctx, "extend", func() error { return s.fakeLock.Extend(ctx, lease) })
}

func (s *strange) Unlock(ctx context.Context) error {
	return s.do(ctx, "unlock", func() error { return s.fakeLock.Unlock(ctx) })
}

// strange makes member i one.
func (f *fakes) strange(i int) *strange {
	s := &strange{fakeLock: f.locks[i], before: nothing, after: nothing}
	f.members[i].Locker = s
	return s
}

// Who comes while another owner asks gets no error of that owner's: its lease, and so its
// NodeTimeout, and its name are its own.
func TestOthersErrorsAreNotShared(t *testing.T) {
	t.Run("a shorter lease", inBubble(func(t *testing.T) {
		f := redlockOn(t, "a", servers(3))
		for _, s := range f.servers {
			s.delay(8 * time.Millisecond)
		}
		done := make(chan error)
		go func() { done <- f.LockLease(as(t, "alice"), 40*time.Millisecond) }() // 5 ms for a node
		time.Sleep(time.Millisecond)
		require.NoError(t, f.Lock(as(t, "bob"))) // 50 ms
		require.ErrorIs(t, <-done, rlock.ErrUnsettled)
		require.NoError(t, f.Unlock(as(t, "bob")))
	}))
	t.Run("a bad name", inBubble(func(t *testing.T) {
		f := redlockOn(t, "a", servers(3))
		for i := range f.locks {
			f.strange(i).set(func(ctx context.Context, what string) error {
				if rlock.OwnerOf(ctx) == "alice" {
					time.Sleep(2 * time.Millisecond)
					return rlock.ErrInvalidOwner
				}
				return nil
			}, nothing)
		}
		done := make(chan error)
		go func() { done <- f.Lock(as(t, "alice")) }()
		time.Sleep(time.Millisecond)
		require.NoError(t, f.Lock(as(t, "bob")))
		require.ErrorIs(t, <-done, rlock.ErrInvalidOwner)
		require.NoError(t, f.Unlock(as(t, "bob")))
	}))
}

// Nor is a refusal that does not count for the one who comes: the owner has the nodes
// already, through another object.
func TestOthersRefusalIsNotShared(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := redlockOn(t, "a", servers(3))
		q := f.another(t)
		require.NoError(t, q.Lock(as(t, "bob")))
		done := make(chan bool)
		go func() {
			got, _ := f.TryLock(as(t, "alice"), 0, 0)
			done <- got
		}()
		time.Sleep(time.Microsecond)
		got, err := f.TryLock(as(t, "bob"), 0, 0)
		require.NoError(t, err)
		require.True(t, got)
		require.False(t, <-done)
		require.NoError(t, f.Unlock(as(t, "bob")))
		require.NoError(t, q.Unlock(as(t, "bob")))
	})
}

// A member that ends its goroutine has failed, and is asked again the next time.
func TestGoexitOfAMember(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := redlockOn(t, "a", servers(3))
		s := f.strange(0)
		ctx := as(t, "o")
		s.set(func(context.Context, string) error { runtime.Goexit(); return nil }, nothing)
		require.NoError(t, f.Lock(ctx), "the others are a majority")
		require.Equal(t, []int{0, 1, 1}, f.held("o"))
		require.NoError(t, f.Unlock(ctx))
		f.servers[1].fail(errors.New("broken"))
		require.ErrorIs(t, f.Lock(ctx), errGoexit)
		f.servers[1].fail(nil)
		s.set(nothing, nothing)
		time.Sleep(time.Second)
		require.NoError(t, f.Lock(ctx))
		time.Sleep(time.Second)
		require.Equal(t, []int{1, 1, 1}, f.held("o"))
		require.NoError(t, f.Unlock(ctx))
	})
}

// The panic of a member goes on in the caller, and nothing is left of the attempt.
func TestPanicOfAMember(t *testing.T) {
	oh := func(what string) deed {
		return func(_ context.Context, now string) error {
			if now == what {
				panic("oh")
			}
			return nil
		}
	}
	bubble(t, func(t *testing.T) {
		f := redlockOn(t, "a", servers(3))
		s := f.strange(0)
		ctx := as(t, "o")
		s.set(oh("trylock"), nothing)
		require.PanicsWithValue(t, "oh", func() { _ = f.Lock(ctx) })
		s.set(nothing, oh("trylock")) // it was granted
		require.PanicsWithValue(t, "oh", func() { _ = f.Lock(ctx) })
		time.Sleep(time.Second)
		require.Equal(t, []int{0, 0, 0}, f.held("o"))
		require.ErrorIs(t, f.Unlock(ctx), rlock.ErrNotHeld)

		s.set(nothing, nothing)
		require.NoError(t, f.Lock(ctx))
		time.Sleep(time.Second)
		require.Equal(t, []int{1, 1, 1}, f.held("o"))
		s.set(oh("extend"), nothing)
		f.servers[1].delay(5 * time.Millisecond)
		require.PanicsWithValue(t, "oh", func() { _ = f.Extend(ctx, time.Hour) })
		require.Positive(t, f.Validity(ctx))
		s.set(oh("unlock"), nothing)
		require.PanicsWithValue(t, "oh", func() { _ = f.Unlock(ctx) })
		time.Sleep(time.Second)
		require.Equal(t, []int{1, 0, 0}, f.held("o"), "the others are given back")
	})
	t.Run("late", inBubble(func(t *testing.T) {
		f := redlockOn(t, "a", servers(3))
		s := f.strange(0)
		ctx := as(t, "o")
		require.NoError(t, f.Lock(ctx))
		require.NoError(t, f.Unlock(ctx))
		time.Sleep(time.Second)
		f.servers[0].delay(10 * time.Millisecond)
		s.set(nothing, oh("trylock"))
		require.NoError(t, f.Lock(ctx))
		time.Sleep(time.Second)
		require.Equal(t, []int{0, 1, 1}, f.held("o"), "it is a node that failed")
		require.NoError(t, f.Unlock(ctx))
	}))
}
