package integration

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/redistest"
	"github.com/relock-go/relock/internal/script"
	"github.com/relock-go/relock/rlock"
)

// refreshLimit is what the client of a cluster, or of a Sentinel, may take to find
// out who serves a key now, on a busy machine.
const refreshLimit = 3 * time.Second

// TestMigration_UnderHoldersAndWaiters moves the slot of a lock, again and again,
// while it is held, waited for and renewed: each step is told to nobody but by
// MOVED and ASK. CLU-3, CLU-5.
func TestMigration_UnderHoldersAndWaiters(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t, 3, 0)
	for name, opt := range map[string][]rlock.Option{
		"sharded": nil, "plain": {rlock.WithShardedPubSub(false)},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(context.Background(), 2*faultLimit)
			defer cancel()
			opts := append([]rlock.Option{
				rlock.WithWatchdogTimeout(shortDog), rlock.WithRecheck(time.Second), rlock.WithHandoffLimit(1, time.Second),
			}, opt...)
			mine, theirs := lockClient(t, cluster.Client(t), opts...), lockClient(t, cluster.Client(t), opts...)
			key := name + ":moving"
			l, other := mine.NewLock(key), theirs.NewLock(key)
			slot := cluster.Slot(key)

			// A lock that nobody gives back stands through all of it.
			pinned := mine.NewLock("{" + key + "}:pinned")
			require.NoError(t, pinned.Lock(rlock.WithOwner(ctx, alice)))

			// Two owners in each process take turns all the time.
			var inside, entries int
			var mu sync.Mutex // guards inside and entries
			over := make(chan struct{})
			var all sync.WaitGroup
			for _, l := range []*rlock.Lock{l, other} {
				for _, o := range []rlock.Owner{bob, carol} {
					all.Go(func() {
						ctx := rlock.WithOwner(ctx, o)
						for {
							select {
							case <-over:
								return
							default:
							}
							if err := l.Lock(ctx); err != nil {
								t.Error("lock: ", err)
								return
							}
							mu.Lock()
							if inside++; inside > 1 {
								t.Error("two are inside")
							}
							entries++
							mu.Unlock()
							time.Sleep(time.Millisecond)
							mu.Lock()
							inside--
							mu.Unlock()
							if err := l.Unlock(ctx); err != nil {
								t.Error("unlock: ", err)
								return
							}
						}
					})
				}
			}
			goOn := func(what string) {
				t.Helper()
				mu.Lock()
				before := entries
				mu.Unlock()
				require.Eventually(t, func() bool {
					mu.Lock()
					defer mu.Unlock()
					return entries > before+3
				}, time.Second+refreshLimit, 2*time.Millisecond, what)
			}
			for _, to := range []int{1, 2, 0} {
				if cluster.Master(key) == cluster.Nodes[to] {
					continue
				}
				m := cluster.StartMigration(t, slot, cluster.Nodes[to])
				goOn("while it is announced")
				m.MoveKeys()
				goOn("while keys stand on both sides")
				renewals := mine.Stats().Renewals
				require.Eventually(t, func() bool { return mine.Stats().Renewals > renewals+1 }, faultLimit, time.Millisecond)
				m.Finish()
				goOn("when it has moved")
			}
			close(over)
			all.Wait()
			require.Positive(t, pinned.Validity(rlock.WithOwner(ctx, alice)))
			require.NoError(t, pinned.Unlock(rlock.WithOwner(ctx, alice)))
			require.Zero(t, mine.Stats().Lost+theirs.Stats().Lost)
			n, err := cluster.Client(t).Exists(ctx, key, pinned.Key()).Result()
			require.NoError(t, err)
			require.Zero(t, n, "nothing is left")
		})
	}
}

