package rlock

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/redistest"
	"github.com/relock-go/relock/internal/script"
)

// What the new kinds have got wrong once.

// When memory is full a renewal has to reach the reader's own key as well, or another
// reader's Unlock finds it dead and removes the hash under it.
func TestACQ9_ReaderIsRenewedAtMaxMemory(t *testing.T) {
	t.Parallel()
	s := redistest.StartServer(t)
	rdb := s.Client(t)
	c := newClient(t, s.Client(t), WithWatchdogTimeout(900*time.Millisecond))
	d := newClient(t, s.Client(t))
	name := unique("oom")
	l, m := c.NewReadWriteLock(name), d.NewReadWriteLock(name)
	require.NoError(t, l.ReadLock().Lock(as("a")))
	require.NoError(t, m.ReadLock().LockLease(as("b"), time.Minute))
	require.NoError(t, rdb.ConfigSet(t.Context(), "maxmemory", "1").Err())
	n := c.Stats().Renewals
	eventually(t, func() bool { return c.Stats().Renewals >= n+6 }, "renewed for two watchdog timeouts")
	require.NoError(t, m.ReadLock().Unlock(as("b")))
	got, err := m.WriteLock().TryLock(as("w"), 0, 0)
	require.NoError(t, err)
	require.False(t, got && l.ReadLock().Validity(as("a")) > 0, "a writer beside a reader")
}

// A nested read whose lease ran out leaves a field that the write lock keeps. It does
// not keep the write half from being passed on.
func TestRW_PassBesideADeadNestedRead(t *testing.T) {
	t.Parallel()
	c := onShared(t)
	l := c.NewReadWriteLock(unique("deadread"))
	r, w := l.ReadLock(), l.WriteLock()
	require.NoError(t, w.Lock(as("a")))
	require.NoError(t, r.LockLease(as("a"), 50*time.Millisecond))
	recv(t, r.Lost(as("a")), "the end of the lease")
	require.ErrorIs(t, r.Unlock(as("a")), ErrLost)
	next := async(func() error { return w.Lock(as("b")) })
	waitForWaiters(t, c, 1)
	require.NoError(t, w.Unlock(as("a")))
	require.NoError(t, recv(t, next, "the next writer"))
	require.NoError(t, w.Unlock(as("b")))
	nothingLeft(t, w)
}

// A write lease that ran out beside its owner's read: the read keeps the hash, and must
// not keep the writer's field in it.
func TestRW_WriteLeaseRunsOutBesideItsRead(t *testing.T) {
	t.Parallel()
	c := onShared(t)
	l := c.NewReadWriteLock(unique("deadwrite"))
	r, w := l.ReadLock(), l.WriteLock()
	require.NoError(t, w.LockLease(as("a"), 100*time.Millisecond))
	require.NoError(t, r.Lock(as("a")))
	recv(t, w.Lost(as("a")), "the end of the lease")
	require.NoError(t, r.Lock(as("b")), "readers come in")
	require.ErrorIs(t, w.Unlock(as("a")), ErrLost)
	require.NoError(t, r.Unlock(as("a")))
	require.NoError(t, r.Unlock(as("b")))
	nothingLeft(t, w)
}

// Many fair waiters of one process do not keep each other, or the holder, from the turn
// to send. Only the first of them asks, and says that the others live.
func TestFair_ManyWaitersFarAway(t *testing.T) {
	t.Parallel()
	c, p := onProxy(t)
	l := c.NewFairLock(unique("many"))
	require.NoError(t, l.Lock(as("holder")))
	const n = 200
	ctx, cancel := context.WithCancel(context.Background())
	errs := make(chan error, n)
	p.Latency(10 * time.Millisecond)
	for i := range n {
		o := WithOwner(ctx, Owner(fmt.Sprint("w", i)))
		go func() { errs <- l.Lock(o) }()
	}
	eventually(t, func() bool { return queued(t, l) == n }, "all queue")
	before := c.Stats().Attempts
	began := time.Now()
	eventually(t, func() bool { return time.Since(began) > 2*time.Second }, "a while")
	require.Less(t, c.Stats().Attempts-before, uint64(2*n), "they don't poll")
	require.Empty(t, errs, "none has failed")
	require.NoError(t, l.Unlock(as("holder")))
	require.NoError(t, recv(t, errs, "the first"))
	cancel()
	p.Latency(0)
	for range n - 1 {
		<-errs
	}
	eventually(t, func() bool { return queued(t, l) == 0 }, "all have left")
}

