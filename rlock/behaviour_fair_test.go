package rlock

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/redistest"
	"github.com/relock-go/relock/internal/script"
)

// What Redisson's own tests ask of a fair lock, as far as no other test here does. The
// comment of each test begins with what they ask.

// inLine is how long each of those in l's queue is waited for still, by the server's
// clock, in the order of the queue.
func inLine(t testing.TB, l *FairLock) (left []time.Duration) {
	t.Helper()
	ctx := context.Background()
	var now *redis.TimeCmd
	var line *redis.StringSliceCmd
	var scores *redis.ZSliceCmd
	_, err := look(t).TxPipelined(ctx, func(p redis.Pipeliner) error {
		now = p.Time(ctx)
		line = p.LRange(ctx, script.QueueKey(l.Key()), 0, -1)
		scores = p.ZRangeWithScores(ctx, script.ScoresKey(l.Key()), 0, -1)
		return nil
	})
	require.NoError(t, err)
	of := map[any]float64{}
	for _, z := range scores.Val() {
		of[z.Member] = z.Score
	}
	require.Len(t, of, len(line.Val()), "as many scores as waiters")
	for _, field := range line.Val() {
		require.Contains(t, of, field)
		left = append(left, time.UnixMilli(int64(of[field])).Sub(now.Val()))
	}
	return left
}

// abandon puts waiters into l's queue whose process is dead: each is waited for until
// then, and says nothing.
func abandon(t testing.TB, l *FairLock, until ...time.Time) {
	t.Helper()
	ctx := context.Background()
	_, err := look(t).TxPipelined(ctx, func(p redis.Pipeliner) error {
		for i, at := range until {
			field := fmt.Sprint("dead:", i)
			p.RPush(ctx, script.QueueKey(l.Key()), field)
			p.ZAdd(ctx, script.ScoresKey(l.Key()), redis.Z{Score: float64(at.UnixMilli()), Member: field})
		}
		return nil
	})
	require.NoError(t, err)
	t.Cleanup(func() { shared.rdb.Del(ctx, script.QueueKey(l.Key()), script.ScoresKey(l.Key())) })
}

// serverTime is what scores are compared with.
func serverTime(t testing.TB) time.Time {
	t.Helper()
	now, err := look(t).Time(context.Background()).Result()
	require.NoError(t, err)
	return now
}

// Waiters that never unlock: each comes in when the lease before it is over, in the order
// in which they came. They ask every half a second, so that no lease ends unnoticed.
func TestFairBehaviour_LeasesThatRunOutServeInOrder(t *testing.T) {
	t.Parallel()
	const waiters, lease = 6, 400 * time.Millisecond
	often := WithFairWaitTimeout(2 * time.Second)
	clients := []*Client{onShared(t, often), onShared(t, often)}
	name := unique("leases")
	first := clients[0].NewFairLock(name)
	require.NoError(t, first.LockLease(as("holder"), 30*time.Second))
	type grant struct {
		waiter int
		err    error
		at     time.Time
	}
	order := make(chan grant, waiters)
	for i := range waiters {
		l := clients[i%2].NewFairLock(name)
		go func() {
			err := l.LockLease(as(Owner(fmt.Sprint("w", i))), lease)
			order <- grant{i, err, time.Now()}
		}()
		eventually(t, func() bool { return queued(t, first) == int64(i+1) }, "waiter %d stands in the queue", i)
	}
	began := time.Now()
	require.NoError(t, first.Unlock(as("holder")))
	var last grant
	for i := range waiters {
		last = recv(t, order, "the next one")
		require.NoError(t, last.err)
		require.Equal(t, i, last.waiter, "in the order of arrival")
	}
	require.GreaterOrEqual(t, last.at.Sub(began), (waiters-1)*(lease-20*time.Millisecond), "none before the lease is over")
	nothingLeft(t, first)
}

// Many at once, with leases longer than their work: all are served. Theirs were 500 for
// some minutes.
func TestFairBehaviour_ManyAtOnce(t *testing.T) {
	t.Parallel()
	const each, lease = 25, 15 * time.Second
	name := unique("crowd")
	var inside, served atomic.Int64
	var all sync.WaitGroup
	for _, c := range []*Client{onShared(t), onShared(t), onShared(t)} {
		l := c.NewFairLock(name)
		for i := range each {
			all.Go(func() {
				o := as(Owner(fmt.Sprint("g", i)))
				if err := l.LockLease(o, lease); err != nil {
					t.Error(err)
					return
				}
				if inside.Add(1) != 1 {
					t.Error("two are inside")
				}
				time.Sleep(2 * time.Millisecond)
				inside.Add(-1)
				served.Add(1)
				if err := l.Unlock(o); err != nil {
					t.Error(err)
				}
			})
		}
	}
	all.Wait()
	require.EqualValues(t, 3*each, served.Load())
	nothingLeft(t, onShared(t).NewFairLock(name))
}

