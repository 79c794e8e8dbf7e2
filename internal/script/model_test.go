package script

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/relock-go/relock/internal/redistest"
	"github.com/relock-go/relock/internal/script/scriptmodel"
)

// The Go model that the record is tested on does what the Lua does: on
// miniredis to the millisecond and with time passing, on Redis without.

func TestModelEqualsLuaOnMiniredis(t *testing.T) {
	t.Parallel()
	m := miniredis.RunT(t)
	b := &bench{t: t, run: &Runner{Client: redistest.NewClient(t, m.Addr())}, key: "k", mini: true}
	rapid.Check(t, func(t *rapid.T) {
		m.FlushAll()
		compare(t, b, func(d time.Duration) { m.FastForward(d) }, func(model *scriptmodel.Server) {
			if !m.Exists(b.key) {
				require.Empty(t, model.Fields())
				return
			}
			keys, err := m.HKeys(b.key)
			require.NoError(t, err)
			require.Len(t, keys, len(model.Fields()))
			for _, field := range keys {
				require.Equal(t, strconv.Itoa(model.Depth(field)), m.HGet(b.key, field), field)
			}
			expires, _ := model.Expires()
			require.Equal(t, expires-model.Now, m.TTL(b.key))
		})
	})
}

func TestModelEqualsLuaOnRedis(t *testing.T) {
	t.Parallel()
	rdb := redistest.StartServer(t).Client(t)
	b := &bench{t: t, run: &Runner{Client: rdb}, key: "k"}
	ctx := t.Context()
	rapid.Check(t, func(rt *rapid.T) {
		require.NoError(rt, rdb.Del(ctx, b.key).Err())
		compare(rt, b, nil, func(model *scriptmodel.Server) {
			fields := rdb.HGetAll(ctx, b.key).Val()
			require.Len(rt, fields, len(model.Fields()))
			for field, depth := range fields {
				require.Equal(rt, strconv.Itoa(model.Depth(field)), depth, field)
			}
			if expires, ok := model.Expires(); ok {
				near(t, expires-model.Now, rdb.PTTL(ctx, b.key).Val())
			}
		})
	})
}

// compare runs random scripts on both. Without forward, time is not looked at.
func compare(t *rapid.T, b *bench, forward func(time.Duration), check func(*scriptmodel.Server)) {
	var model scriptmodel.Server
	model.Now = time.Second
	field := rapid.SampledFrom([]string{"C:7", "C:8", "C:9", "F:1"})
	fields := rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"C:7", "C:8", "C:9"}), 0, 2, rapid.ID[string])
	ttl := rapid.SampledFrom([]time.Duration{time.Minute, 2 * time.Minute, 10 * time.Minute})

	both := func(want string, a Answer) {
		require.NoError(t, a.Err)
		if forward == nil { // real time has passed
			want, _, _ = strings.Cut(want, ":")
			a.Text, _, _ = strings.Cut(a.Text, ":")
		}
		require.Equal(t, want, a.Text)
	}
	actions := map[string]func(*rapid.T){
		"acquire": func(t *rapid.T) {
			d, f, found := ttl.Draw(t, "ttl"), field.Draw(t, "field"), fields.Draw(t, "found")
			found = without(found, f)
			guard := time.Duration(0)
			if !b.mini && rapid.Bool().Draw(t, "guarded") {
				guard = 24 * time.Hour // longer than any server of a test runs
			}
			model.Guarded = model.Now + guard
			both(model.Acquire(d, f, found), b.acquireGuarded(guard, d.Milliseconds(), f, found...))
		},
		"keep": func(t *rapid.T) {
			d, f, depth := ttl.Draw(t, "ttl"), field.Draw(t, "field"), rapid.IntRange(1, 9).Draw(t, "depth")
			both(model.Keep(d, f, depth), b.keep(d.Milliseconds(), f, depth))
		},
		"pass": func(t *rapid.T) {
			d, f, found := ttl.Draw(t, "ttl"), field.Draw(t, "field"), fields.Draw(t, "found")
			found = without(found, f)
			both(model.Pass(d, f, found), b.pass(d.Milliseconds(), f, found...))
		},
		"release": func(t *rapid.T) {
			found := fields.Draw(t, "found")
			both(model.Release(found), b.release(found...))
		},
		"renew": func(t *rapid.T) {
			d, f := ttl.Draw(t, "ttl"), field.Draw(t, "field")
			both(model.Renew(d, f), b.renew(d.Milliseconds(), f))
		},
		"": func(*rapid.T) { check(&model) },
	}
	if forward != nil {
		actions["wait"] = func(t *rapid.T) {
			d := time.Duration(rapid.IntRange(1, 400_000).Draw(t, "ms")) * time.Millisecond
			model.Advance(d)
			forward(d)
		}
	}
	t.Repeat(actions)
}

func without(list []string, not string) []string {
	var rest []string
	for _, s := range list {
		if s != not {
			rest = append(rest, s)
		}
	}
	return rest
}