// What a spin waiter slept by belongs to others once it has the lock. For the race
// detector.
func TestSpin_KeepsNoHandOnWhatOthersUse(t *testing.T) {
	t.Parallel()
	c := onShared(t)
	var all sync.WaitGroup
	end := time.Now().Add(3 * time.Second)
	for k := range 16 {
		l := c.NewSpinLock(unique(fmt.Sprint("spin", k)), WithBackoff(ConstantBackoff{Delay: time.Millisecond}))
		for g := range 2 {
			all.Go(func() {
				o := as(Owner(fmt.Sprint("g", g)))
				for time.Now().Before(end) {
					if l.Lock(o) == nil {
						_ = l.Unlock(o)
					}
				}
			})
		}
	}
	all.Wait()
}

// A Redisson waiter that gives up asynchronously takes 300 s off those behind it,
// whatever it had put there (F12). A live waiter keeps its place and its call.
func TestPEER7_APeerTakesTooMuchOff(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	c := onShared(t)
	l := c.NewFairLock(unique("much"))
	occupy(t, l.Key(), time.Minute)
	queue, scores := script.QueueKey(l.Key()), script.ScoresKey(l.Key())
	now := time.Now().UnixMilli()
	rdb := look(t)
	require.NoError(t, rdb.RPush(ctx, queue, "java:1", "java:2").Err())
	require.NoError(t, rdb.ZAdd(ctx, scores,
		redis.Z{Score: float64(now + 65_000), Member: "java:1"}, redis.Z{Score: float64(now + 70_000), Member: "java:2"}).Err())
	t.Cleanup(func() { rdb.Del(ctx, queue, scores) })
	waiting, cancel := context.WithCancel(as("a"))
	got := async(func() error { return l.Lock(waiting) })
	eventually(t, func() bool { return queued(t, l) == 3 }, "it queues")
	field := rdb.LIndex(ctx, queue, 2).Val()
	require.NoError(t, rdb.ZIncrBy(ctx, scores, -300_000, field).Err())
	require.NoError(t, rdb.LRem(ctx, queue, 0, "java:2").Err())
	require.NoError(t, rdb.ZRem(ctx, scores, "java:2").Err())
	eventually(t, func() bool {
		return rdb.ZScore(ctx, scores, field).Val() > rdb.ZScore(ctx, scores, "java:1").Val()
	}, "it puts its score right")
	require.Equal(t, []string{"java:1", field}, rdb.LRange(ctx, queue, 0, -1).Val())
	cancel()
	require.ErrorIs(t, recv(t, got, "the waiter"), context.Canceled)
}

// The owner "write" has no field that would be taken for a writer's.
func TestPEER5_OwnerCalledWrite(t *testing.T) {
	t.Parallel()
	c := onShared(t, WithWatchdogTimeout(600*time.Millisecond))
	l := c.NewReadWriteLock(unique("w")).ReadLock()
	require.NoError(t, l.Lock(as("write")))
	var field string
	for f := range fields(t, l.Key()) {
		if f != "mode" {
			field = f
		}
	}
	key := "{" + l.Key() + "}:" + field + ":rwlock_timeout:1"
	require.True(t, exists(t, key))
	eventually(t, func() bool { return c.Stats().Renewals >= 6 }, "renewed")
	require.Positive(t, l.Validity(as("write")))
	require.True(t, exists(t, key), "its key is renewed along")
	require.NoError(t, l.Unlock(as("write")))
	nothingLeft(t, l)
}

