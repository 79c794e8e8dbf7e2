package integration

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/redistest"
	"github.com/relock-go/relock/internal/script"
	"github.com/relock-go/relock/rlock"
)

// recheck is the bound where nothing tells a waiter that the lock is free.
const recheck = 400 * time.Millisecond

// TestWakeups_KeyGone takes the key away without a message while alice holds it
// in another client: WAIT-4, REN-13. The waiter finds out by itself, and the
// holder is told.
func TestWakeups_KeyGone(t *testing.T) {
	t.Parallel()
	ways := []struct {
		name string
		own  bool
		do   func(s *scene)
	}{
		{"DEL", false, func(s *scene) { require.EqualValues(s, 1, s.direct.Del(s.ctx, s.l.Key()).Val()) }},
		{"FLUSHALL", true, func(s *scene) {
			require.NoError(s, s.server(s.l.Key()).Client(s).FlushAll(s.ctx).Err())
		}},
		{"restart", true, func(s *scene) { s.server(s.l.Key()).Restart(s) }},
		{"stopped for longer than the TTL", true, func(s *scene) {
			s.server(s.l.Key()).Stop(s)
			// Redis cannot be asked: the holders hear of it by their deadline.
			result(s.T, bounded, s.l.Lost(s.as(alice)), "the holder is told while Redis is silent")
			s.server(s.l.Key()).Cont(s)
		}},
	}
	onEach(t, func(t *testing.T, kind topology) {
		for _, way := range ways {
			t.Run(way.name, func(t *testing.T) {
				t.Parallel()
				r := kind.open(t, silence, way.own)
				s := newScene(t, r, rlock.WithWatchdogTimeout(shortDog))
				s.other = lockClient(t, r.client(t), rlock.WithRecheck(recheck), rlock.WithWatchdogTimeout(shortDog))
				s.theirs = s.other.NewLock(s.l.Name())
				inside(2)(s)
				lost := s.l.Lost(s.as(alice))
				got := s.asks(s.theirs, stranger)

				way.do(s)
				result(t, bounded, lost, "the holder is told")
				require.NoError(t, result(t, bounded, got, "the waiter"))
				require.Zero(t, s.l.Validity(s.as(alice)))
				for range 2 {
					require.ErrorIs(t, unlock(s), rlock.ErrLost)
				}
				require.ErrorIs(t, unlock(s), rlock.ErrNotHeld)
				require.NoError(t, s.theirs.Unlock(s.as(stranger)))
				require.NoError(t, s.l.Lock(s.as(alice)), "all goes on")
				s.leave(alice, 1)
				require.False(t, s.exists())
			})
		}
	})
}

// asks begins a Lock of o through l and waits until it waits.
func (s *scene) asks(l *rlock.Lock, o rlock.Owner) <-chan error {
	s.Helper()
	before := l.Client().Stats().Contended
	got := inBackground(func() error { return l.Lock(s.as(o)) })
	s.eventually(func() bool { return l.Client().Stats().Contended > before }, "%s waits", o)
	return got
}

// TestWakeups_Expiry: the waiter sleeps for the holder's TTL, not longer, and is
// let in after the holder was told.
func TestWakeups_Expiry(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, kind topology) {
		s := newScene(t, kind.open(t, silence, false))
		const lease = 700 * time.Millisecond
		require.NoError(t, s.l.LockLease(s.as(alice), lease))
		got := s.visits(s.theirs, stranger)
		s.gotIn(got, "the stranger")
		require.True(t, told(s.l.Lost(s.as(alice))))
		require.ErrorIs(t, unlock(s), rlock.ErrLost)
	})
}

