package integration

import (
	"context"
	"errors"
	"os"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/relock-go/relock/internal/redistest"
	"github.com/relock-go/relock/redlock"
	"github.com/relock-go/relock/rlock"
)

// startFive starts five servers that do not know of each other. They may be stopped.
func startFive(t testing.TB) (all []*redistest.Server) {
	for range 5 {
		s, err := redistest.Start()
		if errors.Is(err, redistest.ErrNoServer) && !redistest.RequireRedis() {
			t.Skipf("%v: install Redis to run this test", err)
		}
		require.NoError(t, err)
		t.Cleanup(s.Close)
		t.Cleanup(func() { _ = s.Cont() }) // clients of one that is stopped could not close
		all = append(all, s)
	}
	return all
}

// node is one client's lock at one of the servers, of which it has a pool of its own.
type node struct {
	*rlock.Lock
	rdb *redis.Client
}

// five is a RedLock with all that it is made of.
type five struct {
	*redlock.RedLock
	nodes []node
	name  string
}

// nodeTimeout is far below the clients' ReadTimeout of 3 s, and more than a busy machine
// needs.
const nodeTimeout = 750 * time.Millisecond

// redlockAt is a RedLock of a process of its own, as it were, on the servers at addrs.
func redlockAt(t testing.TB, name string, addrs []string, of []rlock.Option, opts ...redlock.Option) *five {
	f := &five{name: name}
	var locks []rlock.Locker
	for _, addr := range addrs {
		rdb := redistest.NewClient(t, addr)
		c, err := rlock.New(rdb, of...)
		require.NoError(t, err)
		t.Cleanup(func() {
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			defer cancel()
			_ = c.Close(ctx) // its server may be gone
		})
		f.nodes = append(f.nodes, node{c.NewLock(name), rdb})
		locks = append(locks, c.NewLock(name))
	}
	var err error
	f.RedLock, err = redlock.New(locks, append([]redlock.Option{redlock.WithNodeTimeout(nodeTimeout)}, opts...)...)
	require.NoError(t, err)
	return f
}

func addrsOf(servers []*redistest.Server) (all []string) {
	for _, s := range servers {
		all = append(all, s.Addr)
	}
	return all
}

// depths is how often the owner is inside at each server; 0: not.
func (f *five) depths(t testing.TB, o rlock.Owner) []int {
	t.Helper()
	all := make([]int, len(f.nodes))
	for i, n := range f.nodes {
		info, err := n.Info(t.Context())
		if err != nil {
			t.Logf("server %d: %v", i, err) // go-redis may not have found a restarted one yet
			all[i] = -1
		}
		for _, h := range info.Holders {
			if h.Client == n.Client().ID() && h.Owner == o {
				all[i] = h.Depth
			}
		}
	}
	return all
}

// waitDepths waits until the owner "o" is so often inside at each server: a Lock does not
// wait for all.
func (f *five) waitDepths(t *testing.T, want ...int) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !slices.Equal(want, f.depths(t, "o")); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("it is held %v, and not %v", f.depths(t, "o"), want)
		}
	}
}

// lockAll locks it for the owner "o" until all servers have granted it: on a busy machine
// one may have been too late.
func (f *five) lockAll(t *testing.T, lease time.Duration) {
	t.Helper()
	ctx := owned(t.Context(), "o")
	for range 20 {
		require.NoError(t, f.LockLease(ctx, lease))
		for end := time.Now().Add(nodeTimeout); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
			if slices.Equal(f.depths(t, "o"), []int{1, 1, 1, 1, 1}) {
				return
			}
		}
		require.NoError(t, f.Unlock(ctx))
		f.waitFree(t)
	}
	t.Fatal("one of the servers never grants it in time")
}

// waitFree waits until no server has the lock: an Unlock does not wait for all.
func (f *five) waitFree(t *testing.T) {
	t.Helper()
	for i, n := range f.nodes {
		require.Eventually(t, func() bool { return n.rdb.Exists(t.Context(), f.name).Val() == 0 },
			20*time.Second, 5*time.Millisecond, "server %d is free", i)
	}
}

func owned(ctx context.Context, o rlock.Owner) context.Context { return rlock.WithOwner(ctx, o) }

// within runs f, which must not take longer than a node may and a busy machine.
func within(t *testing.T, f func()) {
	t.Helper()
	begin := time.Now()
	f()
	require.Less(t, time.Since(begin), nodeTimeout+slack, "it does not wait for the hung servers")
}