// Close removes what may stand of both sorts of locks on a name.
func TestEND1_CloseWithStraysOfBothSorts(t *testing.T) {
	t.Parallel()
	look(t)
	p := redistest.NewProxy(t, shared.server.Addr)
	c, _ := throughProxy(t, p)
	name := unique("both")
	l := c.NewLock(name)
	p.On(sends(script.Acquire, l), redistest.LoseReplyAndClose).Times(1)
	require.NoError(t, l.Lock(as("a")))
	require.NoError(t, l.Unlock(as("a")))
	rw := c.NewReadWriteLock(name)
	require.NoError(t, rw.WriteLock().Lock(as("a")))
	require.NoError(t, c.Close(context.Background()))
	require.Empty(t, fields(t, name))
}

// A waiter that dies is waited for by what it has said last, and not by the lease that it
// has found.
func TestFair_DeadWaiterBehindALongLease(t *testing.T) {
	t.Parallel()
	look(t)
	p := redistest.NewProxy(t, shared.server.Addr)
	dead, _ := throughProxy(t, p, WithFairWaitTimeout(time.Second))
	c := onShared(t)
	name := unique("dead")
	l := c.NewFairLock(name)
	require.NoError(t, l.LockLease(as("holder"), time.Hour))
	ctx, cancel := context.WithCancel(as("dead"))
	gone := async(func() error { return dead.NewFairLock(name).Lock(ctx) })
	eventually(t, func() bool {
		scores := look(t).ZRangeWithScores(context.Background(), script.ScoresKey(name), 0, -1).Val()
		return len(scores) == 1 && scores[0].Score < float64(time.Now().Add(time.Minute).UnixMilli())
	}, "it stands in the queue and has said that it lives")
	p.BlackHole(true) // it dies
	require.NoError(t, l.Unlock(as("holder")))
	got, err := l.TryLock(as("next"), limit, 0)
	require.NoError(t, err)
	require.True(t, got)
	cancel()
	<-gone
	p.BlackHole(false)
	require.NoError(t, l.Unlock(as("next")))
}

// One that was left out of the queue comes in again behind others of its process. Its
// place here is before them all the same, and they do not wait for it to ask.
func TestFair_OrderInRedisCounts(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	c := onShared(t, WithFairWaitTimeout(time.Minute))
	l := c.NewFairLock(unique("order"))
	occupy(t, l.Key(), time.Minute)
	first, cancel := context.WithCancel(as("first"))
	gone := async(func() error { return l.Lock(first) })
	eventually(t, func() bool { return queued(t, l) == 1 }, "the first queues")
	second := async(func() error { return l.Lock(as("second")) })
	eventually(t, func() bool { return queued(t, l) == 2 }, "the second queues")
	queue := script.QueueKey(l.Key())
	rdb := look(t)
	head := rdb.LIndex(ctx, queue, 0).Val()
	require.NoError(t, rdb.LMove(ctx, queue, queue, "LEFT", "RIGHT").Err())
	require.NoError(t, rdb.ZIncrBy(ctx, script.ScoresKey(l.Key()), 60_000, head).Err())
	require.NoError(t, rdb.Del(ctx, l.Key()).Err()) // without a message
	require.NoError(t, recv(t, second, "the head"))
	cancel()
	require.ErrorIs(t, recv(t, gone, "the other"), context.Canceled)
	require.NoError(t, l.Unlock(as("second")))
}

// A reader whose hold is over is none, though another one keeps the hash and its field.
func TestRW_DeadReaderHoldsNothing(t *testing.T) {
	t.Parallel()
	c, d := onShared(t), onShared(t)
	name := unique("dead")
	l, other := c.NewReadWriteLock(name).ReadLock(), d.NewReadWriteLock(name).ReadLock()
	require.NoError(t, other.Lock(as("b")))
	require.NoError(t, l.LockLease(as("a"), 100*time.Millisecond))
	recv(t, l.Lost(as("a")), "the end of the lease")
	require.ErrorIs(t, l.Unlock(as("a")), ErrLost)
	eventually(t, func() bool {
		held, err := l.IsHeldBy(as("x"), "a")
		require.NoError(t, err)
		n, err := l.HoldCount(as("a"))
		require.NoError(t, err)
		info, err := other.Info(as("x"))
		require.NoError(t, err)
		return !held && n == 0 && len(info.Holders) == 1
	}, "the dead one is not there")
	require.NoError(t, other.Unlock(as("b")))
	nothingLeft(t, l)
}

