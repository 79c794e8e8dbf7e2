package integration

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/redistest"
	"github.com/relock-go/relock/internal/script"
	"github.com/relock-go/relock/rlock"
)

// TestClients_ManyNames holds and renews locks on all servers of each kind of
// client, and wakes waiters for them: REN-11.
func TestClients_ManyNames(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, kind topology) { manyNames(t, kind, nil) })
	for name, opt := range map[string]rlock.Option{
		"pipelined": rlock.WithAutoPipeline(), "told to all": rlock.WithShardedPubSub(false),
	} {
		for _, kind := range topologies {
			if kind.name == "single" || kind.name == "cluster" || kind.name == "slots" || kind.name == "failover" {
				t.Run(kind.name+" "+name, func(t *testing.T) {
					t.Parallel()
					manyNames(t, kind, opt)
				})
			}
		}
	}
	// Whatever else sends a script to the server of its first key will do.
	type wrapped struct{ redis.UniversalClient }
	t.Run("wrapped client", func(t *testing.T) {
		t.Parallel()
		manyNames(t, topology{"wrapped", func(t testing.TB, silence time.Duration, own bool) *rig {
			r := openSingle(t, silence, own)
			r.through = wrapped{r.through}
			return r
		}}, nil)
	})
	t.Run("deferred autopipeliner", func(t *testing.T) {
		t.Parallel()
		manyNames(t, topology{"deferred", func(t testing.TB, silence time.Duration, own bool) *rig {
			r := openSingle(t, silence, own)
			ap, err := r.through.AsyncAutoPipeline()
			require.NoError(t, err)
			t.Cleanup(func() { _ = ap.Close() })
			r.through = ap
			return r
		}}, nil)
	})
}

func manyNames(t *testing.T, kind topology, opt rlock.Option) {
	const names, watchdog = 30, 2400 * time.Millisecond
	ctx, cancel := context.WithTimeout(context.Background(), faultLimit)
	defer cancel()
	r := kind.open(t, faultLimit, false)
	opts := []rlock.Option{rlock.WithWatchdogTimeout(watchdog), rlock.WithRecheck(time.Hour)}
	if opt != nil {
		opts = append(opts, opt)
	}
	mine, theirs := lockClient(t, r.through, opts...), lockClient(t, r.client(t), opts...)
	mineCtx, theirCtx := rlock.WithOwner(ctx, alice), rlock.WithOwner(ctx, stranger)
	base := name(t)
	locks := func(c *rlock.Client) (all []*rlock.Lock) {
		for i := range names {
			all = append(all, c.NewLock(fmt.Sprintf("%s:%d", base, i)))
		}
		return all
	}
	servers := map[string]int{}
	for _, l := range locks(mine) {
		require.NoError(t, l.Lock(mineCtx))
		servers[r.proxy(l.Key()).Addr]++
	}
	if r.each != nil {
		require.Len(t, servers, 3, "all servers have some")
	}
	// Five periods, and each hold was renewed in about all of them.
	require.Eventually(t, func() bool { return mine.Stats().Renewals >= 5*names }, faultLimit, time.Millisecond)
	require.Zero(t, mine.Stats().Lost)

	var waiters sync.WaitGroup
	for _, l := range locks(theirs) {
		waiters.Go(func() {
			if err := l.Lock(theirCtx); err != nil {
				t.Error(err)
				return
			}
			if err := l.Unlock(theirCtx); err != nil {
				t.Error(err)
			}
		})
	}
	require.Eventually(t, func() bool { return theirs.Stats().Waiting == names }, faultLimit, time.Millisecond)
	for _, l := range locks(mine) {
		info, err := l.Info(ctx)
		require.NoError(t, err)
		require.Equal(t, []rlock.Holder{{Client: mine.ID(), Owner: alice, Depth: 1}}, info.Holders)
		n, err := l.HoldCount(mineCtx)
		require.NoError(t, err)
		require.Equal(t, 1, n)
		require.NoError(t, l.Unlock(mineCtx))
	}
	waiters.Wait()
	require.Zero(t, mine.Stats().Lost+theirs.Stats().Lost)
	for _, l := range locks(mine) {
		locked, err := l.IsLocked(ctx)
		require.NoError(t, err)
		require.False(t, locked)
	}
	require.NoError(t, mine.Close(ctx))
	require.NoError(t, theirs.Close(ctx))
}

// TestClients_HungNode: the renewals of other nodes do not wait for one that hangs,
// and its own holders are told in time.
func TestClients_HungNode(t *testing.T) {
	t.Parallel()
	for _, kind := range topologies {
		if kind.name != "cluster" && kind.name != "slots" && kind.name != "ring" {
			continue
		}
		t.Run(kind.name, func(t *testing.T) {
			t.Parallel()
			const watchdog = 2 * time.Second
			ctx, cancel := context.WithTimeout(context.Background(), faultLimit)
			defer cancel()
			// Its client waits for an answer for much longer than a lease.
			r := kind.open(t, faultLimit, true)
			c := lockClient(t, r.through, rlock.WithWatchdogTimeout(watchdog))
			alices := rlock.WithOwner(ctx, alice)
			var hung, fine []*rlock.Lock
			first := name(t)
			node := r.server(first)
			for i := 0; len(hung) < 10 || len(fine) < 10; i++ {
				l := c.NewLock(fmt.Sprintf("%s:%d", first, i))
				require.NoError(t, l.Lock(alices))
				if r.server(l.Key()).Addr == node.Addr {
					hung = append(hung, l)
				} else {
					fine = append(fine, l)
				}
			}
			node.Stop(t)
			stopped := time.Now()
			for _, l := range hung {
				select {
				case <-l.Lost(alices):
				case <-time.After(2 * watchdog):
					t.Fatal("the holder is not told")
				}
			}
			require.Less(t, time.Since(stopped), watchdog+slack)
			renewals := c.Stats().Renewals
			require.Eventually(t, func() bool { return c.Stats().Renewals > renewals+uint64(3*len(fine)) }, soon, time.Millisecond)
			for _, l := range fine {
				require.Positive(t, l.Validity(alices))
			}
			require.EqualValues(t, len(hung), c.Stats().Lost)
			node.Cont(t)
			for _, l := range fine {
				require.NoError(t, l.Unlock(alices))
			}
		})
	}
}

