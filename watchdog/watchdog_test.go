package watchdog

import (
	"bytes"
	"context"
	"log/slog"
	"math"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const (
	period   = 10 * time.Second
	attempt  = period / 2
	lifetime = 3 * period // of a lease
)

// hold is a caller's side of a lease, as rlock would have it.
type hold struct {
	name     int
	attempts []time.Duration // since the test began
	expired  []time.Duration
}

// caller is a caller of the watchdog. Its mutex comes before the watchdog's.
type caller struct {
	*Watchdog[*hold]
	start time.Time

	mu    sync.Mutex
	calls [][]*Lease[*hold]
	looks int // of the test
	// answer handles one Renew call. The default renews every lease of it.
	answer func(ctx context.Context, batch []*Lease[*hold])
}

// inBubble runs f in virtual time with a caller; Close must leave nothing.
func inBubble(t *testing.T, f func(t *testing.T, c *caller), change ...func(*Config[*hold])) {
	synctest.Test(t, func(t *testing.T) {
		c := &caller{start: time.Now()}
		c.answer = c.renewAll
		cfg := Config[*hold]{Period: period, Attempt: attempt, Renew: c.renew, Expired: c.expire}
		for _, ch := range change {
			ch(&cfg)
		}
		c.Watchdog = New(cfg)
		f(t, c)
		require.NoError(t, c.Close(t.Context()))
		require.Zero(t, c.Len())
	})
}

func (c *caller) renew(ctx context.Context, batch []*Lease[*hold]) {
	c.mu.Lock()
	c.calls = append(c.calls, batch)
	for _, l := range batch {
		l.Hold.attempts = append(l.Hold.attempts, time.Since(c.start))
	}
	answer := c.answer
	c.mu.Unlock()
	answer(ctx, batch)
}

func (c *caller) renewAll(_ context.Context, batch []*Lease[*hold]) {
	for _, l := range batch {
		c.keep(l)
	}
}

func (c *caller) expire(l *Lease[*hold]) {
	c.mu.Lock()
	defer c.mu.Unlock()
	l.Hold.expired = append(l.Hold.expired, time.Since(c.start))
}

// keep keeps l as after a renewal that began now.
func (c *caller) keep(l *Lease[*hold]) {
	c.Keep(l, time.Now().Add(period), time.Now().Add(lifetime))
}

func (c *caller) lease(name int) *Lease[*hold] {
	return &Lease[*hold]{Hold: &hold{name: name}}
}

func (c *caller) kept(n int) []*Lease[*hold] {
	leases := make([]*Lease[*hold], n)
	for i := range leases {
		leases[i] = c.lease(i)
		c.keep(leases[i])
	}
	return leases
}

// pass lets d pass, and all that happens until then happen.
func pass(d time.Duration) {
	time.Sleep(d) // virtual
	synctest.Wait()
}

// pass is the same for tests that look at what c has recorded: what happens
// from now on comes after what the test has read without the mutex.
func (c *caller) pass(d time.Duration) {
	c.mu.Lock()
	c.looks++ // the mutex is what orders the two
	c.mu.Unlock()
	pass(d)
}

// hang never answers, whatever ctx says.
func hang(release <-chan struct{}) func(context.Context, []*Lease[*hold]) {
	return func(context.Context, []*Lease[*hold]) { <-release }
}

func TestRenew_AtEveryPeriod(t *testing.T) {
	inBubble(t, func(t *testing.T, c *caller) {
		l := c.kept(1)[0]
		c.pass(period - period/gridsPerPeriod - 1)
		require.Empty(t, l.Hold.attempts, "the grid takes off a 64th of a period at most")
		c.pass(10*period - (period - period/gridsPerPeriod - 1))
		require.Len(t, l.Hold.attempts, 10)
		require.Empty(t, l.Hold.expired)
		require.Equal(t, 1, c.Len())
	})
}

func TestRenew_NeverWithoutRenewAt(t *testing.T) {
	inBubble(t, func(t *testing.T, c *caller) {
		l, bare := c.lease(1), c.lease(2)
		c.Keep(l, time.Time{}, time.Now().Add(lifetime))
		c.Keep(bare, time.Time{}, time.Time{})
		require.Equal(t, 1, c.Len())
		c.pass(2 * lifetime)
		require.Empty(t, l.Hold.attempts)
		require.Equal(t, []time.Duration{lifetime}, l.Hold.expired)
		require.Empty(t, bare.Hold.expired)
	})
}

func TestRenew_NeverExpiresWithoutDeadline(t *testing.T) {
	inBubble(t, func(t *testing.T, c *caller) {
		c.answer = func(context.Context, []*Lease[*hold]) {} // no answer, ever
		l := c.lease(1)
		c.Keep(l, time.Now().Add(period), time.Time{})
		c.pass(100 * period)
		require.Empty(t, l.Hold.expired)
		require.InDelta(t, 99*period/attempt, len(l.Hold.attempts), 15, "after Attempt and a little")
	})
}

// A time that has passed, at Keep, is due with the next tick.
func TestKeep_PastTimes(t *testing.T) {
	inBubble(t, func(t *testing.T, c *caller) {
		c.pass(time.Minute)
		late, over, long := c.lease(1), c.lease(2), c.lease(3)
		c.Keep(late, time.Now().Add(-time.Second), time.Now().Add(period))
		c.Keep(over, time.Now().Add(-time.Second), time.Now().Add(-time.Millisecond))
		c.Keep(long, time.Now(), c.start.Add(-time.Hour)) // before the watchdog was
		c.pass(tickLength)
		require.Len(t, late.Hold.attempts, 1)
		require.Len(t, over.Hold.expired, 1)
		require.Empty(t, over.Hold.attempts)
		require.Len(t, long.Hold.expired, 1)
	})
}

// Rounding to the grid must not turn "soon" into "again and again, at once".
func TestKeep_SoonIsNotNow(t *testing.T) {
	inBubble(t, func(t *testing.T, c *caller) {
		const soon = 20 * time.Millisecond
		c.answer = func(_ context.Context, batch []*Lease[*hold]) {
			c.Keep(batch[0], time.Now().Add(soon), time.Now().Add(lifetime))
		}
		l := c.kept(1)[0]
		c.pass(period + time.Second)
		require.Greater(t, len(l.Hold.attempts), 10)
		require.LessOrEqual(t, len(l.Hold.attempts), int((time.Second+period/gridsPerPeriod)/soon)+1)
	})
}

// A deadline is never early and at most a tick late, at any distance.
func TestExpired_OnTime(t *testing.T) {
	inBubble(t, func(t *testing.T, c *caller) {
		var leases []*Lease[*hold]
		var deadlines []time.Duration
		for i := range 1000 {
			c.pass(time.Duration(rand.Int64N(int64(5 * time.Millisecond))))
			d := time.Duration(math.Exp(rand.Float64() * math.Log(float64(time.Hour))))
			deadlines = append(deadlines, time.Since(c.start)+d)
			leases = append(leases, c.lease(i))
			c.Keep(leases[i], time.Time{}, time.Now().Add(d))
		}
		c.pass(time.Hour)
		for i, l := range leases {
			require.Len(t, l.Hold.expired, 1)
			require.GreaterOrEqual(t, l.Hold.expired[0], deadlines[i], "early")
			require.LessOrEqual(t, l.Hold.expired[0], deadlines[i]+2*tickLength, "late")
		}
		require.Zero(t, c.Len())
	})
}

// Who is late tells the losses first (CLK-6).
func TestExpired_BeforeRenewalsOfTheSameTick(t *testing.T) {
	var order []string
	inBubble(t, func(t *testing.T, c *caller) {
		at := time.Now().Add(period)
		for i := range 300 {
			c.Keep(c.lease(i), at, at.Add(lifetime))
			c.Keep(c.lease(i), time.Time{}, at)
		}
		c.pass(period)
		require.Len(t, order, 300+3)
		for i, what := range order {
			require.Equal(t, i < 300, what == "expired", i)
		}
	}, func(cfg *Config[*hold]) {
		var mu sync.Mutex
		cfg.Renew = func(context.Context, []*Lease[*hold]) {
			mu.Lock()
			defer mu.Unlock()
			order = append(order, "renew")
		}
		cfg.Expired = func(*Lease[*hold]) {
			mu.Lock()
			defer mu.Unlock()
			order = append(order, "expired")
		}
	})
}

// Nor does a worker whose call ends meanwhile take what is due.
func TestExpired_BeforeRenewalsOfABusyWorker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		var order []string // one after the other, or the race detector tells
		w := New(Config[string]{
			Period: period, Attempt: attempt, Calls: 1, Batch: 1,
			Renew: func(_ context.Context, batch []*Lease[string]) {
				order = append(order, "renew "+batch[0].Hold)
				<-release
			},
			Expired: func(l *Lease[string]) {
				close(release)
				synctest.Wait() // what the worker can do, it has done
				order = append(order, "expired "+l.Hold)
			},
		})
		const grid = period / gridsPerPeriod
		first, second := time.Now().Add(6*grid), time.Now().Add(12*grid)
		w.Keep(&Lease[string]{Hold: "a"}, first, time.Time{})
		w.Keep(&Lease[string]{Hold: "b"}, second, time.Time{})
		w.Keep(&Lease[string]{Hold: "c"}, time.Time{}, second)
		pass(3 * time.Second)
		require.NoError(t, w.Close(t.Context()))
		require.Equal(t, []string{"renew a", "expired c", "renew b"}, order)
	})
}