// Nobody but readers is inside, and the attempt before it is silent: to a reader that is
// no answer, and not "others had it".
func TestTryLock_BehindAReaderThatIsNotAnswered(t *testing.T) {
	t.Parallel()
	c, p := onProxy(t)
	l := c.NewReadWriteLock(unique("readers")).ReadLock()
	asks := redistest.And(redistest.Command("evalsha"), redistest.HasArg(script.RWAcquire.SHA), redistest.HasArg(l.Key()))
	require.NoError(t, l.Lock(as("r0")))
	require.NoError(t, l.Unlock(as("r0"))) // the script is there
	first := p.On(asks, redistest.HoldReply)
	one := async(func() error { return l.Lock(as("r1")) })
	first.WaitExecuted(t, 1)
	type result struct {
		got bool
		err error
	}
	two := async(func() error { return l.Lock(as("r2")) })
	eventually(t, func() bool { return standing(c, l.Key()) == 2 }, "the second stands in line")
	three := async(func() result { got, err := l.TryLock(as("r3"), 300*time.Millisecond, 0); return result{got, err} })
	eventually(t, func() bool { return standing(c, l.Key()) == 3 }, "the third too")
	second := p.On(asks, redistest.HoldReply)
	first.Release()
	require.NoError(t, recv(t, one, "the first"))
	second.WaitExecuted(t, 1)
	r := recv(t, three, "the third")
	second.Off()
	require.NoError(t, recv(t, two, "the second"))
	require.False(t, r.got)
	require.ErrorIs(t, r.err, ErrUnsettled)
}

// standing is how many stand in line at a key.
func standing(c *Client, key string) (n int) {
	e := c.find(key)
	if e == nil {
		return 0
	}
	defer c.leave(e)
	e.lock()
	defer e.unlock()
	e.gate.All(func(*place) bool { n++; return true })
	return n
}

// An owner of two goroutines: one waits to write, the other one to read, and another
// writer stands between them. When the first writes, the second does not wait.
func TestRW_AReadBesideAWriteThatCameWhileItWaited(t *testing.T) {
	t.Parallel()
	c := onShared(t)
	l := c.NewReadWriteLock(unique("beside"))
	r, w := l.ReadLock(), l.WriteLock()
	require.NoError(t, w.Lock(as("a")))
	writes := async(func() error { return w.Lock(as("b")) })
	waitForWaiters(t, c, 1)
	ctx, cancel := context.WithCancel(as("c"))
	other := async(func() error { return w.Lock(ctx) })
	waitForWaiters(t, c, 2)
	reads := async(func() error { return r.Lock(as("b")) })
	waitForWaiters(t, c, 3)
	require.NoError(t, w.Unlock(as("a")))
	require.NoError(t, recv(t, writes, "b writes"))
	require.NoError(t, recv(t, reads, "b reads beside it"))
	require.NoError(t, r.Unlock(as("b")))
	require.NoError(t, w.Unlock(as("b")))
	cancel()
	if recv(t, other, "c") == nil {
		require.NoError(t, w.Unlock(as("c")))
	}
}

// The counter of the next owner's tokens is bad: that is no business of the holder's.
func TestFenced_AHandOverWithABadCounter(t *testing.T) {
	t.Parallel()
	c := onShared(t)
	name := unique("counter")
	l, f := c.NewLock(name), c.NewFencedLock(name)
	require.NoError(t, l.Lock(as("a")))
	next := async(func() error { return f.Lock(as("b")) })
	waitForWaiters(t, c, 1)
	require.NoError(t, look(t).Set(t.Context(), script.TokenKey(name), "abc", 0).Err())
	t.Cleanup(func() { look(t).Del(context.Background(), script.TokenKey(name)) })
	require.NoError(t, l.Unlock(as("a")))
	require.ErrorIs(t, recv(t, next, "the next one"), ErrWrongType)
	free(t, name)
	require.NoError(t, l.Lock(as("c")))
	require.NoError(t, l.Unlock(as("c")))
}

