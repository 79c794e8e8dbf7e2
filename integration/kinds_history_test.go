package integration

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/redistest"
	"github.com/relock-go/relock/internal/script"
	"github.com/relock-go/relock/rlock"
)

// crowds are the kinds of each goroutine of a process, and how the history is judged.
var crowds = map[string]struct {
	kinds []string
	check func([]Op, time.Duration) error
}{
	"fair":       {[]string{"fair", "fair", "fair"}, CheckMutex},
	"fenced":     {[]string{"fenced", "fenced", "fenced"}, CheckMutex},
	"spin":       {[]string{"spin", "spin", "spin"}, CheckMutex},
	"mixed":      {[]string{"fair", "fenced", "lock", "spin"}, CheckMutex},
	"read-write": {[]string{"read", "read", "write", "write"}, checkRW},
}

// Three processes take one lock again and again, and porcupine judges what they saw: in
// peace on each deployment, and on the single server while their network loses replies
// and requests and delivers some late.
func TestKinds_Histories(t *testing.T) {
	t.Parallel()
	for kind, crowd := range crowds {
		for _, where := range []string{"single", "faults", "cluster", "failover"} {
			t.Run(kind+"/"+where, func(t *testing.T) {
				t.Parallel()
				d, rdb := single(t)
				heal := nothing
				const read = 250 * time.Millisecond
				each := func() settings { return settings{Deployed: d} }
				switch where {
				case "faults":
					var faults []*redistest.Rule
					each = func() settings {
						p := Redis(t).Proxy(t)
						faults = append(faults, hitAny(p, 2*read)...)
						return settings{Addr: p.Addr, Read: read}
					}
					heal = func() {
						hit := 0
						for _, f := range faults {
							hit += f.Count()
							f.Off()
						}
						t.Logf("%d requests were hit", hit)
						require.Positive(t, hit)
					}
				case "cluster":
					c := deploy(t, false, &sharedCluster, startCluster)
					d, rdb = deployment{Kind: "cluster", Addrs: c.Addrs()}, c.Client(t)
				case "failover":
					s := deploy(t, false, &sharedSentinel, startSentinel)
					d, rdb = deployment{Kind: "failover"}, s.Client(t)
					for _, one := range s.Sentinels {
						d.Addrs = append(d.Addrs, one.Addr)
					}
				}
				lock := name(t)
				ws, tasks := make([]*kindWorker, 3), [][]int{}
				for i := range ws {
					ws[i] = startKindWorker(t, each(), 30*time.Second)
				}
				for _, w := range ws {
					var ids []int
					for j, k := range crowd.kinds {
						ids = append(ids, w.begin(task{
							Kind: k, Lock: lock, Owner: rlock.Owner(fmt.Sprintf("g%d", j)), Times: 20 * soaked(),
							Stay: time.Millisecond, Pause: time.Millisecond,
						}))
					}
					tasks = append(tasks, ids)
				}
				var history []Op
				for i, w := range ws {
					for j, id := range tasks[i] {
						ops := w.await(id)
						require.Len(t, ops, 40*soaked(), "goroutine %d of process %d", j, i)
						history = append(history, ops...)
					}
				}
				heal()
				t.Logf("%d operations", len(history))
				require.NoError(t, crowd.check(history, time.Minute))
				free(t, rdb, lock)
				finishAll(ws)
			})
		}
	}
}

// hitAny has a proxy spoil one in 25 scripts.
func hitAny(p *redistest.Proxy, late time.Duration) []*redistest.Rule {
	one := func(perMille int) redistest.Match {
		return redistest.And(redistest.Command("evalsha"), func(redistest.Request) bool { return rand.IntN(1000) < perMille })
	}
	return []*redistest.Rule{
		p.On(one(20), redistest.LoseReplyAndClose).Times(0),
		p.On(one(5), redistest.LoseReplyAndHang).Times(0),
		p.On(one(5), redistest.Delay(late)).Times(0),
		p.On(one(10), redistest.DropRequest).Times(0),
	}
}

// free waits until nothing is left of a lock: hash, queue, scores.
func free(t *testing.T, rdb redis.UniversalClient, lock string) {
	t.Helper()
	for _, key := range []string{lock, script.QueueKey(lock), script.ScoresKey(lock)} {
		require.Eventually(t, func() bool { return rdb.Exists(t.Context(), key).Val() == 0 }, faultLimit, 5*time.Millisecond, "%s is left", key)
	}
}
