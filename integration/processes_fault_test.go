package integration

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/rlock"
)

// kind is a way to hold, and the signal of a loss that is listened to.
type kind struct {
	name  string
	lease bool // a fixed one; else the watchdog's
	do    bool
	how   how
}

var kinds = []kind{
	{"watchdog, Validity", false, false, byValidity},
	{"watchdog, Lost", false, false, byLost},
	{"lease, Validity", true, false, byValidity},
	{"lease, Lost", true, false, byLost},
	{"Do's ctx", false, true, byContext},
}

// holding is a lock that a worker holds and watches, and another one waits for.
type holding struct {
	kind
	lock              string
	watching, waiting int // orders
	told, next        report
}

// hold has w hold lock and watch it. It returns the id of the watching order.
func hold(w *worker, lock string, lease time.Duration, do bool, how how) int {
	o := order{Do: "lock", Lock: lock, Owner: "holder", Lease: lease, How: how}
	if do {
		o.Do = "do"
		return w.watch(o)
	}
	w.do(o)
	o.Do = "watch"
	return w.watch(o)
}

// holdAll has holder hold a lock of each kind, and waiter wait for all of them.
func holdAll(t *testing.T, kinds []kind, holder, waiter *worker, lease time.Duration) []holding {
	t.Helper()
	held := make([]holding, len(kinds))
	for i, k := range kinds {
		h := &held[i]
		h.kind, h.lock = k, name(t)
		if k.lease {
			h.watching = hold(holder, h.lock, lease, k.do, k.how)
		} else {
			h.watching = hold(holder, h.lock, 0, k.do, k.how)
		}
		h.waiting = waiter.begin(order{Do: "lock", Lock: h.lock, Owner: "next"})
	}
	waiter.do(order{Do: "waiting", N: len(kinds)})
	return held
}

// settle checks what a loss leaves behind, when Redis can be reached again: the
// holder has nothing to give back, and whoever came after it has all it should.
func (h holding) settle(t *testing.T, holder, waiter *worker, rdb *redis.Client) {
	t.Helper()
	end := h.told
	if h.do {
		require.Contains(t, end.Cause, rlock.ErrLost.Error())
	} else {
		end = holder.await(holder.begin(order{Do: "unlock", Lock: h.lock, Owner: "holder"}))
	}
	require.True(t, end.is(rlock.ErrLost), "%s: %s", h.name, end.Err)

	require.Equal(t, map[string]string{waiter.id() + ":next": "1"}, rdb.HGetAll(t.Context(), h.lock).Val(), h.name)
	require.Positive(t, waiter.do(order{Do: "validity", Lock: h.lock, Owner: "next"}).Left, h.name)
	waiter.do(order{Do: "unlock", Lock: h.lock, Owner: "next"})
}

// toldFirst judges the end of a hold: the holder, which watched it, did not take
// itself for the holder any more when the next one was in. All times are of one
// clock. What a look found, was so after it began; so a slow machine makes the
// judgement of Validity milder, never wrong.
//
// Lost and ctx need a goroutine of the SDK's to run in time, so they are judged
// like this only if the holder's process did run all the time.
func toldFirst(t *testing.T, h holding, ran bool) {
	t.Helper()
	require.Empty(t, h.next.Err)
	limit := h.next.Return
	if (h.how == byLost || h.how == byContext) && !ran {
		t.Logf("%s: the machine is too slow to tell whether it was told in time", h.name)
		limit += int64(slack)
	}
	require.Less(t, h.told.Held, limit, "%s: the holder still held when the next was in", h.name)
	require.Less(t, h.told.Until, h.next.Return, "%s: the holder was promised more than it could have", h.name)
	require.NotZero(t, h.told.All, "%s: Validity, Lost and ctx all tell", h.name)
}

// REN-1, REN-2: a holder that is cut off from Redis without a word is told before
// another process can have the lock.
func TestBlackHoleTellsBeforeTheNext(t *testing.T) {
	t.Parallel()
	const timeout = 2 * time.Second
	const margin = timeout / 100 // by so much a holder is told before Redis lets the next in
	s := Redis(t)
	proxy := s.Proxy(t)
	holder := startWorker(t, settings{Addr: proxy.Addr, Watchdog: timeout, Read: 300 * time.Millisecond})
	waiter := startWorker(t, settings{Addr: s.Addr, Watchdog: timeout})
	for round := range 2 {
		held := holdAll(t, kinds, holder, waiter, timeout)
		if round > 0 {
			holder.do(order{Do: "renewed"})
		}
		hole := Now()
		proxy.BlackHole(true)
		gap := int64(0)
		for i := range held {
			h := &held[i]
			h.next, h.told = waiter.await(h.waiting), holder.await(h.watching)
			gap = max(gap, h.told.Gap)
		}
		for _, h := range held {
			t.Logf("round %d, %s: told %s before the next was in, %s after the line went", round, h.name, ms(h.next.Return-h.told.Told), ms(h.next.Return-hole))
			toldFirst(t, h, gap < int64(margin/2))
			require.Less(t, h.next.Return, hole+int64(timeout+slack), "the next is in when the lease is over")
		}
		proxy.BlackHole(false)
		for _, h := range held {
			h.settle(t, holder, waiter, s.Client(t))
		}
	}
	finish(holder, waiter)
}

