package multilock

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/rlock"
)

// TestStress has goroutines of a few owners do everything with groups that overlap, on
// servers that are slow at times, or fail. No two owners are inside what overlaps, and in
// the end nothing is left.
func TestStress(t *testing.T) {
	for seed := range uint64(12) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { newStress(t, seed).run() })
		})
	}
}

type stress struct {
	*testing.T
	locks  []*fake
	groups []*MultiLock
	in     [][]*fake // the members of each
	owners []rlock.Owner

	mu  sync.Mutex // guards rnd
	rnd *rand.Rand
}

func newStress(t *testing.T, seed uint64) *stress {
	s := &stress{T: t, rnd: rand.New(rand.NewPCG(seed, 1)), owners: []rlock.Owner{alice, bob, "carol"}}
	s.locks, _ = fakes("a", "b", "c", "d", "a", "b") // names repeat over servers
	for _, l := range s.locks {
		l.hook = func(ctx context.Context, op string) error {
			switch k := s.below(20); {
			case k == 0:
				return sleep(ctx, s.time(200*time.Millisecond))
			case k == 1 && seed%3 == 1 && op != "unlock":
				return errServer
			}
			return nil
		}
	}
	for range 4 {
		var in []*fake
		for _, i := range s.rnd.Perm(len(s.locks))[:1+s.below(4)] {
			in = append(in, s.locks[i])
		}
		s.in = append(s.in, in)
		s.groups = append(s.groups, group(t, in...))
	}
	return s
}

func (s *stress) below(n int) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.rnd.IntN(n)
}

func (s *stress) time(most time.Duration) time.Duration { return time.Duration(s.below(int(most))) }

func (s *stress) run() {
	var work, watch sync.WaitGroup
	done := make(chan struct{})
	watch.Go(func() {
		for !isClosed(done) {
			s.look()
			time.Sleep(2 * time.Millisecond)
		}
	})
	for _, o := range s.owners {
		for range 2 {
			work.Go(func() {
				for range 12 {
					s.stay(rlock.WithOwner(context.Background(), o))
				}
			})
		}
	}
	work.Wait()
	close(done)
	watch.Wait()
	time.Sleep(time.Minute) // what is left has a lease, or is left for good
	synctest.Wait()
	require.Equal(s, []int{0, 0, 0, 0, 0, 0}, depths(s.locks))
	for i, l := range s.locks {
		require.Empty(s, l.lost, "lock %d: an Unlock of it was not made", i)
	}
	for i, g := range s.groups {
		require.Empty(s, g.seats, "group %d", i)
	}
}

// stay is one Lock and its Unlock, with something in between. Another goroutine of the
// owner may undo it: what it gets is not looked at, but by look.
func (s *stress) stay(ctx context.Context) {
	g := s.groups[s.below(len(s.groups))]
	wait := s.time(2*time.Second) - 300*time.Millisecond
	bounded, cancel := context.WithTimeout(ctx, time.Millisecond+s.time(3*time.Second))
	defer cancel()
	began := time.Now()
	got, err := g.TryLock(bounded, wait, s.lease())
	if took := time.Since(began); wait > 0 && took > wait+1500*time.Millisecond {
		s.Errorf("a wait of %v took %v", wait, took)
	}
	if got && err != nil {
		s.Errorf("it has the lock, and an error: %v", err)
	}
	if !got {
		time.Sleep(s.time(30 * time.Millisecond))
		return
	}
	time.Sleep(s.time(60 * time.Millisecond))
	switch s.below(5) {
	case 0:
		short, cancel := context.WithTimeout(ctx, time.Millisecond+s.time(100*time.Millisecond))
		_ = g.Extend(short, 100*time.Millisecond+s.time(time.Second))
		cancel()
	case 1:
		_ = g.Extend(ctx, 0)
	case 2:
		s.nest(ctx, g)
	case 3:
		s.nest(ctx, s.groups[s.below(len(s.groups))])
	}
	time.Sleep(s.time(60 * time.Millisecond))
	_ = g.Unlock(ctx)
}

func (s *stress) nest(ctx context.Context, g *MultiLock) {
	if got, _ := g.TryLock(ctx, s.time(50*time.Millisecond), s.lease()); got {
		time.Sleep(s.time(60 * time.Millisecond))
		_ = g.Unlock(ctx)
	}
}

// lease is 0, as often as not.
func (s *stress) lease() time.Duration {
	if s.below(2) == 0 {
		return 0
	}
	return 20*time.Millisecond + s.time(time.Second)
}

// look finds two owners inside groups that have a member in common.
func (s *stress) look() {
	inside := make(map[*fake]rlock.Owner)
	for i, g := range s.groups {
		for _, o := range s.owners {
			if g.Validity(rlock.WithOwner(context.Background(), o)) == 0 {
				continue
			}
			for _, l := range s.in[i] {
				if other, ok := inside[l]; ok && other != o {
					s.Errorf("%s and %s are inside", o, other)
				}
				inside[l] = o
			}
		}
	}
}
