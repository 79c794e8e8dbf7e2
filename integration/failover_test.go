package integration

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/redistest"
	"github.com/relock-go/relock/rlock"
)

const failoverKey = "failover"

// successions are deployments that replace a master by themselves.
var successions = map[string]func(t *testing.T) *succession{
	"cluster": func(t *testing.T) *succession {
		c := redistest.StartCluster(t, 3, 1, "--cluster-node-timeout", "1000")
		return &succession{
			client:  func() redis.UniversalClient { return c.Client(t) },
			master:  func() *redistest.Server { return c.Master(failoverKey) },
			replica: func() *redistest.Server { return c.Replica(c.Master(failoverKey)) },
			next:    func(old *redistest.Server) *redistest.Server { return c.WaitMaster(t, failoverKey, old) },
			order:   func() { c.Failover(t, c.Replica(c.Master(failoverKey))) },
		}
	},
	"sentinel": func(t *testing.T) *succession {
		s := redistest.StartSentinel(t)
		return &succession{
			client:  func() redis.UniversalClient { return s.Client(t) },
			master:  s.Master,
			replica: func() *redistest.Server { return s.Replicas()[0] },
			next:    func(old *redistest.Server) *redistest.Server { return s.WaitMaster(t, old) },
			order:   func() { s.Failover(t) },
		}
	},
}

type succession struct {
	client  func() redis.UniversalClient
	master  func() *redistest.Server // that has the key
	replica func() *redistest.Server // of that one
	next    func(old *redistest.Server) *redistest.Server
	order   func() // the master lives on as a replica
}

// TestFailover replaces the master of a lock that is held and waited for, with and
// without the key: CLU-1, CLU-4.
func TestFailover(t *testing.T) {
	t.Parallel()
	for kind, start := range successions {
		t.Run(kind, func(t *testing.T) {
			t.Run("by order", func(t *testing.T) {
				s := start(t)
				failoverKeeps(t, s, func(*redistest.Server) { s.order() })
			})
			t.Run("killed", func(t *testing.T) {
				failoverKeeps(t, start(t), func(master *redistest.Server) { master.Kill() })
			})
			t.Run("without the key", func(t *testing.T) { failoverLoses(t, start(t)) })
		})
	}
}

// insist locks until it succeeds: while nobody is master Lock ends with an error
// after some seconds.
func insist(ctx context.Context, l *rlock.Lock, errs *atomic.Int64) <-chan error {
	return inBackground(func() error {
		for {
			err := l.Lock(ctx)
			if err == nil || ctx.Err() != nil {
				return err
			}
			errs.Add(1)
		}
	})
}

const failoverRecheck = time.Second

// failoverKeeps: the replica has the key. Nothing is lost, and the waiter gets the
// lock when it is given back.
func failoverKeeps(t *testing.T, s *succession, replace func(master *redistest.Server)) {
	ctx, cancel := context.WithTimeout(context.Background(), 3*faultLimit)
	defer cancel()
	// Its deadline is further than any failover takes.
	mine := lockClient(t, s.client(), rlock.WithWatchdogTimeout(15*time.Second))
	theirs := lockClient(t, s.client(), rlock.WithRecheck(failoverRecheck))
	l, other := mine.NewLock(failoverKey), theirs.NewLock(failoverKey)
	holder, waiter := rlock.WithOwner(ctx, alice), rlock.WithOwner(ctx, stranger)
	require.NoError(t, l.Lock(holder))
	require.NoError(t, l.Lock(holder))
	old := s.master()
	replicated(t, old)
	var errs atomic.Int64
	got := insist(waiter, other, &errs)
	require.Eventually(t, func() bool { return theirs.Stats().Waiting == 1 }, faultLimit, time.Millisecond)

	renewals := mine.Stats().Renewals
	replace(old)
	next := s.next(old)
	require.Eventually(t, func() bool { return mine.Stats().Renewals > renewals }, faultLimit, 5*time.Millisecond, "renewed at the new master")
	require.NoError(t, l.Unlock(holder), "an inner unlock")
	require.Positive(t, l.Validity(holder))
	all, err := next.Client(t).HGetAll(ctx, failoverKey).Result()
	require.NoError(t, err)
	require.Equal(t, map[string]string{mine.ID() + ":alice": "1"}, all)
	select {
	case err := <-got:
		t.Fatal("the waiter is in beside the holder: ", err)
	default:
	}
	freed := time.Now()
	require.NoError(t, l.Unlock(holder))
	require.NoError(t, result(t, soon, got, "the waiter"))
	took := time.Since(freed)
	require.Less(t, took, failoverRecheck+refreshLimit)
	t.Logf("the waiter is in %v after the unlock; Lock had ended with an error %d times", took, errs.Load())
	require.NoError(t, other.Unlock(waiter))
	require.Zero(t, mine.Stats().Lost+theirs.Stats().Lost)
}