// CLK-1: a holder that was stopped for longer than its lease learns it from its
// first look at Validity, and cannot touch the hold of whoever came after it.
func TestStoppedHolder(t *testing.T) {
	t.Parallel()
	const timeout = 2 * time.Second
	s := Redis(t)
	for procs, kinds := range [][]kind{
		{
			{"watchdog, Lost", false, false, byLost},
			{"Do's ctx", false, true, byContext},
			{"watchdog, Validity", false, false, bySpinning},
			{"Do, Validity", false, true, bySpinning},
			{"lease, Validity", true, false, bySpinning},
		},
		{ // one P, and it is taken: what else the SDK runs comes late
			{"Do's ctx", false, true, byContext},
			{"watchdog, Validity", false, false, bySpinning},
		},
	} {
		t.Run(fmt.Sprintf("GOMAXPROCS=%d", procs), func(t *testing.T) {
			t.Parallel()
			holder := startWorker(t, settings{Addr: s.Addr, Watchdog: timeout, Procs: procs})
			waiter := startWorker(t, settings{Addr: s.Addr})
			held := holdAll(t, kinds, holder, waiter, timeout)
			holder.do(order{Do: "renewed"})
			holder.Stop()
			for i := range held {
				held[i].next = waiter.await(held[i].waiting)
			}
			cont := Now()
			holder.Cont()
			for i := range held {
				h := &held[i]
				h.told = holder.await(h.watching)
				t.Logf("%s: %d looks; told %s after SIGCONT, by all signals %s after it", h.name, h.told.Looks, ms(h.told.Told-cont), ms(h.told.All-cont))
				if h.how == bySpinning {
					toldFirst(t, *h, true)
					require.Less(t, h.told.Held, cont, "a Validity that was asked for after SIGCONT said more than 0")
				}
				require.NotZero(t, h.told.All, "the other signals follow")
				require.Less(t, h.told.All, cont+int64(slack), "soon")
			}
			for _, h := range held {
				h.settle(t, holder, waiter, s.Client(t))
			}
			finish(holder, waiter)
		})
	}
}

// WAIT-4: the holder's process is killed. No message comes; one waiter, and only
// one, has the lock when the lease is over.
func TestKilledHolder(t *testing.T) {
	t.Parallel()
	s := Redis(t)
	for _, waiters := range []int{1, 3} {
		t.Run(fmt.Sprint(waiters), func(t *testing.T) {
			t.Parallel()
			rdb := s.Client(t)
			lock := name(t)
			holder := startWorker(t, settings{Addr: s.Addr, Watchdog: 1500 * time.Millisecond})
			ws, ids := make([]*worker, waiters), make([]int, waiters)
			for i := range ws {
				ws[i] = startWorker(t, settings{Addr: s.Addr})
			}
			taken := holder.do(order{Do: "lock", Lock: lock, Owner: "holder"})
			for i, w := range ws {
				ids[i] = w.begin(order{Do: "lock", Lock: lock, Owner: "next"})
				w.do(order{Do: "waiting", N: 1})
			}
			holder.do(order{Do: "renewed"})
			before := Now()
			holder.Kill()
			killed := Now()
			left := rdb.PTTL(t.Context(), lock).Val()
			read := Now()
			require.Positive(t, left)
			history := []Op{
				{Kind: Acquired, Lock: lock, Owner: "killed", Call: taken.Call, Return: taken.Return},
				{Kind: Lost, Lock: lock, Owner: "killed", Call: before, Return: killed},
			}
			outside := slices.Clone(ws) // nil where it had its turn
			for n := range ws {
				i, r := first(t, outside, ids)
				require.Empty(t, r.Err)
				if n == 0 {
					late := r.Return - (read + int64(left))
					t.Logf("in %s after the lease was over", ms(late))
					require.Greater(t, r.Return, killed+int64(left)-int64(2*time.Millisecond), "not before")
					// 300 ms is the promise, the rest is for the machine.
					require.Less(t, late, int64(300*time.Millisecond+slack))
				}
				all := rdb.HGetAll(t.Context(), lock).Val()
				require.Equal(t, map[string]string{ws[i].id() + ":next": "1"}, all, "one, and nobody else")
				for j, w := range outside {
					if w != nil && j != i {
						require.Zero(t, w.do(order{Do: "validity", Lock: lock, Owner: "next"}).Left)
					}
				}
				gone := ws[i].do(order{Do: "unlock", Lock: lock, Owner: "next"})
				owner := string(rune('a' + i))
				history = append(history,
					Op{Kind: Acquired, Lock: lock, Owner: owner, Call: r.Call, Return: r.Return},
					Op{Kind: Released, Lock: lock, Owner: owner, Call: gone.Call, Return: gone.Return})
				outside[i] = nil
			}
			finish(ws...)
			require.NoError(t, CheckMutex(history, 10*time.Second))
		})
	}
}

