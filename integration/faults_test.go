package integration

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/redistest"
	"github.com/relock-go/relock/internal/script"
	"github.com/relock-go/relock/rlock"
)

// TestFaults_LostReply loses the answer to one request, or the request, of each
// operation: ACQ-1, ACQ-2, ACQ-6, ACQ-8, REN-3.
func TestFaults_LostReply(t *testing.T) {
	t.Parallel()
	losses := []struct {
		name   string
		action redistest.Action
		runs   bool // the server runs the request
	}{
		{"reply lost and closed", redistest.LoseReplyAndClose, true},
		{"reply lost and silent", redistest.LoseReplyAndHang, true},
		{"request dropped", redistest.DropRequest, false},
	}
	onEach(t, func(t *testing.T, kind topology) {
		for _, d := range deeds {
			for _, loss := range losses {
				for _, line := range []string{"alone", "others behind"} {
					t.Run(fmt.Sprintf("%s/%s/%s", d.name, loss.name, line), func(t *testing.T) {
						t.Parallel()
						s := newScene(t, kind.open(t, silence, false), d.opts...)
						lose(s, &d, loss.action, loss.runs, line != "alone")
					})
				}
			}
		}
	})
}

// lose runs d with a loss. A stranger contends from the moment on at which
// somebody of ours may be inside; with behind, carol does too.
func lose(s *scene, d *deed, action redistest.Action, runs, behind bool) {
	d.before(s)
	var visitors []<-chan visit
	contend := func() {
		visitors = append(visitors, s.visits(s.theirs, stranger))
		if behind {
			visitors = append(visitors, s.visits(s.l, carol))
		}
	}
	if !d.free {
		contend()
	}
	rule := s.hit(d.script, action)
	done := inBackground(func() error { return d.do(s) })
	rule.Wait(s)
	if d.free && runs {
		rule.WaitExecuted(s, 1)
		contend()
	}
	require.NoError(s, result(s.T, faultLimit, done, d.name))
	if d.free && !runs {
		contend()
	}
	if d.depth > 0 {
		s.stands(s.l, d.holder, d.depth)
		for i, v := range visitors {
			select {
			case v := <-v:
				require.FailNow(s, "somebody else was let in", "visitor %d: %+v", i, v)
			default:
			}
		}
		if d.script == script.Renew {
			require.Greater(s, s.pttl(), shortDog/2, "the TTL is restored")
		}
		s.leave(d.holder, d.depth)
	} else {
		require.ErrorIs(s, s.l.Unlock(s.as(alice)), rlock.ErrNotHeld)
	}
	for i, v := range visitors {
		s.gotIn(v, fmt.Sprintf("visitor %d", i))
	}
	s.over()
}

// TestFaults_LateRequest delivers one request of each operation long after its
// client gave it up: ACQ-5, ACQ-7, ACQ-15.
func TestFaults_LateRequest(t *testing.T) {
	t.Parallel()
	late := append([]deed{}, deeds...)
	for _, d := range deeds {
		if d.script == script.Pass {
			d.name += ", the next owner again"
			d.owner = bob
			late = append(late, d)
		}
	}
	late = append(late, givenUp...)
	onEach(t, func(t *testing.T, kind topology) {
		for _, d := range late {
			for name, end := range map[string]func(*scene, *deed, *redistest.Rule){
				"owner again": lateForOwner, "somebody else": lateForStranger, "nobody": lateForNobody,
			} {
				t.Run(d.name+"/"+name, func(t *testing.T) {
					t.Parallel()
					s := newScene(t, kind.open(t, silence, false), d.opts...)
					d.before(s)
					rule := s.hit(d.script, redistest.HoldRequest)
					done := inBackground(func() error { return d.do(s) })
					rule.Wait(s)
					require.NoError(s, result(s.T, faultLimit, done, d.name))
					if d.depth > 0 {
						s.stands(s.l, d.holder, d.depth)
						s.leave(d.holder, d.depth)
					}
					end(s, &d, rule)
				})
			}
		}
	})
}

// givenUp are operations whose caller leaves before the answer.
var givenUp = []deed{
	{
		name: "lock given up", script: script.Acquire, free: true,
		before: func(*scene) {},
		do: func(s *scene) error {
			return wanted(rlock.ErrUnsettled, second(s.l.TryLock(s.as(alice), 50*time.Millisecond, 0)))
		},
	},
	{
		name: "re-entry given up", script: script.Keep,
		before: inside(1),
		do: func(s *scene) error {
			return wanted(rlock.ErrUnsettled, second(s.l.TryLock(s.as(alice), 50*time.Millisecond, 0)))
		},
		holder: alice, depth: 1,
	},
	{
		name: "unlock given up", script: script.Release,
		opts:   []rlock.Option{rlock.WithReleaseTimeout(50 * time.Millisecond)},
		before: inside(1),
		do:     func(s *scene) error { return wanted(rlock.ErrUnsettled, unlock(s)) },
	},
}

