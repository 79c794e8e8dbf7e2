package integration

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"golang.org/x/sync/errgroup"

	"github.com/relock-go/relock/multilock"
	"github.com/relock-go/relock/rlock"
)

func init() { roles["grouper"] = grouperRole }

// grouping is what a process of the role "grouper" does: Goroutines of it take random
// subsets of Names on both servers, in random order, For so long, and increment
// inside, for each member, a counter that only its lock protects.
type grouping struct {
	Addrs      []string // of the servers; the counters are on the first
	Names      []string
	Goroutines int
	For        time.Duration
}

// grouped is what came of it.
type grouped struct {
	Each    []int          // groups taken by each goroutine
	Counts  map[string]int // increments of each counter
	GaveUp  int            // TryLocks that found others
	Open    int            // TryLocks that had no answer when the wait was over
	Longest time.Duration  // wait of a Lock
	Errors  []string
}

func (g *grouped) add(one grouped) {
	g.Each = append(g.Each, one.Each...)
	for k, n := range one.Counts {
		g.Counts[k] += n
	}
	g.GaveUp, g.Open = g.GaveUp+one.GaveUp, g.Open+one.Open
	g.Longest = max(g.Longest, one.Longest)
	g.Errors = append(g.Errors, one.Errors...)
}

// grouperRole says that it is ready, waits for a word, works and reports.
func grouperRole(ctx context.Context, env *ChildEnv) error {
	var p grouping
	if err := json.Unmarshal([]byte(env.Params["grouping"]), &p); err != nil {
		return err
	}
	before := goleak.IgnoreCurrent()
	w := &grouper{grouping: p}
	// Two clients of the first server, one of the second.
	for _, addr := range []string{p.Addrs[0], p.Addrs[0], p.Addrs[1]} {
		rdb := redis.NewClient(&redis.Options{Addr: addr})
		c, err := rlock.New(rdb)
		if err != nil {
			return err
		}
		w.rdbs, w.clients = append(w.rdbs, rdb), append(w.clients, c)
	}
	if err := errors.Join(env.Send("ready"), env.Receive(new(string))); err != nil {
		return err
	}
	one := make([]grouped, p.Goroutines)
	until := time.Now().Add(p.For)
	var all errgroup.Group
	for i := range one {
		all.Go(func() error {
			one[i] = grouped{Each: []int{0}, Counts: map[string]int{}}
			// Whoever had no turn yet goes on until it had one.
			for time.Now().Before(until) || one[i].Each[0] == 0 {
				if err := w.once(ctx, &one[i]); err != nil {
					one[i].Errors = append(one[i].Errors, err.Error())
					return nil
				}
			}
			return nil
		})
	}
	if err := all.Wait(); err != nil {
		return err
	}
	sum := grouped{Counts: map[string]int{}}
	for _, g := range one {
		sum.add(g)
	}
	for _, c := range w.clients {
		if s := c.Stats(); s.Held != 0 || s.Waiting != 0 || s.Lost != 0 {
			sum.Errors = append(sum.Errors, fmt.Sprintf("a client ends with %+v", s))
		}
	}
	err := env.Send(sum)
	for i, c := range w.clients {
		err = errors.Join(err, c.Close(ctx), w.rdbs[i].Close())
	}
	return errors.Join(err, goleak.Find(append(leakOptions(), before)...))
}

type grouper struct {
	grouping
	rdbs    []*redis.Client
	clients []*rlock.Client
}

// once takes one group, in one of the ways to do so.
func (w *grouper) once(ctx context.Context, sum *grouped) error {
	ctx = rlock.WithOwner(ctx, rlock.NewOwner())
	g, counters, err := w.group()
	if err != nil {
		return err
	}
	work := func(ctx context.Context) error {
		for _, c := range counters {
			if err := increment(ctx, w.rdbs[0], c); err != nil {
				return err
			}
			sum.Counts[c]++
		}
		if g.Validity(ctx) == 0 {
			return rlock.ErrLost
		}
		sum.Each[0]++
		return nil
	}
	began := time.Now()
	in := func(ctx context.Context) error {
		sum.Longest = max(sum.Longest, time.Since(began))
		return work(ctx)
	}
	switch rand.IntN(4) {
	case 0:
		return g.Do(ctx, in)
	case 1: // nested
		if err := errors.Join(g.Lock(ctx), g.Lock(ctx)); err != nil {
			return err
		}
		return errors.Join(in(ctx), g.Unlock(ctx), g.Unlock(ctx))
	case 2:
		if err := g.LockLease(ctx, time.Minute); err != nil {
			return err
		}
		return errors.Join(in(ctx), g.Unlock(ctx))
	}
	got, err := g.TryLock(ctx, rand.N(400*time.Millisecond), time.Minute)
	switch {
	case errors.Is(err, rlock.ErrUnsettled):
		sum.Open++
		return nil
	case err != nil:
		return err
	case !got:
		sum.GaveUp++
		return nil
	}
	return errors.Join(work(ctx), g.Unlock(ctx))
}

