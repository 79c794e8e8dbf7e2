package integration

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/redistest"
	"github.com/relock-go/relock/internal/script"
	"github.com/relock-go/relock/rlock"
)

// The faults of faults_test.go, for the scripts of the other kinds of locks.

func TestKinds_LostReplyFair(t *testing.T)   { lostReplies(t, fairDeeds) }
func TestKinds_LostReplyRW(t *testing.T)     { lostReplies(t, rwDeeds) }
func TestKinds_LostReplyFenced(t *testing.T) { lostReplies(t, fencedDeeds) }

// lostReplies loses the answer to one request, or the request, of each deed: ACQ-1,
// ACQ-6, ACQ-8.
func lostReplies(t *testing.T, deeds []kindDeed) {
	t.Parallel()
	losses := []struct {
		name   string
		action redistest.Action
		runs   bool // the server runs the request
		behind bool // carol, of our client, waits too
	}{
		{"reply lost and closed", redistest.LoseReplyAndClose, true, false},
		{"reply lost and silent", redistest.LoseReplyAndHang, true, true},
		{"request dropped", redistest.DropRequest, false, true},
	}
	onEach(t, func(t *testing.T, kind topology) {
		for i, d := range deeds {
			for j, loss := range losses {
				if !chosen(kind, i, j, len(losses)) {
					continue
				}
				t.Run(d.name+"/"+loss.name, func(t *testing.T) {
					t.Parallel()
					s := newKindStage(t, kind, &d)
					s.loses(&d, loss.action, loss.runs, loss.behind)
				})
			}
		}
	})
}

// chosen bounds the tables: the single server has the whole of each. Of the others each
// has one column of each row, not all the same one; RELOCK_SOAK has them all.
func chosen(kind topology, row, column, columns int) bool {
	at := slices.IndexFunc(topologies, func(k topology) bool { return k.name == kind.name })
	return at == 0 || (row+at)%columns == column || os.Getenv(envSoak) != ""
}

func newKindStage(t *testing.T, kind topology, d *kindDeed) *kindStage {
	t.Helper()
	return &kindStage{stage: newStage(t, kind.open(t, silence, false), d.of, d.visits(), d.opts...)}
}

