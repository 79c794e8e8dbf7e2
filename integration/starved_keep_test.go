package integration

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/relock-go/relock/internal/redistest"
	"github.com/relock-go/relock/rlock"
)

func init() { roles["keeper"] = keeperRole }

// keeping is what a process of the role "keeper" does: it holds as many locks as
// Holds says, and looks at them over and over again.
type keeping struct {
	Name   string
	Holds  int
	Over   time.Duration // it takes them one after the other, in so long: they are renewed apart
	Direct deployment    // where the keys are seen past all faults
}

func (k keeping) lock(i int) string { return fmt.Sprintf("%s:%d", k.Name, i) }

// remaining asks Redis how long the keys have to live. A key that is gone has 0.
func (k keeping) remaining(ctx context.Context, rdb redis.UniversalClient) ([]time.Duration, error) {
	pipe := rdb.Pipeline()
	answers := make([]*redis.DurationCmd, k.Holds)
	for i := range answers {
		answers[i] = pipe.PTTL(ctx, k.lock(i))
	}
	if _, err := pipe.Exec(ctx); err != nil {
		return nil, err
	}
	left := make([]time.Duration, k.Holds)
	for i, a := range answers {
		left[i] = max(0, a.Val())
	}
	return left, nil
}

// kept is what a keeper says of its holds. Times are Now's.
type kept struct {
	Held    int     // holds whose Validity was never 0
	Renewed int     // how often the one of them was renewed that was least often
	Until   []int64 // of each: until when the best answer of Validity promised it
	Told    []int64 // of each: the first look that found it over had its answer then; else 0
	Gap     int64   // the longest time between two looks at one
	Asked   int     // how often Redis was asked for all the keys
	Answer  int64   // the longest time until it answered
	Spare   int64   // by so much at least each key was to outlive what had been promised, as far as could be seen
	Bad     []string
	Notes   []string // the first losses and renewals that failed, and why
	Stats   rlock.Stats
}

// keeper is a process that keeps.
type keeper struct {
	*party
	locks  []*rlock.Lock
	owners []context.Context
	direct redis.UniversalClient

	sights []sight // of each hold
	gap    atomic.Int64

	mu      sync.Mutex // guards what follows
	renewed map[string]int
	kept
}

// sight is what was seen of a hold. It has no mutex: whoever looks is not to wait
// for others who do.
type sight struct{ until, told, looked, revived atomic.Int64 }

// raise makes a at least v.
func raise(a *atomic.Int64, v int64) {
	for old := a.Load(); old < v && !a.CompareAndSwap(old, v); old = a.Load() {
	}
}

// keeperRole locks, says that it is ready, and does what it is told: "strain"
// makes its life hard, "look" asks how things are, "ease" makes it as before,
// "end" has it give all back. To each it answers with a kept.
func keeperRole(ctx context.Context, env *ChildEnv) error {
	k := &keeper{renewed: map[string]int{}}
	var err error
	k.party, err = open(env, rlock.WithTrace(&rlock.Trace{
		Renewed: func(lock string, _ rlock.Owner, _ time.Duration) {
			k.mu.Lock()
			defer k.mu.Unlock()
			k.renewed[lock]++
		},
		RenewFailed: func(lock string, _ rlock.Owner, left time.Duration, err error) { k.note(lock, left, err) },
		Lost:        func(lock string, _ rlock.Owner, held time.Duration, cause error) { k.note(lock, held, cause) },
	}))
	if err != nil {
		return err
	}
	direct, shut, err := k.Keep.Direct.open(redis.UniversalOptions{})
	if err != nil {
		return err
	}
	k.direct, k.Spare = direct, 1<<62
	n := k.Keep.Holds
	k.sights = make([]sight, n)
	for i := range n {
		k.locks = append(k.locks, k.party.locks.NewLock(k.Keep.lock(i)))
		k.owners = append(k.owners, rlock.WithOwner(ctx, rlock.Owner(fmt.Sprint("keeper-", i))))
	}
	// Few at a time: what a request waits for a connection counts as part of its lease.
	var lock errgroup.Group
	lock.SetLimit(8)
	for i := range n {
		time.Sleep(k.Keep.Over / time.Duration(n))
		lock.Go(func() error { return k.locks[i].Lock(k.owners[i]) })
	}
	if err := lock.Wait(); err != nil {
		return err
	}
	k.look()
	watching, stop := context.WithCancel(ctx)
	var watch errgroup.Group
	watch.Go(func() error {
		for watching.Err() == nil {
			k.look()
			time.Sleep(2 * time.Millisecond)
		}
		return nil
	})
	watch.Go(func() error {
		for watching.Err() == nil {
			if err := k.compare(ctx); err != nil {
				return err
			}
			time.Sleep(50 * time.Millisecond)
		}
		return nil
	})
	ease := func() error { return nil }
	for word := "ready"; word != "end" && err == nil; {
		err = env.Send(k.state())
		if err != nil {
			break
		}
		if err = env.Receive(&word); err != nil {
			break
		}
		switch word {
		case "strain":
			// Whoever takes the processor looks: somebody always does.
			ease = k.strain(ctx, func(hog int) { k.lookAt(hog % n) })
		case "ease":
			err = ease()
		}
	}
	stop()
	err = errors.Join(err, watch.Wait())
	if err == nil {
		err = k.each(k.giveBack)
	}
	return errors.Join(err, env.Send(k.state()), k.end(), shut())
}