// Again and again somebody waits for a moment, behind one whose process was killed, and
// the lock is forced open: no one's time in the queue grows. It doesn't either while they
// get the lock, for which they have to wait longer: on a busy machine eight take their
// time, and one that gives up when it has become the head gets nothing.
func TestFairBehaviour_TimesInTheQueueDoNotGrow(t *testing.T) {
	t.Parallel()
	const lease, wait, waiters, rounds = 3 * time.Second, time.Second, 8, 160
	const short, patient = 60 * time.Millisecond, 500 * time.Millisecond
	c := onShared(t, WithFairWaitTimeout(wait))
	l := c.NewFairLock(unique("scores"))
	require.NoError(t, l.LockLease(as("holder"), lease))
	abandon(t, l, serverTime(t).Add(1500*time.Millisecond))

	var refused, served, patience atomic.Int64
	patience.Store(int64(short))
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	var all sync.WaitGroup
	for i := range waiters {
		l := onShared(t, WithFairWaitTimeout(wait)).NewFairLock(l.Name())
		all.Go(func() {
			o := WithOwner(ctx, Owner(fmt.Sprint("w", i)))
			for ctx.Err() == nil {
				switch got, err := l.TryLock(o, time.Duration(patience.Load()), lease); {
				case got:
					served.Add(1)
					time.Sleep(5 * time.Millisecond) // others queue meanwhile
					if err := l.Unlock(o); err != nil {
						t.Error(err)
					}
				case err == nil:
					refused.Add(1)
				case ctx.Err() == nil && !errors.Is(err, ErrUnsettled): // too short a wait for a busy machine
					t.Error(err)
				}
			}
		})
	}
	bounded := func(cond func() bool, what string) {
		t.Helper()
		eventually(t, func() bool {
			for place, left := range inLine(t, l) {
				// Those who stand there count with their patience, and half a second for a busy machine.
				most := lease + wait + waiters*time.Duration(patience.Load()) + 500*time.Millisecond
				require.LessOrEqual(t, left, most, "place %d", place)
			}
			return cond()
		}, "%s", what)
	}
	bounded(func() bool { return refused.Load() >= rounds/2 }, "they have waited behind the dead one")
	_, err := l.ForceUnlock(as("x"))
	require.NoError(t, err)
	bounded(func() bool { return refused.Load() >= rounds }, "they have waited for a free lock")
	patience.Store(int64(patient))
	bounded(func() bool { return served.Load() >= 50 }, "they were served")
	stop()
	all.Wait()
	eventually(t, func() bool { return queued(t, l) == 0 }, "all have left the queue")
	require.ErrorIs(t, l.Unlock(as("holder")), ErrLost)
	nothingLeft(t, l)
}

// Waits of 5 s behind a lease of 30 s: each one's time is 5 s later than that of the one
// before, and those behind one that gives up, or that gets the lock, move 5 s closer.
// Theirs begins with the lease, ours from when the head has said that it lives.
func TestFairBehaviour_FollowersMoveCloser(t *testing.T) {
	t.Parallel()
	const lease, wait = 30 * time.Second, 5 * time.Second
	l := onShared(t).NewFairLock(unique("closer"))
	require.NoError(t, l.LockLease(as("holder"), lease))
	var got []<-chan bool
	var leave []func()
	standAt := func(want ...time.Duration) {
		t.Helper()
		eventually(t, func() bool {
			line := inLine(t, l)
			return len(line) == len(want) && line[0] <= want[0]
		}, "%d stand there", len(want))
		for i, left := range inLine(t, l) {
			between(t, want[i]-4*time.Second, want[i], left, fmt.Sprint("place ", i)) // 4 s for a busy machine
		}
	}
	var times []time.Duration
	for i := range 4 {
		ctx, cancel := context.WithCancel(as(Owner(fmt.Sprint("w", i))))
		defer cancel()
		leave = append(leave, cancel)
		got = append(got, async(func() bool {
			in, err := l.TryLock(ctx, wait, lease)
			return in && err == nil
		}))
		times = append(times, time.Duration(i+1)*wait)
		standAt(times...)
	}
	leave[1]()
	require.False(t, recv(t, got[1], "the second gives up"))
	standAt(times[:3]...)
	require.NoError(t, l.Unlock(as("holder")))
	require.True(t, recv(t, got[0], "the first is served"))
	standAt(times[:2]...)
	for i, o := range []Owner{"w0", "w2", "w3"} {
		if i > 0 {
			require.True(t, recv(t, got[i+1], "the next one"))
		}
		require.NoError(t, l.Unlock(as(o)))
	}
	nothingLeft(t, l)
}

