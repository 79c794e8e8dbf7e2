package integration

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"runtime"
	"runtime/pprof"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/relock-go/relock/internal/redistest"
	"github.com/relock-go/relock/internal/script"
	"github.com/relock-go/relock/rlock"
)

// sizeLimit bounds a scene of many. It is reached only when something hangs.
const sizeLimit = 2 * time.Minute

// site is Redis for many waiters or holds: servers of the test's own, so that
// everything that is counted there is the test's.
type site struct {
	testing.TB
	client  func() redis.UniversalClient // one more
	nodes   []*redis.Client              // of each master
	sharded bool                         // a client has a subscription connection for each
}

func singleSite(t testing.TB) *site {
	s := OwnRedis(t)
	return &site{
		TB:     t,
		client: func() redis.UniversalClient { return s.Client(t) },
		nodes:  []*redis.Client{s.Client(t)},
	}
}

func clusterSite(t testing.TB) *site {
	c := redistest.StartCluster(t, 3, 0, "--cluster-node-timeout", patience)
	s := &site{TB: t, client: func() redis.UniversalClient { return c.Client(t) }}
	for _, node := range c.Nodes {
		s.nodes = append(s.nodes, node.Client(t))
	}
	s.sharded = s.nodes[0].PubSubShardChannels(t.Context(), "*").Err() == nil
	return s
}

// connections is how many subscription connections there should be at each node.
func (s *site) connections() []int {
	if s.sharded {
		return []int{1, 1, 1}
	}
	return []int{1}
}

// subscribers is how many connections each node takes for subscription connections.
func (s *site) subscribers() (each []int) {
	s.Helper()
	for _, node := range s.nodes {
		list, err := node.Do(context.Background(), "client", "list", "type", "pubsub").Text()
		require.NoError(s, err)
		each = append(each, strings.Count(list, "id="))
	}
	return each
}

// subscriptions are the subscribers of all channels, by the servers' own count.
func (s *site) subscriptions() (n int) {
	s.Helper()
	ctx := context.Background()
	for _, node := range s.nodes {
		names, numbers := node.PubSubChannels, node.PubSubNumSub
		if s.sharded {
			names, numbers = node.PubSubShardChannels, node.PubSubShardNumSub
		}
		channels, err := names(ctx, "*").Result()
		require.NoError(s, err)
		if len(channels) == 0 {
			continue
		}
		each, err := numbers(ctx, channels...).Result()
		require.NoError(s, err)
		for _, m := range each {
			n += int(m)
		}
	}
	return n
}

func (s *site) keys() (n int) {
	s.Helper()
	for _, node := range s.nodes {
		m, err := node.DBSize(context.Background()).Result()
		require.NoError(s, err)
		n += int(m)
	}
	return n
}

// count counts the commands that all nodes run from now on.
func (s *site) count() func() map[string]int {
	s.Helper()
	var each []func() map[string]int
	for _, node := range s.nodes {
		each = append(each, redistest.CountCommands(s, node))
	}
	return func() map[string]int {
		s.Helper()
		all := make(map[string]int)
		for _, count := range each {
			for name, n := range count() {
				all[name] += n
			}
		}
		return all
	}
}

// scripts is how many script calls are in a count.
func scripts(count map[string]int) int { return count["evalsha"] + count["eval"] }

// until waits, in this goroutine, for cond.
func (s *site) until(what string, cond func() bool) {
	s.Helper()
	for deadline := time.Now().Add(sizeLimit); !cond(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			s.Fatalf("not within %v: %s", sizeLimit, what)
		}
	}
}

// unsubscribed waits until nobody listens any more.
func (s *site) unsubscribed() {
	s.Helper()
	s.until("no name is subscribed", func() bool { return s.subscriptions() == 0 })
	s.until("no subscription connection is left", func() bool {
		for _, n := range s.subscribers() {
			if n > 0 {
				return false
			}
		}
		return true
	})
}

// census counts goroutines.
type census struct {
	ours   int    // that relock has started
	users  int    // that a test has started
	others int    // that go-redis has started, say
	text   string // of those that are not a test's
}

