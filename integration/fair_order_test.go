package integration

import (
	"cmp"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/script"
	"github.com/relock-go/relock/rlock"
)

// arrival is a waiter in a fair lock's queue.
type arrival struct {
	w     *kindWorker
	task  int
	owner rlock.Owner
	field string // as it stands in the queue
	ops   []Op
}

// lineUp has waiters of all processes come to the lock one after the other, in turns,
// while somebody holds it: who comes next begins when the one before stands in the queue.
func lineUp(t *testing.T, rdb redis.UniversalClient, lock string, ws []*kindWorker, each int, stay time.Duration) (line []*arrival) {
	t.Helper()
	for round := range each {
		for i, w := range ws {
			a := &arrival{w: w, owner: rlock.Owner(fmt.Sprintf("p%d-%d", i, round))}
			a.task = w.begin(task{Kind: "fair", Lock: lock, Owner: a.owner, Times: 1, Stay: stay})
			line = append(line, a)
			n := int64(len(line))
			require.Eventually(t, func() bool {
				return rdb.LLen(t.Context(), script.QueueKey(lock)).Val() == n
			}, childLimit, time.Millisecond, "%s stands in the queue", a.owner)
			a.field = rdb.LIndex(t.Context(), script.QueueKey(lock), -1).Val()
			require.Contains(t, a.field, ":"+string(a.owner), "the last one is the latest")
		}
	}
	return line
}

// byGrant are those who were served, in the order in which they came in.
func byGrant(line []*arrival) []*arrival {
	served := slices.DeleteFunc(slices.Clone(line), func(a *arrival) bool { return len(a.ops) == 0 })
	slices.SortFunc(served, func(a, b *arrival) int { return cmp.Compare(a.ops[0].Return, b.ops[0].Return) })
	return served
}

func owners(line []*arrival) (all []rlock.Owner) {
	for _, a := range line {
		all = append(all, a.owner)
	}
	return all
}

// 8 processes with 8 waiters each have a fair lock in the order in which they came into
// the queue in Redis, whatever process they are of.
func TestFair_OrderOfProcesses(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"single", "cluster"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			d, rdb := single(t)
			if kind == "cluster" {
				c := deploy(t, false, &sharedCluster, startCluster)
				d, rdb = deployment{Kind: "cluster", Addrs: c.Addrs()}, c.Client(t)
			}
			lock := "{" + name(t) + "}"
			ws := make([]*kindWorker, 8)
			for i := range ws {
				ws[i] = startKindWorker(t, settings{Deployed: d}, 30*time.Second)
			}
			holder := lockClient(t, rdb).NewFairLock(lock)
			ctx := rlock.WithOwner(t.Context(), "holder")
			require.NoError(t, holder.Lock(ctx))
			line := lineUp(t, rdb, lock, ws, 8, 0)
			require.NoError(t, holder.Unlock(ctx))

			var history []Op
			for _, a := range line {
				a.ops = a.w.await(a.task)
				history = append(history, a.ops...)
			}
			require.Equal(t, owners(line), owners(byGrant(line)), "the order of arrival")
			require.NoError(t, CheckMutex(history, time.Minute))
			free(t, rdb, lock)
			finishAll(ws)
		})
	}
}

// single is the shared server, for other processes and for this one.
func single(t *testing.T) (deployment, redis.UniversalClient) {
	s := Redis(t)
	return deployment{Addrs: []string{s.Addr}}, s.Client(t)
}
