package integration

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/rlock"
)

func init() { roles["kinds"] = kindsRole }

// members are the kinds by name, for other processes.
var members = map[string]member{"lock": plainOf, "fair": fairOf, "fenced": fencedOf, "read": readOf, "write": writeOf, "spin": spinOf}

func spinOf(f family) locker { return f.spin }

// task is what a test has another process do with a lock, in a goroutine of its own:
// Lock, stay inside for Stay, Unlock; Times times, or until a word comes if that is 0.
type task struct {
	ID    int
	Kind  string // of members
	Lock  string
	Owner rlock.Owner
	Lease time.Duration
	Stay  time.Duration
	Pause time.Duration // between two times
	Times int
	Stop  bool // the word: whoever goes round without an end is to end
}

// deedsDone is what came of a task.
type deedsDone struct {
	ID  int
	Ops []Op // with tokens, if Kind has them
	Err string
}

// kindParams are the params of the role "kinds".
func kindParams(t testing.TB, s settings, fairWait time.Duration) map[string]string {
	t.Helper()
	all := s.params(t)
	all["fairWait"] = fairWait.String()
	return all
}

func kindsRole(ctx context.Context, env *ChildEnv) error {
	fairWait, err := time.ParseDuration(env.Params["fairWait"])
	if err != nil {
		return err
	}
	p, err := open(env, rlock.WithFairWaitTimeout(fairWait))
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	stop := make(chan struct{})
	var once sync.Once
	var all sync.WaitGroup
	for {
		var o task
		if err = env.Receive(&o); err != nil {
			break
		}
		if o.Stop {
			once.Do(func() { close(stop) })
			continue
		}
		all.Go(func() { _ = env.Send(o.run(ctx, p.locks, stop)) })
	}
	cancel() // whoever still waits
	all.Wait()
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return errors.Join(err, p.end())
}

func (o task) run(ctx context.Context, c *rlock.Client, stop <-chan struct{}) (done deedsDone) {
	done.ID = o.ID
	l := members[o.Kind](familyOf(c, o.Lock))
	mode := ""
	if o.Kind == "read" || o.Kind == "write" {
		mode = o.Kind
	}
	ctx = rlock.WithOwner(ctx, o.Owner)
	owner := fmt.Sprintf("%d/%s", os.Getpid(), o.Owner)
	for n := 0; (o.Times == 0 || n < o.Times) && !over(stop); n++ {
		op := Op{Kind: Acquired, Lock: o.Lock, Owner: owner, Mode: mode, Call: Now()}
		if err := l.LockLease(ctx, o.Lease); err != nil {
			done.Err = err.Error()
			return done
		}
		op.Return = Now()
		if f, ok := l.(*rlock.FencedLock); ok {
			token, err := f.Token(ctx)
			if err != nil {
				done.Err = err.Error()
			}
			op.Token = token
		}
		done.Ops = append(done.Ops, op)
		time.Sleep(o.Stay)
		op = Op{Kind: Released, Lock: o.Lock, Owner: owner, Mode: mode, Call: Now()}
		err := l.Unlock(ctx)
		op.Return = Now()
		switch {
		case errors.Is(err, rlock.ErrUnsettled):
			op.Return = 1 << 62 // who knows when
		case err != nil:
			done.Err = err.Error()
			return done
		}
		done.Ops = append(done.Ops, op)
		time.Sleep(o.Pause)
	}
	return done
}

// kindWorker is the test's side of a process of the role "kinds".
type kindWorker struct {
	*Child
	last int
	came []deedsDone // and nobody has waited for them yet
}

func startKindWorker(t testing.TB, s settings, fairWait time.Duration) *kindWorker {
	t.Helper()
	return &kindWorker{Child: StartChild(t, "kinds", kindParams(t, s, fairWait))}
}

// begin gives a task and does not wait.
func (w *kindWorker) begin(o task) int {
	w.t.Helper()
	w.last++
	o.ID = w.last
	w.Send(o)
	return o.ID
}

// await waits for what came of a task, which must have succeeded.
func (w *kindWorker) await(id int) []Op {
	w.t.Helper()
	done, err := w.poll(id, childLimit)
	require.NoError(w.t, err)
	require.Empty(w.t, done.Err)
	return done.Ops
}

// poll waits for what came of a task for so long at most.
func (w *kindWorker) poll(id int, limit time.Duration) (deedsDone, error) {
	for end := time.Now().Add(limit); ; {
		for i, done := range w.came {
			if done.ID == id {
				w.came = append(w.came[:i:i], w.came[i+1:]...)
				return done, nil
			}
		}
		var done deedsDone
		if err := w.TryReceive(&done, max(time.Until(end), time.Millisecond)); err != nil {
			return done, err
		}
		w.came = append(w.came, done)
	}
}

// finishAll lets processes close their clients and end; nothing may be left over.
func finishAll(ws []*kindWorker) {
	for _, w := range ws {
		w.t.Helper()
		w.CloseInput()
	}
	for _, w := range ws {
		require.NoError(w.t, w.Wait())
	}
}