func second(_ bool, err error) error { return err }

// wanted is nil if err is target.
func wanted(target, err error) error {
	if errors.Is(err, target) {
		return nil
	}
	return fmt.Errorf("want %q, got: %w", target, someError(err))
}

func someError(err error) error {
	if err == nil {
		return errors.New("no error")
	}
	return err
}

// lateForOwner delivers the request after its owner has locked again.
func lateForOwner(s *scene, d *deed, rule *redistest.Rule) {
	o := d.actor()
	for range 2 {
		require.NoError(s, s.l.LockLease(s.as(o), 40*time.Second))
	}
	field := s.stands(s.l, o, 2)
	require.Regexp(s, `\.\d+$`, field, "a field that an unanswered request named is not used again")
	s.deliver(rule)
	require.Equal(s, field, s.stands(s.l, o, 2))
	require.Greater(s, s.pttl(), 31*time.Second, "the TTL is not lowered")
	other := s.visits(s.theirs, stranger)
	s.leave(o, 2)
	s.gotIn(other, "the stranger")
	s.gone()
}

// lateForStranger delivers it after another client has locked.
func lateForStranger(s *scene, _ *deed, rule *redistest.Rule) {
	for range 2 {
		require.NoError(s, s.theirs.LockLease(s.as(stranger), 40*time.Second))
	}
	field := s.stands(s.theirs, stranger, 2)
	s.deliver(rule)
	require.Equal(s, field, s.stands(s.theirs, stranger, 2))
	require.Greater(s, s.pttl(), 31*time.Second, "the TTL is not lowered")
	got := s.visits(s.l, carol)
	for range 2 {
		require.NoError(s, s.theirs.Unlock(s.as(stranger)))
	}
	s.gotIn(got, "carol")
	s.gone()
}

// lateForNobody delivers it while the lock is free.
func lateForNobody(s *scene, d *deed, rule *redistest.Rule) {
	s.within(soon, func() bool { return !s.exists() }, "the lock is free")
	s.deliver(rule)
	if d.script == script.Acquire {
		require.NotContains(s, rule.Replies()[0], "held", "it makes the key again")
	}
	s.within(soon, func() bool { return !s.exists() }, "what the late request made is swept")
	require.NoError(s, s.theirs.Lock(s.as(stranger)))
	s.stands(s.theirs, stranger, 1)
	require.NoError(s, s.theirs.Unlock(s.as(stranger)))
	s.gone()
}

// deliver lets the late request run.
func (s *scene) deliver(rule *redistest.Rule) {
	s.Helper()
	rule.Release()
	rule.WaitExecuted(s, 1)
}

// gone checks that nothing is left and that nobody was told of a loss.
func (s *scene) gone() {
	s.Helper()
	s.within(soon, func() bool { return !s.exists() }, "the key is gone")
	require.Zero(s, s.c.Stats().Held)
	require.Zero(s, s.other.Stats().Held)
	s.noLoss()
}

// TestFaults_LateIntoTheSameHold delivers the first copy of a request whose
// second copy was answered, while what that one granted goes on.
func TestFaults_LateIntoTheSameHold(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, kind topology) {
		for _, d := range deeds {
			if d.depth == 0 {
				continue
			}
			t.Run(d.name, func(t *testing.T) {
				t.Parallel()
				s := newScene(t, kind.open(t, silence, false), d.opts...)
				d.before(s)
				rule := s.hit(d.script, redistest.HoldRequest)
				done := inBackground(func() error { return d.do(s) })
				rule.Wait(s)
				require.NoError(s, result(s.T, faultLimit, done, d.name))
				require.NoError(s, s.l.Extend(s.as(d.holder), 40*time.Second))
				field := s.stands(s.l, d.holder, d.depth)
				other := s.visits(s.theirs, stranger)
				s.deliver(rule)
				require.Equal(s, field, s.stands(s.l, d.holder, d.depth))
				require.Greater(s, s.pttl(), 31*time.Second, "the TTL is not lowered")
				s.leave(d.holder, d.depth)
				s.gotIn(other, "the stranger")
				s.gone()
			})
		}
	})
}

// TestFaults_SlowAnswer delays the answer to each operation by more than a safety
// margin: REN-1. The hold counts from before the request was sent.
func TestFaults_SlowAnswer(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, kind topology) {
		for _, d := range deeds {
			if d.depth == 0 {
				continue
			}
			t.Run(d.name, func(t *testing.T) {
				t.Parallel()
				s := newScene(t, kind.open(t, faultLimit, false), rlock.WithWatchdogTimeout(shortDog))
				d.before(s)
				rule := s.hit(d.script, redistest.DelayReply(250*time.Millisecond))
				require.NoError(t, result(t, soon, inBackground(func() error { return d.do(s) }), d.name))
				rule.WaitExecuted(t, 1)
				s.believes(d.holder)
				s.stands(s.l, d.holder, d.depth)
				s.leave(d.holder, d.depth)
				s.gone()
			})
		}
	})
}