// If the ticker is late, a worker may come upon a deadline before it does.
func TestTake_LeavesLapsedToTheTicker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := New(Config[int]{Period: period, Attempt: attempt, Renew: func(context.Context, []*Lease[int]) {}})
		w.ticking = true // but no ticker
		l := &Lease[int]{}
		w.Keep(l, time.Time{}, time.Now().Add(time.Second))
		w.joinLineLocked(l, queued)
		time.Sleep(time.Second)
		require.Empty(t, w.take(&worker{}))
		require.Equal(t, noLine, l.line)
		require.Equal(t, 1, w.Len())
		require.Same(t, l, w.wheel.pop(1000))
	})
}

// REN-3: three attempts and more fit between the first due time and the
// deadline, however they fail.
func TestREN3_RetriesUntilTheDeadline(t *testing.T) {
	release := make(chan struct{})
	for name, answer := range map[string]func(context.Context, []*Lease[*hold]){
		"fails at once":    func(context.Context, []*Lease[*hold]) {},
		"waits for ctx":    func(ctx context.Context, _ []*Lease[*hold]) { <-ctx.Done() },
		"hangs for ever":   nil,
		"panics":           func(context.Context, []*Lease[*hold]) { panic("no") },
		"ends its worker":  func(context.Context, []*Lease[*hold]) { runtime.Goexit() },
		"fails after 1.5s": func(context.Context, []*Lease[*hold]) { time.Sleep(1500 * time.Millisecond) },
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, c *caller) {
				if c.answer = answer; answer == nil {
					release = make(chan struct{})
					defer close(release)
					c.answer = hang(release)
				}
				l := c.kept(1)[0]
				c.pass(2 * lifetime)
				require.Equal(t, []time.Duration{lifetime}, l.Hold.expired)
				require.GreaterOrEqual(t, len(l.Hold.attempts), 4)
				require.Less(t, len(l.Hold.attempts), 12, "a storm before the deadline")
				for i, at := range l.Hold.attempts[1:] {
					last := l.Hold.attempts[i]
					most := max(min(attempt+attempt/16, (lifetime-last)/2), attempt/16)
					require.LessOrEqual(t, at-last, most+2*tickLength)
					require.GreaterOrEqual(t, at-last, attempt/16)
					require.Less(t, at, lifetime)
				}
			})
		})
	}
}

