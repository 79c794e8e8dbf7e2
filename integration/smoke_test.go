package integration

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/relock-go/relock/internal/redistest"
)

func init() {
	roles["echo"] = func(_ context.Context, env *ChildEnv) error {
		fmt.Println("a stray line does no harm")
		if err := env.Send(env.Params); err != nil {
			return err
		}
		for {
			var s string
			if err := env.Receive(&s); errors.Is(err, io.EOF) {
				return nil
			} else if err != nil {
				return err
			}
			if s == "fail" {
				return errors.New("told to")
			}
			if err := env.Send(Now()); err != nil {
				return err
			}
		}
	}
	roles["ticker"] = func(ctx context.Context, env *ChildEnv) error {
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return nil
			case <-tick.C:
				if err := env.Send(Now()); err != nil {
					return err
				}
			}
		}
	}
	roles["parent"] = func(_ context.Context, env *ChildEnv) error {
		s, err := redistest.Start()
		if err != nil {
			return err
		}
		if err := env.Send(s.Addr); err != nil {
			return err
		}
		return env.Receive(new(string)) // which never comes
	}
	roles["spinlock"] = spinChild
}

// name is a name that no other test uses.
func name(t testing.TB) string { return t.Name() + ":" + uuid.NewString() }

func impatient(o *redis.Options) {
	o.MaxRetries = -1
	o.DialTimeout = 100 * time.Millisecond
	o.ReadTimeout = 100 * time.Millisecond
}

func TestSharedServer(t *testing.T) {
	s := Redis(t)
	t.Logf("%s at %s", s.Kind, s.Addr)
	rdb := s.Client(t)
	key := name(t)
	require.NoError(t, rdb.Set(t.Context(), key, "v", time.Minute).Err())
	require.Equal(t, "v", Redis(t).Client(t).Get(t.Context(), key).Val())

	p := s.Proxy(t)
	rule := p.On(redistest.Command("incr"), redistest.LoseReplyAndClose)
	require.Error(t, redistest.NewClient(t, p.Addr, impatient).Incr(t.Context(), key+"n").Err())
	rule.WaitExecuted(t, 1)
	require.Equal(t, "1", rdb.Get(t.Context(), key+"n").Val())
}

// Each way to a server of one's own can do everything.
func TestOwnServers(t *testing.T) {
	for kind, way := range map[string]starter{"docker": startDocker, "process": startProcess} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			s, err := start(t.Logf, []starter{way}, "--maxmemory", "12mb")
			if errors.Is(err, errNoRedis) {
				t.Skipf("needs a Redis by %s, and this machine has none", kind)
			}
			require.NoError(t, err)
			t.Cleanup(s.backend.Close)
			require.Equal(t, kind, s.Kind)
			rdb := s.Client(t, impatient)
			ctx := t.Context()
			require.Equal(t, map[string]string{"maxmemory": "12582912"}, rdb.ConfigGet(ctx, "maxmemory").Val())
			require.NoError(t, rdb.Set(ctx, "k", "v", 0).Err())
			s.Stop(t)
			require.Error(t, rdb.Ping(ctx).Err())
			s.Cont(t)
			require.Eventually(t, func() bool { return rdb.Get(ctx, "k").Val() == "v" }, 5*time.Second, 5*time.Millisecond)
			s.Kill(t)
			require.Error(t, rdb.Ping(ctx).Err())
			s.Restart(t)
			require.Eventually(t, func() bool { return rdb.Ping(ctx).Err() == nil }, 5*time.Second, 5*time.Millisecond)
			require.ErrorIs(t, rdb.Get(ctx, "k").Err(), redis.Nil)
			s.Restart(t)
			require.Eventually(t, func() bool { return rdb.Ping(ctx).Err() == nil }, 5*time.Second, 5*time.Millisecond)
		})
	}
}

func TestOwnRedis(t *testing.T) {
	t.Parallel()
	a, b := OwnRedis(t), OwnRedis(t)
	require.NotEqual(t, a.Addr, b.Addr)
	require.NoError(t, a.Client(t).FlushAll(t.Context()).Err())
}

