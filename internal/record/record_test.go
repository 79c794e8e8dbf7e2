package record

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Each rule once, by example. What they are worth together is the model's to
// show.

// fixture is a record whose requests are answered by hand.
type fixture struct {
	*testing.T
	Record
	now Instant
}

func newFixture(t *testing.T) *fixture {
	t.Parallel()
	var n uint64
	return &fixture{T: t, Record: New(&Rules{
		Client:   "C",
		Watchdog: 30 * time.Second,
		Serial:   func() uint64 { n++; return n },
	})}
}

func (f *fixture) wait(d time.Duration) { f.now = f.now.Add(d) }

// ask sends q and answers it at once.
func (f *fixture) ask(q *Request, yes bool) Verdict {
	f.Sent(q, f.now)
	return f.reply(q, yes)
}

func (f *fixture) reply(q *Request, yes bool) Verdict {
	v, _ := f.Answer(q, yes, f.now)
	return v
}

// lock is an owner's first Lock.
func (f *fixture) lock(owner string, lease time.Duration) *Hold {
	f.Helper()
	q := f.Acquire(Want{Owner: owner, Lease: lease}, f.now)
	require.Equal(f, Granted, f.ask(q, true))
	return q.Hold
}

// doubt sends q and has no answer.
func (f *fixture) doubt(q *Request) *Request {
	f.Sent(q, f.now)
	f.Unanswered(q)
	return q
}

func (f *fixture) left(h *Hold, want time.Duration) {
	f.Helper()
	require.Equal(f, want-Margin(want), h.Left(f.now))
}

func TestACQ1_UnlockBesideAnUnansweredLock(t *testing.T) {
	f := newFixture(t)
	h := f.lock("7", 0)
	require.Equal(t, Kept, f.ask(f.Enter(h, 0), true))
	enter := f.Enter(h, 0)
	f.Sent(enter, f.now)
	require.EqualValues(t, 1, f.Leave(h))
	require.Equal(t, Kept, f.reply(enter, true))
	require.EqualValues(t, 2, h.Depth, "three Locks, one Unlock")
	require.True(t, h.Dirty(), "Redis has 3")
	mend := f.Mend(h, f.now)
	require.Equal(t, 2, mend.Depth)
	require.Equal(t, Kept, f.ask(mend, true))
	require.False(t, h.Dirty())
}

func TestACQ1_LockThatFailedIsTakenBack(t *testing.T) {
	f := newFixture(t)
	h := f.lock("7", 0)
	f.Close(f.doubt(f.Enter(h, 0)), f.now)
	require.EqualValues(t, 1, h.Depth)
	require.True(t, h.Dirty())

	enter := f.Enter(h, 0)
	f.Abandon(enter)
	require.Equal(t, Undo, f.ask(enter, true))
	require.EqualValues(t, 1, h.Depth)
	require.True(t, h.Dirty())
}

func TestACQ4_NestedLockOfAHoldThatIsGone(t *testing.T) {
	f := newFixture(t)
	h := f.lock("7", 0)
	require.Equal(t, Lost, f.ask(f.Enter(h, 0), false))
	require.True(t, h.Lost())
	require.True(t, h.Stuck(f.now))
	require.Zero(t, h.Left(f.now))
}

func TestACQ5_AcquireTakesOverLeftovers(t *testing.T) {
	f := newFixture(t)
	h := f.lock("7", 0)
	f.Lose(h, f.now)
	q := f.Acquire(Want{Owner: "8"}, f.now)
	require.Equal(t, []string{"C:7"}, q.Found)
	require.Equal(t, Held, f.ask(q, false))
	require.True(t, f.Strays(f.now), "refused: they may stand still")
	require.Equal(t, Granted, f.ask(f.Acquire(Want{Owner: "8"}, f.now), true))
	require.False(t, f.Strays(f.now))
}