// With one or two servers that hang the lock is taken, extended, kept and given back as
// if they were not there. With three it fails at once.
func TestRedLockWithStoppedServers(t *testing.T) {
	t.Parallel()
	servers := startFive(t)
	const watchdog = 1500 * time.Millisecond
	of := []rlock.Option{rlock.WithWatchdogTimeout(watchdog)}
	f, other := redlockAt(t, name(t), addrsOf(servers), of), (*five)(nil)
	other = redlockAt(t, f.name, addrsOf(servers), of)
	ctx := owned(t.Context(), "o")
	require.NoError(t, f.Lock(ctx))
	require.NoError(t, f.Unlock(ctx))
	f.waitFree(t)
	for i := range 2 {
		require.NoError(t, servers[i].Stop())
		within(t, func() { require.NoError(t, f.LockLease(ctx, time.Minute)) })
		within(t, func() { require.NoError(t, f.Extend(ctx, 0)) })
		lost := f.Lost(ctx)
		for began := time.Now(); time.Since(began) < 2*watchdog; time.Sleep(20 * time.Millisecond) {
			require.Positive(t, f.Validity(ctx), "the watchdogs of the others keep it")
		}
		within(t, func() {
			got, err := other.TryLock(ctx, 0, 0)
			require.NoError(t, err)
			require.False(t, got)
		})
		select {
		case <-lost:
			t.Fatal("it is lost")
		default:
		}
		within(t, func() { require.NoError(t, f.Unlock(ctx)) })
	}
	require.NoError(t, servers[2].Stop())
	within(t, func() {
		err := f.Lock(ctx)
		require.ErrorIs(t, err, rlock.ErrUnsettled)
		require.Zero(t, f.Validity(ctx))
	})
	for _, s := range servers[:3] {
		require.NoError(t, s.Cont())
	}
	f.waitFree(t) // what the others granted, and what those do that were stopped
	require.NoError(t, f.Lock(ctx))
	require.NoError(t, f.Unlock(ctx))
}

// When three of five stop, the holder is told before their keys can expire, and nobody
// is in before.
func TestRedLockToldOfAStoppedMajority(t *testing.T) {
	t.Parallel()
	servers := startFive(t)
	const watchdog = 4 * time.Second
	of := []rlock.Option{rlock.WithWatchdogTimeout(watchdog)}
	// A large drift is a large distance between the two moments, for a busy machine.
	f := redlockAt(t, name(t), addrsOf(servers), of, redlock.WithDriftFactor(0.2))
	ctx := owned(t.Context(), "o")
	f.lockAll(t, 0)
	lost := f.Lost(ctx)
	var last time.Time // at which one of the three can expire
	for _, i := range []int{0, 1, 2} {
		ttl, err := f.nodes[i].TTL(ctx)
		require.NoError(t, err)
		require.NoError(t, servers[i].Stop())
		if end := time.Now().Add(ttl); end.After(last) {
			last = end
		}
	}
	// A renewal between the two questions moves that by a period at most.
	last = last.Add(watchdog / 3)
	select {
	case <-lost:
	case <-time.After(time.Until(last)):
		t.Fatal("the holder is not told")
	}
	require.Zero(t, f.Validity(ctx))
	within(t, func() { require.ErrorIs(t, f.Unlock(ctx), rlock.ErrLost) })
	for _, s := range servers[:3] {
		require.NoError(t, s.Cont())
	}
	f.waitFree(t)
}

// MULTI-8: a server that failed the first time and works the second has nothing of a
// nested Lock, and its Unlock frees nothing.
func TestRedLockNests(t *testing.T) {
	t.Parallel()
	servers := startFive(t)
	f := redlockAt(t, name(t), addrsOf(servers), nil)
	ctx := owned(t.Context(), "o")
	servers[4].Kill()
	require.NoError(t, f.Lock(ctx))
	require.NoError(t, servers[4].Restart())
	// A repetition of the request may reach it now, at any moment, and is undone. What a
	// nested Lock asked for would stay.
	f.waitDepths(t, 1, 1, 1, 1, 0)
	for range 3 {
		require.NoError(t, f.Lock(ctx))
	}
	for range 3 {
		f.waitDepths(t, 1, 1, 1, 1, 0)
		require.NoError(t, f.Unlock(ctx))
	}
	f.waitDepths(t, 1, 1, 1, 1, 0)
	require.Positive(t, f.Validity(ctx))
	require.NoError(t, f.Unlock(ctx))
	f.waitFree(t)
	f.lockAll(t, 0)
	require.NoError(t, f.Unlock(ctx))
}

