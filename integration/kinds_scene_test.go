package integration

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/redistest"
	"github.com/relock-go/relock/internal/script"
	"github.com/relock-go/relock/rlock"
)

// locker is what the tests need of a lock of any kind.
type locker interface {
	rlock.Locker
	Key() string
	Client() *rlock.Client
	HoldCount(ctx context.Context) (int, error)
	ForceUnlock(ctx context.Context) (bool, error)
}

// family are the locks of one name and client, one of each kind.
type family struct {
	plain  *rlock.Lock
	fair   *rlock.FairLock
	fenced *rlock.FencedLock
	spin   *rlock.SpinLock
	read   *rlock.ReadLock
	write  *rlock.WriteLock
}

func familyOf(c *rlock.Client, name string) family {
	rw := c.NewReadWriteLock(name)
	return family{c.NewLock(name), c.NewFairLock(name), c.NewFencedLock(name), c.NewSpinLock(name), rw.ReadLock(), rw.WriteLock()}
}

// member chooses one of a family.
type member func(family) locker

func plainOf(f family) locker  { return f.plain }
func fairOf(f family) locker   { return f.fair }
func fencedOf(f family) locker { return f.fenced }
func readOf(f family) locker   { return f.read }
func writeOf(f family) locker  { return f.write }

// seat is an owner of ours inside.
type seat struct {
	o     rlock.Owner
	of    member
	depth int
}

// stage is a scene for locks of any kind.
type stage struct {
	*scene
	ours, theirs family // of the client that is hit, and of the other one
	of           member // what this is about
	visitor      member // what those use who are kept out

	mu     sync.Mutex // guards tokens
	tokens []drawn    // of fenced holds, in the order in which they began
}

func newStage(t *testing.T, r *rig, of, visitor member, opts ...rlock.Option) *stage {
	t.Helper()
	s := &stage{scene: newScene(t, r, opts...), of: of, visitor: visitor}
	s.ours, s.theirs = familyOf(s.c, s.l.Name()), familyOf(s.other, s.l.Name())
	return s
}

func (s *stage) mine() locker  { return s.of(s.ours) }
func (s *stage) lock() error   { return s.mine().Lock(s.as(alice)) }
func (s *stage) unlock() error { return s.mine().Unlock(s.as(alice)) }
func (s *stage) queue() []string {
	return s.direct.LRange(s.ctx, script.QueueKey(s.l.Key()), 0, -1).Val()
}
func (s *stage) base() string                 { return script.HoldBase(s.l.Key()) }
func (s *stage) lasts(k string) time.Duration { return s.direct.PTTL(s.ctx, k).Val() }

// begins has o, of ours, wait for l: asks is how many requests it sends before it sleeps.
// Of a fair lock it stands in the queue when this returns.
func (s *stage) begins(ctx context.Context, l locker, o rlock.Owner, what *script.Script, asks int) <-chan error {
	s.Helper()
	before := s.c.Stats().Waiting
	watch := s.hit(what, redistest.Action{}).Times(0)
	got := inBackground(func() error { return l.Lock(rlock.WithOwner(ctx, o)) })
	watch.WaitExecuted(s, asks)
	watch.Off()
	s.eventually(func() bool { return s.c.Stats().Waiting == before+1 }, "%s waits", o)
	return got
}

// visits sends o in through l, as scene.visits does.
func (s *stage) visits(l locker, o rlock.Owner, seats []seat) <-chan visit {
	s.Helper()
	before := l.Client().Stats().Contended
	got := inBackground(func() (v visit) {
		if v.err = l.Lock(s.as(o)); v.err != nil {
			return v
		}
		v.at = time.Now()
		s.note(l, o)
		v.overlap = s.beside(l, o, seats)
		v.err = l.Unlock(s.as(o))
		return v
	})
	s.eventually(func() bool { return l.Client().Stats().Contended > before }, "%s waits", o)
	return got
}

