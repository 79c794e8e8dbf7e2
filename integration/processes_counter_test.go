package integration

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/relock-go/relock/internal/redistest"
	"github.com/relock-go/relock/rlock"
)

func init() { roles["counter"] = counterRole }

// envSoak makes the counting go on for so long.
const envSoak = "RELOCK_SOAK"

// counting is what a process of the role "counter" does: Goroutines of it take
// Lock again and again, For so long, and increment a counter inside that nothing
// else protects.
type counting struct {
	Lock       string
	Data       string // the Redis of the counter, which no fault stands before
	Goroutines int
	For        time.Duration
	Least      int  // each goroutine goes on until it has so many increments
	Word       bool // and until a word comes
}

// tally is what came of it.
type tally struct {
	Each   []int   // increments by each goroutine
	Waited []int64 // the longest wait of each
	Late   int     // increments that were over only when Validity had promised no more
	Told   int     // holds whose Validity was 0 before the increment, which was left out
	Lost   int     // Unlocks that were ErrLost
	Open   int     // Unlocks that were ErrUnsettled
	Errors []string
	Stats  rlock.Stats
	Ops    []Op
}

func (c tally) sum() (n int) {
	for _, m := range c.Each {
		n += m
	}
	return n
}

// counterRole says that it is ready, waits for a word, counts and reports.
func counterRole(ctx context.Context, env *ChildEnv) error {
	p, err := open(env)
	if err != nil {
		return err
	}
	data := redis.NewClient(&redis.Options{Addr: p.Count.Data})
	c := &counter{counting: p.Count, lock: p.locks.NewLock(p.Count.Lock), data: data}
	c.Each, c.Waited = make([]int, c.Goroutines), make([]int64, c.Goroutines)
	// Whoever comes first in one process is not to have the others' connections,
	// dialled while it waits, as an advantage.
	if err := errors.Join(data.Ping(ctx).Err(), env.Send("ready"), env.Receive(new(string))); err != nil {
		return err
	}
	ease := p.strain(ctx, func(int) {})
	until := time.Now().Add(c.For)
	enough := make(chan struct{})
	if !c.Word {
		close(enough)
	}
	one := make([]tally, c.Goroutines) // of each goroutine
	var g errgroup.Group
	for i := range c.Goroutines {
		g.Go(func() error {
			for time.Now().Before(until) || c.Each[i] < c.Least || !over(enough) {
				if err := c.once(ctx, i, &one[i]); err != nil {
					return err
				}
			}
			return nil
		})
	}
	if c.Word {
		if err := env.Receive(new(string)); err != nil {
			return err
		}
		close(enough)
	}
	if err := errors.Join(g.Wait(), ease()); err != nil {
		return err
	}
	for _, t := range one {
		c.Late, c.Told, c.Lost, c.Open = c.Late+t.Late, c.Told+t.Told, c.Lost+t.Lost, c.Open+t.Open
		c.Errors = append(c.Errors, t.Errors...)
	}
	c.Stats, c.Ops = p.locks.Stats(), c.rec.Ops()
	// The last word comes when the network is well again: Close is to succeed.
	return errors.Join(env.Send(c.tally), env.Receive(new(string)), data.Close(), p.end())
}

// counter is a process that counts.
type counter struct {
	counting
	tally
	lock *rlock.Lock
	data *redis.Client
	rec  Recorder
}

// once is one increment by goroutine i. Its error is a failure of the test's own.
func (c *counter) once(ctx context.Context, i int, t *tally) error {
	owner := fmt.Sprintf("%d/%d", os.Getpid(), i)
	op := Op{Kind: Acquired, Lock: c.counting.Lock, Owner: owner, Call: Now()}
	if err := c.lock.Lock(ctx); err != nil {
		t.Errors = append(t.Errors, err.Error())
		return nil
	}
	op.Return = Now()
	c.rec.Add(op)
	c.Waited[i] = max(c.Waited[i], op.Return-op.Call)

	held := Now()
	left := c.lock.Validity(ctx)
	if left == 0 {
		t.Told++
	} else {
		n, err := c.data.Get(ctx, c.counting.Lock+":counter").Int()
		if err != nil && !errors.Is(err, redis.Nil) {
			return err
		}
		if err := c.data.Set(ctx, c.counting.Lock+":counter", n+1, time.Hour).Err(); err != nil {
			return err
		}
		c.Each[i]++
		if now := Now(); now > held+int64(left) {
			t.Late++
		} else {
			held = now
		}
	}
	op.Call = Now()
	switch err := c.lock.Unlock(ctx); {
	case err == nil:
		op.Kind, op.Return = Released, Now()
	case errors.Is(err, rlock.ErrLost):
		t.Lost++
		op.Kind, op.Call, op.Return = Lost, held, Now()
	case errors.Is(err, rlock.ErrUnsettled):
		t.Open++
		op.Kind, op.Return = Released, 1<<62 // who knows when
	default:
		return err
	}
	c.rec.Add(op)
	return nil
}