// MULTI-5: replies of two servers are lost, and two more refuse: nothing stays behind at
// those that granted, those whose grant was never heard of included.
func TestRedLockUndoesLostReplies(t *testing.T) {
	t.Parallel()
	servers := startFive(t)
	ps := redistest.NewProxies(t, addrsOf(servers)...)
	var addrs []string
	var lost []*redistest.Rule
	for i, s := range servers {
		p := ps.For(s.Addr)
		addrs = append(addrs, p.Addr)
		if i < 2 {
			lost = append(lost, p.On(redistest.Command("evalsha"), redistest.LoseReplyAndHang).Times(2)) // NOSCRIPT first
		}
	}
	f := redlockAt(t, name(t), addrs, nil)
	other := redlockAt(t, f.name, addrsOf(servers), nil)
	ctx := owned(t.Context(), "o")
	for _, i := range []int{2, 3} {
		require.NoError(t, other.nodes[i].Lock.Lock(ctx))
	}
	within(t, func() {
		got, err := f.TryLock(ctx, 0, 0)
		require.NoError(t, err, "no majority failed")
		require.False(t, got)
	})
	for _, r := range lost {
		r.Wait(t)
	}
	for _, i := range []int{2, 3} {
		require.NoError(t, other.nodes[i].Unlock(ctx))
	}
	f.waitFree(t)
}

// MULTI-1: servers that come up empty one after the other, with a renewal in between,
// never make a second majority: the first one's holder has been told by then. other keeps
// trying all the while.
func TestRedLockServersRestartEmpty(t *testing.T) {
	t.Parallel()
	servers := startFive(t)
	const watchdog = 1500 * time.Millisecond
	of := []rlock.Option{rlock.WithWatchdogTimeout(watchdog)}
	f := redlockAt(t, name(t), addrsOf(servers), of)
	other := redlockAt(t, f.name, addrsOf(servers), of, redlock.WithRetryDelay(time.Millisecond, 5*time.Millisecond))
	ctx := owned(t.Context(), "o")
	f.lockAll(t, 0)

	trying, stop := context.WithCancel(owned(t.Context(), "other"))
	defer stop()
	var in atomic.Bool
	var tries atomic.Int64
	var g errgroup.Group
	g.Go(func() error {
		for trying.Err() == nil && !in.Load() {
			got, err := other.TryLock(trying, 0, 0)
			if got {
				in.Store(true)
			}
			if err == nil {
				tries.Add(1)
			}
		}
		return nil
	})
	defer func() { _ = g.Wait() }()
	defer stop()
	for i := range 2 {
		require.NoError(t, servers[i].Restart())
		require.Eventually(t, func() bool { return f.nodes[i].Validity(ctx) == 0 }, 20*time.Second, time.Millisecond, "told by a renewal")
		before := tries.Load()
		require.Eventually(t, func() bool { return tries.Load() > before+20 }, 20*time.Second, time.Millisecond)
		require.False(t, in.Load(), "a second holder with %d servers restarted", i+1)
		require.Positive(t, f.Validity(ctx), "a majority has it still")
	}
	require.NoError(t, f.Unlock(ctx))
	require.Eventually(t, in.Load, 20*time.Second, time.Millisecond, "it was the lock that kept the other out")
	require.NoError(t, other.Unlock(owned(t.Context(), "other")))
}

// The delayed restart of the Redlock page: a server that has forgotten its vote gives it
// to nobody while the hold may still count on it. Without the guard there are two holders.
func TestRedLockRestartGuard(t *testing.T) {
	t.Parallel()
	const lease = 4 * time.Second
	for _, guarded := range []bool{false, true} {
		t.Run("guarded: "+strconv.FormatBool(guarded), func(t *testing.T) {
			t.Parallel()
			servers := startFive(t)
			var of []rlock.Option
			if guarded {
				of = append(of, rlock.WithRestartGuard(lease))
			}
			f, other := redlockAt(t, name(t), addrsOf(servers), of), (*five)(nil)
			other = redlockAt(t, f.name, addrsOf(servers), of)
			ctx := owned(t.Context(), "o")
			require.NoError(t, f.Lock(ctx), "the guard is waited for")
			require.NoError(t, f.Unlock(ctx))
			f.waitFree(t)

			// The holder has 1, 2 and 3; the last one comes up empty.
			for _, s := range servers[3:] {
				require.NoError(t, s.Stop())
			}
			failed := []uint64{f.nodes[3].Client().Stats().Failed, f.nodes[4].Client().Stats().Failed}
			require.NoError(t, f.LockLease(ctx, lease))
			for i, n := range failed { // what they grant before that joins the hold
				require.Eventually(t, func() bool { return f.nodes[3+i].Client().Stats().Failed > n }, lease/2, time.Millisecond)
			}
			require.NoError(t, servers[2].Restart())
			for _, s := range servers[3:] {
				require.NoError(t, s.Cont())
			}
			// What they were asked while they were stopped is undone. Then 3, 4 and 5 are free.
			for _, i := range []int{3, 4} {
				require.Eventually(t, func() bool { return other.nodes[i].rdb.Exists(ctx, f.name).Val() == 0 }, lease/2, time.Millisecond)
			}
			require.NoError(t, other.LockLease(ctx, lease))
			both := f.Validity(ctx)
			if guarded {
				require.Zero(t, both, "two holders")
			} else {
				require.Positive(t, both, "this test cannot see two holders")
			}
			require.NoError(t, other.Unlock(ctx))
			_ = f.Unlock(ctx) // lost or not
		})
	}
}

