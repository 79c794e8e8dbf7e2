package redisson

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/relock-go/relock/internal/script"
	"github.com/relock-go/relock/multilock"
	"github.com/relock-go/relock/rlock"
)

// TestRedissonMultiLock is the group of locks beside Redisson's. Neither has a wire
// format of its own: they meet at the locks that they take.
func TestRedissonMultiLock(t *testing.T) {
	j := startJVM(t)
	for _, on := range []*deployment{singleServer(t), threeMasters(t)} {
		t.Run(on.String(), func(t *testing.T) {
			h := newHarness(t, j, on, automatic)
			h.warmUp(t)
			for _, cell := range []struct {
				name string
				run  func(m *pair)
			}{
				{"exclusion", groupsExclude},
				{"one member is held", memberHeld},
				{"re-entry", groupReentry},
				{"lease", groupLease},
			} {
				for _, sides := range [][2]side{{h.java, h.golang}, {h.golang, h.java}} {
					t.Run(fmt.Sprintf("%s/%s holds", cell.name, sides[0]), func(t *testing.T) {
						t.Parallel()
						m := newPair(t, h)
						m.holds, m.other = sides[0], sides[1]
						cell.run(m)
					})
				}
			}
			t.Run("contention", func(t *testing.T) { testGroups(t, h, 3*time.Second) })
		})
	}
}

// pair is a match on two locks at once.
type pair struct {
	*match
	names []string
}

func newPair(t *testing.T, h *harness) *pair {
	t.Helper()
	m := newMatch(t, h, "multilock")
	return &pair{m, []string{m.key, h.deployment.name("second:" + m.Name())}}
}

// taker is an owner with a lock, or a group, of either language.
type taker interface {
	lock(lease time.Duration) error
	tryLock(wait, lease time.Duration) (bool, error)
	unlock() error
	field() string
}

// group is a new owner of s with a group of names, in that order; of one name, it is
// the lock itself.
func (p *pair) group(s side, names ...string) taker {
	p.Helper()
	c := s.open(p.T, long)
	if len(names) == 1 {
		return c.party(p.T, "lock", names[0])
	}
	if java, ok := c.(*javaPeer); ok {
		return java.worker(p.T, "multilock", strings.Join(names, ","))
	}
	var locks []rlock.Locker
	for _, n := range names {
		locks = append(locks, c.(*goPeer).c.NewLock(n))
	}
	g, err := multilock.New(locks...)
	require.NoError(p, err)
	owner := rlock.NewOwner()
	return &goGroup{g: g, c: c.(*goPeer).c, owner: owner, ctx: rlock.WithOwner(p.ctx, owner)}
}

// goGroup is an owner of relock's with a group.
type goGroup struct {
	g     *multilock.MultiLock
	c     *rlock.Client
	owner rlock.Owner
	ctx   context.Context
}

func (g *goGroup) field() string { return g.c.ID() + ":" + string(g.owner) }

func (g *goGroup) lock(lease time.Duration) error {
	ctx, cancel := context.WithTimeout(g.ctx, answerLimit)
	defer cancel()
	return g.g.LockLease(ctx, lease)
}

func (g *goGroup) tryLock(wait, lease time.Duration) (bool, error) {
	return g.g.TryLock(g.ctx, wait, lease)
}

func (g *goGroup) unlock() error { return g.g.Unlock(g.ctx) }

// hashes is what stands at both names.
func (p *pair) hashes() (all []map[string]string) {
	p.Helper()
	for _, n := range p.names {
		fields, err := p.rdb.HGetAll(p.ctx, n).Result()
		require.NoError(p, err)
		all = append(all, fields)
	}
	return all
}

// held checks that t alone holds both, in Redis, so deep.
func (p *pair) held(t taker, depth string) {
	p.Helper()
	one := map[string]string{t.field(): depth}
	require.Equal(p, []map[string]string{one, one}, p.hashes())
}

func (p *pair) free() {
	p.Helper()
	require.Equal(p, []map[string]string{{}, {}}, p.hashes())
}

// waits begins a lock of t, and returns when its client listens for a release.
func (p *pair) waits(t taker) <-chan outcome {
	p.Helper()
	got := begin(func() error { return t.lock(0) })
	p.eventually(func() bool {
		listeners := int64(0)
		for _, n := range p.names {
			plain, sharded, err := p.listeners(p.ctx, script.Channel(n))
			require.NoError(p, err)
			listeners += plain + sharded
		}
		return listeners > 0
	}, "it waits")
	p.still(got, "it waits")
	return got
}

// backwards is the names the other way round.
func (p *pair) backwards() []string { return []string{p.names[1], p.names[0]} }