func TestREN3_OneFailureOnly(t *testing.T) {
	inBubble(t, func(t *testing.T, c *caller) {
		l := c.kept(1)[0]
		c.answer = func(ctx context.Context, batch []*Lease[*hold]) {
			if len(l.Hold.attempts) > 1 {
				c.renewAll(ctx, batch)
			}
		}
		c.pass(4 * period)
		require.Empty(t, l.Hold.expired)
		require.GreaterOrEqual(t, len(l.Hold.attempts), 4)
	})
}

// Batches that fail together are tried again together.
func TestRetry_KeepsBatchesTogether(t *testing.T) {
	inBubble(t, func(t *testing.T, c *caller) {
		c.answer = func(context.Context, []*Lease[*hold]) {}
		c.kept(1000)
		c.pass(lifetime)
		require.Zero(t, c.Len())
		for _, batch := range c.calls {
			require.Len(t, batch, 100)
		}
	})
}

// REN-2: the deadline does not wait for a call that never returns.
func TestREN2_DeadlineWhileRenewHangs(t *testing.T) {
	inBubble(t, func(t *testing.T, c *caller) {
		release := make(chan struct{})
		defer close(release)
		c.answer = hang(release)
		leases := c.kept(1000)
		c.pass(lifetime)
		for _, l := range leases {
			require.Equal(t, []time.Duration{lifetime}, l.Hold.expired)
		}
	})
}