// TestWakeups_ServerMischief: what happens to scripts and connections does not
// keep a waiter from its message.
func TestWakeups_ServerMischief(t *testing.T) {
	t.Parallel()
	ways := []struct {
		name string
		own  bool
		do   func(s *scene) // with a waiter asleep, before the unlock
	}{
		{"SCRIPT FLUSH", true, func(s *scene) { require.NoError(s, s.direct.ScriptFlush(s.ctx).Err()) }},
		{"CLIENT KILL TYPE pubsub", true, func(s *scene) { s.kill() }},
		{"connections cut", false, func(s *scene) { s.line.CutAll() }},
		{"stopped and continued", true, func(s *scene) {
			s.server(s.l.Key()).Stop(s)
			time.AfterFunc(2*silence, func() { s.server(s.l.Key()).Cont(s) })
		}},
		// The waiter's connections only: it hears of nothing before they are back.
		{"connections refused for a while", false, func(s *scene) {
			require.NoError(s, s.line.Refuse(true))
			s.line.CutAll()
			time.AfterFunc(2*silence, func() { _ = s.line.Refuse(false) })
		}},
		{"black hole for a while", false, func(s *scene) {
			s.line.BlackHole(true)
			time.AfterFunc(2*silence, func() { s.line.BlackHole(false) })
		}},
	}
	onEach(t, func(t *testing.T, kind topology) {
		for _, way := range ways {
			t.Run(way.name, func(t *testing.T) {
				t.Parallel()
				s := newScene(t, kind.open(t, silence, way.own))
				require.NoError(t, s.theirs.Lock(s.as(stranger)))
				got := s.wait(alice)
				way.do(s)
				require.NoError(t, s.theirs.Unlock(s.as(stranger)))
				require.NoError(t, result(t, soon, got, "the waiter"))
				s.stands(s.l, alice, 1)
				s.leave(alice, 1)
				s.over()
			})
		}
	})
}

// kill ends the subscription connections, the test's own among them.
func (s *scene) kill() {
	s.Helper()
	s.told = nil
	require.NoError(s, s.direct.Do(s.ctx, "CLIENT", "KILL", "TYPE", "pubsub").Err())
}

// TestWakeups_KillLoop kills all subscription connections all the time while two
// clients pass a lock to and fro: WAIT-3.
func TestWakeups_KillLoop(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, kind topology) {
		s := newScene(t, kind.open(t, silence, true))
		ctx, cancel := context.WithCancel(s.ctx)
		killed := inBackground(func() (n int) {
			for ctx.Err() == nil {
				if s.direct.Do(s.ctx, "CLIENT", "KILL", "TYPE", "pubsub").Err() == nil {
					n++
				}
				time.Sleep(7 * time.Millisecond)
			}
			return n
		})
		require.NoError(t, s.theirs.Lock(s.as(stranger)))
		for range 10 {
			got := s.asks(s.l, alice)
			require.NoError(t, s.theirs.Unlock(s.as(stranger)))
			require.NoError(t, result(t, soon, got, "alice"))
			got = s.asks(s.theirs, stranger)
			s.leave(alice, 1)
			require.NoError(t, result(t, soon, got, "the stranger"))
		}
		cancel()
		require.Positive(t, result(t, soon, killed, "the killer"))
		require.NoError(t, s.theirs.Unlock(s.as(stranger)))
		s.gone()
	})
}

// TestWakeups_HalfOpen makes the waiter's subscription connection mute while its
// commands go on: WAIT-2.
func TestWakeups_HalfOpen(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, kind topology) {
		t.Run("found by the probe", func(t *testing.T) {
			t.Parallel()
			s := newScene(t, kind.open(t, silence, false))
			require.NoError(t, s.theirs.Lock(s.as(stranger)))
			got := s.wait(alice)
			require.Positive(t, s.line.MuteConns(func(c redistest.Conn) bool { return c.PubSub }))
			require.NoError(t, s.theirs.Unlock(s.as(stranger)))
			require.NoError(t, result(t, faultLimit, got, "the waiter, long before the TTL"))
			s.within(soon, func() bool { return s.c.Stats().Reconnects > 0 }, "a new subscription connection")
			s.stands(s.l, alice, 1)
			s.leave(alice, 1)
			s.over()
		})
		t.Run("for good", func(t *testing.T) {
			t.Parallel()
			s := newScene(t, kind.open(t, silence, false), rlock.WithRecheck(recheck))
			s.line.MutePubSub(true)
			require.NoError(t, s.theirs.Lock(s.as(stranger)))
			got := s.asks(s.l, alice)
			require.NoError(t, s.theirs.Unlock(s.as(stranger)))
			require.NoError(t, result(t, bounded, got, "the waiter, within its recheck"))
			s.stands(s.l, alice, 1)
			s.leave(alice, 1)
			s.over()
		})
	})
}

