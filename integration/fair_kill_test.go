package integration

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/script"
	"github.com/relock-go/relock/rlock"
)

// servedWithin is what is asked for: whoever stands behind a dead waiter is served so
// long after that one's time is over, at the latest.
const servedWithin = 300 * time.Millisecond

// timesOf follows the scores of a fair lock's queue until stop is called. stop returns
// the last that was seen of each field.
func timesOf(t *testing.T, rdb redis.UniversalClient, lock string) (stop func() map[string]float64) {
	ctx, cancel := context.WithCancel(t.Context())
	last := map[string]float64{}
	var done sync.WaitGroup
	done.Go(func() {
		for ctx.Err() == nil {
			for _, z := range rdb.ZRangeWithScores(ctx, script.ScoresKey(lock), 0, -1).Val() {
				last[z.Member.(string)] = z.Score
			}
			time.Sleep(2 * time.Millisecond)
		}
	})
	return func() map[string]float64 {
		cancel()
		done.Wait()
		return last
	}
}

// Processes are killed while they wait for a fair lock. Whoever stands behind a dead
// waiter is served when that one's time is over, in the order of arrival.
//
// A dead waiter's time is its score in Redis, by the clock that this process has too.
// Scores change as those before leave, so they are followed.
func TestFair_KilledWaiters(t *testing.T) {
	t.Parallel()
	const processes, each, killed = 8, 2, 3
	d, rdb := single(t)
	lock := name(t)
	ws := make([]*kindWorker, processes)
	for i := range ws {
		ws[i] = startKindWorker(t, settings{Deployed: d}, time.Second)
	}
	// The time of whoever comes begins when the holder's TTL ends, so that is short.
	holder := lockClient(t, rdb, rlock.WithWatchdogTimeout(time.Second)).NewFairLock(lock)
	ctx := rlock.WithOwner(t.Context(), "holder")
	require.NoError(t, holder.Lock(ctx))
	line := lineUp(t, rdb, lock, ws, each, 0)

	var dead []*kindWorker
	for _, i := range rand.Perm(processes)[:killed] {
		dead = append(dead, ws[i])
		ws[i].Kill()
	}
	times := timesOf(t, rdb, lock)
	require.NoError(t, holder.Unlock(ctx))
	free := Now()
	wall := time.Now().UnixMilli()*int64(time.Millisecond) - Now() // of Redis, before our clock

	alive := slices.DeleteFunc(slices.Clone(line), func(a *arrival) bool { return slices.Contains(dead, a.w) })
	for _, a := range alive {
		a.ops = a.w.await(a.task)
	}
	last := times()
	require.Equal(t, owners(alive), owners(byGrant(line)), "the order of arrival")

	var took []time.Duration
	due, behind := free, 0
	for _, a := range line {
		if slices.Contains(dead, a.w) {
			require.NotZero(t, last[a.field], "%s had a time", a.field)
			due = max(due, int64(last[a.field]*1e6)-wall)
			behind++
			continue
		}
		if behind > 0 {
			late := time.Duration(a.ops[0].Return - due)
			t.Logf("%s, behind %d dead ones, is served %v after their time, %v after the lock was free",
				a.owner, behind, late.Round(time.Millisecond), time.Duration(a.ops[0].Return-free).Round(time.Millisecond))
			require.Greater(t, late, -5*time.Millisecond, "their time counts")
			took = append(took, late)
			behind = 0
		}
		due = max(due, a.ops[1].Return)
	}
	slices.Sort(took)
	if len(took) > 0 { // else all dead ones stood at the end
		require.Less(t, took[len(took)/2], servedWithin, "the median")
		require.Less(t, took[len(took)-1], servedWithin+slack, "the longest")
	}
	finishAll(slices.DeleteFunc(ws, func(w *kindWorker) bool { return slices.Contains(dead, w) }))
}