// A deadline comes in time for leases that wait in the queue, too, and they
// are not renewed afterwards.
func TestREN2_DeadlineInTheQueue(t *testing.T) {
	inBubble(t, func(t *testing.T, c *caller) {
		release := make(chan struct{})
		c.answer = hang(release)
		busy, waits := c.lease(1), c.lease(2)
		c.Keep(busy, time.Now().Add(time.Second), time.Now().Add(lifetime))
		c.pass(1001 * time.Millisecond)
		c.Keep(waits, time.Now().Add(time.Second), time.Now().Add(2*time.Second))
		c.pass(2 * time.Second)
		require.Len(t, waits.Hold.expired, 1)
		close(release)
		c.pass(time.Second)
		require.Empty(t, waits.Hold.attempts)
		require.Len(t, busy.Hold.attempts, 1)
	}, func(cfg *Config[*hold]) { cfg.Calls = 1 })
}

// REN-10: one batch that panics leaves the others renewed.
func TestREN10_PanicInOneBatch(t *testing.T) {
	var log bytes.Buffer
	inBubble(t, func(t *testing.T, c *caller) {
		c.answer = func(ctx context.Context, batch []*Lease[*hold]) {
			if batch[0].Hold.name == 0 {
				panic("the bad one")
			}
			c.renewAll(ctx, batch)
		}
		leases := c.kept(50)
		c.pass(5 * period)
		require.Len(t, leases[0].Hold.expired, 1)
		for _, l := range leases[10:] {
			require.Empty(t, l.Hold.expired)
			require.Len(t, l.Hold.attempts, 5)
		}
	}, func(cfg *Config[*hold]) {
		cfg.Batch = 10
		cfg.Logger = slog.New(slog.NewTextHandler(&log, nil))
	})
	require.Contains(t, log.String(), "Renew panicked")
	require.Contains(t, log.String(), "the bad one")
	require.Contains(t, log.String(), "leases=10")
}

func TestREN10_BadExpired(t *testing.T) {
	for name, bad := range map[string]func(){"panics": func() { panic("no") }, "ends the ticker": runtime.Goexit} {
		t.Run(name, func(t *testing.T) {
			var told atomic.Int32
			inBubble(t, func(t *testing.T, c *caller) {
				for i := range 10 {
					c.Keep(c.lease(i), time.Time{}, time.Now().Add(time.Second))
					c.Keep(c.lease(i), time.Time{}, time.Now().Add(2*time.Second))
				}
				renewed := c.kept(1)[0]
				c.pass(period)
				require.EqualValues(t, 20, told.Load())
				require.Len(t, renewed.Hold.attempts, 1)
			}, func(cfg *Config[*hold]) {
				cfg.Expired = func(*Lease[*hold]) {
					told.Add(1)
					bad()
				}
			})
		})
	}
}