// count has the processes count, all at once, and returns what came of it. heal
// is called when they have counted, before they close.
func count(t *testing.T, processes []settings, heal func()) []tally {
	t.Helper()
	return countMeanwhile(t, processes, func() {}, heal)
}

// countMeanwhile is count that goes on as long as meanwhile, if the processes
// wait for a word.
func countMeanwhile(t *testing.T, processes []settings, meanwhile, heal func()) []tally {
	t.Helper()
	children := make([]*Child, len(processes))
	for i, s := range processes {
		children[i] = StartChild(t, "counter", s.params(t))
	}
	for _, c := range children {
		c.Receive(new(string))
	}
	for _, c := range children {
		c.Send("go")
	}
	meanwhile()
	for i, c := range children {
		if processes[i].Count.Word {
			c.Send("enough")
		}
	}
	all := make([]tally, len(children))
	for i, c := range children {
		require.NoError(t, c.TryReceive(&all[i], processes[i].Count.For+60*time.Second), "process %d does not come to an end", i)
	}
	heal()
	for _, c := range children {
		c.Send("end")
	}
	for _, c := range children { // each of them takes a second to end, with the race detector
		require.NoError(t, c.Wait())
	}
	return all
}

// judgeCount looks at what every counting must show. It returns the number of increments.
func judgeCount(t *testing.T, rdb *redis.Client, lock string, all []tally) int {
	t.Helper()
	total := 0
	var history []Op
	for i, c := range all {
		total += c.sum()
		history = append(history, c.Ops...)
		mean := c.sum() / len(c.Each)
		t.Logf("process %d: %d increments, by each goroutine %d to %d; longest wait %s; %d acquired, of those %d handed over; %d attempts, %d scripts, %d reconnects; %d told, %d lost, %d open, %d late",
			i, c.sum(), slices.Min(c.Each), slices.Max(c.Each), ms(slices.Max(c.Waited)),
			c.Stats.Acquired, c.Stats.HandedOff, c.Stats.Attempts, c.Stats.Scripts, c.Stats.Reconnects, c.Told, c.Lost, c.Open, c.Late)
		require.Empty(t, c.Errors)
		require.Positive(t, slices.Min(c.Each), "every goroutine of process %d is served", i)
		require.GreaterOrEqual(t, slices.Min(c.Each), mean/4, "every goroutine of process %d has its share", i)
		require.Zero(t, c.Late, "a process stood still in the middle of an increment for longer than was proven")
	}
	n, err := rdb.Get(t.Context(), lock+":counter").Int()
	require.NoError(t, err)
	require.Equal(t, total, n, "no increment is lost")
	oneInside(t, history)
	require.NoError(t, CheckMutex(history, time.Minute))
	return total
}

// oneInside checks that of all owners at most one was inside at any time.
func oneInside(t *testing.T, history []Op) {
	t.Helper()
	type span struct {
		owner    string
		from, to int64
	}
	var spans []span
	since := map[string]int64{}
	for _, op := range history { // of each owner in its order
		if op.Kind == Acquired {
			since[op.Owner] = op.Return
		} else {
			spans = append(spans, span{op.Owner, since[op.Owner], op.Call})
		}
	}
	slices.SortFunc(spans, func(a, b span) int { return int(min(max(a.from-b.from, -1), 1)) })
	for i, s := range spans[min(1, len(spans)):] {
		require.LessOrEqual(t, spans[i].to, s.from, "%s was inside, and %s came in", spans[i].owner, s.owner)
	}
}

// rounds runs f once, or until the time that RELOCK_SOAK asks for is over.
func rounds(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	soak, err := time.ParseDuration(os.Getenv(envSoak))
	if os.Getenv(envSoak) != "" {
		require.NoError(t, err, envSoak)
	}
	f(t)
	for end := time.Now().Add(soak); time.Now().Before(end) && !t.Failed(); {
		t.Run("again", f)
	}
}