// One who asks once never queues. Nobody queues, so anybody gets the lock after an Unlock
// and after the end of a lease.
func TestFairBehaviour_OneAttemptDoesNotQueue(t *testing.T) {
	t.Parallel()
	c, d := onShared(t), onShared(t)
	l := c.NewFairLock(unique("once"))
	m := d.NewFairLock(l.Name())
	require.NoError(t, l.Lock(as("a")))
	for _, at := range []*FairLock{l, m} {
		refusedOnce(t, at, "b", "it is held")
		require.Zero(t, queued(t, l))
	}
	require.NoError(t, l.Unlock(as("a")))
	got, err := m.TryLock(as("c"), 0, 0)
	require.NoError(t, err)
	require.True(t, got, "somebody who did not ask before")
	require.NoError(t, m.Unlock(as("c")))

	require.NoError(t, l.LockLease(as("a"), 200*time.Millisecond))
	eventually(t, func() bool { return !exists(t, l.Key()) }, "the lease is over")
	got, err = m.TryLock(as("d"), 0, 0)
	require.NoError(t, err)
	require.True(t, got)
	require.NoError(t, m.Unlock(as("d")))
	require.ErrorIs(t, l.Unlock(as("a")), ErrLost)
	nothingLeft(t, l)
}

// Waiters that were abandoned are dropped when their time is over, and who stands behind
// them is served then, not before.
func TestFairBehaviour_AbandonedWaitersAreSwept(t *testing.T) {
	t.Parallel()
	l := onShared(t).NewFairLock(unique("abandoned"))
	now := serverTime(t)
	last := now.Add(600 * time.Millisecond)
	abandon(t, l, now.Add(400*time.Millisecond), now.Add(500*time.Millisecond), last)
	require.NoError(t, l.Lock(as("a")), "nobody has it")
	require.GreaterOrEqual(t, serverTime(t).UnixMilli(), last.UnixMilli(), "their time is theirs")
	require.Zero(t, queued(t, l))
	require.NoError(t, l.Unlock(as("a")))
	nothingLeft(t, l)
}

// A try that has waited in vain leaves nothing: an attempt gets the lock once it is free.
// Here the entry goes a moment after the try returned.
func TestFairBehaviour_AFailedTryLeavesNoEntry(t *testing.T) {
	t.Parallel()
	c, d := onShared(t), onShared(t)
	l := c.NewFairLock(unique("vain"))
	require.NoError(t, l.Lock(as("a")))
	got, err := settled(t, func() (bool, error) {
		return d.NewFairLock(l.Name()).TryLock(as("b"), 200*time.Millisecond, 0)
	})
	require.NoError(t, err)
	require.False(t, got)
	require.Positive(t, d.Stats().Contended, "it has waited")
	eventually(t, func() bool { return queued(t, l) == 0 }, "it has left the queue")
	require.NoError(t, l.Unlock(as("a")))
	got, err = l.TryLock(as("c"), 0, 0)
	require.NoError(t, err)
	require.True(t, got)
	require.NoError(t, l.Unlock(as("c")))
	nothingLeft(t, l)
}

// The name mapper is for the keys of the queue too.
func TestFairBehaviour_NameMapper(t *testing.T) {
	t.Parallel()
	c := onShared(t, WithNameMapper(func(name string) string { return "shop:" + name }))
	l := c.NewFairLock(unique("mapped"))
	require.NoError(t, l.Lock(as("a")))
	next := async(func() error { return l.Lock(as("b")) })
	waitForWaiters(t, c, 1)
	keys, err := look(t).Keys(context.Background(), "*"+l.Name()+"*").Result()
	require.NoError(t, err)
	require.ElementsMatch(t, []string{
		"shop:" + l.Name(), "redisson_lock_queue:{shop:" + l.Name() + "}", "redisson_lock_timeout:{shop:" + l.Name() + "}",
	}, keys)
	require.NoError(t, l.Unlock(as("a")))
	require.NoError(t, recv(t, next, "the next one"))
	require.NoError(t, l.Unlock(as("b")))
	nothingLeft(t, l)
}

// The server takes no writes while somebody waits: the try fails, and nobody stands in
// the queue afterwards. It may be ErrUnsettled here, if it was asking just then.
func TestFairBehaviour_WritesArePaused(t *testing.T) {
	t.Parallel()
	look(t)
	s := redistest.StartServer(t)
	admin := s.Client(t)
	c, d := newClient(t, s.Client(t)), newClient(t, s.Client(t))
	l := c.NewFairLock("paused")
	require.NoError(t, l.LockLease(as("a"), time.Minute))
	trying := async(func() error {
		got, err := d.NewFairLock("paused").TryLock(as("b"), 600*time.Millisecond, 0)
		if got {
			return errors.New("it was not free")
		}
		return err
	})
	line := func() int64 { return admin.LLen(context.Background(), script.QueueKey("paused")).Val() }
	eventually(t, func() bool { return line() == 1 }, "it queues")
	require.NoError(t, admin.Do(context.Background(), "client", "pause", 1000, "write").Err())
	if err := recv(t, trying, "the try"); err != nil {
		require.ErrorIs(t, err, ErrUnsettled)
	}
	eventually(t, func() bool { return line() == 0 }, "the queue is empty")
	require.NoError(t, l.Unlock(as("a")))
	got, err := l.TryLock(as("c"), 0, 0)
	require.NoError(t, err)
	require.True(t, got)
	require.NoError(t, l.Unlock(as("c")))
	keys, err := admin.Keys(context.Background(), "*").Result()
	require.NoError(t, err)
	require.Empty(t, strings.Join(keys, " "))
}