// Whoever forces a lock open and leaves before the answer keeps nothing in memory.
func TestForceUnlock_WhoseCallerLeaves(t *testing.T) {
	t.Parallel()
	c, p := onProxy(t)
	l := c.NewLock(unique("force"))
	occupy(t, l.Key(), time.Minute)
	rule := p.On(redistest.HasArg(l.Key()), redistest.HoldReply)
	ctx, cancel := context.WithCancel(as("x"))
	forced := async(func() error { _, err := l.ForceUnlock(ctx); return err })
	rule.WaitExecuted(t, 1)
	cancel()
	require.ErrorIs(t, recv(t, forced, "ForceUnlock"), ErrUnsettled)
	rule.Release()
	eventually(t, func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.entries[l.Key()] == nil
	}, "the entry is forgotten")
}

// A process that is started anew with its id finds what it held before, three deep, and
// holds it once.
func TestHoldCount_AfterARestartWithTheSameID(t *testing.T) {
	t.Parallel()
	onEachKind(t, func(t *testing.T, l, _ anyLock) {
		id := string(NewOwner())
		before, after := onShared(t, WithID(id)), onShared(t, WithID(id))
		like := func(c *Client) anyLock {
			switch l.(type) {
			case *FairLock:
				return c.NewFairLock(l.Name())
			case *FencedLock:
				return c.NewFencedLock(l.Name())
			case *SpinLock:
				return c.NewSpinLock(l.Name())
			case *ReadLock:
				return c.NewReadWriteLock(l.Name()).ReadLock()
			case *WriteLock:
				return c.NewReadWriteLock(l.Name()).WriteLock()
			}
			return c.NewLock(l.Name())
		}
		for range 3 {
			require.NoError(t, like(before).Lock(as("o")))
		}
		own := like(after)
		require.NoError(t, own.Lock(as("o")))
		n, err := own.HoldCount(as("o"))
		require.NoError(t, err)
		require.Equal(t, 1, n)
		eventually(t, func() bool {
			for field, depth := range fields(t, l.Key()) {
				if strings.HasPrefix(field, id) {
					return depth == "1"
				}
			}
			return false
		}, "Redis has it so, too")
		require.NoError(t, own.Unlock(as("o")))
	})
}

// A process that had its share leaves the lock to others for a moment. Who tries in that
// moment hears that others have it, and not that nobody knows.
func TestTryLock_WhileTheHeadLetsOthersGoFirst(t *testing.T) {
	t.Parallel()
	for _, what := range []string{"lock", "spin"} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			c := onShared(t, WithHandoffLimit(0, 0))
			l := kindsOfLocks[what].lock(c, unique(what))
			for range 2 { // others listen
				s := look(t).Subscribe(t.Context(), script.Channel(l.Key()))
				defer s.Close()
				_, err := s.Receive(t.Context())
				require.NoError(t, err)
			}
			require.NoError(t, l.Lock(as("a")))
			next := async(func() error { return l.Lock(as("b")) })
			waitForWaiters(t, c, 1)
			require.NoError(t, l.Unlock(as("a")))
			got, err := l.TryLock(as("c"), 5*time.Millisecond, 0)
			if got { // the moment was over
				require.NoError(t, l.Unlock(as("c")))
			}
			if err != nil {
				require.NotContains(t, err.Error(), "no attempt on this key was answered")
			}
			require.NoError(t, recv(t, next, "the head"))
			require.NoError(t, l.Unlock(as("b")))
		})
	}
}