// TestFaults_Overtaken lets other requests on a key pass a renewal: REN-15. The
// renewal is under way on the server's side of the line, or before it.
func TestFaults_Overtaken(t *testing.T) {
	t.Parallel()
	const lease = 1200 * time.Millisecond // shorter than what the renewal asks for
	overtakes := []struct {
		name string
		do   func(s *scene) rlock.Owner // who is inside then
		most time.Duration              // of validity
	}{
		{"longer extend", func(s *scene) rlock.Owner {
			require.NoError(s, s.l.Extend(s.as(alice), 20*time.Second))
			return alice
		}, 20 * time.Second},
		{"shorter extend", func(s *scene) rlock.Owner {
			require.NoError(s, s.l.Extend(s.as(alice), lease))
			return alice
		}, lease},
		{"unlock and lock", func(s *scene) rlock.Owner {
			require.NoError(s, unlock(s))
			require.NoError(s, s.l.LockLease(s.as(alice), lease))
			return alice
		}, lease},
		{"unlock and lock of another", func(s *scene) rlock.Owner {
			require.NoError(s, unlock(s))
			require.NoError(s, s.l.LockLease(s.as(bob), lease))
			return bob
		}, lease},
		{"hand-over", func(s *scene) rlock.Owner {
			got := inBackground(func() error { return s.l.LockLease(s.as(bob), lease) })
			s.eventually(func() bool { return s.c.Stats().Waiting == 1 }, "bob waits")
			require.NoError(s, unlock(s))
			require.NoError(s, result(s.T, soon, got, "bob"))
			require.EqualValues(s, 1, s.c.Stats().HandedOff)
			return bob
		}, lease},
		{"hand-over and back", func(s *scene) rlock.Owner {
			got := inBackground(func() error { return s.l.Lock(s.as(bob)) })
			s.eventually(func() bool { return s.c.Stats().Waiting == 1 }, "bob waits")
			require.NoError(s, unlock(s))
			require.NoError(s, result(s.T, soon, got, "bob"))
			got = inBackground(func() error { return s.l.LockLease(s.as(alice), lease) })
			s.eventually(func() bool { return s.c.Stats().Waiting == 1 }, "alice waits")
			require.NoError(s, s.l.Unlock(s.as(bob)))
			require.NoError(s, result(s.T, soon, got, "alice"))
			return alice
		}, lease},
		{"somebody between", func(s *scene) rlock.Owner {
			require.NoError(s, unlock(s))
			require.NoError(s, s.direct.HSet(s.ctx, s.l.Key(), "somebody:1", 1).Err())
			require.NoError(s, s.direct.PExpire(s.ctx, s.l.Key(), 100*time.Millisecond).Err())
			require.NoError(s, s.l.LockLease(s.as(alice), lease))
			return alice
		}, lease},
	}
	onEach(t, func(t *testing.T, kind topology) {
		for _, o := range overtakes {
			for name, action := range map[string]redistest.Action{"reply": redistest.HoldReply, "request": redistest.HoldRequest} {
				t.Run(o.name+"/"+name, func(t *testing.T) {
					t.Parallel()
					// Patient: the answer is to be believed in, if anything is.
					s := newScene(t, kind.open(t, faultLimit, false), rlock.WithWatchdogTimeout(shortDog))
					inside(1)(s)
					rule := s.hit(script.Renew, action)
					rule.Wait(s)
					if name == "reply" {
						rule.WaitExecuted(s, 1)
					}
					holder := o.do(s)
					sent := time.Now() // no earlier than the request of the hold's lease
					rule.Release()
					rule.WaitExecuted(s, 1)
					// Nothing says when the client has read the answer, so this
					// looks for as long as that can take.
					for end := time.Now().Add(200 * time.Millisecond); time.Now().Before(end); time.Sleep(2 * time.Millisecond) {
						s.believes(holder)
						most := o.most - time.Since(sent)
						left := s.l.Validity(s.as(holder))
						require.Positive(s, left, "false loss")
						require.LessOrEqual(s, left, most, "the lease counts from its own request")
					}
					s.stands(s.l, holder, 1)
					s.leave(holder, 1)
					s.within(soon, func() bool { return !s.exists() }, "the key is gone")
				})
			}
		}
	})
}

// believes checks that o's deadline is not later than Redis's.
func (s *scene) believes(o rlock.Owner) {
	s.Helper()
	renewals := s.c.Stats().Renewals
	left := s.pttl()
	valid := s.l.Validity(s.as(o))
	if s.c.Stats().Renewals != renewals {
		return // prolonged in between
	}
	require.LessOrEqual(s, valid, max(0, left)+time.Millisecond, "validity against PTTL")
}
