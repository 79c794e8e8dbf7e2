package script

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// The golden vectors of a Redisson lock, L1 to L18, S2 and S3. What a peer
// relies on is the end state, the TTL and the message; where we differ, the
// comment says how.

const (
	fieldA = "U:1"
	fieldB = "U:2"
	lease  = 30 * time.Second
)

func TestGoldenReentry(t *testing.T) {
	t.Parallel()
	onEach(t, func(b *bench) {
		one := map[string]string{fieldA: "1"}
		two := map[string]string{fieldA: "2"}
		b.says("granted", b.acquire(30000, fieldA)) // L1
		b.stands(one, lease)
		b.says("kept", b.keep(5000, fieldA, 2)) // L2: Redisson cuts the TTL to 5000
		b.stands(two, lease)
		b.held(lease, b.acquire(30000, fieldB)) // L3
		b.stands(two, lease)
		b.says("kept", b.keep(30000, fieldA, 1)) // L4
		b.stands(one, lease)
		b.says("kept", b.keep(30000, fieldA, 1)) // L5
		b.stands(one, lease)
		b.says("gone", b.release(fieldB)) // L6
		b.stands(one, lease)
		b.says("released", b.release(fieldA)) // L7
		b.free("0")
		b.says("gone", b.release(fieldA)) // L8, S2
		b.free()
		// L9: the latch of Redisson finds the replay. Here the next hold has
		// another field, since the first release went unanswered.
		b.says("granted", b.acquire(30000, fieldA+".1"))
		b.says("gone", b.release(fieldA))
		b.stands(map[string]string{fieldA + ".1": "1"}, lease)
	})
}

func TestGoldenForce(t *testing.T) {
	t.Parallel()
	onEach(t, func(b *bench) { // L10, S3
		b.set(lease, fieldA)
		b.says("removed", b.force())
		b.free("0")
		b.says("free", b.force())
		b.free()
		b.set(lease, "mode", fieldA)
		b.says("rwlock", b.force())
		b.stands(map[string]string{"mode": "1", fieldA: "1"}, lease)
	})
}

func TestGoldenRenewMany(t *testing.T) {
	t.Parallel()
	onEach(t, func(b *bench) { // L11, and a key of another type among them
		ctx := b.t.Context()
		b.set(lease, fieldA)
		require.NoError(b.t, b.rdb.HSet(ctx, "o", fieldB, 1).Err())
		require.NoError(b.t, b.rdb.PExpire(ctx, "o", lease).Err())
		require.NoError(b.t, b.rdb.Set(ctx, "text", "x", lease).Err())
		a := b.run.Send(ctx, Renew, 4, "text", b.key, "o", "zz",
			45000, fieldA, 45000, fieldA, 45000, fieldA, 45000, fieldA)
		b.says("gkgg", a)
		b.stands(map[string]string{fieldA: "1"}, 45*time.Second)
		near(b.t, lease, b.rdb.PTTL(ctx, "o").Val())
		near(b.t, lease, b.rdb.PTTL(ctx, "text").Val())
		require.Zero(b.t, b.rdb.Exists(ctx, "zz").Val())

		b.says("k", b.renew(5000, fieldA)) // never lowers
		b.says("k", b.renew(0, fieldA))    // only looks
		b.says("g", b.renew(0, fieldB))
		b.stands(map[string]string{fieldA: "1"}, 45*time.Second)
	})
}

func TestGoldenForeignStates(t *testing.T) {
	t.Parallel()
	onEach(t, func(b *bench) {
		b.set(0, fieldB) // L12: no expiry
		b.held(-1, b.acquire(30000, fieldA))
		b.stands(map[string]string{fieldB: "1"}, forever)
		b.says("k", b.renew(30000, fieldB))
		b.stands(map[string]string{fieldB: "1"}, lease)

		b.set(0, fieldB)
		b.says("kept", b.keep(30000, fieldB, 2))
		b.stands(map[string]string{fieldB: "2"}, lease)

		b.set(lease, fieldA, "go:meta:x") // L13
		b.held(lease, b.acquire(30000, fieldB))
		b.says("released", b.release(fieldA))
		b.free("0")
	})
}

// L17: a second run of anything finds its own state.
func TestACQ1_SecondRunIsHarmless(t *testing.T) {
	t.Parallel()
	onEach(t, func(b *bench) {
		one := map[string]string{fieldA: "1"}
		for range 2 {
			b.says("granted", b.acquire(30000, fieldA, "U:old"))
			b.stands(one, lease)
		}
		for range 2 {
			b.says("kept", b.keep(40000, fieldA, 3))
			b.stands(map[string]string{fieldA: "3"}, 40*time.Second)
		}
		for range 2 {
			b.says("k", b.renew(50000, fieldA))
			b.stands(map[string]string{fieldA: "3"}, 50*time.Second)
		}
		for range 2 {
			b.says("passed", b.pass(10000, fieldB, fieldA))
			b.stands(map[string]string{fieldB: "1"}, 10*time.Second)
		}
		b.says("released", b.release(fieldB, fieldA))
		b.free("0")
		b.says("gone", b.release(fieldB, fieldA))
		b.says("gone", b.pass(10000, fieldB, fieldA))
		b.says("gone", b.keep(30000, fieldA, 1))
		b.says("g", b.renew(30000, fieldA))
		b.free()
	})
}

// A late copy finds a longer lease and leaves it, and the depth.
func TestACQ15_LateCopyLowersNoTTL(t *testing.T) {
	t.Parallel()
	onEach(t, func(b *bench) {
		b.set(time.Minute, fieldA)
		b.says("granted", b.acquire(1000, fieldA))
		b.stands(map[string]string{fieldA: "1"}, time.Minute)
		b.says("kept", b.keep(1000, fieldA, 2))
		b.stands(map[string]string{fieldA: "2"}, time.Minute)
		b.says("granted:deep", b.acquire(1000, fieldA)) // nor undoes a re-entry
		b.says("passed", b.pass(1000, fieldA, fieldB))
		b.stands(map[string]string{fieldA: "2"}, time.Minute)
	})
}

// A field that is set anew has exactly its own TTL, and the key is never
// without one.
func TestACQ16_NewFieldHasItsOwnTTL(t *testing.T) {
	t.Parallel()
	onEach(t, func(b *bench) {
		only := map[string]string{fieldB: "1"}
		b.set(time.Minute, fieldA)
		b.says("granted", b.acquire(5000, fieldB, fieldA, "U:none"))
		b.stands(only, 5*time.Second)
		b.set(2*time.Second, fieldA)
		b.says("granted", b.acquire(30000, fieldB, "U:none", fieldA))
		b.stands(only, lease)
		b.set(time.Minute, fieldA)
		b.says("passed", b.pass(5000, fieldB, fieldA))
		b.stands(only, 5*time.Second)
		b.set(0, fieldA) // even if it had none before
		b.says("passed", b.pass(5000, fieldB, fieldA))
		b.stands(only, 5*time.Second)
	})
}

// Leftovers beside a stranger's field are no reason to take over.
func TestACQ5_LeftoversBesideAStranger(t *testing.T) {
	t.Parallel()
	onEach(t, func(b *bench) {
		b.set(lease, fieldA, "V:1")
		b.held(lease, b.acquire(5000, fieldB, fieldA))
		b.held(lease, b.acquire(5000, fieldA))
		b.stands(map[string]string{fieldA: "1", "V:1": "1"}, lease)
	})
}
