package script

import (
	"bufio"
	"context"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/redistest"
)

// ways are the two ways to send a script.
var ways = map[string]func(*Runner, context.Context, *Script, int, ...any) Answer{
	"Send":      (*Runner).Send,
	"SendApart": (*Runner).SendApart,
}

func TestACQ13_TextFollowsNOSCRIPT(t *testing.T) {
	t.Parallel()
	onEach(t, func(b *bench) {
		ctx := b.t.Context()
		for name, send := range ways {
			require.NoError(b.t, b.rdb.ScriptFlush(ctx).Err())
			b.set(0)
			run := &Runner{Client: b.rdb}
			b.says("granted", send(run, ctx, Acquire, 1, b.key, 30000, fieldA, 0))
			require.EqualValues(b.t, 2, run.Sent.Load(), name)
			b.says("granted", send(run, ctx, Acquire, 1, b.key, 30000, fieldA, 0))
			require.EqualValues(b.t, 3, run.Sent.Load(), name)
		}
	})
}

func TestHeaderIsNotSent(t *testing.T) {
	t.Parallel()
	rdb := redistest.StartServer(t).Client(t)
	for _, s := range []*Script{
		Acquire, Keep, Release, Pass, Renew, Force, Info, FairAcquire, FairRelease, FairPass, FairLeave, FairBeat,
		RWAcquire, RWKeep, RWRelease, RWPass, RWRenew, RWForce,
	} {
		require.NotContains(t, s.Text, "--", s.Name)
		require.NotContains(t, s.Text, "#!", s.Name) // would be refused whole when memory is full
		require.Equal(t, rdb.ScriptLoad(t.Context(), s.Text).Val(), s.SHA, s.Name)
	}
}

// A script whose reply was lost ran once, whatever the client's own retries.
func TestACQ2_NeverSentTwice(t *testing.T) {
	t.Parallel()
	for name, send := range ways {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFake(t, hangUp)
			run := &Runner{Client: f.client(t, func(o *redis.Options) { o.MaxRetries = 5 })}
			a := send(run, t.Context(), Release, 1, "k", "c", "publish", fieldA)
			require.Equal(t, Unknown, a.Fate)
			require.Error(t, a.Err)
			require.EqualValues(t, 1, f.ran.Load())
			require.EqualValues(t, 1, run.Sent.Load())
		})
	}
}

func TestCloneKeepsNoRetry(t *testing.T) {
	t.Parallel()
	run := &Runner{}
	cmd := run.command(t.Context(), evalsha, Acquire.sha, 1, []any{"k"})
	clone, ok := cmd.Clone().(*command)
	require.True(t, ok)
	require.True(t, clone.NoRetry())
	require.Equal(t, cmd.Args(), clone.Args())
}

// Success is one explicit reply; whatever else came is none.
func TestACQ3_OtherRepliesAreNoGrant(t *testing.T) {
	t.Parallel()
	for name, reply := range map[string]string{
		"nil": "$-1\r\n", "nil array": "*-1\r\n", "zero": ":0\r\n", "one": ":1\r\n",
		"array": "*1\r\n$7\r\ngranted\r\n", "garbage": "granted\r\n", "cut": "$7\r\ngra",
	} {
		for way, send := range ways {
			t.Run(name+" "+way, func(t *testing.T) {
				t.Parallel()
				f := newFake(t, reply)
				a := send(&Runner{Client: f.client(t)}, t.Context(), Acquire, 1, "k", 1000, fieldA, 0)
				require.Equal(t, Unknown, a.Fate)
				require.Error(t, a.Err)
				require.Empty(t, a.Text)
			})
		}
	}
	a := BadReply(Acquire, strings.Repeat("x", 1000))
	require.Equal(t, Unknown, a.Fate)
	require.ErrorContains(t, a.Err, "script acquire")
	require.Less(t, len(a.Err.Error()), 200)
}