// A clock that jumps at one server ends its key, and makes no second majority.
func TestRedLockClockJump(t *testing.T) {
	t.Parallel()
	servers := startFive(t)
	f, other := redlockAt(t, name(t), addrsOf(servers), nil), (*five)(nil)
	other = redlockAt(t, f.name, addrsOf(servers), nil)
	ctx := owned(t.Context(), "o")
	for i := range servers {
		f.lockAll(t, time.Minute)
		n := f.nodes[i]
		require.NoError(t, n.rdb.PExpire(ctx, f.name, time.Millisecond).Err())
		require.Eventually(t, func() bool { return n.rdb.Exists(ctx, f.name).Val() == 0 }, 10*time.Second, time.Millisecond)
		got, err := other.TryLock(ctx, 0, 0)
		require.NoError(t, err)
		require.False(t, got)
		require.Positive(t, f.Validity(ctx))
		require.NoError(t, f.Unlock(ctx), "a majority had it")
		f.waitFree(t)
	}
}

// MULTI-7: two clients that lead to one server are found out by the first Lock.
func TestRedLockSameServerTwice(t *testing.T) {
	t.Parallel()
	servers := startFive(t)
	addrs := addrsOf(servers)
	addrs[3] = "localhost" + addrs[1][len("127.0.0.1"):]
	f := redlockAt(t, name(t), addrs, nil)
	err := f.Lock(owned(t.Context(), "o"))
	require.ErrorContains(t, err, "the same server as node")
	f.waitFree(t)
}

// Two processes, as it were, race for the lock. They never overlap, and both get it again
// and again. RELOCK_SOAK lengthens it.
func TestRedLockRace(t *testing.T) {
	t.Parallel()
	d := 10 * time.Second
	if soak, err := time.ParseDuration(os.Getenv(envSoak)); err == nil {
		d = max(d, soak)
	}
	servers := startFive(t)
	lock := name(t)
	var inside, rounds [2]atomic.Int64
	var rec Recorder
	var g errgroup.Group
	end := time.Now().Add(d)
	for me := range 2 {
		f := redlockAt(t, lock, addrsOf(servers), nil, redlock.WithRetryDelay(2*time.Millisecond, 10*time.Millisecond))
		for i := range 2 { // and one goroutine beside another in each
			o := rlock.Owner("o" + strconv.Itoa(me) + strconv.Itoa(i))
			g.Go(func() error {
				for time.Now().Before(end) {
					ctx := owned(t.Context(), o)
					call := Now()
					if err := f.LockLease(ctx, 10*time.Second); err != nil {
						return err
					}
					rec.Add(Op{Kind: Acquired, Lock: lock, Owner: string(o), Call: call, Return: Now()})
					if inside[me].Add(1) != 1 || inside[1-me].Load() != 0 {
						return errors.New("two are inside")
					}
					time.Sleep(2 * time.Millisecond)
					held := f.Validity(ctx) > 0 // else the machine stood still, and nothing is promised
					inside[me].Add(-1)
					op := Op{Kind: Released, Lock: lock, Owner: string(o), Call: Now()}
					if err := f.Unlock(ctx); err != nil && held {
						return err
					}
					op.Return = Now()
					rec.Add(op)
					rounds[me].Add(1)
					time.Sleep(5 * time.Millisecond) // the others' turn
				}
				return nil
			})
		}
	}
	require.NoError(t, g.Wait())
	t.Logf("%d and %d holds in %v", rounds[0].Load(), rounds[1].Load(), d)
	for me := range rounds {
		require.Greater(t, rounds[me].Load(), int64(d/time.Second), "progress")
	}
	oneInside(t, rec.Ops())
	require.NoError(t, CheckMutex(rec.Ops(), time.Minute))
}