// beside names somebody who is inside together with the visitor o.
func (s *stage) beside(l locker, o rlock.Owner, seats []seat) string {
	type chair struct {
		l locker
		o rlock.Owner
	}
	others := []chair{{s.visitor(s.ours), carol}, {s.visitor(s.theirs), stranger}, {s.visitor(s.theirs), holder}}
	for _, t := range seats {
		others = append(others, chair{t.of(s.ours), t.o})
	}
	_, reads := l.(*rlock.ReadLock)
	for _, other := range others {
		_, together := other.l.(*rlock.ReadLock)
		if other.o == o || reads && together {
			continue
		}
		// Looked at first: if o is still inside afterwards, both were.
		if v := other.l.Validity(s.as(other.o)); v > 0 && l.Validity(s.as(o)) > 0 {
			return fmt.Sprintf("%s has %v left", other.o, v)
		}
	}
	return ""
}

// drawn is the token of a hold of a fenced lock.
type drawn struct {
	o     rlock.Owner
	token uint64
}

// note keeps the token of o's hold, once, if l is fenced.
func (s *stage) note(l locker, o rlock.Owner) {
	f, ok := l.(*rlock.FencedLock)
	if !ok {
		return
	}
	token, err := f.Token(s.as(o))
	if err != nil {
		token = 0
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if d := (drawn{o, token}); !slices.Contains(s.tokens, d) {
		s.tokens = append(s.tokens, d)
	}
}

// stood is how often o of ours stands in the queue.
func (s *stage) stood(o rlock.Owner) (n int) {
	for _, field := range s.queue() {
		if strings.HasPrefix(field, s.c.ID()+":"+string(o)) {
			n++
		}
	}
	return n
}

// keys are all that stand in Redis under the scene's name, but for the counter of
// tokens, which stays.
func (s *stage) keys() (all []string) {
	s.Helper()
	tag := s.l.Key()[strings.LastIndex(s.l.Key(), ":")+1:]
	var mu sync.Mutex
	look := func(ctx context.Context, rdb redis.Cmdable) error {
		it := rdb.Scan(ctx, 0, "*"+tag+"*", 10_000).Iterator()
		for it.Next(ctx) {
			mu.Lock()
			all = append(all, it.Val())
			mu.Unlock()
		}
		return it.Err()
	}
	if s.each == nil {
		require.NoError(s, look(s.ctx, s.direct))
	} else {
		require.NoError(s, s.each(s.ctx, func(ctx context.Context, rdb *redis.Client) error { return look(ctx, rdb) }))
	}
	slices.Sort(all)
	return slices.DeleteFunc(all, func(k string) bool { return k == script.TokenKey(s.l.Key()) })
}

// differs says in what Redis differs from seats, and nothing else, being there. Those
// who wait in the queue are left out. It returns the fields of seats.
func (s *stage) differs(seats []seat) (fields []string, diff string) {
	s.Helper()
	want, mode := []string{}, ""
	if len(seats) > 0 {
		want = append(want, s.l.Key())
	}
	all := s.fields()
	for _, t := range seats {
		end := ""
		switch t.of(s.ours).(type) {
		case *rlock.WriteLock:
			end, mode = ":write", "write"
		case *rlock.ReadLock:
			mode = max(mode, "read")
		}
		is := regexp.MustCompile(`^` + regexp.QuoteMeta(s.c.ID()+":"+string(t.o)) + `(\.\d+)?` + end + `$`)
		found := ""
		for f, depth := range all {
			if is.MatchString(f) && depth == strconv.Itoa(t.depth) {
				found = f
			}
		}
		if found == "" {
			return nil, fmt.Sprintf("%s%s at depth %d is not in %v", t.o, end, t.depth, all)
		}
		fields = append(fields, found)
		if _, reads := t.of(s.ours).(*rlock.ReadLock); reads {
			for n := range t.depth {
				want = append(want, fmt.Sprintf("%s:%s:rwlock_timeout:%d", s.base(), found, n+1))
			}
		}
	}
	if all["mode"] != mode {
		return nil, fmt.Sprintf("mode %q in %v", mode, all)
	}
	delete(all, "mode")
	if len(all) != len(seats) {
		return nil, fmt.Sprintf("more than %v: %v", seats, all)
	}
	there := slices.DeleteFunc(s.keys(), func(k string) bool {
		return k == script.QueueKey(s.l.Key()) || k == script.ScoresKey(s.l.Key())
	})
	slices.Sort(want)
	if !slices.Equal(want, there) {
		return nil, fmt.Sprintf("keys %v instead of %v", there, want)
	}
	for _, k := range want {
		if s.lasts(k) <= 0 {
			return nil, "no expiry: " + k
		}
	}
	return fields, ""
}

// stands checks that seats, and nobody else, are inside, as Redis has it and as the
// client has it. It returns their fields.
func (s *stage) stands(seats []seat) []string {
	s.Helper()
	fields, diff := s.differs(seats)
	require.Empty(s, diff)
	for i, t := range seats {
		l := t.of(s.ours)
		n, err := l.HoldCount(s.as(t.o))
		require.NoError(s, err)
		require.Equal(s, t.depth, n, "hold count of %s", t.o)
		require.False(s, told(l.Lost(s.as(t.o))), "%s was told of a loss", t.o)
		s.believes(t, fields[i])
	}
	s.noLoss()
	return fields
}

// settles waits until seats, and nobody else, are inside: what late requests have made
// is swept.
func (s *stage) settles(seats []seat) []string {
	s.Helper()
	diff := ""
	for end := time.Now().Add(soon); ; time.Sleep(3 * time.Millisecond) {
		if _, diff = s.differs(seats); diff == "" {
			return s.stands(seats)
		}
		if time.Now().After(end) {
			s.Fatalf("not within %v: %s", soon, diff)
		}
	}
}

// believes checks that t is believed in, and not for longer than Redis will keep it.
func (s *stage) believes(t seat, field string) {
	s.Helper()
	l := t.of(s.ours)
	began := time.Now()
	valid := l.Validity(s.as(t.o)) // first: what prolongs the hold meanwhile does no harm
	left := s.pttl()
	if _, reads := l.(*rlock.ReadLock); reads {
		longest := time.Duration(0)
		for n := range t.depth {
			longest = max(longest, s.lasts(fmt.Sprintf("%s:%s:rwlock_timeout:%d", s.base(), field, n+1)))
		}
		left = min(left, longest)
	}
	require.Positive(s, valid, "validity of %s", t.o)
	require.LessOrEqual(s, valid, left+time.Since(began)+time.Millisecond, "validity of %s against Redis", t.o)
	if f, ok := l.(*rlock.FencedLock); ok { // Redisson counts on from there
		token, err := f.Token(s.as(t.o))
		require.NoError(s, err)
		counter, err := s.direct.Get(s.ctx, script.TokenKey(s.l.Key())).Uint64()
		require.NoError(s, err)
		require.LessOrEqual(s, token, counter, "the counter has the token of %s", t.o)
	}
}

// leave gives back all of seats, each by exactly as many Unlocks as it has Locks.
func (s *stage) leave(seats []seat) {
	s.Helper()
	for _, t := range seats {
		l := t.of(s.ours)
		for range t.depth {
			require.NoError(s, l.Unlock(s.as(t.o)))
		}
		require.ErrorIs(s, l.Unlock(s.as(t.o)), rlock.ErrNotHeld, "one Unlock more than Locks")
	}
}

// over checks that nothing is left of the lock, its holds and its queue.
func (s *stage) over() {
	s.Helper()
	var left []string
	s.within(soon, func() bool { left = s.keys(); return len(left) == 0 }, "nothing is left")
	for _, c := range []*rlock.Client{s.c, s.other} {
		require.Zero(s, c.Stats().Held)
		require.Zero(s, c.Stats().Waiting)
	}
	s.noLoss()
	s.mu.Lock()
	defer s.mu.Unlock()
	last := uint64(0)
	for _, d := range s.tokens {
		require.Greater(s, d.token, last, "tokens rise: %v", s.tokens)
		last = d.token
	}
}
