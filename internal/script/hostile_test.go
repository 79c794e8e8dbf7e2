package script

import (
	"net"
	"strings"
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

// "both" reaches subscribers of either kind, and counts them together.
func TestCLU4_BothKindsOfChannelsAreTold(t *testing.T) {
	t.Parallel()
	onEach(t, func(b *bench) {
		ctx := b.t.Context()
		listeners := 1 // b.tell
		if !b.mini {
			for range 2 {
				sharded := b.rdb.SSubscribe(ctx, Channel(b.key))
				defer sharded.Close()
				_, err := sharded.Receive(ctx)
				require.NoError(b.t, err)
				defer func() {
					for range 2 { // the release and the force
						m, err := sharded.ReceiveTimeout(ctx, 20*time.Second)
						require.NoError(b.t, err)
						require.Equal(b.t, "0", m.(*redis.Message).Payload)
					}
				}()
				listeners++
			}
		}
		b.set(lease, fieldA)
		a := b.releaseBy("both", fieldA)
		b.says("released", a)
		require.Equal(b.t, listeners, a.Told)
		b.free("0")
		b.set(lease, fieldA)
		b.says("removed", b.forceBy("both"))
		b.free("0")
	})
	t.Run("ACL", func(t *testing.T) {
		server := redistest.StartServer(t)
		b := newBench(t, server.Client(t))
		for denied, want := range map[string]int{"-spublish": 1, "-publish": 0, "-spublish,-publish": -1} {
			rules := append([]string{"on", ">secret", "~*", "&*", "+@all"}, strings.Split(denied, ",")...)
			require.NoError(t, b.rdb.ACLSetUser(t.Context(), denied, rules...).Err())
			rdb := server.Client(t, func(o *redis.Options) { o.Username, o.Password = denied, "secret" })
			b.run = &Runner{Client: rdb}
			b.set(lease, fieldA)
			a := b.releaseBy("both", fieldA)
			b.says("released", a)
			require.Equal(t, want, a.Told, denied)
			b.set(lease, fieldA)
			b.says("removed", b.forceBy("both"))
		}
	})
}

// A master that became a replica does not say "held": what stands there may never
// change again.
func TestCLU4_AReplicaSaysReadonly(t *testing.T) {
	t.Parallel()
	readonly := func(b *bench, a Answer) {
		b.t.Helper()
		require.Equal(b.t, NotRun, a.Fate)
		require.True(b.t, redis.HasErrorPrefix(a.Err, "READONLY"), "as a cluster client looks for it: %v", a.Err)
	}
	t.Run("demoted", func(t *testing.T) {
		b := newBench(t, redistest.StartServer(t).Client(t))
		b.set(lease, fieldA)
		b.held(lease, b.acquire(30000, fieldB))
		require.NoError(t, b.rdb.ReplicaOf(t.Context(), "127.0.0.1", "1").Err())
		readonly(b, b.acquire(30000, fieldB))
		readonly(b, b.acquire(30000, fieldB, fieldA))
		require.NoError(t, b.rdb.ReplicaOf(t.Context(), "NO", "ONE").Err())
		b.held(lease, b.acquire(30000, fieldB))
	})
	t.Run("replica", func(t *testing.T) {
		master := newBench(t, redistest.StartServer(t, "--repl-diskless-sync-delay", "0").Client(t))
		replica := newBench(t, redistest.StartServer(t).Client(t))
		host, port, _ := net.SplitHostPort(master.rdb.Options().Addr)
		require.NoError(t, replica.rdb.ReplicaOf(t.Context(), host, port).Err())
		master.set(lease, fieldA)
		require.Eventually(t, func() bool {
			return replica.rdb.HExists(t.Context(), replica.key, fieldA).Val()
		}, 20*time.Second, 5*time.Millisecond)
		readonly(replica, replica.acquire(30000, fieldB))
		master.held(lease, master.acquire(30000, fieldB))
	})
}

// A master that must not write now says "held" all the same, and the look whether
// it is one is no change to its data.
func TestCLU4_OtherRefusalsLeaveHeld(t *testing.T) {
	t.Parallel()
	b := newBench(t, redistest.StartServer(t).Client(t))
	ctx := t.Context()
	changes := func() string {
		_, after, _ := strings.Cut(b.rdb.Info(ctx, "persistence").Val(), "rdb_changes_since_last_save:")
		n, _, _ := strings.Cut(after, "\r\n")
		require.NotEmpty(t, n)
		return n
	}
	b.set(lease, fieldA)
	before := changes()
	b.held(lease, b.acquire(30000, fieldB))
	require.Equal(t, before, changes())

	require.NoError(t, b.rdb.ConfigSet(ctx, "min-replicas-to-write", "1").Err())
	require.ErrorContains(t, b.rdb.HDel(ctx, b.key, "").Err(), "NOREPLICAS")
	b.held(lease, b.acquire(30000, fieldB))
	require.NoError(t, b.rdb.ConfigSet(ctx, "min-replicas-to-write", "0").Err())

	require.NoError(t, b.rdb.ConfigSet(ctx, "maxmemory", "1").Err())
	b.held(lease, b.acquire(30000, fieldB))
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
		got, err := b.run.Read(ctx, b.key, "", "")
		require.NoError(b.t, err)
		require.Equal(b.t, Standing{TTL: -2, Fields: map[string]string{}, Queue: []string{}}, got)
		b.set(0, fieldA)
		require.NoError(b.t, b.rdb.RPush(ctx, "line", fieldB, "U:3").Err())
		got, err = b.run.Read(ctx, b.key, "line", "")
		require.NoError(b.t, err)
		require.Equal(b.t, Standing{TTL: -1, Fields: map[string]string{fieldA: "1"}, Queue: []string{fieldB, "U:3"}}, got)
		got, err = b.run.Read(ctx, b.key, b.key, "") // no queue
		require.NoError(b.t, err)
		require.Empty(b.t, got.Queue)
	})
}
