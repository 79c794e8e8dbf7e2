package script

import (
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// The golden vectors of a Redisson read-write lock, R1 to R25 and W1 to W15. What a peer
// relies on is the end state, the TTL and the message; where we differ, the comment says
// how.

// rwBench is a bench whose key is a read-write lock.
type rwBench struct{ *bench }

func onEachRW(t *testing.T, test func(b rwBench)) {
	onEach(t, func(b *bench) {
		b.listen(RWChannel(b.key))
		test(rwBench{b})
	})
}

const (
	writerA = fieldA + ":write"
	writerB = fieldB + ":write"
)

func (b rwBench) read(ttl any, field string, found ...string) Answer {
	return b.run.Send(b.t.Context(), RWAcquire, 1,
		more([]any{b.key, ttl, field, 0, "read", HoldBase(b.key), field + ":write"}, found)...)
}

func (b rwBench) write(ttl any, field string, found ...string) Answer {
	return b.run.Send(b.t.Context(), RWAcquire, 1,
		more([]any{b.key, ttl, field, 0, "write", HoldBase(b.key), ""}, found)...)
}

func (b rwBench) deepen(ttl any, field string, depth int) Answer {
	return b.run.Send(b.t.Context(), RWKeep, 1, b.key, ttl, field, depth, HoldBase(b.key))
}

func (b rwBench) leave(field string, found ...string) Answer {
	return b.run.Send(b.t.Context(), RWRelease, 1,
		more([]any{b.key, RWChannel(b.key), "publish", HoldBase(b.key), field}, found)...)
}

func (b rwBench) handOver(ttl any, field string, found ...string) Answer {
	return b.run.Send(b.t.Context(), RWPass, 1, more([]any{b.key, ttl, field, HoldBase(b.key), RWChannel(b.key), "publish"}, found)...)
}

func (b rwBench) prolong(ttl any, field string) Answer {
	return b.run.Send(b.t.Context(), RWRenew, 1, b.key, ttl, field, HoldBase(b.key))
}

func (b rwBench) remove(half string) Answer {
	return b.run.Send(b.t.Context(), RWForce, 1, b.key, RWChannel(b.key), "publish", half, HoldBase(b.key))
}

func more(list []any, rest []string) []any {
	for _, s := range rest {
		list = append(list, s)
	}
	return list
}

// holds checks the PTTLs of the keys of field's read holds: the first, the second ...
func (b rwBench) holds(field string, want ...time.Duration) {
	b.t.Helper()
	for i, ttl := range append(want, 0) {
		got := b.rdb.PTTL(b.t.Context(), b.hold(field, i+1)).Val()
		if ttl == 0 {
			require.Negative(b.t, got, "hold %d of %s", i+1, field)
			continue
		}
		near(b.t, ttl, got)
	}
}

func (b rwBench) hold(field string, n int) string {
	return HoldBase(b.key) + ":" + field + ":rwlock_timeout:" + strconv.Itoa(n)
}

// peer puts what a peer has into the hash, and its hold keys by number.
func (b rwBench) peer(ttl time.Duration, values map[string]any, field string, keys map[int]time.Duration) {
	b.t.Helper()
	ctx := b.t.Context()
	require.NoError(b.t, b.rdb.HSet(ctx, b.key, values).Err())
	if ttl > 0 {
		require.NoError(b.t, b.rdb.PExpire(ctx, b.key, ttl).Err())
	}
	for n, ttl := range keys {
		require.NoError(b.t, b.rdb.Set(ctx, b.hold(field, n), "1", ttl).Err())
	}
}

func (b rwBench) clear() {
	b.t.Helper()
	require.NoError(b.t, b.rdb.FlushAll(b.t.Context()).Err())
}

type hash = map[string]string

const s = time.Second

func TestGoldenReaders(t *testing.T) {
	t.Parallel()
	onEachRW(t, func(b rwBench) {
		b.says("granted", b.read(30000, fieldA)) // R1
		b.says("kept", b.deepen(10000, fieldA, 2))
		b.says("granted", b.read(5000, fieldB))
		r1 := hash{"mode": "read", fieldA: "2", fieldB: "1"}
		b.stands(r1, 30*s)
		b.holds(fieldA, 30*s, 10*s)
		b.holds(fieldB, 5*s)
		b.held(30*s, b.write(30000, writerA)) // R2
		b.held(30*s, b.write(30000, "U:3:write"))
		b.stands(r1, 30*s)
		b.says("kept", b.deepen(30000, fieldA, 1)) // R3
		b.stands(hash{"mode": "read", fieldA: "1", fieldB: "1"}, 30*s)
		b.holds(fieldA, 30*s)
		b.says("released:others", b.leave(fieldA)) // R4
		b.stands(hash{"mode": "read", fieldB: "1"}, 5*s)
		b.holds(fieldA)
		b.says("released", b.leave(fieldB)) // R5
		b.free("0")
		b.holds(fieldB)
		b.says("gone", b.leave(fieldB)) // R6: no latch, no message
		b.says("gone", b.leave(writerA))
		b.free()
	})
}

func TestGoldenReaderReleases(t *testing.T) {
	t.Parallel()
	onEachRW(t, func(b rwBench) {
		b.says("granted", b.read(30000, fieldA)) // R8
		b.says("gone", b.leave(fieldB))
		b.says("gone", b.leave(writerB))
		b.says("gone", b.leave(writerA))
		b.stands(hash{"mode": "read", fieldA: "1"}, 30*s)
		for _, dead := range []map[int]time.Duration{nil, {2: 20 * s}, {1: 0}} { // R9, R11
			b.clear()
			b.says("granted", b.read(30000, fieldA))
			b.peer(0, map[string]any{"go:7": 1}, "go:7", dead)
			b.says("released", b.leave(fieldA))
			b.free("0")
		}
		for _, n := range []int{1, 3} { // R10
			b.clear()
			b.says("granted", b.read(30000, fieldA))
			b.peer(0, map[string]any{"go:7": 3}, "go:7", map[int]time.Duration{n: 20 * s})
			b.says("released:others", b.leave(fieldA))
			b.stands(hash{"mode": "read", "go:7": "3"}, 20*s)
		}
		b.clear() // R12
		b.says("granted", b.read(20000, "go:1"))
		b.says("granted", b.read(40000, "go:2"))
		b.says("granted", b.read(30000, fieldA))
		b.says("released:others", b.leave(fieldA))
		b.stands(hash{"mode": "read", "go:1": "1", "go:2": "1"}, 40*s)
		b.says("released:others", b.leave("go:2"))
		b.stands(hash{"mode": "read", "go:1": "1"}, 20*s)
		b.says("released", b.leave("go:1"))
		b.free("0")
	})
}

func TestGoldenReaderTTLs(t *testing.T) {
	t.Parallel()
	onEachRW(t, func(b rwBench) {
		for _, second := range []int{2000, 30000} { // R14; R15: the longest is kept
			b.says("granted", b.read(32000-second, fieldA))
			b.says("kept", b.deepen(second, fieldA, 2))
			b.says("kept", b.deepen(1000, fieldA, 1))
			b.stands(hash{"mode": "read", fieldA: "1"}, 30*s)
			b.clear()
		}
		b.says("granted", b.read(10000, fieldA)) // R16
		b.says("kept", b.deepen(10000, fieldA, 2))
		b.says("granted", b.read(10000, fieldB))
		b.says("k", b.prolong(30000, fieldA))
		b.says("k", b.prolong(30000, fieldB))
		all := hash{"mode": "read", fieldA: "2", fieldB: "1"}
		b.stands(all, 30*s)
		b.holds(fieldA, 30*s, 30*s)
		b.holds(fieldB, 30*s)
		b.says("g", b.prolong(60000, "U:9")) // R17
		b.stands(all, 30*s)
		require.NoError(b.t, b.rdb.Del(b.t.Context(), b.hold(fieldA, 1)).Err()) // R18: it is made again
		b.says("k", b.prolong(30000, fieldA))
		b.holds(fieldA, 30*s, 30*s)

		b.clear() // R19: the TTL is not cut
		b.says("granted", b.read(3600000, fieldB))
		b.says("granted", b.read(30000, fieldA))
		b.says("k", b.prolong(30000, fieldA))
		b.stands(hash{"mode": "read", fieldA: "1", fieldB: "1"}, time.Hour)
		require.NoError(b.t, b.rdb.PExpire(b.t.Context(), b.key, 30*s).Err()) // by a peer
		b.says("k", b.prolong(0, fieldB))                                     // PEER-6
		b.stands(hash{"mode": "read", fieldA: "1", fieldB: "1"}, time.Hour)
		b.holds(fieldA, 30*s)
		b.says("released:others", b.leave(fieldA)) // R20
		b.stands(hash{"mode": "read", fieldB: "1"}, time.Hour)

		b.clear() // R22
		b.peer(0, map[string]any{"mode": "read", fieldB: 1}, fieldB, nil)
		b.says("granted", b.read(30000, fieldA))
		b.stands(hash{"mode": "read", fieldA: "1", fieldB: "1"}, 30*s)
	})
}

func TestGoldenRWForceAndOtherKinds(t *testing.T) {
	t.Parallel()
	onEachRW(t, func(b rwBench) {
		b.says("granted", b.read(30000, fieldA)) // R21; the hold keys go too
		b.says("free", b.remove("write"))
		b.says("removed", b.remove("read"))
		b.free("0")
		b.holds(fieldA)
		b.says("granted", b.write(30000, writerA)) // W12
		b.says("free", b.remove("read"))
		b.says("removed", b.remove("write"))
		b.says("free", b.remove("write"))
		b.free("1")
		b.set(30*s, fieldB) // R23: refused
		b.says("lock", b.read(30000, fieldA))
		b.says("lock", b.write(30000, writerA))
		b.says("lock", b.remove("read"))
		b.says("gone", b.leave(fieldB))
		b.says("gone", b.deepen(30000, fieldB, 2))
		b.says("g", b.prolong(60000, fieldB))
		b.stands(hash{fieldB: "1"}, 30*s)

		b.clear() // R24: refused, and so is all that a plain lock does
		b.says("granted", b.read(30000, fieldA))
		b.says("rwlock", b.acquire(5000, fieldA))
		b.says("gone", b.keep(60000, fieldA, 2))
		b.says("gone", b.pass(60000, fieldB, fieldA))
		b.says("gone", b.release(fieldA))
		b.says("g", b.renew(60000, fieldA))
		b.stands(hash{"mode": "read", fieldA: "1"}, 30*s)
		b.holds(fieldA, 30*s)
	})
}

func TestGoldenRWNames(t *testing.T) { // R25
	t.Parallel()
	require.Equal(t, "redisson_rwlock:my{tag}lock", RWChannel("my{tag}lock"))
	require.Equal(t, "redisson_rwlock:{rw}", RWChannel("rw"))
	require.Equal(t, "my{tag}lock", HoldBase("my{tag}lock"))
	require.Equal(t, "{myLock}", HoldBase("myLock"))
}

func TestGoldenWriters(t *testing.T) {
	t.Parallel()
	onEachRW(t, func(b rwBench) {
		b.says("granted", b.write(10000, writerA)) // W1: the longest, no sum
		b.says("kept", b.deepen(10000, writerA, 2))
		b.stands(hash{"mode": "write", writerA: "2"}, 10*s)
		b.says("granted", b.read(30000, fieldA)) // W2
		b.held(30*s, b.read(30000, fieldB))
		b.held(30*s, b.write(30000, writerB))
		b.stands(hash{"mode": "write", writerA: "2", fieldA: "1"}, 30*s)
		b.says("kept", b.deepen(1000, writerA, 1)) // W3: it is told
		b.says("released", b.leave(writerA))
		b.stands(hash{"mode": "read", fieldA: "1"}, 30*s, "1")
		b.says("granted", b.read(30000, fieldB)) // W4
		b.says("released:others", b.leave(fieldB))
		b.says("released", b.leave(fieldA))
		b.free("0")
		b.says("granted", b.write(30000, writerA)) // W5, W6
		b.says("gone", b.leave(writerB))
		b.says("gone", b.leave(fieldA))
		b.says("gone", b.leave(fieldB))
		b.stands(hash{"mode": "write", writerA: "1"}, 30*s)
		b.says("released", b.leave(writerA))
		b.free("1")
	})
}

func TestGoldenWriterTTLs(t *testing.T) {
	t.Parallel()
	onEachRW(t, func(b rwBench) {
		b.says("granted", b.write(30000, writerA)) // W7, W8: the writer's TTL stays
		b.says("granted", b.read(2000, fieldA))
		b.says("kept", b.deepen(2000, fieldA, 2))
		b.says("kept", b.deepen(2000, fieldA, 1))
		b.stands(hash{"mode": "write", writerA: "1", fieldA: "1"}, 30*s)
		b.says("released:others", b.leave(fieldA))
		b.stands(hash{"mode": "write", writerA: "1"}, 30*s)

		b.clear() // W9: what the reader needs
		b.says("granted", b.write(60000, writerA))
		b.says("granted", b.read(5000, fieldA))
		b.says("released", b.leave(writerA))
		b.stands(hash{"mode": "read", fieldA: "1"}, 5*s, "1")

		b.clear() // W10: the TTL is not cut
		b.says("granted", b.write(30000, writerA))
		b.says("granted", b.read(60000, fieldA))
		b.says("k", b.prolong(30000, writerA))
		b.stands(hash{"mode": "write", writerA: "1", fieldA: "1"}, 60*s)
		b.says("g", b.prolong(30000, writerB)) // W11
		b.says("released:others", b.leave(fieldA))
		b.says("g", b.prolong(30000, fieldA))

		b.clear() // W13: it is free
		b.peer(30*s, map[string]any{"mode": "write", writerA: 1, "meta:x": 1}, "", nil)
		b.says("released", b.leave(writerA))
		b.free("1")
		b.peer(0, map[string]any{"mode": "write", writerB: 1}, "", nil) // W14
		b.held(-1, b.read(30000, fieldA))
		b.held(-1, b.write(30000, writerA))
		b.clear() // W15
		b.says("granted", b.write(10000, writerA))
		b.says("kept", b.deepen(10000, writerA, 2))
		b.says("kept", b.deepen(10000, writerA, 1))
		b.stands(hash{"mode": "write", writerA: "1"}, 10*s)
	})
}

// Leftovers of ours keep nobody out, and go.
func TestACQ5_RWLeftovers(t *testing.T) {
	t.Parallel()
	onEachRW(t, func(b rwBench) {
		b.says("granted", b.read(30000, fieldA))
		b.says("granted", b.write(5000, writerB, fieldA))
		b.stands(hash{"mode": "write", writerB: "1"}, 5*s)
		b.holds(fieldA)
		b.says("granted", b.read(5000, "U:3", writerB)) // a dead writer
		b.stands(hash{"mode": "read", "U:3": "1"}, 5*s)
		b.says("granted", b.read(7000, fieldA, "U:3"))
		b.stands(hash{"mode": "read", fieldA: "1"}, 7*s)
		b.says("granted", b.read(7000, "V:1"))
		b.held(7*s, b.write(5000, writerB, fieldA))
		b.says("released:others", b.leave("", fieldA, "U:3")) // a sweep
		b.stands(hash{"mode": "read", "V:1": "1"}, 7*s)
		b.says("gone", b.leave("", fieldA))
		b.says("gone", b.leave(fieldB, "V:1")) // the hold itself was not there
		b.free("0")

		b.says("granted", b.write(30000, writerA)) // a dead writer that still reads
		b.says("granted", b.read(30000, fieldA))
		b.says("granted", b.read(30000, fieldB, writerA))
		b.stands(hash{"mode": "read", fieldA: "1", fieldB: "1"}, 30*s)
	})
}

func TestACQ1_SecondRunOfRWIsHarmless(t *testing.T) {
	t.Parallel()
	onEachRW(t, func(b rwBench) {
		twice := func(want string, ask func() Answer, stands hash, ttl time.Duration, messages ...string) {
			b.t.Helper()
			b.says(want, ask())
			b.stands(stands, ttl, messages...)
			b.says(want, ask())
			b.stands(stands, ttl)
		}
		twice("granted", func() Answer { return b.write(30000, writerA) }, hash{"mode": "write", writerA: "1"}, 30*s)
		twice("kept", func() Answer { return b.deepen(40000, writerA, 3) }, hash{"mode": "write", writerA: "3"}, 40*s)
		twice("passed", func() Answer { return b.handOver(10000, writerB, writerA) }, hash{"mode": "write", writerB: "1"}, 10*s)
		twice("granted", func() Answer { return b.read(20000, fieldB) }, hash{"mode": "write", writerB: "1", fieldB: "1"}, 20*s)
		twice("kept", func() Answer { return b.deepen(25000, fieldB, 2) }, hash{"mode": "write", writerB: "1", fieldB: "2"}, 25*s)
		b.says("released", b.handOver(10000, writerA, writerB)) // it reads too
		b.says("gone", b.leave(writerB))
		b.stands(hash{"mode": "read", fieldB: "2"}, 25*s, "1")
		b.says("gone", b.handOver(10000, writerA, writerB))
		b.says("released", b.leave(fieldB))
		b.says("gone", b.leave(fieldB))
		b.free("0")
		b.says("gone", b.deepen(30000, fieldB, 1))
		b.says("g", b.prolong(30000, fieldB))
		b.free()
		b.holds(fieldB)
	})
}

// A TTL below 1 is refused before anything is written.
func TestACQ11_RWTTLs(t *testing.T) {
	t.Parallel()
	onEachRW(t, func(b rwBench) {
		b.refused("TTL below 1", b.read(0, fieldA))
		b.refused("TTL below 1", b.write(0, writerA))
		b.free()
		b.says("granted", b.write(30000, writerA))
		b.refused("TTL below 1", b.deepen(0, writerA, 2))
		b.refused("TTL below 1", b.handOver(0, writerB, writerA))
		b.stands(hash{"mode": "write", writerA: "1"}, 30*s)
	})
}

// Releases, renewals and re-entries work when memory is full.
func TestACQ9_RWAtMaxMemory(t *testing.T) {
	t.Parallel()
	onEachRW(t, func(b rwBench) {
		if b.mini { // it has no maxmemory
			return
		}
		b.says("granted", b.write(30000, writerA))
		b.says("granted", b.read(30000, fieldA))
		ctx := b.t.Context()
		require.NoError(b.t, b.rdb.ConfigSet(ctx, "maxmemory", "1").Err())
		defer b.rdb.ConfigSet(ctx, "maxmemory", "0")
		b.says("kept", b.deepen(30000, fieldA, 2))
		b.holds(fieldA, 30*s, 30*s)
		b.says("k", b.prolong(60000, fieldA))
		b.says("k", b.prolong(60000, writerA))
		b.says("kept", b.deepen(60000, fieldA, 1))
		b.says("released", b.leave(writerA))
		b.says("released", b.leave(fieldA))
	})
}

// A late copy of what brought an owner in finds that it has entered once more, and leaves
// that: a reader's second key would belong to nobody.
func TestACQ15_LateCopyUndoesNoReentry(t *testing.T) {
	t.Parallel()
	onEachRW(t, func(b rwBench) {
		b.says("granted", b.read(30000, fieldA))
		b.says("kept", b.deepen(30000, fieldA, 2))
		b.says("granted:deep", b.read(30000, fieldA))
		b.stands(map[string]string{"mode": "read", fieldA: "2"}, lease)
		b.holds(fieldA, lease, lease)
		b.says("released", b.leave(fieldA))
		b.holds(fieldA)
		b.stands(nil, 0, "0")
		b.says("granted", b.write(30000, writerA))
		b.says("kept", b.deepen(30000, writerA, 3))
		b.says("granted:deep", b.write(30000, writerA))
		b.says("granted", b.read(30000, fieldA))
		b.says("kept", b.deepen(30000, fieldA, 2))
		b.says("granted:deep", b.read(30000, fieldA))
		b.says("passed", b.handOver(30000, writerA, writerB))
		b.stands(map[string]string{"mode": "write", writerA: "3", fieldA: "2"}, lease)
		b.holds(fieldA, lease, lease)
	})
}