func TestACQ5_LiveFieldIsNoLeftover(t *testing.T) {
	f := newFixture(t)
	q := f.doubt(f.Acquire(Want{Owner: "7"}, f.now))
	require.Equal(t, Granted, f.ask(q, true)) // the first copy is still on its way
	require.Empty(t, f.Acquire(Want{Owner: "8"}, f.now).Found)
}

func TestACQ6_LateGrantIsUndone(t *testing.T) {
	f := newFixture(t)
	q := f.Acquire(Want{Owner: "7", Lease: time.Second}, f.now)
	f.Sent(q, f.now)
	f.wait(time.Second)
	require.Equal(t, Undo, f.reply(q, true))
	require.Nil(t, f.Hold("7", Whole))
	require.True(t, f.Strays(f.now))
}

func TestACQ6_AbandonedGrantIsUndone(t *testing.T) {
	f := newFixture(t)
	q := f.Acquire(Want{Owner: "7"}, f.now)
	f.Abandon(q)
	require.Equal(t, Undo, f.ask(q, true))
	require.Equal(t, Released, f.ask(f.Release(q.Hold, f.now), true))
	require.Equal(t, "C:7.1", f.lock("7", 0).Field)
}

func TestACQ7_LateCopyOfAnAcquireIsWatchedFor(t *testing.T) {
	f := newFixture(t)
	f.Close(f.doubt(f.Acquire(Want{Owner: "7", Lease: time.Minute}, f.now)), f.now)
	for range 3 { // no sweep settles what may still come
		require.Equal(t, Released, f.ask(f.Sweep(f.now), false))
		require.True(t, f.Strays(f.now))
	}
	f.wait(89 * time.Second) // a watchdog timeout, and a lease after that
	require.True(t, f.Strays(f.now))
	f.wait(time.Second)
	require.False(t, f.Strays(f.now))
	require.False(t, f.Idle(f.now), "its field is burned")
}

func TestACQ8_GoneAfterDoubt(t *testing.T) {
	for name, c := range map[string]struct {
		doubt bool
		after time.Duration
		want  Verdict
	}{
		"no doubt":           {false, 0, Lost},
		"in time":            {true, time.Second, Released},
		"after the deadline": {true, 30 * time.Second, Lost},
	} {
		for _, op := range []string{"release", "pass", "release after pass"} {
			t.Run(name+" "+op, func(t *testing.T) {
				f := newFixture(t)
				h := f.lock("7", 0)
				f.Leave(h)
				q := f.Release(h, f.now)
				if op != "release" {
					f.Close(q, f.now)
					q = f.Pass(h, Want{Owner: "8", Lease: 20 * time.Millisecond}, f.now)
				}
				if c.doubt {
					f.doubt(q)
				}
				if op == "release after pass" {
					f.Close(q, f.now)
					q = f.Release(h, f.now)
				}
				f.wait(c.after)
				require.Equal(t, c.want, f.ask(q, false))
			})
		}
	}
}

func TestACQ15_FieldInDoubtIsNotUsedAgain(t *testing.T) {
	for name, doubt := range map[string]func(f *fixture, h *Hold){
		"enter":   func(f *fixture, h *Hold) { f.ask(f.doubt(f.Enter(h, 0)), true); f.Leave(h) },
		"extend":  func(f *fixture, h *Hold) { f.ask(f.doubt(f.Extend(h, 0)), true) },
		"mend":    func(f *fixture, h *Hold) { f.ask(f.doubt(f.Mend(h, f.now)), true) },
		"abandon": func(f *fixture, h *Hold) { q := f.Extend(h, 0); f.Abandon(q); f.ask(q, true) },
		"renewal": func(f *fixture, h *Hold) { n, _ := f.Renew(h, f.now); f.Unrenewed(n, true) },
		"renewal under way": func(f *fixture, h *Hold) {
			_, _ = f.Renew(h, f.now)
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			h := f.lock("7", 0)
			doubt(f, h)
			f.Leave(h)
			require.Equal(t, Released, f.ask(f.Release(h, f.now), true))
			require.Equal(t, "C:7.1", f.lock("7", 0).Field)
		})
	}
	t.Run("release", func(t *testing.T) {
		f := newFixture(t)
		h := f.lock("7", 0)
		f.Leave(h)
		require.Equal(t, Released, f.ask(f.doubt(f.Release(h, f.now)), true))
		require.Equal(t, "C:7.1", f.lock("7", 0).Field)
	})
	t.Run("pass", func(t *testing.T) {
		f := newFixture(t)
		h := f.lock("7", 0)
		f.Leave(h)
		q := f.doubt(f.Pass(h, Want{Owner: "8"}, f.now))
		require.Equal(t, Granted, f.ask(q, true))
		f.Leave(q.Hold)
		require.Equal(t, "C:7.1", f.Pass(q.Hold, Want{Owner: "7"}, f.now).Hold.Field)
	})
	t.Run("without doubt", func(t *testing.T) {
		f := newFixture(t)
		for range 3 {
			h := f.lock("7", 0)
			require.Equal(t, "C:7", h.Field)
			f.Leave(h)
			require.Equal(t, Released, f.ask(f.Release(h, f.now), true))
		}
		require.True(t, f.Idle(f.now))
	})
}