func TestACQ14_FateOfErrorReplies(t *testing.T) {
	t.Parallel()
	wrapped := "ERR Error running script (call to f_0a1b): @user_script:3: @user_script: 3: -"
	for reply, want := range map[string]Fate{
		"LOADING Redis is loading the dataset in memory":                               NotRun,
		"READONLY You can't write against a read only replica.":                        NotRun,
		"READONLY You can't write against a read only replica. script: 0a1b, on @user": NotRun,
		wrapped + "READONLY You can't write against a read only replica.":              NotRun,
		wrapped + "MISCONF Redis is configured to save RDB snapshots":                  NotRun,
		"MISCONF Redis is configured to save RDB snapshots":                            NotRun,
		"TRYAGAIN Multiple keys request during rehashing of slot":                      NotRun,
		"CLUSTERDOWN The cluster is down":                                              NotRun,
		"MASTERDOWN Link with MASTER is down":                                          NotRun,
		"BUSY Redis is busy running a script.":                                         NotRun,
		"NOREPLICAS Not enough good replicas to write.":                                NotRun,
		"ERR max number of clients reached":                                            NotRun,
		"OOM command not allowed when used memory > 'maxmemory'.":                      Refused,
		wrapped + "OOM command not allowed when used memory > 'maxmemory'.":            Refused,
		"WRONGTYPE Operation against a key holding the wrong kind of value":            Refused,
		wrapped + "WRONGTYPE Operation against a key holding the wrong kind of value":  Refused,
		"NOPERM this user has no permissions":                                          Refused,
		"NOAUTH Authentication required.":                                              Refused,
		"CROSSSLOT Keys in request don't hash to the same slot":                        Refused,
		"ERR unknown command 'evalsha'":                                                Refused,
	} {
		f := newFake(t, "-"+reply+"\r\n")
		a := (&Runner{Client: f.client(t)}).Send(t.Context(), Acquire, 1, "k", 1000, fieldA, 0)
		require.Equal(t, want, a.Fate, reply)
		require.Equal(t, strings.Contains(reply, "WRONGTYPE"), WrongType(a.Err), reply)
		require.EqualValues(t, 1, f.ran.Load(), reply)
	}
}

func TestFateOfBrokenLines(t *testing.T) {
	t.Parallel()
	ask := func(rdb *redis.Client) Answer {
		return (&Runner{Client: rdb}).Send(t.Context(), Acquire, 1, "k", 1000, fieldA, 0)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, l.Close())
	require.Equal(t, NotRun, ask(redistest.NewClient(t, l.Addr().String())).Fate, "dial refused")

	require.Equal(t, Unknown, ask(newFake(t, hangUp).client(t)).Fate, "end of file")

	f := newFake(t, "")
	silent := f.client(t, func(o *redis.Options) { o.ReadTimeout = 50 * time.Millisecond })
	require.Equal(t, Unknown, ask(silent).Fate, "read timeout")
	require.EqualValues(t, 1, f.ran.Load())

	f = newFake(t, "$7\r\ngranted\r\n")
	narrow := f.client(t, func(o *redis.Options) { o.PoolSize, o.PoolTimeout = 1, 20*time.Millisecond })
	conn := narrow.Conn()
	require.Error(t, conn.Ping(t.Context()).Err()) // it has the connection now
	require.Equal(t, NotRun, ask(narrow).Fate, "pool timeout")
	require.NoError(t, conn.Close())
	require.Equal(t, Ran, ask(narrow).Fate)
	require.EqualValues(t, 1, f.ran.Load())

	require.NoError(t, narrow.Close())
	require.Equal(t, Refused, ask(narrow).Fate, "closed client")
}

// fake is a server that gives every script the same reply, and an error to
// everything else.
type fake struct {
	addr string
	ran  atomic.Int64 // scripts received
}

const hangUp = "hang up"

func newFake(t *testing.T, reply string) *fake {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	f := &fake{addr: l.Addr().String()}
	var wg sync.WaitGroup
	var mu sync.Mutex
	var conns []net.Conn
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			conns = append(conns, c)
			mu.Unlock()
			wg.Go(func() {
				defer c.Close()
				f.serve(c, reply)
			})
		}
	})
	t.Cleanup(func() {
		l.Close()
		mu.Lock()
		for _, c := range conns {
			c.Close()
		}
		mu.Unlock()
		wg.Wait()
	})
	return f
}

func (f *fake) serve(c net.Conn, reply string) {
	r := bufio.NewReader(c)
	for {
		verb, err := readCommand(r)
		if err != nil {
			return
		}
		if verb != "evalsha" && verb != "eval" {
			_, _ = io.WriteString(c, "-ERR unknown command\r\n")
			continue
		}
		f.ran.Add(1)
		if reply == hangUp {
			return
		}
		_, _ = io.WriteString(c, reply)
		if reply == "$7\r\ngra" {
			return
		}
	}
}

// readCommand reads one command and returns its verb.
func readCommand(r *bufio.Reader) (verb string, err error) {
	n, err := readNumber(r)
	for i := 0; i < n && err == nil; i++ {
		var size int
		if size, err = readNumber(r); err != nil {
			break
		}
		word := make([]byte, size+2)
		if _, err = io.ReadFull(r, word); err == nil && i == 0 {
			verb = strings.ToLower(string(word[:size]))
		}
	}
	return verb, err
}

// readNumber reads the number of a line like "*3" or "$7".
func readNumber(r *bufio.Reader) (int, error) {
	line, err := r.ReadString('\n')
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(line[1:]))
}

func (f *fake) client(t *testing.T, opts ...func(*redis.Options)) *redis.Client {
	return redistest.NewClient(t, f.addr, append([]func(*redis.Options){func(o *redis.Options) {
		o.Protocol = 2
	}}, opts...)...)
}
