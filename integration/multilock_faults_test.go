package integration

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/redistest"
	"github.com/relock-go/relock/internal/script"
	"github.com/relock-go/relock/multilock"
	"github.com/relock-go/relock/rlock"
)

// trio is a group of three locks, each by a client of its own, whose line can be
// made to fail.
type trio struct {
	*testing.T
	ctx    context.Context // alice's
	rdb    *redis.Client   // past the faults
	locks  []*rlock.Lock
	lines  []*redistest.Proxy
	theirs []*rlock.Lock // the same, of another client past the faults
	group  *multilock.MultiLock
}

// newTrio is a trio on fresh names. with may put something else in a lock's place.
func newTrio(t *testing.T, with func(i int, l *rlock.Lock) rlock.Locker) *trio {
	t.Helper()
	s := Redis(t)
	ctx, cancel := context.WithTimeout(rlock.WithOwner(context.Background(), alice), 3*faultLimit)
	t.Cleanup(cancel)
	g := &trio{T: t, ctx: ctx, rdb: s.Client(t)}
	(&rig{direct: g.rdb}).load(t)
	other := lockClient(t, g.rdb)
	base := name(t)
	var members []rlock.Locker
	for i := range 3 {
		p := s.Proxy(t)
		rdb := redistest.NewClient(t, p.Addr, func(o *redis.Options) { o.ReadTimeout = silence })
		l := lockClient(t, rdb, rlock.WithReleaseTimeout(time.Second)).NewLock(fmt.Sprintf("%s:%d", base, i))
		g.locks, g.lines = append(g.locks, l), append(g.lines, p)
		g.theirs = append(g.theirs, other.NewLock(l.Name()))
		members = append([]rlock.Locker{with(i, l)}, members...) // not in the order in which they are taken
	}
	var err error
	g.group, err = multilock.New(members...)
	require.NoError(t, err)
	return g
}

func asTheyAre(_ int, l *rlock.Lock) rlock.Locker { return l }

// hit applies action to what asks for the k-th lock, from now on.
func (g *trio) hit(k int, action redistest.Action) *redistest.Rule {
	s := &scene{rig: &rig{}, l: g.locks[k], line: g.lines[k]}
	return s.hit(script.Acquire, action).Times(0)
}

// nothing checks that nothing is left, long before a key could end by its TTL, and
// that the group can be taken.
func (g *trio) nothing() {
	g.Helper()
	require.Zero(g, g.group.Validity(g.ctx))
	require.ErrorIs(g, g.group.Unlock(g.ctx), rlock.ErrNotHeld)
	s := &scene{T: g.T}
	s.within(soon, func() bool {
		for _, l := range g.locks {
			n, err := g.rdb.Exists(g.ctx, l.Key()).Result()
			require.NoError(g, err)
			if st := l.Client().Stats(); n > 0 || st.Held > 0 || st.Waiting > 0 {
				return false
			}
		}
		return true
	}, "nothing is left")
	require.NoError(g, g.group.Lock(g.ctx))
	g.stands("1")
	require.NoError(g, g.group.Unlock(g.ctx))
	for _, l := range g.locks {
		require.Zero(g, g.rdb.Exists(g.ctx, l.Key()).Val())
		require.Zero(g, l.Client().Stats().Lost, "false loss")
	}
}

// stands checks that alice holds all three so deep, as Redis has it.
func (g *trio) stands(depth string) {
	g.Helper()
	require.Positive(g, g.group.Validity(g.ctx))
	for _, l := range g.locks {
		fields, err := g.rdb.HGetAll(g.ctx, l.Key()).Result()
		require.NoError(g, err)
		require.Len(g, fields, 1)
		for _, d := range fields {
			require.Equal(g, depth, d)
		}
		require.Positive(g, g.rdb.PTTL(g.ctx, l.Key()).Val())
	}
}

// named checks that an error names the k-th lock.
func (g *trio) named(k int, err error) {
	g.Helper()
	require.ErrorContains(g, err, fmt.Sprintf("member %d (%q)", 3-k, g.locks[k].Name()))
}

type plainLock = rlock.Lock