// group is some locks, in any order: a name on one server or on both, by either
// client of the first.
func (w *grouper) group() (*multilock.MultiLock, []string, error) {
	var locks []rlock.Locker
	var counters []string
	add := func(client, server int, name string) {
		locks = append(locks, w.clients[client].NewLock(name))
		counters = append(counters, fmt.Sprintf("%s:counter:%d", name, server))
	}
	names := slices.Clone(w.Names)
	rand.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
	for _, name := range names[:1+rand.IntN(4)] {
		where := rand.IntN(3)
		if where != 1 {
			add(rand.IntN(2), 0, name)
		}
		if where != 0 {
			add(2, 1, name)
		}
	}
	rand.Shuffle(len(locks), func(i, j int) { locks[i], locks[j] = locks[j], locks[i] })
	g, err := multilock.New(locks...)
	return g, counters, err
}

// increment reads and writes back: two at once lose one.
func increment(ctx context.Context, rdb *redis.Client, counter string) error {
	n, err := rdb.Get(ctx, counter).Int()
	if err != nil && !errors.Is(err, redis.Nil) {
		return err
	}
	return rdb.Set(ctx, counter, n+1, time.Hour).Err()
}

// MULTI-6: 16 goroutines in 4 processes take random subsets of 8 names on two
// servers, in any order. All of them come in, none beside another, and nothing is
// left. RELOCK_SOAK says for how long, instead of 10 s.
func TestMultiLock_Overlapping(t *testing.T) {
	servers := []*Server{OwnRedis(t), OwnRedis(t)}
	p := grouping{Goroutines: 4, For: 10 * time.Second}
	if text := os.Getenv(envSoak); text != "" {
		var err error
		p.For, err = time.ParseDuration(text)
		require.NoError(t, err, envSoak)
	}
	for _, s := range servers {
		p.Addrs = append(p.Addrs, s.Addr)
	}
	for range 8 {
		p.Names = append(p.Names, name(t))
	}
	params, err := json.Marshal(p)
	require.NoError(t, err)
	var children []*Child
	for range 4 {
		children = append(children, StartChild(t, "grouper", map[string]string{"grouping": string(params)}))
	}
	for _, c := range children {
		c.Receive(new(string))
	}
	for _, c := range children {
		c.Send("go")
	}
	sum := grouped{Counts: map[string]int{}}
	for i, c := range children {
		var one grouped
		err := c.TryReceive(&one, p.For+60*time.Second)
		require.NoError(t, err, "process %d does not come to an end: a deadlock", i)
		t.Logf("process %d: groups taken by each goroutine: %v; gave up %d, open %d; longest wait %v",
			i, one.Each, one.GaveUp, one.Open, one.Longest)
		sum.add(one)
	}
	for _, c := range children {
		require.NoError(t, c.Wait())
	}
	require.Empty(t, sum.Errors)
	require.Len(t, sum.Each, 16)
	for i, n := range sum.Each {
		require.Positive(t, n, "goroutine %d is served", i)
	}
	rdb := servers[0].Client(t)
	for counter, n := range sum.Counts {
		is, err := rdb.Get(t.Context(), counter).Int()
		require.NoError(t, err)
		require.Equal(t, n, is, "no increment of %s is lost", counter)
		require.NoError(t, rdb.Del(t.Context(), counter).Err())
	}
	for _, s := range servers {
		require.Empty(t, s.Client(t).Keys(t.Context(), "*").Val(), "nothing is left")
	}
}