// labelled calls f with a function that counts the goroutines which f has started,
// and those in turn, but not f's own. Tests that run at the same time do not
// disturb it.
func labelled(t testing.TB, f func(count func() census)) {
	t.Helper()
	mark := name(t)
	pprof.Do(context.Background(), pprof.Labels("test", mark), func(context.Context) {
		f(func() census { return countGoroutines(t, strconv.Quote(mark)) })
	})
}

// ownGoroutines is more than a client has, however many wait: a few of its crew, the
// watchdog's, and three for each subscription connection.
const ownGoroutines = 24

// resting is the census when fewest were there, of many within an interval. A request
// that is under way has a goroutine, and those of all names may go at the same time;
// on a busy machine that takes long, so then it goes on looking.
func resting(count func() census, interval time.Duration) (least census) {
	const looks, most = 10, 200
	for i := range most {
		if n := count(); i == 0 || n.ours+n.others < least.ours+least.others {
			least = n
		}
		if i >= looks && least.ours+least.others <= ownGoroutines {
			break
		}
		time.Sleep(interval / looks)
	}
	return least
}

func countGoroutines(t testing.TB, mark string) (n census) {
	t.Helper()
	var profile bytes.Buffer
	require.NoError(t, pprof.Lookup("goroutine").WriteTo(&profile, 1))
	n.users = -1 // who asks
	for text := range strings.SplitSeq(profile.String(), "\n\n") {
		if !strings.Contains(text, mark) {
			continue
		}
		head, _, _ := strings.Cut(text, " @")
		head = head[strings.LastIndexByte(head, '\n')+1:] // the first one has a title above
		many, err := strconv.Atoi(head)
		require.NoError(t, err, text)
		switch {
		case strings.Contains(text, "relock/integration."):
			n.users += many
			continue
		case strings.Contains(text, "relock-go/relock/"):
			n.ours += many
		default:
			n.others += many
		}
		n.text += text + "\n\n"
	}
	return n
}

// memoryNow is what the heap and the stacks of goroutines take.
func memoryNow() float64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc + m.StackInuse)
}

// cpuTime is what this process has used so far.
func cpuTime(t testing.TB) time.Duration {
	t.Helper()
	var u unix.Rusage
	require.NoError(t, unix.Getrusage(unix.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// spy sees what a go-redis client sends.
type spy struct {
	pipelines atomic.Int64
	releasing atomic.Pointer[func()] // called before each release script
}

func (s *spy) DialHook(next redis.DialHook) redis.DialHook { return next }

func (s *spy) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if f, args := s.releasing.Load(), cmd.Args(); f != nil && len(args) > 1 && args[1] == script.Release.SHA {
			(*f)()
		}
		return next(ctx, cmd)
	}
}

func (s *spy) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		s.pipelines.Add(1)
		return next(ctx, cmds)
	}
}

func sizedNames(prefix string, n int) []string {
	all := make([]string, n)
	for i := range all {
		all[i] = fmt.Sprintf("%s:%09d", prefix, i)
	}
	return all
}

// taken are names that another client has, which sends nothing until it gives
// them back.
type taken struct {
	c     *rlock.Client
	ctx   context.Context
	names []string
}

func (s *site) take(names []string) *taken {
	s.Helper()
	c := benchClient(s, s.client(), rlock.WithWatchdogTimeout(time.Hour))
	o := &taken{c: c, ctx: rlock.WithOwner(context.Background(), rlock.NewOwner()), names: names}
	require.NoError(s, forAll(len(names), func(i int) error { return c.NewLock(names[i]).Lock(o.ctx) }))
	return o
}

// giveBack gives them all back. What that starts is not counted with the caller's
// goroutines.
func (o *taken) giveBack() error {
	done := make(chan error)
	go func() {
		pprof.SetGoroutineLabels(context.Background())
		done <- forAll(len(o.names), func(i int) error { return o.c.NewLock(o.names[i]).Unlock(o.ctx) })
	}()
	return <-done
}

// crowd are goroutines that wait for names, each for one, have it and go.
type crowd struct {
	all sync.WaitGroup

	mu     sync.Mutex // guards errors
	errors []error
}

