package script

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/redistest"
)

// bench is a server with one key, on which a test runs scripts.
type bench struct {
	t    *testing.T
	rdb  *redis.Client
	run  *Runner
	key  string
	mini bool // a miniredis, which is less strict

	channel string        // of the key
	tell    *redis.PubSub // subscribed to it
}

// onEach runs test on miniredis and on a real Redis.
func onEach(t *testing.T, test func(b *bench)) {
	t.Run("miniredis", func(t *testing.T) {
		b := newBench(t, redistest.NewClient(t, redistest.StartMini(t).Addr()))
		b.mini = true
		test(b)
	})
	t.Run("redis", func(t *testing.T) {
		test(newBench(t, redistest.StartServer(t).Client(t)))
	})
}

func newBench(t *testing.T, rdb *redis.Client) *bench {
	b := &bench{t: t, rdb: rdb, run: &Runner{Client: rdb}, key: "myLock"}
	b.listen(Channel(b.key))
	return b
}

// listen has stands check the messages on a channel, and no other.
func (b *bench) listen(channel string) {
	b.t.Helper()
	b.channel, b.tell = channel, b.rdb.Subscribe(b.t.Context(), channel)
	b.t.Cleanup(func() { _ = b.tell.Close() })
	_, err := b.tell.Receive(b.t.Context())
	require.NoError(b.t, err)
}

// The scripts by name. TTLs are in milliseconds.

func (b *bench) acquire(ttl any, field string, found ...string) Answer {
	return b.acquireGuarded(0, ttl, field, found...)
}

func (b *bench) acquireGuarded(guard time.Duration, ttl any, field string, found ...string) Answer {
	list := append([]any{b.key}, words(ttl, field, guard.Milliseconds(), found)...)
	return b.run.Send(b.t.Context(), Acquire, 1, list...)
}

func (b *bench) keep(ttl any, field string, depth int) Answer {
	return b.run.Send(b.t.Context(), Keep, 1, b.key, ttl, field, depth)
}

func (b *bench) pass(ttl any, field string, found ...string) Answer {
	return b.run.Send(b.t.Context(), Pass, 1, words(b.key, ttl, field, found)...)
}

func (b *bench) release(found ...string) Answer { return b.releaseBy("publish", found...) }

func (b *bench) releaseBy(verb string, found ...string) Answer {
	return b.run.Send(b.t.Context(), Release, 1, words(b.key, Channel(b.key), verb, found)...)
}

func (b *bench) renew(ttl any, field string) Answer {
	return b.run.Send(b.t.Context(), Renew, 1, b.key, ttl, field)
}

func (b *bench) force() Answer { return b.forceBy("publish") }

func (b *bench) forceBy(verb string) Answer {
	return b.run.Send(b.t.Context(), Force, 1, b.key, Channel(b.key), verb)
}

func words(a, b, c any, rest []string) []any {
	list := []any{a, b, c}
	for _, s := range rest {
		list = append(list, s)
	}
	return list
}

// says checks a reply.
func (b *bench) says(want string, a Answer) {
	b.t.Helper()
	require.NoError(b.t, a.Err)
	require.Equal(b.t, Ran, a.Fate)
	require.Equal(b.t, want, a.Text)
}

// held checks the reply of an acquire that others keep out.
func (b *bench) held(ttl time.Duration, a Answer) {
	b.t.Helper()
	require.NoError(b.t, a.Err)
	ms, ok := strings.CutPrefix(a.Text, "held:")
	require.True(b.t, ok, a.Text)
	left, err := time.ParseDuration(ms + "ms")
	require.NoError(b.t, err)
	if ttl < 0 {
		require.Equal(b.t, -time.Millisecond, left)
		return
	}
	near(b.t, ttl, left)
}

// refused checks a script that stopped before it changed anything.
func (b *bench) refused(word string, a Answer) {
	b.t.Helper()
	require.ErrorContains(b.t, a.Err, word)
	require.Equal(b.t, Refused, a.Fate)
}

const forever = -1 * time.Nanosecond // PTTL without expiry, as go-redis gives it

// stands checks the hash, its TTL, and the messages sent since the last check.
func (b *bench) stands(fields map[string]string, ttl time.Duration, messages ...string) {
	b.t.Helper()
	ctx := b.t.Context()
	require.NoError(b.t, b.rdb.Publish(ctx, b.channel, "end").Err())
	var told []string
	for {
		m, err := b.tell.ReceiveMessage(ctx)
		require.NoError(b.t, err)
		if m.Payload == "end" {
			break
		}
		told = append(told, m.Payload)
	}
	require.Equal(b.t, messages, told)
	if fields == nil {
		require.Zero(b.t, b.rdb.Exists(ctx, b.key).Val(), "the key stands")
		return
	}
	require.Equal(b.t, fields, b.rdb.HGetAll(ctx, b.key).Val())
	left := b.rdb.PTTL(ctx, b.key).Val()
	if ttl == forever {
		require.Equal(b.t, forever, left)
		return
	}
	near(b.t, ttl, left)
}

// free checks that nothing stands.
func (b *bench) free(messages ...string) {
	b.t.Helper()
	b.stands(nil, 0, messages...)
}

// set makes the hash as it is to be at the start.
func (b *bench) set(ttl time.Duration, fields ...string) {
	b.t.Helper()
	ctx := context.WithoutCancel(b.t.Context())
	require.NoError(b.t, b.rdb.Del(ctx, b.key).Err())
	for _, f := range fields {
		require.NoError(b.t, b.rdb.HSet(ctx, b.key, f, 1).Err())
	}
	if ttl > 0 {
		require.NoError(b.t, b.rdb.PExpire(ctx, b.key, ttl).Err())
	}
}

// near allows for the time that a loaded machine takes.
func near(t *testing.T, want, got time.Duration) {
	t.Helper()
	require.LessOrEqual(t, got, want)
	require.Greater(t, got, want-2*time.Second)
}