func (k *keeper) note(lock string, d time.Duration, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.Notes) < 5 {
		k.Notes = append(k.Notes, fmt.Sprintf("%s, renewed %d times: %v: %v", lock, k.renewed[lock], d.Round(time.Millisecond), err))
	}
}

// each calls f for each hold, for all at the same time.
func (k *keeper) each(f func(i int) error) error {
	var g errgroup.Group
	for i := range k.locks {
		g.Go(func() error { return f(i) })
	}
	return g.Wait()
}

func (k *keeper) state() kept {
	k.mu.Lock()
	defer k.mu.Unlock()
	all := k.kept
	all.Bad, all.Notes = slices.Clone(k.Bad), slices.Clone(k.Notes)
	all.Renewed, all.Gap, all.Stats = 1<<30, k.gap.Load(), k.party.locks.Stats()
	for i := range k.sights {
		at := &k.sights[i]
		all.Until, all.Told = append(all.Until, at.until.Load()), append(all.Told, at.told.Load())
		if all.Told[i] == 0 {
			all.Held++
			all.Renewed = min(all.Renewed, k.renewed[k.Keep.lock(i)])
		}
		if at.revived.Load() > 0 {
			all.Bad = append(all.Bad, fmt.Sprintf("hold %d was over, and later it was not", i))
		}
	}
	return all
}

// look looks at every hold.
func (k *keeper) look() {
	for i := range k.locks {
		k.lookAt(i)
	}
}

func (k *keeper) lookAt(i int) {
	at := &k.sights[i]
	began := Now()
	left := k.locks[i].Validity(k.owners[i])
	if before := at.looked.Swap(began); before > 0 {
		raise(&k.gap, began-before)
	}
	if left == 0 {
		at.told.CompareAndSwap(0, Now())
		return
	}
	raise(&at.until, began+int64(left))
	if told := at.told.Load(); told > 0 && told < began {
		at.revived.Store(began)
	}
}

