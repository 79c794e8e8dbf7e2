package script

import (
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/relock-go/relock/internal/redistest"
	"github.com/relock-go/relock/internal/script/scriptmodel"
)

// The Go model of the read-write scripts does what the Lua does, to the millisecond and
// with time passing.
func TestRWModelEqualsLua(t *testing.T) {
	t.Parallel()
	m := miniredis.RunT(t)
	b := rwBench{&bench{t: t, run: &Runner{Client: redistest.NewClient(t, m.Addr())}, key: "k", mini: true}}
	rapid.Check(t, func(t *rapid.T) {
		m.FlushAll()
		model := scriptmodel.NewRW()
		model.Now = time.Second
		readers := []string{"C:7", "C:8", "F:1"}
		field := rapid.SampledFrom([]string{"C:7", "C:8", "F:1", "C:7:write", "C:8:write", "F:1:write"})
		found := rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"C:7", "C:8", "C:7:write", "C:8:write"}), 0, 2, rapid.ID[string])
		ttl := rapid.SampledFrom([]time.Duration{time.Minute, 2 * time.Minute, 10 * time.Minute})
		same := func(want string, a Answer) {
			text := a.Text
			if len(text) > 4 && text[:5] == "held:" {
				text = "held"
			}
			require.NoError(t, a.Err)
			require.Equal(t, want, text)
		}
		others := func(f string) []string {
			return slices.DeleteFunc(found.Draw(t, "found"), func(x string) bool { return x == f })
		}
		t.Repeat(map[string]func(*rapid.T){
			"read": func(t *rapid.T) {
				f, d := rapid.SampledFrom(readers).Draw(t, "field"), ttl.Draw(t, "ttl")
				fs := slices.DeleteFunc(others(f), func(x string) bool { return x == f+":write" })
				same(model.Acquire(d, f, f+":write", fs), b.read(d.Milliseconds(), f, fs...))
			},
			"write": func(t *rapid.T) {
				f, d := rapid.SampledFrom(readers).Draw(t, "field")+":write", ttl.Draw(t, "ttl")
				fs := others(f)
				same(model.Acquire(d, f, "", fs), b.write(d.Milliseconds(), f, fs...))
			},
			"keep": func(t *rapid.T) {
				f, d, n := field.Draw(t, "field"), ttl.Draw(t, "ttl"), rapid.IntRange(1, 3).Draw(t, "depth")
				same(model.Keep(d, f, n), b.deepen(d.Milliseconds(), f, n))
			},
			"release": func(t *rapid.T) {
				f := field.Draw(t, "field")
				fs := others(f)
				same(model.Release(f, fs), b.leave(f, fs...))
			},
			"sweep": func(t *rapid.T) {
				fs := others("")
				same(model.Release("", fs), b.leave("", fs...))
			},
			"pass": func(t *rapid.T) {
				f, d := rapid.SampledFrom(readers).Draw(t, "field")+":write", ttl.Draw(t, "ttl")
				fs := others(f)
				same(model.Pass(d, f, fs), b.handOver(d.Milliseconds(), f, fs...))
			},
			"renew": func(t *rapid.T) {
				f, d := field.Draw(t, "field"), ttl.Draw(t, "ttl")
				if rapid.Bool().Draw(t, "only look") {
					d = 0
				}
				same(model.Renew(d, f), b.prolong(d.Milliseconds(), f))
			},
			"time": func(t *rapid.T) {
				d := rapid.SampledFrom([]time.Duration{time.Second, 50 * time.Second, 3 * time.Minute}).Draw(t, "d")
				model.Advance(d)
				m.FastForward(d)
			},
			"": func(t *rapid.T) {
				if !m.Exists(b.key) {
					require.Empty(t, model.Mode())
					return
				}
				require.Equal(t, model.Mode(), m.HGet(b.key, "mode"))
				keys, err := m.HKeys(b.key)
				require.NoError(t, err)
				require.ElementsMatch(t, append(model.Fields(), "mode"), keys)
				for _, f := range model.Fields() {
					require.Equal(t, strconv.Itoa(model.Depth(f)), m.HGet(b.key, f), f)
					stands := m.TTL(b.key)
					if f[len(f)-1] != 'e' {
						stands = min(stands, m.TTL(b.hold(f, 1)))
					}
					require.Equal(t, model.Stands(f), stands, f)
				}
			},
		})
	})
}