func TestDrop(t *testing.T) {
	inBubble(t, func(t *testing.T, c *caller) {
		never := c.lease(0)
		c.Drop(never)
		l := c.kept(1)[0]
		c.Drop(l)
		c.Drop(l)
		require.Zero(t, c.Len())
		c.pass(2 * lifetime)
		require.Empty(t, l.Hold.attempts)
		require.Empty(t, l.Hold.expired)

		c.keep(l) // and again
		c.pass(period)
		require.Len(t, l.Hold.attempts, 1)
	})
}

func TestDrop_DuringRenew(t *testing.T) {
	inBubble(t, func(t *testing.T, c *caller) {
		c.answer = func(ctx context.Context, _ []*Lease[*hold]) { <-ctx.Done() }
		leases := c.kept(2)
		c.pass(period + time.Second)
		require.Len(t, c.calls, 1)
		c.Drop(leases[0])
		c.pass(2 * lifetime)
		require.Len(t, leases[0].Hold.attempts, 1)
		require.Empty(t, leases[0].Hold.expired)
		require.Greater(t, len(leases[1].Hold.attempts), 1)
		require.Len(t, leases[1].Hold.expired, 1)
	})
}

// REN-6: off means off, also for what is due and waits for a call.
func TestDrop_FromTheQueue(t *testing.T) {
	inBubble(t, func(t *testing.T, c *caller) {
		c.answer = func(context.Context, []*Lease[*hold]) { time.Sleep(time.Second) }
		leases := c.kept(30)
		c.pass(period + 500*time.Millisecond)
		require.Len(t, c.calls, 1)
		for _, l := range leases[10:20] {
			c.Drop(l)
		}
		c.keep(leases[20]) // no longer due
		c.pass(time.Second)
		for _, l := range leases[10:21] {
			require.Empty(t, l.Hold.attempts)
		}
		for _, l := range leases[21:] {
			require.Len(t, l.Hold.attempts, 1)
		}
	}, func(cfg *Config[*hold]) { cfg.Calls, cfg.Batch = 1, 10 })
}

// A lease whose renewal was answered by Keep is not tried again when the call
// itself goes on, or fails later.
func TestKeep_AnswersWhileTheCallGoesOn(t *testing.T) {
	inBubble(t, func(t *testing.T, c *caller) {
		c.answer = func(ctx context.Context, batch []*Lease[*hold]) {
			c.renewAll(ctx, batch[:len(batch)-1])
			<-ctx.Done()
			panic("no answer for the last one")
		}
		leases := c.kept(10)
		c.pass(2*period - time.Second)
		require.Len(t, leases[0].Hold.attempts, 1)
		require.GreaterOrEqual(t, len(leases[9].Hold.attempts), 2)
	})
}

func TestKeep_FromExpired(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var w *Watchdog[int]
		told := 0
		w = New(Config[int]{Period: period, Attempt: attempt, Renew: func(context.Context, []*Lease[int]) {},
			Expired: func(l *Lease[int]) {
				told++
				w.Keep(l, time.Time{}, time.Now().Add(time.Second))
			}})
		w.Keep(&Lease[int]{}, time.Time{}, time.Now().Add(time.Second))
		pass(10 * time.Second)
		require.Equal(t, 10, told)
		require.Equal(t, 1, w.Len())
		require.NoError(t, w.Close(t.Context()))
	})
}