// compare asks Redis until when the keys stand, and holds that against what was
// promised before.
func (k *keeper) compare(ctx context.Context) error {
	promised := make([]int64, len(k.sights))
	for i := range promised {
		promised[i] = k.sights[i].until.Load()
	}
	asked := Now()
	left, err := k.Keep.remaining(ctx, k.direct)
	after := Now()
	if err != nil {
		return err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.Asked++
	k.Answer = max(k.Answer, after-asked)
	for i, until := range promised {
		// Redis tells whole milliseconds.
		end := after + int64(left[i]+time.Millisecond)
		if until > end {
			k.Bad = append(k.Bad, fmt.Sprintf("hold %d was promised for %s longer than Redis has it, which is for %v", i, ms(until-end), left[i]))
		}
		if left[i] > 0 {
			k.Spare = min(k.Spare, end-until)
		}
	}
	return nil
}

// giveBack ends a hold. Whether it was kept or lost, all that tells says the same.
func (k *keeper) giveBack(i int) error {
	l, ctx := k.locks[i], k.owners[i]
	lost := l.Lost(ctx)
	told := l.Validity(ctx) == 0
	if told {
		wait, cancel := context.WithTimeout(ctx, 10*time.Second)
		defer cancel()
		if err := until(wait, func() bool { return over(lost) }); err != nil {
			return fmt.Errorf("hold %d is over, and Lost does not tell: %w", i, err)
		}
	}
	err := l.Unlock(ctx)
	if !errors.Is(err, rlock.ErrLost) && (told || err != nil) {
		return fmt.Errorf("hold %d, of which Validity said that it is over: %v; Unlock: %w", i, told, err)
	}
	return nil
}

// keepUnder has a process hold locks under a strain, which begins when it has them and
// goes on until enough is seen, and checks that it never believes in a hold that
// Redis does not have. It returns what came of it, and which of the keys have
// gone meanwhile.
func keepUnder(t *testing.T, s settings, strain func(), enough func(kept) bool, heal func()) (last kept, gone map[int]int64) {
	t.Helper()
	child := StartChild(t, "keeper", s.params(t))
	tell := func(word string) (k kept) {
		t.Helper()
		if word != "" {
			child.Send(word)
		}
		require.NoError(t, child.TryReceive(&k, 2*childLimit), "the keeper is silent")
		return k
	}
	tell("") // it has all
	rdb, shut, err := s.Keep.Direct.open(redis.UniversalOptions{})
	require.NoError(t, err)
	t.Cleanup(func() { _ = shut() })

	// This process has nothing of the strain: it sees in time when a key is gone.
	gone = map[int]int64{}
	ctx, stop := context.WithCancel(t.Context())
	observed := inBackground(func() error {
		for ctx.Err() == nil {
			left, err := s.Keep.remaining(context.WithoutCancel(ctx), rdb)
			now := Now()
			if err != nil {
				return err
			}
			for i, d := range left {
				if d == 0 && gone[i] == 0 {
					gone[i] = now
				}
			}
			time.Sleep(10 * time.Millisecond)
		}
		return nil
	})
	strain()
	k := tell("strain")
	for end := time.Now().Add(2 * childLimit); !enough(k) && len(k.Bad) == 0; time.Sleep(50 * time.Millisecond) {
		require.True(t, time.Now().Before(end), "%d held, each renewed %d times; %+v", k.Held, k.Renewed, k.Stats)
		k = tell("look")
	}
	heal()
	k = tell("ease")
	stop()
	require.NoError(t, <-observed)
	last = tell("end")
	require.NoError(t, child.Wait())

	t.Logf("%d of %d held, each renewed at least %d times; %d renewals and %d that failed, %d lost, %d script calls; looked at each every %s at least; Redis was asked %d times, answered within %s, and had each for %s more than promised",
		k.Held, s.Keep.Holds, k.Renewed, k.Stats.Renewals, k.Stats.RenewFailures, k.Stats.Lost, k.Stats.Scripts, ms(k.Gap), k.Asked, ms(k.Answer), ms(k.Spare))
	for _, note := range k.Notes {
		t.Log(note)
	}
	if s.Hogs == 0 {
		require.Positive(t, k.Asked)
	}
	require.Empty(t, last.Bad)
	early := int64(1 << 62)
	for i, at := range gone {
		early = min(early, at-last.Until[i])
		require.LessOrEqual(t, last.Until[i], at, "hold %d: Redis did not have it, and Validity promised it", i)
		require.NotZero(t, last.Told[i], "hold %d", i)
	}
	if len(gone) > 0 {
		t.Logf("%d keys went; the holder was promised nothing from %s before on", len(gone), ms(early))
	}
	left, err := s.Keep.remaining(t.Context(), rdb)
	require.NoError(t, err)
	require.Equal(t, make([]time.Duration, s.Keep.Holds), left, "nothing is left behind")
	return k, gone
}

const (
	strainedHolds    = 200
	strainedWatchdog = 2 * time.Second
	strainedPeriods  = 4
)

// strained are settings of a keeper whose locks are at s, seen through addr.
func strained(t *testing.T, s *Server, addr string) settings {
	t.Helper()
	return settings{
		Addr: addr, Watchdog: strainedWatchdog,
		Keep: keeping{Name: name(t), Holds: strainedHolds, Direct: deployment{Addrs: []string{s.Addr}}},
	}
}

// renewedOften is enough where none is to be lost, and so is a loss.
func renewedOften(k kept) bool { return k.Renewed >= strainedPeriods*soaked() || k.Stats.Lost > 0 }

// allOrNothing is enough where the holders may be told of losses.
func allOrNothing(k kept) bool { return k.Held == 0 || k.Renewed >= strainedPeriods }

// soaked is how many times as long a test goes on as it does by default.
func soaked() int {
	if os.Getenv(envSoak) != "" {
		return 10
	}
	return 1
}

// calm checks that none is lost, and no attempt to renew but those that faults hit.
// It cannot tell when the machine, past all faults, takes as long as an attempt may.
func calm(t *testing.T, s settings, k kept, gone map[int]int64, faults bool) {
	t.Helper()
	pause := k.Gap
	if s.Hogs == 0 { // else it is what they do to the answers
		pause = max(pause, k.Answer)
	}
	if pause > int64(s.Watchdog)/6 {
		t.Logf("the machine is too slow to tell whether renewals come in time: %d lost", k.Stats.Lost)
		return
	}
	for i, told := range k.Told {
		if told > 0 {
			t.Logf("hold %d was told over %s after it was promised to be", i, ms(told-k.Until[i]))
		}
	}
	require.Equal(t, s.Keep.Holds, k.Held)
	require.Zero(t, k.Stats.Lost)
	require.Empty(t, gone)
	if !faults {
		require.Zero(t, k.Stats.RenewFailures)
	}
}

func nothing() {}

// REN-12: the client has one connection, and the user's slow commands take it all
// the time. Renewals have connections of their own.
func TestStarved_Pool(t *testing.T) {
	t.Parallel()
	const slow = strainedWatchdog/3 + 300*time.Millisecond // longer than a renewal period
	t.Run("single", func(t *testing.T) {
		t.Parallel()
		r := Redis(t)
		s := strained(t, r, r.Addr)
		s.Pool, s.Slow = 1, slow
		k, gone := keepUnder(t, s, nothing, renewedOften, nothing)
		calm(t, s, k, gone, false)
	})
	t.Run("cluster", func(t *testing.T) {
		t.Parallel()
		c := deploy(t, false, &sharedCluster, startCluster)
		s := settings{Watchdog: strainedWatchdog, Pool: 1, Slow: slow, Deployed: deployment{Kind: "cluster", Addrs: c.Addrs()}}
		s.Keep = keeping{Name: name(t), Holds: strainedHolds, Direct: s.Deployed}
		k, gone := keepUnder(t, s, nothing, renewedOften, nothing)
		calm(t, s, k, gone, false)
	})
	// The renewals have to wait for the one connection, until it is too late.
	t.Run("PipelinePoolSize -1", func(t *testing.T) {
		t.Parallel()
		r := Redis(t)
		s := strained(t, r, r.Addr)
		s.Pool, s.Pipes, s.Slow = 1, -1, strainedWatchdog+500*time.Millisecond
		k, gone := keepUnder(t, s, nothing, func(k kept) bool { return k.Held == 0 }, nothing)
		require.EqualValues(t, s.Keep.Holds, k.Stats.Lost)
		require.NotEmpty(t, gone)
	})
	// They wait for it, and may have it between two of the user's commands.
	t.Run("PipelinePoolSize -1, commands shorter than a period", func(t *testing.T) {
		t.Parallel()
		r := Redis(t)
		s := strained(t, r, r.Addr)
		s.Pool, s.Pipes, s.Slow = 1, -1, 300*time.Millisecond
		keepUnder(t, s, nothing, allOrNothing, nothing)
	})
}

// far makes every request, and every answer, take d.
func far(p *redistest.Proxy, d time.Duration) {
	p.Latency(d)
	p.On(redistest.Any, redistest.DelayReply(d)).Times(0)
}

// REN-1: 50 ms to the server, and 50 ms back.
func TestStarved_Latency(t *testing.T) {
	t.Parallel()
	r := Redis(t)
	p := r.Proxy(t)
	s := strained(t, r, p.Addr)
	k, gone := keepUnder(t, s, func() { far(p, 50*time.Millisecond) }, renewedOften, nothing)
	calm(t, s, k, gone, true)
}

// oneOf matches one script of each n, at random: how many it hits is not left to
// chance.
func oneOf(n int) redistest.Match {
	at, hit := 0, rand.IntN(n)
	return redistest.And(redistest.Command("evalsha"), func(redistest.Request) bool {
		here := at == hit
		if at++; at == n {
			at, hit = 0, rand.IntN(n)
		}
		return here
	})
}

// REN-3: 2 % of the replies are lost, half of them without a word.
func TestStarved_LostReplies(t *testing.T) {
	t.Parallel()
	for _, read := range []time.Duration{silence, 0} { // 0: go-redis waits for longer than a lease
		t.Run(fmt.Sprintf("ReadTimeout %v", read), func(t *testing.T) {
			t.Parallel()
			r := Redis(t)
			p := r.Proxy(t)
			s := strained(t, r, p.Addr)
			s.Read, s.Keep.Over = read, s.Watchdog/3
			var rules []*redistest.Rule
			k, gone := keepUnder(t, s,
				func() {
					rules = append(rules,
						p.On(oneOf(100), redistest.LoseReplyAndClose).Times(0),
						p.On(oneOf(100), redistest.LoseReplyAndHang).Times(0))
				},
				func(k kept) bool {
					return renewedOften(k) && (rules[0].Count() > 0 && rules[1].Count() > 0 || k.Stats.Lost > 0)
				},
				func() {
					for _, r := range rules {
						r.Off()
					}
				})
			t.Logf("%d replies lost with the connection, %d without a word", rules[0].Count(), rules[1].Count())
			calm(t, s, k, gone, true)
		})
	}
}

// CLK-6: one P, and goroutines that take it: a few, and so many that nothing is in
// time. It is not parallel, because it takes more than its share.
func TestStarved_Processor(t *testing.T) {
	r := Redis(t)
	t.Run("3 hogs", func(t *testing.T) {
		s := strained(t, r, r.Addr)
		s.Procs, s.Hogs = 1, 3
		k, gone := keepUnder(t, s, nothing, renewedOften, nothing)
		calm(t, s, k, gone, true)
	})
	t.Run("20 hogs", func(t *testing.T) {
		s := strained(t, r, r.Addr)
		s.Procs, s.Hogs, s.Watchdog = 1, 20, time.Second
		keepUnder(t, s, nothing, allOrNothing, nothing)
	})
}
