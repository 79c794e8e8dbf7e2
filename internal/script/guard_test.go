package script

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/redistest"
)

// restarted checks the reply of an acquire that the guard refuses, and returns for
// how long it does.
func (b *bench) restarted(guard time.Duration, a Answer) time.Duration {
	b.t.Helper()
	require.NoError(b.t, a.Err)
	ms, ok := strings.CutPrefix(a.Text, "restarted:")
	require.True(b.t, ok, a.Text)
	n, err := strconv.Atoi(ms)
	require.NoError(b.t, err)
	left := time.Duration(n) * time.Millisecond
	require.Positive(b.t, left)
	require.LessOrEqual(b.t, left, guard+time.Second)
	return left
}

// runsFor waits until the guard of d lets pass.
func (b *bench) runsFor(d time.Duration) {
	b.t.Helper()
	b.set(0)
	for {
		a := b.acquireGuarded(d, 30000, fieldA)
		if a.Text == "granted" {
			b.set(0)
			return
		}
		time.Sleep(b.restarted(d, a))
	}
}

// On a young server nothing is granted, whatever of ours stands there.
func TestMULTI1_GuardRefuses(t *testing.T) {
	t.Parallel()
	began := time.Now()
	server := redistest.StartServer(t)
	b := newBench(t, server.Client(t))
	const guard = 3 * time.Second
	b.restarted(guard, b.acquireGuarded(guard, 30000, fieldA))
	b.free()
	b.set(lease, fieldA)
	b.restarted(guard, b.acquireGuarded(guard, 60000, fieldA))
	b.restarted(guard, b.acquireGuarded(guard, 60000, fieldB, fieldA))
	b.stands(map[string]string{fieldA: "1"}, lease)
	b.held(lease, b.acquireGuarded(guard, 60000, fieldB))

	b.set(0)
	left := b.restarted(guard, b.acquireGuarded(guard, 30000, fieldA))
	b.says("granted", b.acquire(30000, fieldA)) // others need not have a guard
	b.set(0)
	time.Sleep(left)
	require.GreaterOrEqual(t, time.Since(began), guard)
	b.says("granted", b.acquireGuarded(guard, 30000, fieldA))
	b.stands(map[string]string{fieldA: "1"}, lease)
	b.says("granted", b.acquireGuarded(guard, 60000, fieldB, fieldA))
	b.stands(map[string]string{fieldB: "1"}, time.Minute)

	require.NoError(t, server.Restart())
	b.restarted(guard, b.acquireGuarded(guard, 30000, fieldA))
}

// Those whom the guard keeps out of a fair lock stand in its queue meanwhile, so that they
// come in in the order in which they came. The first is waited for beyond the guard.
func TestMULTI1_TheGuardKeepsTheOrderOfAFairLock(t *testing.T) {
	t.Parallel()
	b := fairBench{newBench(t, redistest.StartServer(t).Client(t))}
	const hour = time.Hour
	ask := func(guard time.Duration, wait int, field string) Answer {
		return b.run.Send(t.Context(), FairAcquire, 3, b.key, QueueKey(b.key), ScoresKey(b.key),
			30000, field, guard.Milliseconds(), wait, 0, 0)
	}
	refused := func(left, ahead time.Duration, a Answer) {
		t.Helper()
		require.NoError(t, a.Err)
		words := strings.Split(a.Text, ":")
		require.Len(t, words, 3, a.Text)
		require.Equal(t, "restarted", words[0])
		for i, want := range []time.Duration{left, ahead} {
			n, err := strconv.Atoi(words[i+1])
			require.NoError(t, err)
			near(t, want, time.Duration(n)*time.Millisecond)
		}
	}
	left := b.restarted(hour, ask(hour, 0, fieldA)) // its only attempt: it does not queue
	b.line()
	refused(left, left+5*time.Second, ask(hour, 5000, fieldA))
	refused(left, left+10*time.Second, ask(hour, 5000, fieldB)) // who is behind hears of it too
	b.line(fieldA, int(left.Milliseconds())+5000, fieldB, int(left.Milliseconds())+10000)
	b.bench.free()
	refused(left, 5*time.Second, ask(hour, 5000, fieldA)) // the head says so again while it lives
	refused(left, left+15*time.Second, ask(hour, 5000, fieldC))
	require.Equal(t, []string{fieldA, fieldB, fieldC}, b.rdb.LRange(t.Context(), QueueKey(b.key), 0, -1).Val())
	b.restarted(hour, ask(hour, 0, fieldD))
	b.bench.free()
	b.queues(5*time.Second, ask(0, 5000, fieldB)) // when the guard is over
	b.says("granted", ask(0, 5000, fieldA))
	b.queues(5*time.Second, ask(hour, 5000, fieldC)) // a holder keeps them out as ever, and B is before
}

// A save moves LASTSAVE, and INFO tells how long the server has run.
func TestMULTI1_GuardAfterASave(t *testing.T) {
	t.Parallel()
	b := newBench(t, redistest.StartServer(t).Client(t))
	require.NoError(t, b.rdb.Save(t.Context()).Err())
	b.runsFor(time.Second)
	require.NoError(t, b.rdb.Save(t.Context()).Err())
	b.says("granted", b.acquireGuarded(time.Second, 30000, fieldA))
	b.set(0)
	b.restarted(24*time.Hour, b.acquireGuarded(24*time.Hour, 30000, fieldA))
}

