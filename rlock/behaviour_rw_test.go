package rlock

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/redistest"
	"github.com/relock-go/relock/internal/script"
)

// What Redisson's own tests ask of a read-write lock, as far as no other test here does.
// The comment of each test begins with what they ask.

// halves are the two halves of the read-write lock of that name.
func halves(c *Client, name string) (r *ReadLock, w *WriteLock) {
	l := c.NewReadWriteLock(name)
	return l.ReadLock(), l.WriteLock()
}

// nearly is d but for the moment by which a holder and Redis may see its end apart.
func nearly(d time.Duration) time.Duration { return d - d/50 - 5*time.Millisecond }

// refusedOnce tells that one attempt does not get l.
func refusedOnce(t testing.TB, l anyLock, o Owner, why string) {
	t.Helper()
	got, err := l.TryLock(as(o), 0, 0)
	require.NoError(t, err)
	require.False(t, got, why)
}

// Readers with a short and a long lease, none of which unlocks: a writer comes in when the
// long one is over.
func TestRWBehaviour_WriterWaitsForTheLongestLease(t *testing.T) {
	t.Parallel()
	r, w := halves(onShared(t), unique("longest"))
	far, _ := halves(onShared(t), r.Name())
	const long = 900 * time.Millisecond
	began := time.Now()
	require.NoError(t, r.LockLease(as("a"), long))
	require.NoError(t, far.LockLease(as("b"), long/3))
	require.NoError(t, w.Lock(as("w")))
	require.GreaterOrEqual(t, time.Since(began), nearly(long))
	require.True(t, isClosed(r.Lost(as("a"))))
	require.ErrorIs(t, r.Unlock(as("a")), ErrLost)
	require.ErrorIs(t, far.Unlock(as("b")), ErrLost)
	require.NoError(t, w.Unlock(as("w")))
	nothingLeft(t, w)
}

// The read half is not locked by a writer, but by one that reads too.
func TestRWBehaviour_IsLockedOfEachHalf(t *testing.T) {
	t.Parallel()
	r, w := halves(onShared(t), unique("islocked"))
	far, farW := halves(onShared(t), r.Name())
	locked := func(read, write bool) {
		t.Helper()
		for _, l := range []struct {
			half anyLock
			want bool
		}{{r, read}, {far, read}, {w, write}, {farW, write}} {
			for _, o := range []Owner{"a", "b"} {
				is, err := l.half.IsLocked(as(o))
				require.NoError(t, err)
				require.Equal(t, l.want, is)
			}
		}
	}
	locked(false, false)
	require.NoError(t, w.Lock(as("a")))
	locked(false, true)
	require.NoError(t, r.Lock(as("a")))
	locked(true, true)
	require.NoError(t, r.Unlock(as("a")))
	locked(false, true)
	require.NoError(t, r.Lock(as("a")))
	require.NoError(t, w.Unlock(as("a")))
	locked(true, false)
	require.NoError(t, r.Unlock(as("a")))
	locked(false, false)
	nothingLeft(t, w)
}

// 10 readers with 5 holds each, for longer than the watchdog timeout: each Unlock finds
// its hold.
func TestRWBehaviour_ManyReadsOutliveTheWatchdogTimeout(t *testing.T) {
	t.Parallel()
	c := onShared(t, WithWatchdogTimeout(900*time.Millisecond))
	r, w := halves(c, unique("fifty"))
	const readers, each = 10, 5
	for i := range readers {
		for range each {
			require.NoError(t, r.Lock(as(Owner(fmt.Sprint("r", i)))))
		}
	}
	eventually(t, func() bool { return c.Stats().Renewals >= 4*readers }, "renewed for longer than the timeout")
	refusedOnce(t, w, "w", "they read")
	for i := range readers { // one after the other: the last ones are kept by the watchdog alone
		for range each {
			require.NoError(t, r.Unlock(as(Owner(fmt.Sprint("r", i)))))
		}
	}
	nothingLeft(t, r)
}