// loses runs d with a loss. A stranger contends from the moment on at which somebody of
// ours may be inside; with behind, carol does too.
func (s *kindStage) loses(d *kindDeed, action redistest.Action, runs, behind bool) {
	d.before(s)
	var visitors []<-chan visit
	contend := func() {
		visitors = append(visitors, s.visits(s.visitor(s.theirs), stranger, d.seats))
		if behind {
			visitors = append(visitors, s.visits(s.visitor(s.ours), carol, d.seats))
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
	if len(d.seats) > 0 {
		s.stands(d.seats)
		for i, v := range visitors {
			select {
			case v := <-v:
				require.FailNow(s, "somebody else was let in", "visitor %d: %+v", i, v)
			default:
			}
		}
		if d.script == script.RWRenew {
			require.Greater(s, s.pttl(), shortDog/2, "the TTL is restored")
		}
	}
	s.leaves(d)
	for i, v := range visitors {
		s.gotIn(v, fmt.Sprintf("visitor %d", i))
	}
	s.over()
}

// leaves has all leave whom d has brought in.
func (s *kindStage) leaves(d *kindDeed) {
	s.Helper()
	for _, t := range d.seats {
		s.note(t.of(s.ours), t.o)
	}
	s.leave(d.seats)
	if len(d.seats) == 0 {
		require.ErrorIs(s, s.unlock(), rlock.ErrNotHeld)
	}
	if d.after != nil {
		d.after(s)
	}
}

// TestKinds_LateRequest delivers one request of each deed long after its client gave it
// up: ACQ-5, ACQ-7, ACQ-15.
func TestKinds_LateRequestFair(t *testing.T)   { lateRequests(t, append(fairDeeds, fairGivenUp...)) }
func TestKinds_LateRequestRW(t *testing.T)     { lateRequests(t, append(rwDeeds, rwGivenUp...)) }
func TestKinds_LateRequestFenced(t *testing.T) { lateRequests(t, append(fencedDeeds, fencedGivenUp)) }

func lateRequests(t *testing.T, deeds []kindDeed) {
	t.Parallel()
	ends := []struct {
		name string
		run  func(*kindStage, *kindDeed, *redistest.Rule)
	}{
		{"owner again", (*kindStage).lateForOwner},
		{"somebody else", (*kindStage).lateForStranger},
		{"nobody", (*kindStage).lateForNobody},
		{"the same hold", (*kindStage).lateIntoHold},
	}
	onEach(t, func(t *testing.T, kind topology) {
		for i, d := range deeds {
			ends := ends
			// A re-entry that was given up may leave Redis's depth too high, see
			// ACQ-1: the hold's end takes all of it.
			if len(d.seats) == 0 || strings.HasSuffix(d.name, "given up") {
				ends = ends[:len(ends)-1]
			}
			for j, end := range ends {
				if !chosen(kind, i, j, len(ends)) {
					continue
				}
				t.Run(d.name+"/"+end.name, func(t *testing.T) {
					t.Parallel()
					s := newKindStage(t, kind, &d)
					d.before(s)
					rule := s.hit(d.script, redistest.HoldRequest)
					done := inBackground(func() error { return d.do(s) })
					rule.Wait(s)
					require.NoError(s, result(s.T, faultLimit, done, d.name))
					if len(d.seats) > 0 {
						s.stands(d.seats)
					}
					end.run(s, &d, rule)
					s.over()
				})
			}
		}
	})
}

// lateForOwner delivers the request after its owner has locked again.
func (s *kindStage) lateForOwner(d *kindDeed, rule *redistest.Rule) {
	s.leaves(d)
	o := d.actor()
	for range 2 {
		require.NoError(s, s.mine().LockLease(s.as(o), 40*time.Second))
	}
	s.note(s.mine(), o)
	again := only(o, d.of, 2)
	fields := s.settles(again)
	require.Regexp(s, `\.\d+(:write)?$`, fields[0], "a field that an unanswered request named is not used again")
	s.deliver(rule)
	require.Equal(s, fields, s.settles(again))
	require.Greater(s, s.pttl(), 31*time.Second, "the TTL is not lowered")
	other := s.visits(s.visitor(s.theirs), stranger, again)
	s.leave(again)
	s.gotIn(other, "the stranger")
}

// lateForStranger delivers it after another client has locked.
func (s *kindStage) lateForStranger(d *kindDeed, rule *redistest.Rule) {
	s.leaves(d)
	l := d.of(s.theirs)
	for range 2 {
		require.NoError(s, l.LockLease(s.as(stranger), 40*time.Second))
	}
	s.note(l, stranger)
	before := s.fields()
	require.Contains(s, before, s.theirField(l))
	s.deliver(rule)
	s.within(soon, func() bool {
		now := s.fields()
		return len(now) == len(before) && now[s.theirField(l)] == "2" && len(s.queue()) == 0
	}, "only the stranger is there: %v", before)
	require.Positive(s, l.Validity(s.as(stranger)))
	require.Greater(s, s.pttl(), 31*time.Second, "the TTL is not lowered")
	got := s.visits(s.visitor(s.ours), carol, nil)
	for range 2 {
		require.NoError(s, l.Unlock(s.as(stranger)))
	}
	s.gotIn(got, "carol")
}

// theirField is the stranger's field.
func (s *kindStage) theirField(l locker) string {
	field := s.other.ID() + ":" + string(stranger)
	if _, writes := l.(*rlock.WriteLock); writes {
		field += ":write"
	}
	return field
}

// lateForNobody delivers it while the lock is free.
func (s *kindStage) lateForNobody(d *kindDeed, rule *redistest.Rule) {
	s.leaves(d)
	s.within(soon, func() bool { return !s.exists() }, "the lock is free")
	s.deliver(rule)
	s.within(soon, func() bool { return len(s.keys()) == 0 }, "what the late request made is swept")
	l := d.of(s.theirs)
	require.NoError(s, l.Lock(s.as(stranger)))
	require.Equal(s, "1", s.fields()[s.theirField(l)])
	require.NoError(s, l.Unlock(s.as(stranger)))
}

// lateIntoHold delivers it while what its second copy has brought about goes on.
func (s *kindStage) lateIntoHold(d *kindDeed, rule *redistest.Rule) {
	for _, t := range d.seats {
		require.NoError(s, t.of(s.ours).Extend(s.as(t.o), 40*time.Second))
	}
	fields := s.stands(d.seats)
	other := s.visits(s.visitor(s.theirs), stranger, d.seats)
	s.deliver(rule)
	require.Equal(s, fields, s.settles(d.seats))
	require.Greater(s, s.pttl(), 31*time.Second, "the TTL is not lowered")
	s.leaves(d)
	s.gotIn(other, "the stranger")
}

// Those whose caller leaves before the answer.

const tooLong = 50 * time.Millisecond // for a request that is held back

func givesUp(s *kindStage) error {
	return wanted(rlock.ErrUnsettled, second(s.mine().TryLock(s.as(alice), tooLong, 0)))
}

var fairGivenUp = []kindDeed{
	{
		name: "fair lock given up", script: script.FairAcquire, of: fairOf, free: true,
		before: nothingBefore, do: givesUp,
	},
	{
		name: "fair queueing given up", script: script.FairAcquire, of: fairOf, free: true,
		before: func(s *kindStage) { require.NoError(s, s.theirs.fair.Lock(s.as(holder))) },
		do:     givesUp,
		after:  func(s *kindStage) { require.NoError(s, s.theirs.fair.Unlock(s.as(holder))) },
	},
	{
		name: "fair unlock given up", script: script.FairRelease, of: fairOf,
		opts:   []rlock.Option{rlock.WithReleaseTimeout(tooLong)},
		before: entered(1),
		do:     func(s *kindStage) error { return wanted(rlock.ErrUnsettled, s.unlock()) },
	},
}

var rwGivenUp = []kindDeed{
	{
		name: "read given up", script: script.RWAcquire, of: readOf, visitor: writeOf, free: true,
		before: nothingBefore, do: givesUp,
	},
	{
		name: "read beside a reader given up", script: script.RWAcquire, of: readOf, visitor: writeOf,
		before: func(s *kindStage) { require.NoError(s, s.ours.read.Lock(s.as(bob))) },
		do:     givesUp, seats: only(bob, readOf, 1),
	},
	{
		name: "read re-entry given up", script: script.RWKeep, of: readOf, visitor: writeOf,
		before: entered(1), do: givesUp, seats: only(alice, readOf, 1),
	},
	{
		name: "write given up", script: script.RWAcquire, of: writeOf, free: true,
		before: nothingBefore, do: givesUp,
	},
	{
		name: "downgrade given up", script: script.RWRelease, of: writeOf,
		opts: []rlock.Option{rlock.WithReleaseTimeout(tooLong)},
		before: func(s *kindStage) {
			entered(1)(s)
			require.NoError(s, s.ours.read.Lock(s.as(alice)))
		},
		do: func(s *kindStage) error {
			err := wanted(rlock.ErrUnsettled, s.unlock())
			s.within(soon, func() bool { return s.fields()["mode"] == "read" }, "the release goes on")
			return err
		},
		seats: only(alice, readOf, 1),
	},
}

var fencedGivenUp = kindDeed{
	name: "fenced lock given up", script: script.Acquire, of: fencedOf, free: true,
	before: nothingBefore, do: givesUp,
}
