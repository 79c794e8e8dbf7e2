package integration

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/redistest"
	"github.com/relock-go/relock/internal/script"
	"github.com/relock-go/relock/rlock"
)

// slow is how long a request, or its reply, takes where calls are cancelled.
const slow = 24 * time.Millisecond

// TestFaults_Cancelled ends a Lock at many moments of its round trip: CTX-1,
// ACQ-6, ACQ-7, REN-7. It is held, or nothing is left of it; and what undoes it
// does not touch the next hold of its owner.
func TestFaults_Cancelled(t *testing.T) {
	t.Parallel()
	slowdowns := map[string]redistest.Action{
		"request": redistest.Delay(slow), "reply": redistest.DelayReply(slow),
	}
	calls := map[string]func(s *scene, after time.Duration) (bool, error){
		"lock": func(s *scene, after time.Duration) (bool, error) {
			ctx, cancel := context.WithCancel(s.as(alice))
			defer cancel()
			defer time.AfterFunc(after, cancel).Stop()
			err := s.l.Lock(ctx)
			return err == nil, err
		},
		"lock with a deadline": func(s *scene, after time.Duration) (bool, error) {
			ctx, cancel := context.WithTimeout(s.as(alice), after)
			defer cancel()
			err := s.l.Lock(ctx)
			return err == nil, err
		},
		"trylock": func(s *scene, after time.Duration) (bool, error) {
			return s.l.TryLock(s.as(alice), after, 0)
		},
	}
	onEach(t, func(t *testing.T, kind topology) {
		for how, slowdown := range slowdowns {
			for name, call := range calls {
				t.Run(name+"/"+how, func(t *testing.T) {
					t.Parallel()
					s := newScene(t, kind.open(t, time.Second, false))
					outcomes := map[bool]int{}
					for after := time.Millisecond; after < 2*slow; after += 3 * time.Millisecond {
						outcomes[s.cancelled(func() (bool, error) { return call(s, after) }, slowdown)]++
					}
					require.NotZero(t, outcomes[true], "none got through: the test shows nothing")
					require.NotZero(t, outcomes[false], "none was cancelled: the test shows nothing")
				})
			}
		}
	})
}

// cancelled makes one call on a fresh name and judges what it leaves. It reports
// whether the lock was held.
func (s *scene) cancelled(call func() (bool, error), slowdown redistest.Action) bool {
	s.Helper()
	s.again()
	rule := s.hit(script.Acquire, slowdown)
	got, err := call()
	if got {
		require.NoError(s, err)
		s.stands(s.l, alice, 1)
		s.leave(alice, 1)
		require.False(s, s.exists(), "the key is gone")
		return true
	}
	require.Error(s, err, "nobody else had it")
	require.Zero(s, s.l.Validity(s.as(alice)))
	require.ErrorIs(s, unlock(s), rlock.ErrNotHeld)

	// Its owner locks at once, while the attempt that was given up is on its way.
	require.NoError(s, s.l.Lock(s.as(alice)))
	rule.WaitExecuted(s, 1)
	s.stands(s.l, alice, 1)
	other := s.visits(s.theirs, stranger)
	s.stands(s.l, alice, 1)
	s.leave(alice, 1)
	s.gotIn(other, "the stranger")
	s.gone()

	// The same call once more, and nobody locks after it.
	s.again()
	rule = s.hit(script.Acquire, slowdown)
	got, err = call()
	switch {
	case got:
		require.NoError(s, err)
		s.leave(alice, 1)
	case errors.Is(err, rlock.ErrUnsettled):
		rule.WaitExecuted(s, 1)
	default:
		require.Error(s, err) // it was over before anything was sent
	}
	s.gone()
	return false
}