// A name that has a hash tag and more: ten readers at once, and the keys of their holds
// lie in its slot.
func TestRWBehaviour_NameWithAHashTag(t *testing.T) {
	t.Parallel()
	c := onShared(t)
	r, w := halves(c, "{"+unique("tag")+"}:abc:key")
	var all sync.WaitGroup
	for i := range 10 {
		all.Go(func() {
			if err := r.Lock(as(Owner(fmt.Sprint("r", i)))); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	require.Len(t, fields(t, r.Key()), 11)
	for i := range 10 {
		require.True(t, exists(t, fmt.Sprintf("%s:%s:r%d:rwlock_timeout:1", r.Name(), c.ID(), i)))
	}
	refusedOnce(t, w, "w", "they read")
	for i := range 10 {
		all.Go(func() {
			if err := r.Unlock(as(Owner(fmt.Sprint("r", i)))); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	nothingLeft(t, r)
}

// A nested Lock with a shorter lease does not shorten the hold, of either half, and the
// Unlock of it doesn't. Theirs adds up a writer's leases.
func TestRWBehaviour_ShorterNestedLease(t *testing.T) {
	t.Parallel()
	c := onShared(t)
	r, w := halves(c, unique("shorter"))
	for _, l := range []anyLock{r, w} {
		minute := func() {
			t.Helper()
			between(t, 40*time.Second, time.Minute, pttl(t, l.Key()), "in Redis")
			between(t, 40*time.Second, time.Minute, l.Validity(as("a")), "here")
		}
		require.NoError(t, l.LockLease(as("a"), time.Minute))
		require.NoError(t, l.LockLease(as("a"), time.Second))
		minute()
		require.NoError(t, l.Unlock(as("a")))
		minute()
		require.NoError(t, l.Unlock(as("a")))
		nothingLeft(t, l)
	}
}

// The Unlock of a nested read gives its outer hold the time back that is left of it. Here
// an owner's reads are one hold with one lease, so a longer nested one stays, and only the
// key of the inner one goes.
func TestRWBehaviour_NestedReadUnlocked(t *testing.T) {
	t.Parallel()
	c := onShared(t)
	r, w := halves(c, unique("nested"))
	key := script.HoldBase(r.Key()) + ":" + c.ID() + ":a:rwlock_timeout:"
	require.NoError(t, r.LockLease(as("a"), 30*time.Second))
	require.NoError(t, r.LockLease(as("a"), time.Minute))
	require.NoError(t, r.Unlock(as("a")))
	for _, at := range []string{r.Key(), key + "1"} {
		between(t, 40*time.Second, time.Minute, pttl(t, at), at)
	}
	between(t, 40*time.Second, time.Minute, r.Validity(as("a")), "here")
	require.False(t, exists(t, key+"2"))
	refusedOnce(t, w, "w", "the outer hold is there")
	require.NoError(t, r.Unlock(as("a")))
	nothingLeft(t, r)
}

// A writer whose lease runs out: readers of all clients come in, and so does the next
// writer. The late Unlock is an error and takes nobody's hold away.
func TestRWBehaviour_WriteLeaseRunsOut(t *testing.T) {
	t.Parallel()
	r, w := halves(onShared(t), unique("writelease"))
	far, farW := halves(onShared(t), r.Name())
	const lease = 300 * time.Millisecond
	began := time.Now()
	require.NoError(t, w.LockLease(as("w"), lease))
	near, away := async(func() error { return r.Lock(as("r")) }), async(func() error { return far.Lock(as("r")) })
	require.NoError(t, recv(t, near, "the reader here"))
	require.GreaterOrEqual(t, time.Since(began), nearly(lease))
	require.NoError(t, recv(t, away, "the reader of another client"))
	require.ErrorIs(t, w.Unlock(as("w")), ErrLost)
	require.NoError(t, r.Unlock(as("r")))
	require.NoError(t, far.Unlock(as("r")))

	began = time.Now()
	require.NoError(t, w.LockLease(as("w"), lease))
	require.NoError(t, farW.Lock(as("w")))
	require.GreaterOrEqual(t, time.Since(began), nearly(lease))
	require.ErrorIs(t, w.Unlock(as("w")), ErrLost)
	require.NoError(t, farW.Unlock(as("w")), "the late Unlock was not of this one")
	nothingLeft(t, w)
}

// A read lease that runs out: another reader comes in at once, and goes on. Theirs has no
// error for the late Unlock, here it is ErrLost.
func TestRWBehaviour_ReadLeaseRunsOut(t *testing.T) {
	t.Parallel()
	r, w := halves(onShared(t), unique("readlease"))
	far, _ := halves(onShared(t), r.Name())
	require.NoError(t, r.LockLease(as("a"), 300*time.Millisecond))
	lost := r.Lost(as("a"))
	got, err := far.TryLock(as("b"), 0, 0)
	require.NoError(t, err)
	require.True(t, got)
	recv(t, lost, "the end of the lease")
	require.ErrorIs(t, r.Unlock(as("a")), ErrLost)
	held, err := far.IsHeld(as("b"))
	require.NoError(t, err)
	require.True(t, held)
	refusedOnce(t, w, "w", "the other one reads")
	require.NoError(t, far.Unlock(as("b")))
	nothingLeft(t, r)
}

// A reader that comes and goes does not lengthen the lease of one that was there before.
func TestRWBehaviour_ALaterReaderLengthensNothing(t *testing.T) {
	t.Parallel()
	r, w := halves(onShared(t), unique("later"))
	far, _ := halves(onShared(t), r.Name())
	const lease = 600 * time.Millisecond
	require.NoError(t, r.LockLease(as("a"), lease))
	for range 2 {
		require.NoError(t, far.LockLease(as("b"), time.Hour))
		require.NoError(t, far.Unlock(as("b")))
		require.LessOrEqual(t, pttl(t, r.Key()), lease)
	}
	require.NoError(t, w.Lock(as("w")), "it waits for the lease, and not for an hour")
	require.ErrorIs(t, r.Unlock(as("a")), ErrLost)
	require.NoError(t, w.Unlock(as("w")))
	nothingLeft(t, w)
}

// A writer that reads and unlocks the read half is the writer still, for as long as
// before. Its Unlock frees the lock.
func TestRWBehaviour_ReadInsideAWrite(t *testing.T) {
	t.Parallel()
	r, w := halves(onShared(t), unique("inside"))
	far, farW := halves(onShared(t), r.Name())
	require.NoError(t, w.LockLease(as("a"), time.Minute))
	require.NoError(t, r.LockLease(as("a"), time.Second))
	require.NoError(t, r.LockLease(as("a"), time.Second))
	for range 2 {
		require.NoError(t, r.Unlock(as("a")))
		between(t, 40*time.Second, time.Minute, pttl(t, w.Key()), "the writer's lease")
		held, err := w.IsHeld(as("a"))
		require.NoError(t, err)
		require.True(t, held)
		for _, l := range []anyLock{r, w, far, farW} {
			refusedOnce(t, l, "b", "it writes")
		}
	}
	require.NoError(t, w.Unlock(as("a")))
	free(t, w.Key())
	require.NoError(t, farW.Lock(as("b")))
	require.NoError(t, farW.Unlock(as("b")))
	nothingLeft(t, w)
}

// Readers that wait behind a writer are inside together once it unlocks, those of other
// clients too.
func TestRWBehaviour_TwentyReadersRunTogether(t *testing.T) {
	t.Parallel()
	clients := []*Client{onShared(t), onShared(t)}
	name := unique("twenty")
	r, w := halves(clients[0], name)
	require.NoError(t, w.Lock(as("w")))
	in, over := make(chan error, 20), make(chan struct{})
	var all sync.WaitGroup
	for i := range 20 {
		l, _ := halves(clients[i%2], name)
		all.Go(func() {
			o := as(Owner(fmt.Sprint("r", i)))
			in <- l.Lock(o)
			<-over
			if err := l.Unlock(o); err != nil {
				t.Error(err)
			}
		})
	}
	for _, c := range clients {
		waitForWaiters(t, c, 10)
	}
	require.Empty(t, in, "it writes")
	require.NoError(t, w.Unlock(as("w")))
	for range 20 {
		require.NoError(t, recv(t, in, "one more reader, and none has left"))
	}
	require.Len(t, fields(t, r.Key()), 21)
	close(over)
	all.Wait()
	nothingLeft(t, w)
}

// While a writer reads too, others may not read. When it has unlocked the write half they
// may, and nobody may write until the last of them has left.
func TestRWBehaviour_WriterWithItsOwnRead(t *testing.T) {
	t.Parallel()
	r, w := halves(onShared(t), unique("ownread"))
	far, farW := halves(onShared(t), r.Name())
	require.NoError(t, w.Lock(as("a")))
	require.NoError(t, r.Lock(as("a")))
	for _, l := range []anyLock{r, far, w, farW} {
		refusedOnce(t, l, "b", "it writes")
	}
	require.NoError(t, w.Unlock(as("a")))
	refusedOnce(t, w, "b", "it reads still")
	refusedOnce(t, farW, "b", "it reads still")
	got, err := far.TryLock(as("b"), 0, 0)
	require.NoError(t, err)
	require.True(t, got)
	require.NoError(t, r.Unlock(as("a")))
	refusedOnce(t, w, "c", "another one reads")
	require.NoError(t, far.Unlock(as("b")))
	got, err = farW.TryLock(as("b"), 0, 0)
	require.NoError(t, err)
	require.True(t, got)
	require.NoError(t, farW.Unlock(as("b")))
	nothingLeft(t, w)
}

// ForceUnlock of one half leaves the other alone.
func TestRWBehaviour_ForceOfTheOtherHalf(t *testing.T) {
	t.Parallel()
	r, w := halves(onShared(t), unique("force"))
	far, farW := halves(onShared(t), r.Name())
	for _, c := range []struct{ held, forced anyLock }{{r, w}, {r, farW}, {w, r}, {w, far}} {
		require.NoError(t, c.held.Lock(as("a")))
		before := fields(t, r.Key())
		removed, err := c.forced.ForceUnlock(as("x"))
		require.NoError(t, err)
		require.False(t, removed)
		require.Equal(t, before, fields(t, r.Key()))
		require.False(t, isClosed(c.held.Lost(as("a"))))
		require.NoError(t, c.held.Unlock(as("a")))
		nothingLeft(t, r)
	}
}

// A write and a read hold of one owner are kept together by the watchdog, and the read
// goes on being kept when the write half was unlocked.
func TestRWBehaviour_WatchdogKeepsBothHalves(t *testing.T) {
	t.Parallel()
	c := onShared(t, WithWatchdogTimeout(900*time.Millisecond))
	r, w := halves(c, unique("both"))
	key := script.HoldBase(r.Key()) + ":" + c.ID() + ":a:rwlock_timeout:1"
	require.NoError(t, w.Lock(as("a")))
	require.NoError(t, r.Lock(as("a")))
	kept := func(n uint64) {
		t.Helper()
		from := c.Stats().Renewals
		eventually(t, func() bool {
			require.Positive(t, pttl(t, r.Key()))
			require.Positive(t, pttl(t, key))
			return c.Stats().Renewals >= from+n
		}, "renewed for longer than the timeout")
		require.Positive(t, r.Validity(as("a")))
		refusedOnce(t, w, "b", "it is kept")
	}
	kept(8) // two holds
	require.Positive(t, w.Validity(as("a")))
	refusedOnce(t, r, "b", "it writes")
	require.NoError(t, w.Unlock(as("a")))
	kept(4)
	require.NoError(t, r.Unlock(as("a")))
	nothingLeft(t, r)
}

// A reader whose client died is dead when its time is over, though another one keeps
// reading and renewing. The writer comes in when that one has left.
func TestRWBehaviour_DeadReaderBesideALiveOne(t *testing.T) {
	t.Parallel()
	dead, p := onProxy(t, WithWatchdogTimeout(900*time.Millisecond))
	t.Cleanup(func() { p.BlackHole(false) })
	c, d := onShared(t, WithWatchdogTimeout(900*time.Millisecond)), onShared(t)
	gone, _ := halves(dead, unique("dead"))
	r, _ := halves(c, gone.Name())
	_, w := halves(d, gone.Name())
	require.NoError(t, gone.Lock(as("a")))
	require.NoError(t, gone.Lock(as("a")))
	require.NoError(t, r.Lock(as("a")))
	entered := async(func() error { return w.Lock(as("w")) })
	waitForWaiters(t, d, 1)
	field := dead.ID() + ":a"
	key := script.HoldBase(r.Key()) + ":" + field + ":rwlock_timeout:"
	p.BlackHole(true)
	eventually(t, func() bool { return !exists(t, key+"1") && !exists(t, key+"2") }, "its time is over")
	from := c.Stats().Renewals
	eventually(t, func() bool { return c.Stats().Renewals >= from+3 }, "the other one is renewed")
	require.False(t, exists(t, key+"1"), "and does not renew the dead one")
	require.Contains(t, fields(t, r.Key()), field, "what the dead one left")
	require.Positive(t, r.Validity(as("a")))
	require.Empty(t, entered, "one reads")
	require.NoError(t, r.Unlock(as("a")))
	require.NoError(t, recv(t, entered, "the writer"))
	require.NoError(t, w.Unlock(as("w")))
	p.BlackHole(false)
	require.ErrorIs(t, gone.Unlock(as("a")), ErrLost)
	require.ErrorIs(t, gone.Unlock(as("a")), ErrLost)
	nothingLeft(t, w)
}

// The times of many dead readers pass together: 20 clients with 3 holds each delay a
// writer by no more than one.
func TestRWBehaviour_TwentyDeadReaders(t *testing.T) {
	t.Parallel()
	look(t)
	p := redistest.NewProxy(t, shared.server.Addr)
	rdb := redistest.NewClient(t, p.Addr)
	name := unique("deadmany")
	for range 20 {
		r, _ := halves(newClient(t, rdb, WithWatchdogTimeout(time.Second)), name)
		for range 3 {
			require.NoError(t, r.Lock(as("a")))
		}
	}
	t.Cleanup(func() { p.BlackHole(false) })
	_, w := halves(onShared(t), name)
	refusedOnce(t, w, "w", "they read")
	p.BlackHole(true)
	got, err := w.TryLock(as("w"), limit, 0) // one by one they would take a minute
	require.NoError(t, err)
	require.True(t, got)
	require.NoError(t, w.Unlock(as("w")))
	p.BlackHole(false)
	nothingLeft(t, w)
}
