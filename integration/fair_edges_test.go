package integration

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/script"
	"github.com/relock-go/relock/rlock"
)

// An Unlock with the next of this process in the queue, while the slot begins to migrate
// and nothing has moved yet.
func TestFair_PassWhileTheSlotMigrates(t *testing.T) {
	t.Parallel()
	cluster := deploy(t, true, nil, startCluster)
	rdb := cluster.Client(t)
	c := lockClient(t, rdb)
	l := c.NewFairLock("k")
	a, b := rlock.WithOwner(t.Context(), alice), rlock.WithOwner(t.Context(), bob)
	require.NoError(t, l.Lock(a))
	got := inBackground(func() error { return l.Lock(b) })
	require.Eventually(t, func() bool { return rdb.LLen(t.Context(), script.QueueKey("k")).Val() == 1 }, faultLimit, time.Millisecond)
	to := cluster.Nodes[0]
	if to == cluster.Master("k") {
		to = cluster.Nodes[1]
	}
	m := cluster.StartMigration(t, cluster.Slot("k"), to)
	err := l.Unlock(a)
	t.Logf("Redis has %v", rdb.HGetAll(t.Context(), "k").Val())
	require.NoError(t, err)
	require.NoError(t, result(t, soon, got, "bob"))
	m.Finish()
	require.NoError(t, l.Unlock(b))
}

// The lock is freed shortly before the dead head's time is over, while whoever is behind
// it sleeps for a heartbeat.
func TestFair_FreedShortlyBeforeADeadOnesTime(t *testing.T) {
	for i := range 6 {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			t.Parallel()
			d, rdb := single(t)
			lock := name(t)
			dead, live := startKindWorker(t, settings{Deployed: d}, 4*time.Second), startKindWorker(t, settings{Deployed: d}, 4*time.Second)
			h := lockClient(t, rdb, rlock.WithWatchdogTimeout(time.Second)).NewFairLock(lock)
			ctx := rlock.WithOwner(t.Context(), "holder")
			require.NoError(t, h.Lock(ctx))
			line := lineUp(t, rdb, lock, []*kindWorker{dead, live}, 1, 0)
			dead.Kill()
			at := time.UnixMilli(int64(rdb.ZScore(t.Context(), script.ScoresKey(lock), line[0].field).Val()))
			time.Sleep(time.Until(at) - 100*time.Millisecond)
			require.NoError(t, h.Unlock(ctx))
			wall := time.Now().UnixNano() - Now()
			ops := live.await(line[1].task)
			late := time.Duration(ops[0].Return + wall - at.UnixNano())
			t.Logf("served %v after the dead one's time", late.Round(time.Millisecond))
			require.Less(t, late, servedWithin)
		})
	}
}

// The dead one came while the holder's TTL was 30 s, and asked once more, as every head
// does when it listens. The lock is freed at once.
func TestFair_DeadHeadBehindALongTTL(t *testing.T) {
	d, rdb := single(t)
	lock := name(t)
	dead, live := startKindWorker(t, settings{Deployed: d}, time.Second), startKindWorker(t, settings{Deployed: d}, time.Second)
	h := lockClient(t, rdb).NewFairLock(lock)
	ctx := rlock.WithOwner(t.Context(), "holder")
	require.NoError(t, h.Lock(ctx))
	line := lineUp(t, rdb, lock, []*kindWorker{dead, live}, 1, 0)
	require.Eventually(t, func() bool {
		score := rdb.ZScore(t.Context(), script.ScoresKey(lock), line[0].field).Val()
		return time.Until(time.UnixMilli(int64(score))) < 2*time.Second
	}, faultLimit, time.Millisecond, "it says that it lives")
	dead.Kill()
	require.NoError(t, h.Unlock(ctx))
	free := Now()
	done, err := live.poll(line[1].task, 60*time.Second)
	require.NoError(t, err)
	took := time.Duration(done.Ops[0].Return - free)
	t.Logf("served %v after the lock was free, with WithFairWaitTimeout(1s)", took.Round(time.Millisecond))
	require.Less(t, took, 5*time.Second)
}

// One with more than 8000 behind it leaves the queue.
func TestFair_LeaveBeforeALongQueue(t *testing.T) {
	t.Parallel()
	_, rdb := single(t)
	c := lockClient(t, rdb)
	l := c.NewFairLock(name(t))
	require.NoError(t, l.Lock(rlock.WithOwner(t.Context(), alice)))
	ctx, cancel := context.WithCancel(t.Context())
	got := inBackground(func() error { return l.Lock(rlock.WithOwner(ctx, bob)) })
	queue, scores := script.QueueKey(l.Key()), script.ScoresKey(l.Key())
	require.Eventually(t, func() bool { return rdb.LLen(t.Context(), queue).Val() == 1 }, faultLimit, time.Millisecond)
	_, err := rdb.Pipelined(t.Context(), func(p redis.Pipeliner) error {
		for i := range 9000 {
			p.RPush(t.Context(), queue, fmt.Sprint("peer:", i))
			p.ZAdd(t.Context(), scores, redis.Z{Member: fmt.Sprint("peer:", i), Score: float64(time.Now().Add(time.Hour).UnixMilli())})
		}
		return nil
	})
	require.NoError(t, err)
	before := rdb.ZScore(t.Context(), scores, "peer:0").Val()
	cancel()
	require.ErrorIs(t, <-got, context.Canceled)
	require.Eventually(t, func() bool { return rdb.LLen(t.Context(), queue).Val() == 9000 }, soon, time.Millisecond)
	require.Less(t, rdb.ZScore(t.Context(), scores, "peer:0").Val(), before, "its time is taken off those behind")
	rdb.Del(t.Context(), queue, scores)
}