func TestExpired_MayDropOthersThatLapsedWithIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var w *Watchdog[int]
		leases := make([]Lease[int], 4)
		told := 0
		w = New(Config[int]{Period: period, Attempt: attempt, Renew: func(context.Context, []*Lease[int]) {},
			Expired: func(*Lease[int]) {
				told++
				w.Drop(&leases[1])
				w.Drop(&leases[2])
			}})
		at := time.Now().Add(time.Second)
		for i := range leases {
			w.Keep(&leases[i], time.Time{}, at)
		}
		pass(2 * time.Second)
		require.Equal(t, 2, told)
		require.Zero(t, w.Len())
		require.NoError(t, w.Close(t.Context()))
	})
}

func TestRenew_BatchesAreBounded(t *testing.T) {
	inBubble(t, func(t *testing.T, c *caller) {
		leases := c.kept(1005)
		c.pass(period)
		require.Len(t, c.calls, 101)
		for _, l := range leases {
			require.Len(t, l.Hold.attempts, 1)
		}
		for i, batch := range c.calls {
			require.LessOrEqual(t, len(batch), 10, i)
		}
	}, func(cfg *Config[*hold]) { cfg.Batch = 10 })
}

func TestRenew_CallsAreBounded(t *testing.T) {
	inBubble(t, func(t *testing.T, c *caller) {
		under, most := 0, 0
		c.answer = func(ctx context.Context, batch []*Lease[*hold]) {
			c.mu.Lock()
			under++
			most = max(most, under)
			c.mu.Unlock()
			time.Sleep(100 * time.Millisecond)
			c.renewAll(ctx, batch)
			c.mu.Lock()
			under--
			c.mu.Unlock()
		}
		leases := c.kept(2000)
		c.pass(period)
		require.Equal(t, 3, under)
		c.pass(700 * time.Millisecond)
		require.Equal(t, 3, most)
		for _, l := range leases {
			require.Len(t, l.Hold.attempts, 1)
		}
	}, func(cfg *Config[*hold]) { cfg.Calls = 3 })
}

// A server that hangs takes all places. They are given up after Attempt, and
// the leases of the other server are renewed.
func TestRenew_HungCallsGiveUpTheirPlaces(t *testing.T) {
	inBubble(t, func(t *testing.T, c *caller) {
		release := make(chan struct{})
		defer close(release)
		c.answer = func(ctx context.Context, batch []*Lease[*hold]) {
			if batch[0].Hold.name < 20 {
				<-release
			}
			c.renewAll(ctx, batch)
		}
		leases := c.kept(60)
		c.pass(period)
		require.Len(t, c.calls, 2)
		c.pass(attempt - tickLength - period/gridsPerPeriod)
		require.Len(t, c.calls, 2, "young calls keep their places")
		c.pass(period/gridsPerPeriod + 2*tickLength)
		for _, l := range leases[20:] {
			require.Len(t, l.Hold.attempts, 1)
		}
		c.pass(4 * lifetime)
		for _, l := range leases[:20] {
			require.Len(t, l.Hold.expired, 1)
		}
		for _, l := range leases[20:] {
			require.Empty(t, l.Hold.expired)
		}
	}, func(cfg *Config[*hold]) { cfg.Calls, cfg.Batch = 2, 10 })
}

// The ctx of a call ends after Attempt, not sooner.
func TestRenew_CtxEndsAfterAttempt(t *testing.T) {
	inBubble(t, func(t *testing.T, c *caller) {
		var took []time.Duration
		c.answer = func(ctx context.Context, batch []*Lease[*hold]) {
			begin := time.Now()
			<-ctx.Done()
			took = append(took, time.Since(begin))
			c.renewAll(ctx, batch)
		}
		c.kept(1)
		c.pass(period + attempt)
		require.Equal(t, []time.Duration{attempt}, took)
	})
}

