package integration

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/relock-go/relock/rlock"
)

func init() { roles["worker"] = workerRole }

// never is a recheck bound and a limit that no test lives to see: who waits with
// it is woken by a message, or by the end of a TTL.
const never = time.Hour

// slack is what a noisy machine may add to any upper bound: it is shared with
// other tests, and the processes here run with the race detector.
const slack = time.Second

// settings are how a worker process reaches Redis.
type settings struct {
	Addr     string     // where its locks are: Redis, or a proxy before it
	Deployed deployment // instead of Addr, where that is not a single server
	Watchdog time.Duration
	Recheck  time.Duration
	Read     time.Duration // go-redis's ReadTimeout
	Pool     int           // PoolSize
	Pipes    int           // PipelinePoolSize

	Procs int           // GOMAXPROCS
	Hogs  int           // goroutines that do nothing but take the processor, see strain
	Slow  time.Duration // how long each of the user's own commands takes, see strain

	Count counting // the role "counter"
	Keep  keeping  // the role "keeper"
}

func (s settings) params(t testing.TB) map[string]string {
	t.Helper()
	b, err := json.Marshal(s)
	require.NoError(t, err)
	return map[string]string{"settings": string(b)}
}

// party is a process that takes part: the client that its settings ask for.
type party struct {
	settings
	rdb   redis.UniversalClient
	locks *rlock.Client
	end   func() error // closes both, and fails if something of them is left over
}

func open(env *ChildEnv, more ...rlock.Option) (*party, error) {
	p := &party{}
	if err := json.Unmarshal([]byte(env.Params["settings"]), &p.settings); err != nil {
		return nil, err
	}
	if p.Procs > 0 {
		runtime.GOMAXPROCS(p.Procs)
	}
	before := goleak.IgnoreCurrent()
	d := p.Deployed
	if d.Addrs == nil {
		d.Addrs = []string{p.Addr}
	}
	rdb, shut, err := d.open(redis.UniversalOptions{
		ReadTimeout: p.Read, DialTimeout: p.Read, PoolSize: p.Pool, PipelinePoolSize: p.Pipes,
	})
	if err != nil {
		return nil, err
	}
	opts := more
	if d.Auto {
		opts = append(opts, rlock.WithAutoPipeline())
	}
	if p.Watchdog > 0 {
		opts = append(opts, rlock.WithWatchdogTimeout(p.Watchdog))
	}
	if p.Recheck > 0 {
		opts = append(opts, rlock.WithRecheck(p.Recheck))
	}
	p.rdb = rdb
	p.locks, err = rlock.New(rdb, opts...)
	p.end = func() error {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		return errors.Join(p.locks.Close(ctx), shut(), goleak.Find(append(leakOptions(), before)...))
	}
	return p, err
}

// order is what a test has a worker do, in a goroutine of its own.
type order struct {
	ID    int
	Do    string // "lock", "unlock", "watch", "do", "waiting", "renewed", "validity", "close"
	Lock  string
	Owner rlock.Owner
	Lease time.Duration
	How   how // "watch", "do"
	N     int // "waiting": how many
}

// how a hold is watched until it ends. Each looks at one thing only, because a
// call of Validity finds out, and tells, that a hold is over.
type how string

const (
	byValidity how = "validity" // once a millisecond
	bySpinning how = "spinning" // Validity, without a pause
	byLost     how = "lost"
	byContext  how = "ctx" // of Do
)

// report is what a worker says of an order. Times are Now's.
type report struct {
	ID     int
	Begun  bool // "watch" and "do" report twice: it holds, and looks
	Err    string
	Is     []string // which of the SDK's errors it is
	Call   int64
	Return int64

	// Of "watch" and "do":
	Held    int64         // the last look that found it still held began then
	Until   int64         // until when the best answer of Validity promised it
	Told    int64         // the first look that did not had its answer then
	All     int64         // Validity, Lost and ctx all said so then; 0 if they did not
	Looks   int           // how often it looked
	Gap     int64         // the longest time between two looks shortly before Told
	Cause   string        // of Do's ctx
	Left    time.Duration // "validity"
	Client  string        // "validity": the client's id
	Waiting int
}

func (r report) is(err error) bool {
	for _, s := range r.Is {
		if s == err.Error() {
			return true
		}
	}
	return false
}

// workerRole does orders until the test has no more, then closes its client.
func workerRole(ctx context.Context, env *ChildEnv) error {
	p, err := open(env)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	var all sync.WaitGroup
	for {
		var o order
		if err = env.Receive(&o); err != nil {
			break
		}
		all.Go(func() { _ = env.Send(perform(ctx, env, p.locks, o)) })
	}
	cancel() // whoever still waits
	all.Wait()
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return errors.Join(err, p.end())
}

func perform(ctx context.Context, env *ChildEnv, client *rlock.Client, o order) (r report) {
	r.ID = o.ID
	ctx = rlock.WithOwner(ctx, o.Owner)
	lock := client.NewLock(o.Lock)
	var err error
	r.Call = Now()
	switch o.Do {
	case "lock":
		err = lock.LockLease(ctx, o.Lease)
	case "unlock":
		err = lock.Unlock(ctx)
	case "validity":
		r.Left, r.Client = lock.Validity(ctx), client.ID()
	case "watch":
		err = watch(ctx, nil, env, lock, o, &r)
	case "do":
		err = lock.Do(ctx, func(inner context.Context) error { return watch(ctx, inner, env, lock, o, &r) })
	case "waiting":
		err = until(ctx, func() bool { return client.Stats().Waiting == o.N })
	case "renewed":
		before := client.Stats().Renewals
		err = until(ctx, func() bool { return client.Stats().Renewals > before })
	case "close":
		closing, cancel := context.WithTimeout(ctx, 10*time.Second)
		defer cancel()
		err = client.Close(closing)
	default:
		err = fmt.Errorf("no such order: %q", o.Do)
	}
	r.Return = Now()
	if err != nil {
		r.Err = err.Error()
		for _, known := range []error{rlock.ErrLost, rlock.ErrClosed, rlock.ErrUnsettled, rlock.ErrNotHeld} {
			if errors.Is(err, known) {
				r.Is = append(r.Is, known.Error())
			}
		}
	}
	return r
}