// replicated waits until the replicas of master have what it has.
func replicated(t *testing.T, master *redistest.Server) {
	t.Helper()
	n, err := master.Client(t).Wait(context.Background(), 1, soon).Result()
	require.NoError(t, err)
	require.EqualValues(t, 1, n)
}

// failoverLoses: the replica that takes over has never heard of the lock. The holder
// is told with its next renewal, and the waiter gets the lock.
func failoverLoses(t *testing.T, s *succession) {
	ctx, cancel := context.WithTimeout(context.Background(), 3*faultLimit)
	defer cancel()
	const watchdog = 12 * time.Second
	mine := lockClient(t, s.client(), rlock.WithWatchdogTimeout(watchdog))
	theirs := lockClient(t, s.client(), rlock.WithRecheck(failoverRecheck))
	l, other := mine.NewLock(failoverKey), theirs.NewLock(failoverKey)
	holder, waiter := rlock.WithOwner(ctx, alice), rlock.WithOwner(ctx, stranger)
	old, heir := s.master(), s.replica()
	heir.Stop()
	// What the master has sent it would read when it goes on.
	require.NoError(t, old.Client(t).ClientKillByFilter(ctx, "TYPE", "replica").Err())
	require.NoError(t, l.Lock(holder))
	lost := l.Lost(holder)
	var errs atomic.Int64
	got := insist(waiter, other, &errs)
	require.Eventually(t, func() bool { return theirs.Stats().Waiting == 1 }, faultLimit, time.Millisecond)

	old.Kill()
	heir.Cont()
	require.Same(t, heir, s.next(old))
	promoted := time.Now()
	require.NoError(t, result(t, soon, got, "the waiter"))
	require.Less(t, time.Since(promoted), failoverRecheck+refreshLimit)
	select {
	case <-lost:
	case <-time.After(watchdog):
		t.Fatal("the holder is not told")
	}
	require.Less(t, time.Since(promoted), watchdog/3+refreshLimit, "with its next renewal")
	require.Zero(t, l.Validity(holder))
	require.ErrorIs(t, l.Unlock(holder), rlock.ErrLost)
	require.Positive(t, other.Validity(waiter), "the new holder's is its own")
	require.NoError(t, other.Unlock(waiter))
	require.EqualValues(t, 1, mine.Stats().Lost)
}

// TestDemoted: a master becomes a replica, of a master that is not there, and its
// client knows no other. It answers what it last knew; nobody believes it: CLU-4.
func TestDemoted(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(context.Background(), 2*faultLimit)
	defer cancel()
	s := redistest.StartServer(t)
	rdb := s.Client(t)
	mine, theirs := lockClient(t, rdb), lockClient(t, s.Client(t), rlock.WithRecheck(200*time.Millisecond))
	l, other := mine.NewLock("demoted"), theirs.NewLock("demoted")
	holder, waiter := rlock.WithOwner(ctx, alice), rlock.WithOwner(ctx, stranger)
	require.NoError(t, l.LockLease(holder, time.Hour))
	got := inBackground(func() error { return other.Lock(waiter) })
	require.Eventually(t, func() bool { return theirs.Stats().Waiting == 1 }, faultLimit, time.Millisecond)

	require.NoError(t, rdb.ReplicaOf(ctx, "127.0.0.1", "1").Err())
	require.ErrorContains(t, result(t, soon, got, "the waiter hears that this is no master"), "READONLY")
	_, err := other.TryLock(waiter, 0, 0)
	require.ErrorContains(t, err, "READONLY")
	require.ErrorContains(t, second(other.TryLock(waiter, 100*time.Millisecond, 0)), "READONLY")

	// It is promoted again: the holder has lost nothing.
	require.NoError(t, rdb.ReplicaOf(ctx, "no", "one").Err())
	ok, err := other.TryLock(waiter, 0, 0)
	require.NoError(t, err)
	require.False(t, ok)
	require.NoError(t, l.Unlock(holder))
	require.NoError(t, other.Lock(waiter))
	require.NoError(t, other.Unlock(waiter))
}
