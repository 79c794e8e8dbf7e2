package script

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// The golden vectors of a Redisson fenced lock, T1 to T3, and what its counter may have
// been through. Tokens here are the server's time in microseconds, or one more than the
// last.

func (b *bench) token(a Answer, want string) uint64 {
	b.t.Helper()
	require.NoError(b.t, a.Err)
	text, ok := strings.CutPrefix(a.Text, want+":")
	require.True(b.t, ok, a.Text)
	token, err := strconv.ParseUint(text, 10, 64)
	require.NoError(b.t, err)
	require.Equal(b.t, text, b.rdb.Get(b.t.Context(), TokenKey(b.key)).Val(), "the counter has it")
	require.Equal(b.t, forever, b.rdb.TTL(b.t.Context(), TokenKey(b.key)).Val())
	return token
}

func (b *bench) fenced(ttl any, field string) Answer {
	return b.run.Send(b.t.Context(), Acquire, 2, b.key, TokenKey(b.key), ttl, field, 0)
}

func TestGoldenTokens(t *testing.T) {
	t.Parallel()
	onEach(t, func(b *bench) {
		ctx, counter := b.t.Context(), TokenKey(b.key)
		first := b.token(b.fenced(30000, fieldA), "granted") // T1
		require.InDelta(b.t, time.Now().UnixMicro(), first, 60e6)
		b.says("kept", b.keep(30000, fieldA, 2)) // re-entry raises nothing
		b.held(30*time.Second, b.fenced(30000, fieldB))
		require.Equal(b.t, strconv.FormatUint(first, 10), b.rdb.Get(ctx, counter).Val())
		b.says("kept", b.keep(30000, fieldA, 1))
		b.says("released", b.release(fieldA)) // T2
		b.free("0")
		require.Equal(b.t, strconv.FormatUint(first, 10), b.rdb.Get(ctx, counter).Val())

		b.set(0, fieldB) // T3: not acquired
		b.held(-1, b.fenced(30000, fieldA))
		require.NoError(b.t, b.rdb.Del(ctx, b.key).Err())

		// CLK-2: a counter that is lost, ahead of the clock, or a peer's
		require.NoError(b.t, b.rdb.Del(ctx, counter).Err())
		second := b.token(b.fenced(30000, fieldA), "granted")
		require.Greater(b.t, second, first)
		ahead := second + 3600e6
		require.NoError(b.t, b.rdb.Set(ctx, counter, ahead, time.Minute).Err()) // PEER-4: with a TTL
		passed := b.run.Send(ctx, Pass, 2, b.key, counter, 30000, fieldB, fieldA)
		require.Equal(b.t, ahead+1, b.token(passed, "passed"))
		drawn := b.run.Send(ctx, Keep, 2, b.key, counter, 30000, fieldB, 2)
		require.Equal(b.t, ahead+2, b.token(drawn, "kept"))
		again := b.fenced(30000, fieldB)
		text, deep := strings.CutSuffix(again.Text, ":deep")
		require.True(b.t, deep, "it stands at depth 2")
		again.Text = text
		require.Equal(b.t, ahead+3, b.token(again, "granted"), "a second run draws another one")
		b.says("released", b.release(fieldB))
		require.NoError(b.t, b.rdb.Set(ctx, counter, 7, 0).Err())
		require.Greater(b.t, b.token(b.fenced(30000, fieldA), "granted"), second)
	})
}

func TestACQ14_CounterOfAnotherType(t *testing.T) {
	t.Parallel()
	onEach(t, func(b *bench) {
		ctx, counter := b.t.Context(), TokenKey(b.key)
		for _, spoil := range []func() error{
			func() error { return b.rdb.Set(ctx, counter, "x", 0).Err() },
			func() error { return b.rdb.SAdd(ctx, counter, "x").Err() },
			func() error { return b.rdb.Set(ctx, counter, "1.5", 0).Err() },
			func() error { return b.rdb.Set(ctx, counter, "0x10", 0).Err() },
			func() error { return b.rdb.Set(ctx, counter, " 7", 0).Err() },
			func() error { return b.rdb.Set(ctx, counter, "9007199254740991", 0).Err() }, // no number of Lua after it
		} {
			require.NoError(b.t, spoil())
			b.refused("WRONGTYPE", b.fenced(30000, fieldA))
			b.free()
			b.set(lease, fieldA)
			b.refused("not a number", b.run.Send(ctx, Keep, 2, b.key, counter, 60000, fieldA, 2))
			b.refused("not a number", b.run.Send(ctx, Pass, 2, b.key, counter, 60000, fieldB, fieldA))
			b.stands(map[string]string{fieldA: "1"}, lease)
			require.NoError(b.t, b.rdb.Del(ctx, counter, b.key).Err())
		}
	})
}