func groupsExclude(m *pair) {
	a, b := m.group(m.holds, m.names...), m.group(m.other, m.backwards()...)
	for range 2 {
		require.NoError(m, a.lock(0))
		m.held(a, "1")
		m.no(b.tryLock(0, 0))
		m.timesOut(b, 500*time.Millisecond, 0)
		m.timesOut(b, 500*time.Millisecond, 10*time.Second)
		require.ErrorIs(m, b.unlock(), rlock.ErrNotHeld)
		m.held(a, "1")
		for _, n := range m.names {
			m.no(m.group(m.other, n).tryLock(0, 0))
		}
		got := m.waits(b)
		require.NoError(m, a.unlock())
		m.enters(got, "the others are told")
		m.held(b, "1")
		m.no(a.tryLock(0, 0))
		require.NoError(m, b.unlock())
		m.free()
		a, b = m.group(m.holds, m.backwards()...), m.group(m.other, m.names...)
	}
}

// One member that is held keeps the whole group out, and the other one is free
// meanwhile, but for moments.
func memberHeld(m *pair) {
	for i, n := range m.names {
		a, b := m.group(m.holds, n), m.group(m.other, m.names...)
		require.NoError(m, a.lock(0))
		m.no(b.tryLock(0, 0))
		m.timesOut(b, 300*time.Millisecond, 0)
		hashes := m.hashes()
		require.Equal(m, map[string]string{a.field(): "1"}, hashes[i])
		require.Empty(m, hashes[1-i])
		got := m.waits(b)
		require.NoError(m, a.unlock())
		m.enters(got, "all are free")
		m.held(b, "1")
		require.NoError(m, b.unlock())
		m.free()
	}
}

// Redisson counts in each lock, relock in the group.
func groupReentry(m *pair) {
	a, b := m.group(m.holds, m.names...), m.group(m.other, m.names...)
	require.NoError(m, a.lock(0))
	require.NoError(m, a.lock(0))
	depth := "1"
	if m.holds == m.java {
		depth = "2"
	}
	m.held(a, depth)
	require.NoError(m, a.unlock())
	m.held(a, "1")
	m.no(b.tryLock(0, 0))
	got := m.waits(b)
	require.NoError(m, a.unlock())
	m.enters(got, "the last unlock frees both")
	require.NoError(m, b.unlock())
	m.free()
}

func groupLease(m *pair) {
	const lease = 20 * time.Second
	a, b := m.group(m.holds, m.names...), m.group(m.other, m.names...)
	m.yes(a.tryLock(time.Second, lease))
	m.held(a, "1")
	for _, n := range m.names {
		ttl, err := m.rdb.PTTL(m.ctx, n).Result()
		require.NoError(m, err)
		require.InDelta(m, lease, ttl, float64(5*time.Second))
	}
	m.no(b.tryLock(0, lease))
	require.NoError(m, a.unlock())
	m.yes(b.tryLock(time.Second, lease))
	m.held(b, "1")
	require.NoError(m, b.unlock())
	m.free()
}

// Groups of both languages, and locks of one of their names, increment one counter:
// none of them is inside beside another, and all come in. Redisson takes its members
// as they are given. In the order of names nobody waits for anybody in a circle; the
// other way round relock gives way, for Redisson would not for seconds.
func testGroups(t *testing.T, h *harness, d time.Duration) {
	m := newPair(t, h)
	slices.Sort(m.names)
	first := m.names[:1]
	m.contendGroups("in order", d, [][]string{m.names, m.names, first}, [][]string{m.names, m.backwards(), first})
	m.contendGroups("backwards", d, [][]string{m.backwards()}, [][]string{m.names})
}

func (p *pair) contendGroups(what string, d time.Duration, java, golang [][]string) {
	p.Helper()
	counter := p.names[0] + ":counter"
	d = soak(p.T, d)
	const pause = 3 * time.Millisecond
	entries := make([]int, len(java)+len(golang))
	var all errgroup.Group
	for i, names := range java {
		owner := p.group(p.java, names...).(*javaParty)
		all.Go(func() error {
			sum, err := owner.contend(counter, d, 0, pause)
			entries[i] = sum.Entries
			return err
		})
	}
	for i, names := range golang {
		owner := p.group(p.golang, names...)
		all.Go(func() (err error) {
			entries[len(java)+i], err = contendAs(p.ctx, owner, p.rdb, counter, d, pause)
			return err
		})
	}
	require.NoError(p, all.Wait())
	p.Logf("%s: entries of java's and go's owners: %v", what, entries)
	n, err := p.rdb.GetDel(p.ctx, counter).Int()
	require.NoError(p, err)
	sum := 0
	for _, e := range entries {
		sum += e
	}
	require.Equal(p, sum, n, "increments were lost")
	require.Positive(p, slices.Min(entries), "all come in")
	p.eventually(func() bool { h := p.hashes(); return len(h[0])+len(h[1]) == 0 }, "all have given the locks back")
}

// contendAs is contend for any owner of relock's.
func contendAs(ctx context.Context, t taker, rdb redis.UniversalClient, counter string, d, pause time.Duration) (entries int, err error) {
	for began := time.Now(); time.Since(began) < d; time.Sleep(pause) {
		if err := t.lock(0); err != nil {
			return entries, err
		}
		if err := errors.Join(increment(ctx, rdb, counter), t.unlock()); err != nil {
			return entries, err
		}
		entries++
	}
	return entries, nil
}