func TestACQ15_TooManyFieldsInDoubt(t *testing.T) {
	f := newFixture(t)
	for range mostBurned + 2 {
		q := f.doubt(f.Acquire(Want{Owner: "7"}, f.now))
		f.Close(q, f.now)
	}
	require.Equal(t, "C:8.34", f.lock("8", 0).Field, "33 went to owner 7")
}

// Owner 7's first number is not to be owner 7.1.
func TestACQ15_OwnerCalledLikeANumberedField(t *testing.T) {
	f := newFixture(t)
	require.Equal(t, "C:7.1.1", f.lock("7.1", 0).Field)
	for owner, want := range map[string]bool{
		"7": false, "7.1": true, ".1": true, "7.1.22": true, "7.": false, "7.1a": false, "a.b": false, "v2": false, "1": false,
	} {
		require.Equal(t, want, numbered(owner), owner)
	}
}

func TestPassToTheSameOwner(t *testing.T) {
	f := newFixture(t)
	h := f.lock("7", 0)
	f.Leave(h)
	q := f.Pass(h, Want{Owner: "7"}, f.now)
	require.NotContains(t, q.Found, q.Hold.Field)
	require.Equal(t, []string{"C:7"}, q.Found)
}

func TestREN1_DeadlineCountsFromTheSend(t *testing.T) {
	f := newFixture(t)
	q := f.Acquire(Want{Owner: "7"}, f.now)
	f.doubt(q)
	f.wait(5 * time.Second)
	f.Sent(q, f.now) // CLK-5: each attempt counts for itself
	f.wait(2 * time.Second)
	require.Equal(t, Granted, f.reply(q, true))
	require.Equal(t, 28*time.Second-300*time.Millisecond, q.Hold.Left(f.now))

	n, ok := f.Renew(q.Hold, f.now)
	require.True(t, ok)
	f.wait(2 * time.Second)
	require.Equal(t, Kept, f.Renewed(n, true, f.now))
	require.Equal(t, 28*time.Second-300*time.Millisecond, q.Hold.Left(f.now))
}

func TestREN5_LostIsForGood(t *testing.T) {
	f := newFixture(t)
	h := f.lock("7", 0)
	n, _ := f.Renew(h, f.now)
	extend := f.Extend(h, time.Hour)
	f.Sent(extend, f.now)
	f.wait(30 * time.Second)
	f.Lose(h, f.now)
	require.Equal(t, Lost, f.Renewed(n, true, f.now))
	require.Equal(t, Lost, f.reply(extend, true))
	require.Zero(t, h.Left(f.now))
	f.wait(59 * time.Minute)
	require.True(t, f.Strays(f.now), "the extension prolonged what nobody believes in")
}