// until looks once a millisecond whether cond is true.
func until(ctx context.Context, cond func() bool) error {
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !cond() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// watch looks at a hold until it is over. inner is Do's ctx, where there is one.
func watch(ctx, inner context.Context, env *ChildEnv, lock *rlock.Lock, o order, r *report) error {
	lost := lock.Lost(ctx)
	held := func(began int64) bool {
		left := lock.Validity(ctx)
		if left > 0 {
			r.Until = max(r.Until, began+int64(left))
		}
		return left > 0
	}
	switch o.How {
	case byLost:
		held = func(int64) bool { return !over(lost) }
	case byContext:
		held = func(int64) bool { return inner.Err() == nil }
	}
	const shortly = int64(300 * time.Millisecond)
	gapAt := int64(0) // when the Gap was
	look := func() bool {
		began := Now()
		if gap := began - r.Held; r.Looks > 0 && (gap > r.Gap || began-gapAt > shortly) {
			r.Gap, gapAt = gap, began
		}
		if !held(began) {
			r.Told = Now()
			return true
		}
		r.Held = began
		r.Looks++
		return false
	}
	if look() {
		return errors.New("it is over before it was looked at")
	}
	begun := *r
	begun.Begun = true
	if err := env.Send(begun); err != nil {
		return err
	}
	if o.How == bySpinning {
		for ctx.Err() == nil && !look() {
		}
	} else if err := until(ctx, look); err != nil {
		return err
	}
	// The other signals follow at once.
	short, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	err := until(short, func() bool {
		return over(lost) && (inner == nil || inner.Err() != nil) && lock.Validity(ctx) == 0
	})
	if err == nil {
		r.All = Now()
	}
	if inner != nil && inner.Err() != nil {
		r.Cause = context.Cause(inner).Error()
	}
	return nil
}

func over(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// worker is the test's side of a worker process. Its methods are for the
// goroutine that runs the test.
type worker struct {
	*Child
	last int
	came []report // and nobody has waited for them yet
}

func startWorker(t testing.TB, s settings) *worker {
	t.Helper()
	return &worker{Child: StartChild(t, "worker", s.params(t))}
}

// begin gives an order and does not wait.
func (w *worker) begin(o order) int {
	w.t.Helper()
	w.last++
	o.ID = w.last
	w.Send(o)
	return o.ID
}

// await waits for the report of an order.
func (w *worker) await(id int) report {
	w.t.Helper()
	r, err := w.report(func(r report) bool { return r.ID == id && !r.Begun }, childLimit)
	w.alive(err)
	return r
}

// alive fails the test when the worker has not answered, and logs what all of its
// goroutines do.
func (w *worker) alive(err error) {
	w.t.Helper()
	if errors.Is(err, os.ErrDeadlineExceeded) && w.proc.Signal(syscall.SIGQUIT) == nil {
		_ = w.Wait()
	}
	require.NoError(w.t, err, "the last order was %d", w.last)
}

// do gives an order, which must succeed, and waits for its report.
func (w *worker) do(o order) report {
	w.t.Helper()
	r := w.await(w.begin(o))
	require.Empty(w.t, r.Err, "%+v", o)
	return r
}

// watch has a hold watched, from now on.
func (w *worker) watch(o order) int {
	w.t.Helper()
	id := w.begin(o)
	r, err := w.report(func(r report) bool { return r.ID == id }, childLimit)
	w.alive(err)
	require.True(w.t, r.Begun, "%+v: %+v", o, r)
	return id
}

// report waits for the first report that match accepts and keeps the others.
func (w *worker) report(match func(report) bool, limit time.Duration) (report, error) {
	for i, r := range w.came {
		if match(r) {
			w.came = append(w.came[:i:i], w.came[i+1:]...)
			return r, nil
		}
	}
	for {
		var r report
		if err := w.TryReceive(&r, limit); err != nil {
			return r, err
		}
		if match(r) {
			return r, nil
		}
		w.came = append(w.came, r)
	}
}

// finish lets workers close their clients and end; nothing may be left over.
func finish(ws ...*worker) {
	for _, w := range ws {
		w.t.Helper()
		w.CloseInput()
	}
	for _, w := range ws {
		require.NoError(w.t, w.Wait())
	}
}

// id is the id of the worker's client.
func (w *worker) id() string { return w.do(order{Do: "validity", Lock: "id", Owner: "id"}).Client }

// first waits for the first of the orders, one per worker, that is done. It
// looks at them in turn.
func first(t testing.TB, ws []*worker, ids []int) (int, report) {
	t.Helper()
	for end := time.Now().Add(childLimit); time.Now().Before(end); {
		for i, w := range ws {
			if w == nil {
				continue
			}
			r, err := w.report(func(r report) bool { return r.ID == ids[i] && !r.Begun }, time.Millisecond)
			if err == nil {
				return i, r
			}
		}
	}
	require.FailNow(t, "none of the workers is done")
	return 0, report{}
}

// ms is a number of nanoseconds for people.
func ms(ns int64) string {
	return strings.TrimSuffix(fmt.Sprintf("%.1f", float64(ns)/1e6), ".0") + " ms"
}
