package script

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/redistest"
)

// L15 and L16: Redisson grants by a lease of 0 and leaves no key, and leaves a
// key for ever by one that overflows.
func TestACQ11_BadTTLLeavesNothing(t *testing.T) {
	t.Parallel()
	onEach(t, func(b *bench) {
		bads := []any{0, -1, "1.5", "0.5", "x", "", "nan"}
		if !b.mini {
			bads = append(bads, "9223372036854775807")
		}
		for _, bad := range bads {
			for name, send := range map[string]func() Answer{
				"acquire":   func() Answer { return b.acquire(bad, fieldA) },
				"take over": func() Answer { return b.acquire(bad, fieldA, fieldB) },
				"keep":      func() Answer { return b.keep(bad, fieldB, 2) },
				"pass":      func() Answer { return b.pass(bad, fieldA, fieldB) },
			} {
				if _, text := bad.(string); text && name == "keep" {
					continue // it leaves the TTL as it is when that is longer
				}
				b.set(lease, fieldB)
				if name == "acquire" {
					b.set(0)
				}
				a := send()
				require.Error(b.t, a.Err, "%s with %v", name, bad)
				require.Equal(b.t, Refused, a.Fate)
				if name == "acquire" {
					b.free()
				} else {
					b.stands(map[string]string{fieldB: "1"}, lease)
				}
			}
		}
		b.set(0)
		b.says("granted", b.acquire(int64(10*365*24*time.Hour/time.Millisecond), fieldA))
	})
}

// L14.
func TestACQ14_WrongTypeChangesNothing(t *testing.T) {
	t.Parallel()
	onEach(t, func(b *bench) {
		ctx := b.t.Context()
		require.NoError(b.t, b.rdb.Set(ctx, b.key, "text", lease).Err())
		for name, a := range map[string]Answer{
			"acquire": b.acquire(5000, fieldA, fieldB),
			"keep":    b.keep(5000, fieldA, 2),
			"pass":    b.pass(5000, fieldB, fieldA),
			"release": b.release(fieldA, fieldB),
			"force":   b.force(),
			"info":    b.run.Send(ctx, Info, 1, b.key),
		} {
			b.refused("WRONGTYPE", a)
			require.True(b.t, WrongType(a.Err), name)
		}
		b.says("g", b.renew(60000, fieldA))
		require.Equal(b.t, "text", b.rdb.Get(ctx, b.key).Val())
		near(b.t, lease, b.rdb.PTTL(ctx, b.key).Val())
	})
}

// L18, and a user without the right to the channel: the lock is free, and the
// answer says so.
func TestACQ10_MessageCannotBeSent(t *testing.T) {
	t.Parallel()
	onEach(t, func(b *bench) {
		b.set(lease, fieldA)
		b.says("released", b.releaseBy("no-such-command", fieldA))
		b.free()
	})
	t.Run("ACL", func(t *testing.T) {
		server := redistest.StartServer(t)
		b := newBench(t, server.Client(t))
		require.NoError(t, b.rdb.Do(t.Context(), "acl", "setuser", "mute", "on", ">secret", "~*", "+@all", "resetchannels").Err())
		mute := server.Client(t, func(o *redis.Options) { o.Username, o.Password = "mute", "secret" })
		require.ErrorContains(t, mute.Publish(t.Context(), Channel(b.key), "0").Err(), "NOPERM")
		b.run = &Runner{Client: mute}
		b.set(lease, fieldA)
		b.says("released", b.release(fieldA))
		b.free()
		b.set(lease, fieldA)
		b.says("removed", b.force())
		b.free()
	})
}

func TestACQ9_OutOfMemory(t *testing.T) {
	t.Parallel()
	server := redistest.StartServer(t, "--maxmemory-policy", "noeviction")
	b := newBench(t, server.Client(t))
	b.says("granted", b.acquire(30000, fieldA))
	require.NoError(t, b.rdb.ConfigSet(t.Context(), "maxmemory", "1").Err())
	require.ErrorContains(t, b.rdb.HSet(t.Context(), "other", "f", 1).Err(), "OOM")
	b.says("kept", b.keep(5000, fieldA, 2))
	b.stands(map[string]string{fieldA: "2"}, lease)
	b.says("kept", b.keep(60000, fieldA, 3))
	b.says("k", b.renew(90000, fieldA))
	b.stands(map[string]string{fieldA: "3"}, 90*time.Second)
	b.says("passed", b.pass(5000, fieldB, fieldA))
	b.stands(map[string]string{fieldB: "1"}, 5*time.Second)
	b.says("released", b.release(fieldB))
	b.free("0")
}

func TestInfo(t *testing.T) {
	t.Parallel()
	onEach(t, func(b *bench) {
		ctx := b.t.Context()
		got, err := b.rdb.Eval(ctx, Info.Text, []string{b.key}).StringSlice()
		require.NoError(b.t, err)
		require.Equal(b.t, []string{"-2"}, got)
		b.set(0, fieldA)
		got, err = b.rdb.Eval(ctx, Info.Text, []string{b.key}).StringSlice()
		require.NoError(b.t, err)
		require.Equal(b.t, []string{"-1", fieldA, "1"}, got)
	})
}