// The restart guard keeps a read beside the owner's own write out for a moment: it waits
// for that as for a holder, whether it stood in line before or not.
func TestRW_AReadBesideAWriteWaitsForTheGuard(t *testing.T) {
	t.Parallel()
	for _, waits := range []bool{false, true} {
		c, p := onProxy(t)
		l := c.NewReadWriteLock(unique("guarded"))
		r, w := l.ReadLock(), l.WriteLock()
		asks := redistest.And(redistest.Command("evalsha"), redistest.HasArg(script.RWAcquire.SHA), redistest.HasArg(r.Key()), redistest.HasArg("read"))
		require.NoError(t, r.Lock(as("warm")))
		require.NoError(t, r.Unlock(as("warm")))
		p.On(asks, redistest.Reply("$13\r\nrestarted:200\r\n")).Times(1)
		ctx := as("o")
		if !waits {
			require.NoError(t, w.Lock(ctx))
			require.NoError(t, r.Lock(ctx))
		} else {
			require.NoError(t, w.Lock(as("x")))
			writes := async(func() error { return w.Lock(ctx) })
			waitForWaiters(t, c, 1)
			behind, stop := context.WithCancel(as("p"))
			other := async(func() error { return w.Lock(behind) })
			waitForWaiters(t, c, 2)
			reads := async(func() error { return r.Lock(ctx) })
			waitForWaiters(t, c, 3)
			require.NoError(t, w.Unlock(as("x")))
			require.NoError(t, recv(t, writes, "the write half"))
			require.NoError(t, recv(t, reads, "the read half"))
			stop()
			require.Error(t, recv(t, other, "the other"))
		}
		require.NoError(t, r.Unlock(ctx))
		require.NoError(t, w.Unlock(ctx))
	}
}

// An earlier request on the key is silent: a read beside the own write is unsettled then.
func TestRW_AReadBesideAWriteThatIsNotAnswered(t *testing.T) {
	t.Parallel()
	c, p := onProxy(t)
	l := c.NewReadWriteLock(unique("silent"))
	r, w := l.ReadLock(), l.WriteLock()
	ctx := as("o")
	require.NoError(t, w.Lock(ctx))
	rule := p.On(redistest.And(redistest.HasArg(script.RWKeep.SHA), redistest.HasArg(w.Key())), redistest.HoldReply)
	extended := async(func() error { return w.Extend(ctx, time.Minute) })
	rule.WaitExecuted(t, 1)
	got, err := r.TryLock(ctx, 100*time.Millisecond, 0)
	rule.Off()
	rule.Release()
	require.NoError(t, recv(t, extended, "Extend"))
	require.False(t, got)
	require.ErrorIs(t, err, ErrUnsettled)
	require.NoError(t, w.Unlock(ctx))
}

// Redis has given the lock to somebody else, and its writer has not heard of that yet. Its
// own read is refused, and sleeps like anybody's.
func TestRW_AReadBesideAWriteThatRedisHasNot(t *testing.T) {
	t.Parallel()
	c, p := onProxy(t)
	l := c.NewReadWriteLock(unique("gone"))
	r, w := l.ReadLock(), l.WriteLock()
	require.NoError(t, w.Lock(as("b")))
	ctx, cancel := context.WithCancel(as("c"))
	other := async(func() error { return w.Lock(ctx) })
	waitForWaiters(t, c, 1)
	remove(t, w.Key())
	require.NoError(t, look(t).HSet(t.Context(), w.Key(), "mode", "write", "foreign:1:write", 1).Err())
	require.NoError(t, look(t).Expire(t.Context(), w.Key(), time.Minute).Err())
	p.ResetCounts()
	reading, stop := context.WithCancel(as("b"))
	reads := async(func() error { return r.Lock(reading) })
	waitForWaiters(t, c, 2)
	time.Sleep(300 * time.Millisecond) // in which it is to be quiet
	require.LessOrEqual(t, p.CountCommand("evalsha"), 10)
	stop()
	require.Error(t, recv(t, reads, "the read"))
	cancel()
	require.Error(t, recv(t, other, "the other writer"))
	require.ErrorIs(t, w.Unlock(as("b")), ErrLost)
	remove(t, w.Key())
}