// TestClients_RingWithAllShardsDown gets errors, and no panic, and goes on when the
// shards do: CLU-6.
func TestClients_RingWithAllShardsDown(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(context.Background(), 2*faultLimit)
	defer cancel()
	var servers plain
	o := &redis.RingOptions{Addrs: map[string]string{}, HeartbeatFrequency: 50 * time.Millisecond}
	for i := range 2 {
		s := redistest.StartServer(t)
		servers = append(servers, s)
		o.Addrs[fmt.Sprint("shard", i)] = s.Addr
	}
	ring := redis.NewRing(o)
	defer ring.Close()
	c := lockClient(t, ring, rlock.WithRecheck(time.Second))
	l := c.NewLock(name(t))
	alices, bobs := rlock.WithOwner(ctx, alice), rlock.WithOwner(ctx, bob)
	require.NoError(t, l.Lock(alices))
	got := inBackground(func() error { return l.Lock(bobs) })
	require.Eventually(t, func() bool { return c.Stats().Waiting == 1 }, faultLimit, time.Millisecond)
	for _, s := range servers {
		s.Kill()
	}
	require.Eventually(t, func() bool { return ring.Len() == 0 }, faultLimit, time.Millisecond, "the Ring has noticed")

	other := c.NewLock(name(t))
	_, err := other.TryLock(alices, 0, 0)
	require.ErrorContains(t, err, "all ring shards are down")
	require.NotErrorIs(t, err, rlock.ErrUnsettled, "nothing was sent")
	require.ErrorContains(t, other.Lock(alices), "all ring shards are down")
	_, err = other.IsLocked(ctx)
	require.ErrorContains(t, err, "all ring shards are down")

	// It is woken by the loss of its subscription, maybe before the Ring has noticed.
	require.Regexp(t, "all ring shards are down|connection refused|connection reset|EOF", result(t, soon, got, "the waiter").Error())

	for _, s := range servers {
		require.NoError(t, s.Restart())
	}
	require.Eventually(t, func() bool { return ring.Len() == 2 }, faultLimit, time.Millisecond)
	result(t, soon, l.Lost(alices), "the holder is told that its lock is gone")
	require.ErrorIs(t, l.Unlock(alices), rlock.ErrLost)
	require.NoError(t, l.Lock(bobs))
	require.NoError(t, l.Unlock(bobs))
	require.NoError(t, other.Lock(alices))
	require.NoError(t, other.Unlock(alices))
}

// TestClients_ShardedByForce is an error where the server has no such channels, and
// works where it has.
func TestClients_ShardedByForce(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(context.Background(), faultLimit)
	defer cancel()
	alices := rlock.WithOwner(ctx, alice)

	// To a client that asks for them, it looks like a server before 7.0.
	old := redistest.StartServer(t, "--rename-command", "PUBSUB", "")
	c := lockClient(t, old.Client(t), rlock.WithShardedPubSub(true))
	l := c.NewLock(name(t))
	_, err := l.TryLock(alices, 0, 0)
	require.ErrorContains(t, err, "WithShardedPubSub")
	require.ErrorContains(t, err, "Redis 7.0")
	require.ErrorContains(t, l.Lock(alices), "WithShardedPubSub")
	require.Zero(t, c.Stats().Scripts, "nothing was asked for")
	c = lockClient(t, old.Client(t))
	require.NoError(t, c.NewLock(l.Name()).Lock(alices), "without the option it works")
	require.NoError(t, c.NewLock(l.Name()).Unlock(alices))

	onEach(t, func(t *testing.T, kind topology) {
		ctx, cancel := context.WithTimeout(context.Background(), faultLimit)
		defer cancel()
		alices, bobs := rlock.WithOwner(ctx, alice), rlock.WithOwner(ctx, bob)
		r := kind.open(t, faultLimit, false)
		opts := []rlock.Option{rlock.WithShardedPubSub(true), rlock.WithRecheck(time.Hour)}
		l := lockClient(t, r.through, opts...).NewLock(name(t))
		theirs := lockClient(t, r.client(t), opts...).NewLock(l.Name())
		require.NoError(t, l.Lock(alices))
		got := inBackground(func() error { return theirs.Lock(bobs) })
		channel := script.Channel(l.Key())
		node := redistest.NewClient(t, r.server(l.Key()).Addr)
		require.Eventually(t, func() bool {
			n, err := node.PubSubShardNumSub(ctx, channel).Result()
			require.NoError(t, err)
			return n[channel] == 1
		}, faultLimit, time.Millisecond, "it listens to a sharded channel")
		require.NoError(t, l.Unlock(alices))
		require.NoError(t, result(t, soon, got, "the waiter"))
		require.NoError(t, theirs.Unlock(bobs))
	})
}
