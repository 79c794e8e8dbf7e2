package redlock

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/rlock"
)

// What is due for a hold that is lost does not touch what the owner has got since through
// another object.
func TestLostHoldLeavesTheNewerOne(t *testing.T) {
	for name, due := range map[string]func(t *testing.T, f *fakes){
		"unlock": func(t *testing.T, f *fakes) {
			require.ErrorIs(t, f.Unlock(as(t, "o")), rlock.ErrLost)
		},
		"the next lock": func(t *testing.T, f *fakes) {
			require.NoError(t, f.LockLease(as(t, "o"), time.Minute))
			require.Equal(t, []int{2, 2, 2}, f.held("o"), "it nests")
			require.NoError(t, f.Unlock(as(t, "o")))
		},
		"nobody unlocks": func(_ *testing.T, f *fakes) {
			time.Sleep(2 * remembered)
			f.mu.Lock()
			defer f.mu.Unlock()
			require.Empty(t, f.holds)
		},
		"extend": func(t *testing.T, f *fakes) {
			require.ErrorIs(t, f.Extend(as(t, "o"), time.Second), rlock.ErrLost)
			require.ErrorIs(t, f.Unlock(as(t, "o")), rlock.ErrLost)
		},
	} {
		t.Run(name, inBubble(func(t *testing.T) {
			ss := servers(3)
			f, other := redlockOn(t, "a", ss), redlockOn(t, "b", ss)
			q := f.another(t)
			ctx := as(t, "o")
			require.NoError(t, f.LockLease(ctx, time.Second))
			time.Sleep(2 * time.Second)
			require.NoError(t, q.LockLease(ctx, time.Hour))
			lost := q.Lost(ctx)
			due(t, f)
			time.Sleep(time.Second)
			require.Equal(t, []int{1, 1, 1}, f.held("o"))
			got, err := other.TryLock(as(t, "stranger"), 0, 0)
			require.NoError(t, err)
			require.False(t, got)
			require.False(t, closed(lost))
			require.Greater(t, q.Validity(ctx), 30*time.Minute)
			require.NoError(t, q.Unlock(ctx))
			synctest.Wait()
			require.Equal(t, []int{0, 0, 0}, f.held("o"))
		}))
	}
}

// What a node has anew through another object does not make a lost hold valid again.
func TestNewerHoldDoesNotCount(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := redlockOn(t, "a", servers(3))
		q := f.another(t)
		ctx := as(t, "o")
		require.NoError(t, f.LockLease(ctx, time.Hour))
		for i, s := range f.servers { // nobody looks
			s.empty()
			f.locks[i].lose("o")
		}
		require.NoError(t, q.LockLease(ctx, time.Hour))
		require.Zero(t, f.Validity(ctx))
		require.ErrorIs(t, f.Unlock(ctx), rlock.ErrLost)
		require.Positive(t, q.Validity(ctx))
		require.NoError(t, q.Unlock(ctx))
	})
}

// The end of one object's hold does not stop the watchdogs of the other's, whichever came
// first.
func TestLossLeavesTheOtherHold(t *testing.T) {
	for _, name := range []string{"inner", "outer"} {
		t.Run(name, inBubble(func(t *testing.T) {
			f := redlockOn(t, "a", servers(3), WithMaxHold(time.Second))
			q := f.another(t)
			ctx := as(t, "o")
			if name == "inner" {
				require.NoError(t, q.Lock(ctx))
				require.NoError(t, f.Lock(ctx))
			} else {
				require.NoError(t, f.Lock(ctx))
				require.NoError(t, q.Lock(ctx))
			}
			<-f.Lost(ctx)
			for range 10 {
				time.Sleep(watchdogTimeout / 3)
				for _, l := range f.locks {
					l.renew("o")
				}
			}
			require.Equal(t, []int{1, 1, 1}, f.held("o"), "the lost one has let go, once")
			require.Positive(t, q.Validity(ctx))
			require.ErrorIs(t, f.Unlock(ctx), rlock.ErrMaxHold)
			require.Equal(t, []int{1, 1, 1}, f.held("o"))
			require.NoError(t, q.Unlock(ctx))
			synctest.Wait()
			require.Equal(t, []int{0, 0, 0}, f.held("o"))
		}))
	}
}

// A lease that ends inside a hold that watchdogs keep is given back at the nodes, where it
// was one more depth of that hold and did not end, whether or not its Unlock is made.
func TestLeaseInsideAnothersHold(t *testing.T) {
	for _, unlocks := range []bool{true, false} {
		t.Run(fmt.Sprint("unlocks: ", unlocks), inBubble(func(t *testing.T) {
			ss := servers(3)
			outer, other := redlockOn(t, "a", ss), redlockOn(t, "b", ss)
			inner := outer.another(t)
			ctx := as(t, "o")
			require.NoError(t, outer.Lock(ctx))
			require.NoError(t, inner.LockLease(ctx, time.Second))
			lost := inner.Lost(ctx)
			require.Equal(t, []int{2, 2, 2}, outer.held("o"))
			<-lost
			if unlocks {
				require.ErrorIs(t, inner.Unlock(ctx), rlock.ErrLost)
			}
			time.Sleep(200 * time.Millisecond)
			require.Equal(t, []int{1, 1, 1}, outer.held("o"))
			require.Positive(t, outer.Validity(ctx))
			require.NoError(t, outer.Unlock(ctx))
			time.Sleep(10 * time.Millisecond)
			got, err := other.TryLock(ctx, 0, 0)
			require.NoError(t, err)
			require.True(t, got, "nobody holds anything")
			require.NoError(t, other.Unlock(ctx))
			if !unlocks {
				require.ErrorIs(t, inner.Unlock(ctx), rlock.ErrLost, "it is remembered")
			}
		}))
	}
}

// After the error of a lock of another make only what it may have granted is given back.
func TestErrorLeavesTheOuterHold(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := redlockOn(t, "a", servers(3))
		q := f.another(t)
		ctx := as(t, "o")
		require.NoError(t, f.Lock(ctx))
		broken := errors.New("a limiter says no")
		for _, s := range f.servers {
			s.fail(broken)
		}
		require.ErrorIs(t, q.Lock(ctx), broken)
		time.Sleep(time.Second)
		require.Positive(t, f.Validity(ctx))
		require.Equal(t, []int{1, 1, 1}, f.held("o"))
		require.NoError(t, f.Unlock(ctx))
	})
}

// Nor is the loss of a node that is a composite heard for the owner, who has the Unlock of
// it still to make.
func TestErrorLeavesTheLoss(t *testing.T) {
	bubble(t, func(t *testing.T) {
		node := redlockOn(t, "a", servers(3))
		r, err := New([]rlock.Locker{node, redlockOn(t, "b", servers(3)), redlockOn(t, "c", servers(3))})
		require.NoError(t, err)
		ctx := as(t, "o")
		require.NoError(t, node.Lock(ctx))
		node.locks[0].lose("o")
		node.locks[1].lose("o")
		require.ErrorIs(t, node.Lock(ctx), rlock.ErrLost)
		require.NoError(t, r.Lock(ctx), "by the others")
		require.NoError(t, r.Unlock(ctx))
		time.Sleep(time.Second)
		require.ErrorIs(t, node.Lock(ctx), rlock.ErrLost, "until its Unlock is made")
		require.ErrorIs(t, node.Unlock(ctx), rlock.ErrLost)
		require.NoError(t, node.Lock(ctx))
		require.NoError(t, node.Unlock(ctx))
	})
}