// The budget: 100,000 leases cost at most 1,200 calls per period.
func TestRenew_CallsFor100000Leases(t *testing.T) {
	if testing.Short() {
		t.Skip("100,000 leases")
	}
	const leases, periods = 100_000, 3
	inBubble(t, func(t *testing.T, c *caller) {
		for i := range leases { // spread over a period
			if i%100 == 0 {
				c.pass(period * 100 / leases)
			}
			c.keep(c.lease(i))
		}
		c.pass(period)
		before, renewed := len(c.calls), 0
		c.pass(periods * period)
		for _, batch := range c.calls[before:] {
			renewed += len(batch)
		}
		calls := (len(c.calls) - before) / periods
		t.Logf("%d calls per period", calls)
		require.LessOrEqual(t, calls, 1200)
		require.InDelta(t, periods*leases, renewed, leases/gridsPerPeriod*2)
		require.Equal(t, leases, c.Len())
	}, func(cfg *Config[*hold]) {
		cfg.Expired = func(*Lease[*hold]) { panic("expired") }
	})
}

func TestGoroutines_NoneWhenNothingIsKept(t *testing.T) {
	inBubble(t, func(t *testing.T, c *caller) {
		require.Zero(t, c.goroutines(), "before the first lease")
		leases := c.kept(1000)
		synctest.Wait()
		require.Equal(t, 1, c.goroutines(), "only the ticker")
		c.pass(period)
		require.Equal(t, 1, c.goroutines(), "workers end when nothing is due")
		for _, l := range leases {
			c.Drop(l)
		}
		c.pass(period)
		require.Zero(t, c.goroutines())

		c.keep(leases[0])
		synctest.Wait()
		require.Equal(t, 1, c.goroutines(), "begins anew")
	})
}

func (w *Watchdog[H]) goroutines() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.running
}

// Locking and unlocking in a loop must not start or wake a goroutine each time.
func TestGoroutines_KeepAndDropDoNotWakeTheTicker(t *testing.T) {
	inBubble(t, func(t *testing.T, c *caller) {
		c.pass(period / gridsPerPeriod / 2) // the ticker looks between the grid's points
		c.Keep(c.lease(0), time.Time{}, time.Now().Add(time.Hour))
		synctest.Wait()
		l := c.lease(1)
		wakes := 0
		for range 25_000 {
			c.keep(l)
			wakes += len(c.wake)
			c.Drop(l)
			c.pass(time.Millisecond)
			require.Equal(t, 1, c.goroutines())
		}
		require.LessOrEqual(t, wakes, 2)
	})
}

func TestClose_JoinsCalls(t *testing.T) {
	inBubble(t, func(t *testing.T, c *caller) {
		back := false
		c.answer = func(ctx context.Context, batch []*Lease[*hold]) {
			<-ctx.Done()
			time.Sleep(time.Second)
			c.renewAll(ctx, batch) // too late
			back = true
		}
		leases := c.kept(10)
		c.pass(period)
		require.NoError(t, c.Close(t.Context()))
		require.True(t, back)
		require.Zero(t, c.goroutines())
		require.Zero(t, c.Len())

		c.keep(leases[0])
		c.Drop(leases[1])
		require.Zero(t, c.Len())
		require.NoError(t, c.Close(t.Context()))
		for _, l := range leases {
			require.Equal(t, Lease[*hold]{Hold: l.Hold, tick: l.tick, renewAt: l.renewAt, deadline: l.deadline}, *l, "no links left")
		}
	})
}

func TestClose_EndsWithItsCtx(t *testing.T) {
	inBubble(t, func(t *testing.T, c *caller) {
		release := make(chan struct{})
		c.answer = hang(release)
		c.kept(500)
		c.pass(period)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		begin := time.Now()
		require.ErrorIs(t, c.Close(ctx), context.DeadlineExceeded)
		require.Equal(t, time.Second, time.Since(begin))
		require.ErrorIs(t, c.Close(ctx), context.DeadlineExceeded)
		require.Zero(t, c.Len())
		close(release)
		require.NoError(t, c.Close(t.Context()))
		require.Len(t, c.calls, 4, "nothing new after Close")
	})
}

func TestClose_Unused(t *testing.T) {
	inBubble(t, func(t *testing.T, c *caller) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		require.NoError(t, c.Close(ctx))
	})
}