// REN-13: Redis is restarted and comes up empty. Whoever held is told within a
// renewal period: until then two may hold, which nobody can prevent without
// fencing. Whoever waits gets in, one after the other.
func TestRestartedServer(t *testing.T) {
	t.Parallel()
	const timeout = 3 * time.Second
	const period = timeout / 3
	s := OwnRedis(t)
	config := settings{Addr: s.Addr, Watchdog: timeout, Read: 500 * time.Millisecond}
	a, b := startWorker(t, config), startWorker(t, config)
	both := []*worker{a, b}
	type holding struct {
		w        *worker
		lock     string
		watching int
	}
	var held []holding
	for _, w := range both {
		for _, h := range []struct {
			lease time.Duration
			how   how
		}{{0, byValidity}, {0, byLost}, {30 * time.Second, byValidity}, {30 * time.Second, byLost}} { // a lease is checked, not prolonged
			lock := name(t)
			held = append(held, holding{w, lock, hold(w, lock, h.lease, false, h.how)})
		}
	}
	// Of each process's, one is waited for by both processes, one by its own, one
	// by the other one, and one by nobody: a waiter that gets in tells its own
	// process, all others have to find out by themselves.
	type waiter struct {
		w     *worker
		lock  string
		owner rlock.Owner
		id    int
	}
	var waiters []waiter
	for i, h := range held {
		for j, w := range both {
			own := w == h.w
			if kind := (i + i/4) % 4; kind == 0 || kind == 1 && own || kind == 2 && !own {
				for n := range 2 {
					o := order{Do: "lock", Lock: h.lock, Owner: rlock.Owner(fmt.Sprintf("%d-%d", j, n))}
					waiters = append(waiters, waiter{w, h.lock, o.Owner, w.begin(o)})
				}
			}
		}
	}
	for _, w := range both {
		w.do(order{Do: "waiting", N: len(waiters) / 2})
	}
	s.Restart(t)
	up := Now()

	// The waiters come in one after the other; each unlocks for the next.
	var history []Op
	in := map[string]int64{} // the first one's time
	last := up
	for end := time.Now().Add(childLimit); len(waiters) > 0; {
		require.True(t, time.Now().Before(end), "still waiting: %+v", waiters)
		for i, w := range waiters {
			r, err := w.w.report(func(r report) bool { return r.ID == w.id }, time.Millisecond)
			if err != nil {
				continue
			}
			require.Empty(t, r.Err)
			if in[w.lock] == 0 {
				in[w.lock] = r.Return
			}
			last = max(last, r.Return)
			gone := w.w.do(order{Do: "unlock", Lock: w.lock, Owner: w.owner})
			history = append(history,
				Op{Kind: Acquired, Lock: w.lock, Owner: string(w.owner), Call: r.Call, Return: r.Return},
				Op{Kind: Released, Lock: w.lock, Owner: string(w.owner), Call: gone.Call, Return: gone.Return})
			waiters = append(waiters[:i:i], waiters[i+1:]...)
			break
		}
	}
	require.NoError(t, CheckMutex(history, 10*time.Second))
	t.Logf("all waiters in %s after the server was up", ms(last-up))

	for _, h := range held {
		told := h.w.await(h.watching)
		both := int64(0)
		if in[h.lock] > 0 {
			both = max(0, told.Held-in[h.lock])
		}
		t.Logf("told %s after the server was up; two held for %s", ms(told.Told-up), ms(both))
		require.Less(t, told.Told, up+int64(period+slack), "told within a renewal period")
		require.NotZero(t, told.All)
		gone := h.w.await(h.w.begin(order{Do: "unlock", Lock: h.lock, Owner: "holder"}))
		require.True(t, gone.is(rlock.ErrLost), gone.Err)
		// All is well again, for the one that lost as well.
		again := h.w.do(order{Do: "lock", Lock: h.lock, Owner: "holder"})
		require.Less(t, again.Return, again.Call+int64(5*time.Second))
		h.w.do(order{Do: "unlock", Lock: h.lock, Owner: "holder"})
	}
	finish(a, b)
}