func TestREN15_OvertakenRenewalProvesNothing(t *testing.T) {
	for name, sendFirst := range map[string]bool{"request sent since": false, "request open at the send": true} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			h := f.lock("7", 0)
			extend := f.Extend(h, time.Second)
			if sendFirst {
				f.Sent(extend, f.now)
			}
			n, _ := f.Renew(h, f.now)
			if !sendFirst {
				f.Sent(extend, f.now)
			}
			require.Equal(t, Kept, f.reply(extend, true))
			require.Equal(t, Overtaken, f.Renewed(n, false, f.now))
			require.False(t, h.Lost())
			f.left(h, time.Second)
		})
	}
}

func TestREN15_RenewalOfAnEarlierHold(t *testing.T) {
	f := newFixture(t)
	h := f.lock("7", 0)
	n, _ := f.Renew(h, f.now)
	f.Leave(h)
	require.Equal(t, Released, f.ask(f.Release(h, f.now), true))
	next := f.lock("7", 0)
	f.Renewed(n, false, f.now)
	f.left(next, 30*time.Second)
}

func TestREN13_RemovalIsBelieved(t *testing.T) {
	f := newFixture(t)
	h := f.lock("7", time.Hour)
	n, _ := f.Renew(h, f.now)
	require.Zero(t, n.TTL, "a fixed lease is only looked at")
	require.Equal(t, Lost, f.Renewed(n, false, f.now))
	require.True(t, h.Stuck(f.now))

	// A grant to another proves it too.
	f = &fixture{T: t, Record: New(f.rules)}
	h = f.lock("7", 0)
	q := f.Acquire(Want{Owner: "8"}, f.now)
	f.Sent(q, f.now)
	verdict, gone := f.Answer(q, true, f.now)
	require.Equal(t, Granted, verdict)
	require.Equal(t, []*Hold{h}, gone)
	require.True(t, h.Lost())
}

func TestCLK3_EitherClockEndsAHold(t *testing.T) {
	f := newFixture(t)
	h := f.lock("7", 0)
	f.now.Wall += 20 * time.Second // a suspend
	require.Equal(t, 10*time.Second-300*time.Millisecond, h.Left(f.now))
	f.now.Wall -= 2 * time.Hour // stepped back: nothing gained
	require.Equal(t, 30*time.Second-300*time.Millisecond, h.Left(f.now))
	f.now.Wall += 3 * time.Hour
	require.Zero(t, h.Left(f.now))
}

func TestCLK3_LimitDoesNotPutOffTheDeadline(t *testing.T) {
	f := newFixture(t)
	q := f.Acquire(Want{Owner: "7", Limit: 20 * time.Second}, f.now)
	f.now.Wall -= time.Hour // before the send
	require.Equal(t, Granted, f.ask(q, true))
	f.now.Wall += 29 * time.Second // a suspend
	require.Equal(t, 700*time.Millisecond, q.Hold.Left(f.now))
}

func TestLeaseRules(t *testing.T) {
	const s = time.Second
	enter := func(lease time.Duration) func(*fixture, *Hold) *Request {
		return func(f *fixture, h *Hold) *Request { return f.Enter(h, lease) }
	}
	extend := func(lease time.Duration) func(*fixture, *Hold) *Request {
		return func(f *fixture, h *Hold) *Request { return f.Extend(h, lease) }
	}
	for name, c := range map[string]struct {
		first     time.Duration
		then      func(*fixture, *Hold) *Request
		lease     time.Duration // afterwards
		left      time.Duration
		renewable bool
	}{
		"nested longer":                 {10 * s, enter(60 * s), 60 * s, 60 * s, false},
		"nested shorter":                {60 * s, enter(10 * s), 60 * s, 60 * s, false},
		"nested watchdog":               {10 * s, enter(0), 0, 30 * s, true},
		"nested watchdog, longer lease": {60 * s, enter(0), 0, 60 * s, true},
		"nested lease under watchdog":   {0, enter(60 * s), 0, 30 * s, true},
		"extend shorter":                {60 * s, extend(10 * s), 10 * s, 10 * s, false},
		"extend longer":                 {10 * s, extend(60 * s), 60 * s, 60 * s, false},
		"extend to the watchdog":        {60 * s, extend(0), 0, 30 * s, true},
		"extend from the watchdog":      {0, extend(10 * s), 10 * s, 10 * s, false},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			h := f.lock("7", c.first)
			require.Equal(t, Kept, f.ask(c.then(f, h), true))
			require.Equal(t, c.lease, h.Lease)
			f.left(h, c.left)
			n, ok := f.Renew(h, f.now)
			require.True(t, ok)
			require.Equal(t, c.renewable, n.TTL > 0)

			// An inner Unlock leaves the lease as it is.
			require.Equal(t, Kept, f.ask(f.Mend(h, f.now), true))
			require.Equal(t, c.lease, h.Lease)
			f.left(h, c.left)
		})
	}
}