// TestMigration_SleepingWaiter: the slot of a waiter that sleeps, moves. It is woken
// by the release, wherever that is told: in the middle of the migration at the
// latest by its own look, and afterwards by the message.
func TestMigration_SleepingWaiter(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t, 3, 0)
	const recheck = 2 * time.Second
	for _, when := range []string{"announced", "keys moved", "finished", "finished twice"} {
		t.Run(when, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(context.Background(), 2*faultLimit)
			defer cancel()
			look := recheck
			if when == "finished" || when == "finished twice" {
				look = time.Hour // the message alone has to wake it
			}
			opts := []rlock.Option{rlock.WithRecheck(look)}
			mine, theirs := lockClient(t, cluster.Client(t)), lockClient(t, cluster.Client(t), opts...)
			key := "sleeping:" + when
			l, other := mine.NewLock(key), theirs.NewLock(key)
			require.NoError(t, l.Lock(rlock.WithOwner(ctx, alice)))
			got := inBackground(func() error { return other.Lock(rlock.WithOwner(ctx, stranger)) })
			listening := func() bool {
				n, err := cluster.Master(key).Client(t).PubSubShardNumSub(ctx, script.Channel(key)).Result()
				return err == nil && n[script.Channel(key)] == 1
			}
			require.Eventually(t, listening, faultLimit, 5*time.Millisecond, "it listens")

			home := cluster.Master(key)
			var away []*redistest.Server
			for _, n := range cluster.Nodes {
				if n != home {
					away = append(away, n)
				}
			}
			m := cluster.StartMigration(t, cluster.Slot(key), away[0])
			switch when {
			case "announced":
			case "keys moved":
				m.MoveKeys()
			default:
				m.Finish()
				require.Eventually(t, listening, faultLimit, 5*time.Millisecond, "it listens at the new place")
			}
			if when == "finished twice" {
				cluster.Migrate(t, cluster.Slot(key), away[1])
				require.Eventually(t, listening, faultLimit, 5*time.Millisecond, "it listens at the third place")
			}
			freed := time.Now()
			require.NoError(t, l.Unlock(rlock.WithOwner(ctx, alice)))
			require.NoError(t, result(t, soon, got, "the waiter"))
			require.Less(t, time.Since(freed), recheck+refreshLimit)
			require.NoError(t, other.Unlock(rlock.WithOwner(ctx, stranger)))
			if when == "announced" || when == "keys moved" {
				m.Finish()
			}
		})
	}
}

// TestMigration_EachOperation runs every operation on a slot that has moved, which
// its client does not know, and on one whose keys are on their way. Each is
// answered by the right node, and redirects are few: CLU-5.
func TestMigration_EachOperation(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t, 2, 0)
	for _, state := range []string{"MOVED", "ASK"} {
		for _, d := range deeds {
			t.Run(state+"/"+d.name, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(context.Background(), 2*faultLimit)
				defer cancel()
				proxies := cluster.Proxies(t)
				s := migrationScene(t, ctx, cluster, proxies, d.opts)
				d.before(s)
				home := cluster.Master(s.l.Key())
				to := cluster.Nodes[0]
				if to == home {
					to = cluster.Nodes[1]
				}
				m := cluster.StartMigration(t, cluster.Slot(s.l.Key()), to)
				m.MoveKeys()
				if state == "MOVED" {
					m.Finish()
				}
				proxies.For(home.Addr).ResetCounts()
				proxies.For(to.Addr).ResetCounts()
				require.NoError(t, result(t, soon, inBackground(func() error { return d.do(s) }), d.name))
				if d.depth > 0 {
					s.stands(s.l, d.holder, d.depth)
				}
				asked := proxies.For(home.Addr).CountCommand("evalsha") + proxies.For(to.Addr).CountCommand("evalsha")
				require.LessOrEqual(t, asked, 8, "redirects are bounded")
				for range d.depth {
					require.NoError(t, s.l.Unlock(s.as(d.holder)))
				}
				require.Eventually(t, func() bool { return !s.exists() }, soon, time.Millisecond)
				s.noLoss()
				if state == "ASK" {
					m.Finish()
				}
			})
		}
	}
}

// migrationScene is a scene on cluster whose client goes through proxies.
func migrationScene(t *testing.T, ctx context.Context, cluster *redistest.Cluster, proxies *redistest.Proxies, opts []rlock.Option) *scene {
	t.Helper()
	through := cluster.Client(t, func(o *redis.ClusterOptions) { o.Dialer = proxies.Dialer() })
	direct := cluster.Client(t)
	s := &scene{T: t, ctx: ctx, rig: &rig{
		through: through, direct: direct,
		proxy: func(key string) *redistest.Proxy { return proxies.For(cluster.Master(key).Addr) },
	}}
	usual := []rlock.Option{rlock.WithRecheck(time.Second), rlock.WithHandoffLimit(1000, time.Hour)}
	s.c = lockClient(t, through, append(usual, opts...)...)
	s.other = lockClient(t, direct, usual...)
	for _, n := range cluster.Nodes { // so that each request is one EVALSHA
		(&rig{direct: n.Client(t)}).load(t)
	}
	s.rename()
	return s
}