// One of the two sources is enough as long as it proves what is asked. Else the
// error says which right is missing, and another attempt would not help.
func TestMULTI1_GuardNeedsRights(t *testing.T) {
	t.Parallel()
	server := redistest.StartServer(t)
	b := newBench(t, server.Client(t))
	b.runsFor(time.Second)
	as := func(name string, rights ...string) *bench {
		rules := append([]string{"on", ">secret", "~*", "&*", "+@all"}, rights...)
		require.NoError(t, b.rdb.ACLSetUser(t.Context(), name, rules...).Err())
		other := *b
		other.run = &Runner{Client: server.Client(t, func(o *redis.Options) { o.Username, o.Password = name, "secret" })}
		return &other
	}
	refuses := func(a Answer) {
		t.Helper()
		b.refused("the restart guard", a)
		b.refused("TIME and INFO", a)
	}
	infoOnly, savesOnly := as("infoOnly", "-lastsave"), as("savesOnly", "-info")
	neither, noTime := as("neither", "-info", "-lastsave"), as("noTime", "-time")

	b.says("granted", infoOnly.acquireGuarded(time.Second, 30000, fieldA))
	b.set(0)
	b.says("granted", savesOnly.acquireGuarded(time.Second, 30000, fieldA))
	b.set(0)
	b.restarted(time.Hour, infoOnly.acquireGuarded(time.Hour, 30000, fieldA))
	refuses(savesOnly.acquireGuarded(time.Hour, 30000, fieldA))
	refuses(neither.acquireGuarded(time.Second, 30000, fieldA))
	refuses(noTime.acquireGuarded(time.Second, 30000, fieldA))
	require.NoError(t, b.rdb.Save(t.Context()).Err())
	refuses(savesOnly.acquireGuarded(time.Second, 30000, fieldA))
	b.free()
	b.says("granted", neither.acquire(30000, fieldA))
	b.held(lease, neither.acquireGuarded(time.Second, 30000, fieldB))
}

// A server that knows neither is treated as one that may not be asked.
func TestMULTI1_GuardOnMiniredis(t *testing.T) {
	t.Parallel()
	b := newBench(t, redistest.NewClient(t, redistest.StartMini(t).Addr()))
	b.refused("the restart guard", b.acquireGuarded(time.Second, 30000, fieldA))
	b.free()
	b.says("granted", b.acquire(30000, fieldA))
}

// BenchmarkAcquire is what an acquire costs inside Redis, by its own count of
// microseconds a call: granted without a guard, with one that LASTSAVE satisfies,
// and with one for which INFO is needed; held, with and without the look whether
// the server is a replica. The key is removed by a command of its own.
//
//	go test -run '^$' -bench Acquire -benchtime 20000x -count 5 ./internal/script
func BenchmarkAcquire(b *testing.B) {
	server := redistest.StartServer(b)
	rdb := server.Client(b)
	ctx := b.Context()
	const uptime = 8 * time.Second
	blind := cut(b, Acquire.Text, "  local write", "  return 'held")
	for _, text := range []string{Acquire.Text, blind} {
		require.NoError(b, rdb.ScriptLoad(ctx, text).Err())
	}
	acquire := func(text string, guard time.Duration) string {
		reply, err := rdb.EvalSha(ctx, redis.NewScript(text).Hash(), []string{"k"}, 30000, fieldA, guard.Milliseconds()).Result()
		require.NoError(b, err)
		kind, _, _ := strings.Cut(fmt.Sprint(reply), ":")
		return kind
	}
	for acquire(Acquire.Text, uptime) != "201" {
		time.Sleep(100 * time.Millisecond)
	}
	for _, way := range []struct {
		name, text, field, want string
		guard                   time.Duration
		saved                   bool
	}{
		{name: "granted", text: Acquire.Text, want: "201"},
		{name: "granted, guard proven by LASTSAVE", text: Acquire.Text, want: "201", guard: time.Second},
		{name: "granted, guard proven by INFO", text: Acquire.Text, want: "201", guard: uptime, saved: true},
		{name: "held, no look for a replica", text: blind, field: fieldB, want: "held"},
		{name: "held", text: Acquire.Text, field: fieldB, want: "held"},
	} {
		b.Run(way.name, func(b *testing.B) {
			if way.saved {
				require.NoError(b, rdb.Save(ctx).Err())
			}
			require.NoError(b, rdb.Del(ctx, "k").Err())
			if way.field != "" {
				require.NoError(b, rdb.HSet(ctx, "k", way.field, 1).Err())
				require.NoError(b, rdb.Expire(ctx, "k", time.Hour).Err())
			}
			require.NoError(b, rdb.ConfigResetStat(ctx).Err())
			sha, ms := redis.NewScript(way.text).Hash(), way.guard.Milliseconds()
			for b.Loop() {
				if err := rdb.EvalSha(ctx, sha, []string{"k"}, 30000, fieldA, ms).Err(); err != nil {
					b.Fatal(err)
				}
				if way.field == "" {
					rdb.Del(ctx, "k")
				}
			}
			b.StopTimer()
			stats := rdb.Info(ctx, "commandstats").Val()
			_, stats, _ = strings.Cut(stats, "cmdstat_evalsha:")
			_, stats, _ = strings.Cut(stats, "usec_per_call=")
			number, _, _ := strings.Cut(stats, ",")
			usec, err := strconv.ParseFloat(number, 64)
			require.NoError(b, err)
			b.ReportMetric(usec, "redis-µs/call")
			require.Equal(b, way.want, acquire(way.text, way.guard))
		})
	}
}

// cut is text without what stands from one word to before another.
func cut(t testing.TB, text, from, to string) string {
	before, rest, ok := strings.Cut(text, from)
	require.True(t, ok)
	_, after, ok := strings.Cut(rest, to)
	require.True(t, ok)
	return before + to + after
}