func TestLeaseThatRanOutWasAgreed(t *testing.T) {
	f := newFixture(t)
	h := f.lock("7", time.Second)
	f.wait(time.Second)
	f.Lose(h, f.now)
	require.False(t, h.Stuck(f.now))
	next := f.lock("7", time.Second)
	require.Same(t, next, f.Hold("7", Whole))
	require.Equal(t, "C:7", next.Field)

	h = f.lock("8", 0) // as after a forced removal of the key
	f.wait(30 * time.Second)
	f.Lose(h, f.now)
	require.True(t, h.Stuck(f.now), "a hold of the watchdog stays lost")
}

// Redis may have the field for longer than the hold was believed in.
func TestStrayIsRememberedForItsWholeTTL(t *testing.T) {
	f := newFixture(t)
	q := f.Acquire(Want{Owner: "7", Lease: time.Hour, Limit: time.Second}, f.now)
	require.Equal(t, Granted, f.ask(q, true))
	f.wait(time.Second)
	f.Lose(q.Hold, f.now)
	f.wait(50 * time.Minute)
	require.True(t, f.Strays(f.now))
	f.wait(10 * time.Minute)
	require.False(t, f.Strays(f.now))
}

// An acquire leaves the depth of a field that is there, which may be a late copy's. So a
// new hold has a field that is not there, and takes over from the one that may be.
func TestNoHoldOnAFieldThatMayStand(t *testing.T) {
	f := newFixture(t)
	h := f.lock("7", time.Second)
	require.Equal(t, Kept, f.ask(f.Enter(h, time.Second), true))
	f.wait(995 * time.Millisecond)
	f.Lose(h, f.now) // by the margin, before Redis ends it
	require.True(t, f.Strays(f.now))
	q := f.Acquire(Want{Owner: "7", Lease: time.Second}, f.now)
	require.NotEqual(t, h.Field, q.Hold.Field)
	require.Equal(t, []string{h.Field}, q.Found)
	require.Equal(t, Granted, f.ask(q, true))
	require.False(t, f.Strays(f.now))
}

func TestLimit(t *testing.T) {
	f := newFixture(t)
	q := f.Acquire(Want{Owner: "7", Limit: 40 * time.Second}, f.now)
	require.Equal(t, Granted, f.ask(q, true))
	h := q.Hold
	f.left(h, 30*time.Second)
	f.wait(20 * time.Second)
	n, _ := f.Renew(h, f.now)
	require.Equal(t, Kept, f.Renewed(n, true, f.now))
	require.Equal(t, 20*time.Second, h.Left(f.now))
	require.Equal(t, Kept, f.ask(f.Extend(h, time.Hour), true))
	require.Equal(t, 20*time.Second, h.Left(f.now))
	f.wait(20 * time.Second)
	require.Zero(t, h.Left(f.now))
}

func TestOneRequestAtATime(t *testing.T) {
	f := newFixture(t)
	q := f.Acquire(Want{Owner: "7"}, f.now)
	require.Panics(t, func() { f.Sweep(f.now) })
	f.Close(q, f.now)
	require.Panics(t, func() { f.Close(q, f.now) })
	require.True(t, f.Idle(f.now))
}