// 64 goroutines in each of 4 processes increment one counter.
func TestCounter(t *testing.T) {
	rounds(t, func(t *testing.T) {
		s := Redis(t)
		lock := name(t)
		processes := make([]settings, 4)
		for i := range processes {
			processes[i] = settings{Addr: s.Addr, Count: counting{Lock: lock, Data: s.Addr, Goroutines: 64, For: 10 * time.Second}}
		}
		all := count(t, processes, func() {})
		total := judgeCount(t, s.Client(t), lock, all)
		for i, c := range all {
			require.Zero(t, c.Lost+c.Told+c.Open, "process %d", i)
			require.GreaterOrEqual(t, c.sum(), total/len(all)/4, "process %d has its share", i)
		}
		require.Empty(t, s.Client(t).HGetAll(t.Context(), lock).Val(), "the lock is free")
	})
}

// The same while the network of each process loses replies, delivers requests
// late and cuts connections.
func TestCounterWithFaults(t *testing.T) {
	rounds(t, func(t *testing.T) {
		s := Redis(t)
		lock := name(t)
		const read = 250 * time.Millisecond
		processes := make([]settings, 4)
		proxies := make([]*redistest.Proxy, len(processes))
		var faults []*redistest.Rule
		for i := range processes {
			p := s.Proxy(t)
			proxies[i] = p
			processes[i] = settings{Addr: p.Addr, Read: read, Watchdog: 10 * time.Second,
				Count: counting{Lock: lock, Data: s.Addr, Goroutines: 64, For: 5 * time.Second}}
			one := func(perMille int) redistest.Match {
				return redistest.And(redistest.Command("evalsha"), func(redistest.Request) bool { return rand.IntN(1000) < perMille })
			}
			faults = append(faults,
				p.On(one(15), redistest.LoseReplyAndClose).Times(0),
				p.On(one(1), redistest.LoseReplyAndHang).Times(0),
				p.On(one(1), redistest.Delay(2*read)).Times(0),
				p.On(one(2), redistest.DropRequest).Times(0))
		}
		done := make(chan struct{})
		var g errgroup.Group
		g.Go(func() error {
			for {
				select {
				case <-done:
					return nil
				case <-time.After(200*time.Millisecond + rand.N(400*time.Millisecond)):
					proxies[rand.IntN(len(proxies))].CutAll()
				}
			}
		})
		heal := sync.OnceFunc(func() {
			close(done)
			_ = g.Wait()
			for _, f := range faults {
				f.Off()
			}
		})
		defer heal()
		all := count(t, processes, heal)
		hit := 0
		for _, f := range faults {
			hit += f.Count()
		}
		t.Logf("%d requests were hit", hit)
		require.Positive(t, hit)
		for i, c := range all {
			// Nothing here takes so long that a hold could not be proven.
			require.Zero(t, c.Lost+c.Told, "false losses in process %d", i)
		}
		judgeCount(t, s.Client(t), lock, all)
		rdb := s.Client(t)
		require.Eventually(t, func() bool { return rdb.Exists(t.Context(), lock).Val() == 0 }, 15*time.Second, 10*time.Millisecond, "nothing is left behind")
	})
}

// WAIT-13: two processes with as many waiters each have the lock about as often.
func TestShareOfTwoProcesses(t *testing.T) {
	s := Redis(t)
	lock := name(t)
	c := settings{Addr: s.Addr, Count: counting{Lock: lock, Data: s.Addr, Goroutines: 32, For: 3 * time.Second}}
	all := count(t, []settings{c, c}, func() {})
	total := judgeCount(t, s.Client(t), lock, all)
	for i, c := range all {
		require.GreaterOrEqual(t, c.sum(), total/4, "process %d has its share", i)
	}
}

// WAIT-13: a goroutine that is alone in its process has the lock again and again
// beside a process with a crowd, which passes it on only for 100 ms or 64 times.
func TestLonerBesideACrowd(t *testing.T) {
	s := Redis(t)
	lock := name(t)
	crowd := settings{Addr: s.Addr, Count: counting{Lock: lock, Data: s.Addr, Goroutines: 32, For: 3 * time.Second}}
	loner := crowd
	loner.Count.Goroutines = 1
	all := count(t, []settings{crowd, loner}, func() {})
	judgeCount(t, s.Client(t), lock, all)
	require.GreaterOrEqual(t, all[1].sum(), 10, "it has the lock again and again")
	// It can win every 100 ms. That it does not win a few times in a row is
	// allowed, and the machine's.
	require.Less(t, all[1].Waited[0], int64(100*time.Millisecond+3*slack))
}