func TestChildTalks(t *testing.T) {
	t.Parallel()
	c := StartChild(t, "echo", map[string]string{"k": "v"})
	var params map[string]string
	c.Receive(&params)
	require.Equal(t, map[string]string{"k": "v"}, params)
	before := Now()
	c.Send("now")
	var then int64
	c.Receive(&then)
	require.Greater(t, then, before, "one clock for both")
	require.Less(t, then, Now())
	c.CloseInput()
	require.NoError(t, c.Wait())
	require.ErrorIs(t, c.TryReceive(&then, time.Minute), io.EOF)

	c = StartChild(t, "echo", nil)
	c.Send("fail")
	require.ErrorContains(t, c.Wait(), "exit status 1")
	require.Error(t, StartChild(t, "no such role", nil).Wait())
}

func TestChildStopContKill(t *testing.T) {
	t.Parallel()
	c := StartChild(t, "ticker", nil)
	var at int64
	c.Receive(&at)
	c.Stop()
	for c.TryReceive(&at, 50*time.Millisecond) == nil { // what was on its way
	}
	require.ErrorIs(t, c.TryReceive(&at, 50*time.Millisecond), os.ErrDeadlineExceeded)
	resumed := Now()
	c.Cont()
	for c.Receive(&at); at < resumed; c.Receive(&at) {
	}
	c.Terminate()
	require.NoError(t, c.Wait())

	c = StartChild(t, "ticker", nil)
	c.Receive(&at)
	c.Stop()
	c.Kill()
	require.ErrorContains(t, c.Wait(), "killed")
}

// What a process has started dies with it, also when it is killed.
func TestServerDiesWithItsProcess(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("needs Linux, which alone ties a child's life to its parent's")
	}
	if _, err := exec.LookPath("redis-server"); err != nil {
		require.False(t, redistest.RequireRedis(), "needs a redis-server on PATH: %v", err)
		t.Skipf("needs a redis-server on PATH: %v", err)
	}
	c := StartChild(t, "parent", nil)
	var addr string
	c.Receive(&addr)
	rdb := redistest.NewClient(t, addr, impatient)
	require.NoError(t, rdb.Ping(t.Context()).Err())
	c.Kill()
	require.Eventually(t, func() bool {
		return errors.Is(rdb.Ping(t.Context()).Err(), syscall.ECONNREFUSED)
	}, 10*time.Second, 5*time.Millisecond)
}

// spinChild increments a counter under the plainest lock there is, SET NX.
func spinChild(ctx context.Context, env *ChildEnv) error {
	rdb := redis.NewClient(&redis.Options{Addr: env.Params["addr"]})
	defer rdb.Close()
	lock, counter := env.Params["lock"], env.Params["lock"]+":counter"
	rounds, err := strconv.Atoi(env.Params["rounds"])
	if err != nil {
		return err
	}
	var rec Recorder
	var g errgroup.Group
	for i := range 4 {
		owner := fmt.Sprintf("%d/%d", os.Getpid(), i)
		g.Go(func() error {
			for range rounds {
				for rec.Do(lock, owner, func() OpKind {
					if rdb.SetNX(ctx, lock, owner, time.Minute).Val() {
						return Acquired
					}
					return Refused
				}) == Refused {
					time.Sleep(rand.N(time.Millisecond)) // polling is what this lock does
				}
				n, err := rdb.Get(ctx, counter).Int()
				if err != nil && !errors.Is(err, redis.Nil) {
					return err
				}
				if err := rdb.Set(ctx, counter, n+1, time.Minute).Err(); err != nil {
					return err
				}
				rec.Do(lock, owner, func() OpKind {
					rdb.Del(ctx, lock)
					return Released
				})
			}
			return nil
		})
	}
	return errors.Join(g.Wait(), env.Send(rec.Ops()))
}

// Histories of several processes come together and are judged.
func TestHistoryOfProcesses(t *testing.T) {
	t.Parallel()
	s := Redis(t)
	lock := name(t)
	const rounds = 25
	children := make([]*Child, 3)
	for i := range children {
		children[i] = StartChild(t, "spinlock", map[string]string{"addr": s.Addr, "lock": lock, "rounds": strconv.Itoa(rounds)})
	}
	var all []Op
	for _, c := range children {
		var ops []Op
		c.Receive(&ops)
		require.NoError(t, c.Wait())
		all = append(all, ops...)
	}
	n, err := s.Client(t).Get(t.Context(), lock+":counter").Int()
	require.NoError(t, err)
	require.Equal(t, len(children)*4*rounds, n)
	require.NoError(t, CheckMutex(all, 20*time.Second))
}