// panicking is a lock that panics, when it is bad, before it is taken or after.
type panicking struct {
	*plainLock
	bad, after bool
}

func (p *panicking) TryLock(ctx context.Context, wait, lease time.Duration) (bool, error) {
	if p.bad && !p.after {
		panic(p.Name())
	}
	got, err := p.plainLock.TryLock(ctx, wait, lease)
	if p.bad {
		panic(p.Name())
	}
	return got, err
}

// MULTI-3: whichever member fails, and however, nothing is left.
func TestMultiLock_MemberFails(t *testing.T) {
	t.Parallel()
	ways := map[string]func(t *testing.T, k int){
		"held": func(t *testing.T, k int) {
			g := newTrio(t, asTheyAre)
			require.NoError(t, g.theirs[k].Lock(g.ctx))
			got, err := g.group.TryLock(g.ctx, 0, 0)
			require.NoError(t, err)
			require.False(t, got)
			got, err = g.group.TryLock(g.ctx, 300*time.Millisecond, 0)
			require.False(t, got)
			if err != nil { // a busy machine may have no time for the last answer
				require.ErrorIs(t, err, rlock.ErrUnsettled)
			}
			require.NoError(t, g.theirs[k].Unlock(g.ctx))
			g.nothing()
		},
		"black hole": func(t *testing.T, k int) {
			g := newTrio(t, asTheyAre)
			g.lines[k].BlackHole(true)
			for _, wait := range []time.Duration{0, 300 * time.Millisecond, time.Second} {
				got, err := g.group.TryLock(g.ctx, wait, 0)
				require.False(t, got)
				require.ErrorIs(t, err, rlock.ErrUnsettled)
				g.named(k, err)
			}
			g.lines[k].BlackHole(false)
			g.nothing()
		},
		"reply lost": func(t *testing.T, k int) {
			g := newTrio(t, asTheyAre)
			rule := g.hit(k, redistest.LoseReplyAndHang)
			got, err := g.group.TryLock(g.ctx, 0, 0)
			require.False(t, got)
			require.ErrorIs(t, err, rlock.ErrUnsettled)
			g.named(k, err)
			rule.WaitExecuted(t, 1)
			rule.Off()
			g.nothing()
		},
		"cancelled on its way": func(t *testing.T, k int) { cancelledAt(t, k, redistest.HoldRequest) },
		"cancelled when it is granted": func(t *testing.T, k int) {
			cancelledAt(t, k, redistest.HoldReply)
		},
		"cancelled while it waits": func(t *testing.T, k int) {
			g := newTrio(t, asTheyAre)
			require.NoError(t, g.theirs[k].Lock(g.ctx))
			ctx, cancel := context.WithCancel(g.ctx)
			done := inBackground(func() error { return g.group.Lock(ctx) })
			s := &scene{T: t}
			s.eventually(func() bool { return g.locks[k].Client().Stats().Waiting == 1 }, "alice waits")
			cancel()
			require.ErrorIs(t, result(t, soon, done, "the Lock"), context.Canceled)
			require.NoError(t, g.theirs[k].Unlock(g.ctx))
			g.nothing()
		},
		"panic": func(t *testing.T, k int) {
			for _, after := range []bool{false, true} {
				var p *panicking
				g := newTrio(t, func(i int, l *rlock.Lock) rlock.Locker {
					if i == k {
						p = &panicking{l, true, after}
						return p
					}
					return l
				})
				require.PanicsWithValue(t, p.Name(), func() { _ = g.group.Lock(g.ctx) })
				p.bad = false
				g.nothing()
			}
		},
	}
	for how, way := range ways {
		for k := range 3 {
			t.Run(fmt.Sprintf("%s/%d", how, k), func(t *testing.T) {
				t.Parallel()
				way(t, k)
			})
		}
	}
}