// TestWakeups_SlowSubscribe unlocks while SUBSCRIBE is on its way: WAIT-1.
func TestWakeups_SlowSubscribe(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, kind topology) {
		for name, action := range map[string]redistest.Action{
			"request": redistest.HoldRequest, "confirmation": redistest.HoldReply,
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				s := newScene(t, kind.open(t, faultLimit, false))
				require.NoError(t, s.theirs.Lock(s.as(stranger)))
				rule := s.line.On(redistest.Command("subscribe", "ssubscribe"), action)
				got := s.asks(s.l, alice)
				rule.Wait(t)
				if name == "confirmation" {
					rule.WaitExecuted(t, 1)
				}
				require.NoError(t, s.theirs.Unlock(s.as(stranger)))
				rule.Release()
				require.NoError(t, result(t, soon, got, "the waiter"))
				s.stands(s.l, alice, 1)
				s.leave(alice, 1)
				s.over()
			})
		}
	})
}

// TestWakeups_NoPolling: a waiter that was refused and has subscribed is silent.
func TestWakeups_NoPolling(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, kind topology) {
		s := newScene(t, kind.open(t, silence, false), rlock.WithRecheck(5*time.Second))
		require.NoError(t, s.theirs.Lock(s.as(stranger)))
		waiters := []<-chan error{s.wait(alice), s.wait(bob), s.wait(carol)}
		s.line.ResetCounts()
		time.Sleep(2 * time.Second) // that nothing happens
		require.Empty(t, s.line.Counts())
		require.NoError(t, s.theirs.Unlock(s.as(stranger)))
		for i, o := range []rlock.Owner{alice, bob, carol} {
			require.NoError(t, result(t, soon, waiters[i], string(o)))
			s.leave(o, 1)
		}
		require.LessOrEqual(t, s.sent(script.Acquire), 2)
		require.Equal(t, 2, s.sent(script.Pass))
		s.over()
	})
}

// TestWakeups_DuringYield: the message of a release wakes the releaser's own
// waiter before the release is answered, so it waits for its turn while its
// client yields. It is refused then, and must still hear of the next release.
func TestWakeups_DuringYield(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, kind topology) {
		s := newScene(t, kind.open(t, faultLimit, false), rlock.WithHandoffLimit(0, 0))
		inside(1)(s)
		got := s.wait(carol)
		theirs := s.asks(s.theirs, stranger)

		rule := s.hit(script.Release, redistest.HoldReply)
		done := inBackground(func() error { return unlock(s) })
		rule.WaitExecuted(s, 1)
		require.NoError(s, result(s.T, soon, theirs, "the stranger"))
		time.Sleep(50 * time.Millisecond) // carol hears of it too, and wants her turn
		asked := s.sent(script.Acquire)
		rule.Release()
		require.NoError(s, result(s.T, soon, done, "the unlock"))
		s.eventually(func() bool { return s.sent(script.Acquire) > asked }, "carol asks")
		time.Sleep(50 * time.Millisecond) // and is refused
		require.NoError(s, s.theirs.Unlock(s.as(stranger)))
		require.NoError(s, result(s.T, soon, got, "carol is told of the release"))
		s.leave(carol, 1)
		s.over()
	})
}