// crowd starts them, and returns when all wait and all names are listened to.
func (s *site) crowd(c *rlock.Client, waiters int, names []string) *crowd {
	s.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), sizeLimit)
	s.Cleanup(cancel)
	w := &crowd{}
	for i := range waiters {
		w.all.Go(func() {
			l := c.NewLock(names[i%len(names)])
			err := l.Lock(ctx)
			if err == nil {
				err = l.Unlock(ctx)
			}
			if err != nil {
				w.mu.Lock()
				defer w.mu.Unlock()
				w.errors = append(w.errors, err)
			}
		})
	}
	s.until("all wait", func() bool { return c.Stats().Waiting == waiters })
	s.until("all names are listened to", func() bool { return s.subscriptions() >= len(names) })
	return w
}

// waited is what many waiters have cost.
type waited struct {
	gathering     time.Duration // until all waited
	elapsed       time.Duration // while nothing happened
	idle          map[string]int
	cpu           float64 // of one core, meanwhile
	subscribers   []int
	subscriptions int
	goroutines    census        // while no request was under way
	peak          int           // goroutines beside the waiters', when most were; of the whole process
	passing       time.Duration // from the first release until all had been inside
	passes        map[string]int
	stats         rlock.Stats
	memory        float64 // of heap and stacks per waiter
	left          census  // after Close
}

// wait lets many goroutines wait for a few names: for some recheck intervals in
// vain, and then until all have had their name. Afterwards nothing may be left.
func (s *site) wait(waiters int, names []string, recheck time.Duration, intervals int) (r waited) {
	s.Helper()
	other := s.take(names)
	labelled(s, func(goroutines func() census) {
		c := benchClient(s, s.client(), rlock.WithRecheck(recheck))
		before, others := memoryNow(), runtime.NumGoroutine()
		began := time.Now()
		w := s.crowd(c, waiters, names)
		r.gathering = time.Since(began)
		// Each name is asked for once more when it is listened to.
		time.Sleep(recheck + recheck/4)

		r.memory = (memoryNow() - before) / float64(waiters)
		r.goroutines = resting(goroutines, recheck)
		r.subscribers, r.subscriptions = s.subscribers(), s.subscriptions()
		began = time.Now()
		count, cpu := s.count(), cpuTime(s)
		time.Sleep(time.Duration(intervals) * recheck)
		used := cpuTime(s) - cpu
		r.idle = count()
		r.elapsed = time.Since(began)
		r.cpu = float64(used) / float64(r.elapsed)
		for end := time.Now().Add(recheck); time.Now().Before(end); time.Sleep(time.Millisecond) {
			r.peak = max(r.peak, runtime.NumGoroutine()-others-waiters)
		}
		require.Equal(s, waiters, c.Stats().Waiting)

		count = s.count()
		began = time.Now()
		require.NoError(s, other.giveBack())
		w.all.Wait()
		r.passing, r.passes, r.stats = time.Since(began), count(), c.Stats()
		require.Empty(s, w.errors)
		require.EqualValues(s, waiters, r.stats.Acquired)
		require.EqualValues(s, waiters, r.stats.Released)
		require.Zero(s, r.stats.Lost+r.stats.Failed)
		require.Zero(s, r.stats.Held+r.stats.Waiting)
		s.unsubscribed() // though the client is still open
		require.NoError(s, c.Close(context.Background()))
		r.left = goroutines()
	})
	require.NoError(s, other.c.Close(context.Background()))
	require.Zero(s, s.keys())
	return r
}

// most is how many script calls idle waiters may have cost: one for each name and
// interval, and one more where the measuring did not begin with an interval.
func (r waited) most(names int, recheck time.Duration) int {
	return names * (int(r.elapsed/recheck) + 1)
}

// keep are many holds of one client.
type keep struct {
	*site
	c      *rlock.Client
	spy    *spy
	names  []string
	locks  []*rlock.Lock
	ctxs   []context.Context
	period time.Duration // between renewals
}

// keep takes n holds that the watchdog keeps, each for an owner of its own.
func (s *site) keep(n int, watchdog time.Duration) *keep {
	s.Helper()
	k := s.newKeep(n, watchdog)
	k.fill()
	return k
}