// cancelledAt ends a Lock while what asks for its k-th member is held back.
func cancelledAt(t *testing.T, k int, hold redistest.Action) {
	g := newTrio(t, asTheyAre)
	rule := g.hit(k, hold).Times(1)
	ctx, cancel := context.WithCancel(g.ctx)
	done := inBackground(func() error { return g.group.Lock(ctx) })
	rule.Wait(t)
	cancel()
	require.ErrorIs(t, result(t, soon, done, "the Lock"), context.Canceled)
	require.Zero(t, g.group.Validity(g.ctx))
	rule.Off()
	g.nothing()
}

// A Lock is cancelled at many moments: the group is held, or nothing is left.
func TestMultiLock_Cancelled(t *testing.T) {
	t.Parallel()
	g := newTrio(t, asTheyAre)
	for k := range g.lines {
		g.hit(k, redistest.DelayReply(slow))
	}
	outcomes := map[bool]int{}
	for after := time.Millisecond; after < 8*slow; after += slow / 3 {
		ctx, cancel := context.WithTimeout(g.ctx, after)
		err := g.group.LockLease(ctx, time.Minute)
		cancel()
		outcomes[err == nil]++
		if err == nil {
			g.stands("1")
			require.NoError(t, g.group.Unlock(g.ctx))
			continue
		}
		require.ErrorIs(t, err, context.DeadlineExceeded)
		g.nothing()
	}
	require.NotZero(t, outcomes[true], "none got through: the test shows nothing")
	require.NotZero(t, outcomes[false], "none was cancelled: the test shows nothing")
}

// Unlock releases what it can, and says what it cannot.
func TestMultiLock_UnlockWhenAMemberIsSilent(t *testing.T) {
	t.Parallel()
	for k := range 3 {
		g := newTrio(t, asTheyAre)
		require.NoError(t, g.group.Lock(g.ctx))
		g.lines[k].BlackHole(true)
		err := g.group.Unlock(g.ctx)
		require.ErrorIs(t, err, rlock.ErrUnsettled)
		g.named(k, err)
		for i, l := range g.theirs {
			if i != k {
				require.NoError(t, l.Lock(g.ctx), "it is free")
				require.NoError(t, l.Unlock(g.ctx))
			}
		}
		g.lines[k].BlackHole(false)
		g.nothing()
	}
}

// A nested Lock sends nothing; the last Unlock frees all.
func TestMultiLock_Nesting(t *testing.T) {
	t.Parallel()
	g := newTrio(t, asTheyAre)
	require.NoError(t, g.locks[1].Lock(g.ctx))
	require.NoError(t, g.group.LockLease(g.ctx, time.Minute))
	require.NoError(t, g.locks[1].Unlock(g.ctx))
	g.stands("1")
	before := 0
	for _, p := range g.lines {
		before += len(p.Requests())
	}
	require.NoError(t, g.group.LockLease(g.ctx, time.Second))
	require.NoError(t, g.group.Unlock(g.ctx))
	for _, p := range g.lines {
		before -= len(p.Requests())
	}
	require.Zero(t, before, "requests")
	g.stands("1")
	require.NoError(t, g.group.Unlock(g.ctx))
	g.nothing()
}

// A member that somebody removes is told, by the watchdog of that member alone.
func TestMultiLock_Lost(t *testing.T) {
	t.Parallel()
	for k := range 3 {
		g := newTrio(t, asTheyAre)
		err := g.group.Do(g.ctx, func(ctx context.Context) error {
			lost := g.group.Lost(ctx)
			if ok, err := g.theirs[k].ForceUnlock(ctx); err != nil || !ok {
				return errors.Join(errors.New("nothing was removed"), err)
			}
			// Any answer tells the client; its watchdog would, some seconds later.
			require.ErrorIs(t, g.group.Extend(ctx, time.Minute), rlock.ErrLost)
			result(t, soon, lost, "Lost")
			result(t, soon, ctx.Done(), "the end of ctx")
			require.ErrorIs(t, context.Cause(ctx), rlock.ErrLost)
			require.Zero(t, g.group.Validity(ctx))
			return nil
		})
		require.ErrorIs(t, err, rlock.ErrLost)
		g.named(k, err)
		for _, l := range g.locks {
			require.Zero(t, g.rdb.Exists(g.ctx, l.Key()).Val(), "the others are released")
		}
	}
}