func TestNew_RefusesWhatCannotWork(t *testing.T) {
	renew := func(context.Context, []*Lease[int]) {}
	for want, cfg := range map[string]Config[int]{
		"Period":  {Attempt: 1, Renew: renew},
		"Attempt": {Period: 1, Renew: renew},
		"Batch":   {Period: 1, Attempt: 1, Batch: -1, Renew: renew},
		"Calls":   {Period: 1, Attempt: 1, Calls: -1, Renew: renew},
		"Renew":   {Period: 1, Attempt: 1},
	} {
		func() {
			defer func() { assert.Contains(t, recover(), "watchdog: Config.") }()
			New(cfg)
			assert.Fail(t, "accepted", want)
		}()
	}
}

// Real goroutines, real time, all at once: for the race detector, and for the
// mutex order, as each call is made under the caller's mutex.
func TestConcurrentUse(t *testing.T) {
	var mu sync.Mutex
	var w *Watchdog[int]
	var renewed atomic.Int64
	w = New(Config[int]{
		Period: 2 * time.Millisecond, Attempt: time.Millisecond, Batch: 7, Calls: 3,
		Renew: func(_ context.Context, batch []*Lease[int]) {
			mu.Lock()
			defer mu.Unlock()
			for i, l := range batch {
				switch i % 3 {
				case 0:
					w.Keep(l, time.Now().Add(2*time.Millisecond), time.Now().Add(6*time.Millisecond))
				case 1:
					w.Drop(l)
				}
				renewed.Add(1)
			}
		},
		Expired: func(l *Lease[int]) {
			mu.Lock()
			defer mu.Unlock()
			w.Keep(l, time.Now(), time.Time{})
		},
	})
	var users sync.WaitGroup
	for range 4 {
		users.Go(func() {
			leases := make([]Lease[int], 50)
			for renewed.Load() < 2000 {
				l := &leases[rand.IntN(len(leases))]
				mu.Lock()
				switch rand.IntN(4) {
				case 0:
					w.Drop(l)
				default:
					w.Keep(l, time.Now().Add(rand.N(3*time.Millisecond)), time.Now().Add(rand.N(6*time.Millisecond)))
				}
				w.Len()
				mu.Unlock()
				runtime.Gosched()
			}
		})
	}
	users.Wait()
	require.NoError(t, w.Close(t.Context()))
	require.Zero(t, w.Len())
}

func BenchmarkKeepDrop(b *testing.B) {
	for name, others := range map[string]int{"alone": 0, "among 100000": 100_000} {
		b.Run(name, func(b *testing.B) {
			w := New(Config[int]{Period: period, Attempt: attempt, Renew: func(context.Context, []*Lease[int]) {}})
			defer w.Close(context.Background())
			leases := make([]Lease[int], others)
			now := time.Now()
			for i := range leases {
				w.Keep(&leases[i], now.Add(period+rand.N(period)), now.Add(lifetime))
			}
			l := &Lease[int]{}
			renewAt, deadline := now.Add(period), now.Add(lifetime)
			b.ReportAllocs()
			for b.Loop() {
				w.Keep(l, renewAt, deadline)
				w.Drop(l)
			}
		})
	}
}

// A renewal of one of many leases, from the wheel through a batch and back.
func BenchmarkRenew(b *testing.B) {
	const leases = 10_000
	var w *Watchdog[int]
	var renewed atomic.Int64
	w = New(Config[int]{Period: time.Millisecond, Attempt: time.Minute, Renew: func(_ context.Context, batch []*Lease[int]) {
		at := time.Now()
		for _, l := range batch {
			w.Keep(l, at, at.Add(time.Hour))
		}
		renewed.Add(int64(len(batch)))
	}})
	defer w.Close(context.Background())
	all := make([]Lease[int], leases)
	for i := range all {
		w.Keep(&all[i], time.Now(), time.Time{})
	}
	b.ReportAllocs()
	begin := renewed.Load()
	for b.Loop() {
		for until := renewed.Load() + leases; renewed.Load() < until; {
			runtime.Gosched()
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(renewed.Load()-begin), "ns/renewal")
}