// newKeep is keep before the first hold, with names and owners.
func (s *site) newKeep(n int, watchdog time.Duration) *keep {
	s.Helper()
	rdb, spy := s.client(), &spy{}
	rdb.(interface{ AddHook(redis.Hook) }).AddHook(spy)
	k := &keep{
		site: s, spy: spy, c: benchClient(s, rdb, rlock.WithWatchdogTimeout(watchdog)),
		names: sizedNames("hold", n), locks: make([]*rlock.Lock, n), ctxs: make([]context.Context, n), period: watchdog / 3,
	}
	for i := range k.ctxs {
		k.ctxs[i] = rlock.WithOwner(context.Background(), rlock.NewOwner())
	}
	return k
}

func (k *keep) fill() {
	k.Helper()
	require.NoError(k, forAll(len(k.names), func(i int) error {
		k.locks[i] = k.c.NewLock(k.names[i])
		return k.locks[i].Lock(k.ctxs[i])
	}))
}

// renewed is what renewals have cost.
type renewed struct {
	scripts   float64       // per period, by the servers' count
	pipelines float64       // per period, single calls included
	renewals  float64       // per period
	cpu       time.Duration // of this process, per period
	share     float64       // of one core
	least     time.Duration // that a hold had left, of those that were looked at
}

// watch looks at the renewals of some periods.
func (k *keep) watch(periods int) (r renewed) {
	k.Helper()
	const looks = 1000 // at a time; to look at all would be what costs
	step := max(1, len(k.locks)/looks)
	r.least = math.MaxInt64
	count, before, pipelines := k.count(), k.c.Stats(), k.spy.pipelines.Load()
	cpu, began := cpuTime(k), time.Now()
	for end := began.Add(time.Duration(periods) * k.period); time.Now().Before(end); {
		for i := 0; i < len(k.locks); i += step {
			r.least = min(r.least, k.locks[i].Validity(k.ctxs[i]))
		}
		time.Sleep(min(k.period/20, max(0, time.Until(end))))
	}
	used, elapsed := cpuTime(k)-cpu, time.Since(began)
	each := float64(k.period) / float64(elapsed)
	r.scripts = each * float64(scripts(count()))
	r.pipelines = each * float64(k.spy.pipelines.Load()-pipelines)
	r.renewals = each * float64(k.c.Stats().Renewals-before.Renewals)
	r.cpu = time.Duration(each * float64(used))
	r.share = float64(used) / float64(elapsed)
	return r
}

// lost is how many holds are lost, by whoever says most: the client's counters, its
// holds or the servers.
func (k *keep) lost() int {
	k.Helper()
	dead := 0
	for i, l := range k.locks {
		if l.Validity(k.ctxs[i]) <= 0 {
			dead++
		}
	}
	n, s := len(k.locks), k.c.Stats()
	return max(dead, int(s.Lost), n-s.Held, n-k.keys())
}

// closed is what Close of a client with many waiters and holds has done.
type closed struct {
	took       time.Duration
	telling    time.Duration // until the first release was sent
	told       int           // holders that knew by then
	requests   int           // script calls in all
	keys       int           // left of its own
	goroutines census        // left by Close
}

// close closes a client that has waiters for names, and holds. All waiters must
// get ErrClosed.
func (s *site) close(waiters int, names []string, holds int) (r closed) {
	s.Helper()
	other := s.take(names)
	labelled(s, func(goroutines func() census) {
		k := s.keep(holds, 30*time.Second)
		w := s.crowd(k.c, waiters, names)
		lost := make([]<-chan struct{}, holds)
		for i, l := range k.locks {
			lost[i] = l.Lost(k.ctxs[i])
		}
		require.Equal(s, holds+len(names), s.keys())

		var first sync.Once
		began := time.Now()
		look := func() {
			first.Do(func() {
				r.telling = time.Since(began)
				for i, l := range k.locks {
					select {
					case <-lost[i]:
						if l.Validity(k.ctxs[i]) == 0 {
							r.told++
						}
					default:
					}
				}
			})
		}
		count := s.count()
		k.spy.releasing.Store(&look)
		began = time.Now()
		err := k.c.Close(context.Background())
		r.took, r.goroutines = time.Since(began), goroutines()
		require.NoError(s, err)
		w.all.Wait()
		r.requests = scripts(count())
		require.Len(s, w.errors, waiters)
		for _, err := range w.errors {
			require.ErrorIs(s, err, rlock.ErrClosed)
		}
		r.keys = s.keys() - len(names)
		s.unsubscribed()
	})
	require.NoError(s, other.giveBack(), "others have lost nothing")
	return r
}