// TestFaults_UnlockWithADeadCtx: CTX-2.
func TestFaults_UnlockWithADeadCtx(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, kind topology) {
		s := newScene(t, kind.open(t, time.Second, false))
		dead, cancel := context.WithCancel(s.as(alice))
		cancel()
		inside(2)(s)
		other := s.visits(s.theirs, stranger)
		require.NoError(t, s.l.Unlock(dead))
		s.stands(s.l, alice, 1)
		require.NoError(t, s.l.Unlock(dead))
		s.gotIn(other, "the stranger")
		s.over()

		// Cancelled on its way.
		s.again()
		inside(1)(s)
		other = s.visits(s.theirs, stranger)
		rule := s.hit(script.Release, redistest.HoldRequest)
		ctx, cancel := context.WithCancel(s.as(alice))
		done := inBackground(func() error { return s.l.Unlock(ctx) })
		rule.Wait(s)
		cancel()
		rule.Release()
		require.NoError(t, result(t, soon, done, "the Unlock"))
		s.gotIn(other, "the stranger")
		s.over()
	})
}

// TestFaults_CancelledAtTheHandOver ends bob's wait while the lock is passed to
// him: WAIT-5. He has it, or carol behind him.
func TestFaults_CancelledAtTheHandOver(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, kind topology) {
		for how, slowdown := range map[string]redistest.Action{
			"request": redistest.Delay(slow), "reply": redistest.DelayReply(slow),
		} {
			t.Run(how, func(t *testing.T) {
				t.Parallel()
				s := newScene(t, kind.open(t, time.Second, false))
				outcomes := map[bool]int{}
				for after := time.Duration(0); after < 2*slow; after += 3 * time.Millisecond {
					s.again()
					inside(1)(s)
					asked := s.sent(script.Acquire)
					ctx, cancel := context.WithCancel(s.as(bob))
					got := inBackground(func() error { return s.l.Lock(ctx) })
					s.eventually(func() bool { return s.c.Stats().Waiting == 1 && s.sent(script.Acquire) > asked }, "bob waits")
					next := s.wait(carol)
					rule := s.hit(script.Pass, slowdown)
					timer := time.AfterFunc(after, cancel)
					require.NoError(s, unlock(s))
					rule.Wait(s)
					err := result(t, soon, got, "bob")
					if outcomes[err == nil]++; err == nil {
						s.stands(s.l, bob, 1)
						s.leave(bob, 1)
					} else {
						require.ErrorIs(s, err, context.Canceled)
					}
					require.NoError(s, result(t, soon, next, "carol"))
					s.stands(s.l, carol, 1)
					s.leave(carol, 1)
					require.False(s, s.exists(), "the key is gone")
					s.noLoss()
					timer.Stop()
					cancel()
				}
				require.NotZero(t, outcomes[true], "bob never got it")
				require.NotZero(t, outcomes[false], "bob always got it")
			})
		}

		// In a fixed order: the pass has run and bob does not know it.
		for name, behind := range map[string]bool{"known to Redis, carol behind": true, "known to Redis, nobody behind": false} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				s := newScene(t, kind.open(t, faultLimit, false))
				inside(1)(s)
				asked := s.sent(script.Acquire)
				ctx, cancel := context.WithCancel(s.as(bob))
				got := inBackground(func() error { return s.l.Lock(ctx) })
				s.eventually(func() bool { return s.c.Stats().Waiting == 1 && s.sent(script.Acquire) > asked }, "bob waits")
				var next <-chan error
				if behind {
					next = s.wait(carol)
				}
				other := s.visits(s.theirs, stranger)
				rule := s.hit(script.Pass, redistest.HoldReply)
				done := inBackground(func() error { return unlock(s) })
				rule.WaitExecuted(s, 1)
				cancel()
				require.ErrorIs(t, result(t, soon, got, "bob"), context.Canceled)
				rule.Release()
				require.NoError(t, result(t, soon, done, "alice's unlock"))
				if behind {
					require.NoError(t, result(t, soon, next, "carol"))
					s.stands(s.l, carol, 1)
					s.leave(carol, 1)
				}
				s.gotIn(other, "the stranger")
				s.gone()
			})
		}
	})
}
