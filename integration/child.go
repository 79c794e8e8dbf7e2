package integration

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/relock-go/relock/internal/redistest"
)

const (
	envChild  = "RELOCK_CHILD"        // the role that this process plays
	envParams = "RELOCK_CHILD_PARAMS" // its parameters, as JSON
)

// childLimit bounds every wait for a child.
const childLimit = 30 * time.Second

// Now is the machine's CLOCK_MONOTONIC in nanoseconds: one clock for all its
// processes, which nobody sets.
func Now() int64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		panic("bug: CLOCK_MONOTONIC: " + err.Error()) // there is no machine without it
	}
	return ts.Nano()
}

// Role is what a child process does. Its error is the child's failure.
type Role func(ctx context.Context, env *ChildEnv) error

// Main runs a package's tests, or the role that this process was started for.
// It belongs into TestMain and does not return. together is how many parallel tests
// run at a time, unless -parallel says otherwise: they wait for timeouts most of the
// time, and not for a processor. Afterwards the shared server is ended, and
// goroutines that are left over are a failure.
func Main(m *testing.M, roles map[string]Role, together int) {
	if name := os.Getenv(envChild); name != "" {
		os.Exit(runRole(name, roles))
	}
	flag.Parse()
	said := false
	flag.Visit(func(f *flag.Flag) { said = said || f.Name == "test.parallel" })
	if !said {
		if err := flag.Set("test.parallel", strconv.Itoa(together)); err != nil {
			panic(err)
		}
	}
	code := m.Run()
	stopShared()
	if err := goleak.Find(leakOptions()...); err != nil && code == 0 {
		fmt.Fprintf(os.Stderr, "goroutines are left over: %v\n", err)
		code = 1
	}
	os.Exit(code)
}

// leakOptions leave out what testcontainers-go keeps for the next container, and
// the pools of go-redis whose server has gone: they look once a second whether they
// were closed.
func leakOptions() []goleak.Option {
	return []goleak.Option{
		goleak.IgnoreAnyFunction("github.com/redis/go-redis/v9/internal/pool.(*ConnPool).tryDial"),
		goleak.IgnoreAnyFunction("net/http.(*persistConn).readLoop"),
		goleak.IgnoreAnyFunction("net/http.(*persistConn).writeLoop"),
		goleak.IgnoreAnyFunction("github.com/testcontainers/testcontainers-go.(*Reaper).connect.func1"),
	}
}

// runRole plays a role and returns the process's exit code.
func runRole(name string, roles map[string]Role) int {
	fail := func(err error) int {
		fmt.Fprintf(os.Stderr, "child %s: %v\n", name, err)
		return 1
	}
	role, ok := roles[name]
	if !ok {
		return fail(errors.New("no such role"))
	}
	env := &ChildEnv{out: json.NewEncoder(os.Stdout), in: json.NewDecoder(os.Stdin)}
	if err := json.Unmarshal([]byte(os.Getenv(envParams)), &env.Params); err != nil {
		return fail(err)
	}
	os.Stdout = os.Stderr // the true one speaks JSON
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	if err := role(ctx, env); err != nil {
		return fail(err)
	}
	return 0
}

// ChildEnv is a child's side of the conversation with its test.
type ChildEnv struct {
	Params map[string]string

	mu  sync.Mutex // guards out
	out *json.Encoder
	in  *json.Decoder
}

// Send sends v to the test; any goroutine may.
func (e *ChildEnv) Send(v any) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.out.Encode(v)
}

// Receive waits for the test's next message; io.EOF after Child.CloseInput.
func (e *ChildEnv) Receive(v any) error { return e.in.Decode(v) }

// Child is another process that runs this test binary in one of its roles. Its
// methods are for the goroutine that runs the test.
type Child struct {
	t     testing.TB
	role  string
	proc  *redistest.Process
	input io.WriteCloser

	mu    sync.Mutex // guards lines
	lines [][]byte   // what it sent and nobody has received yet
	more  chan struct{}
}

// StartChild starts a process that plays role. It is killed when t ends; what it
// writes to standard error goes to t's log.
func StartChild(t testing.TB, role string, params map[string]string) *Child {
	t.Helper()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if params == nil {
		params = map[string]string{}
	}
	encoded, err := json.Marshal(params)
	if err != nil {
		t.Fatal(err)
	}
	c := &Child{t: t, role: role, more: make(chan struct{}, 1)}
	cmd := exec.Command(program)
	cmd.Env = append(os.Environ(), envChild+"="+role, envParams+"="+string(encoded))
	if c.input, err = cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	cmd.Stdout = &lineWriter{line: c.queue}
	stderr := &lineWriter{line: func(b []byte) { t.Logf("%s: %s", role, b) }}
	cmd.Stderr = stderr
	if c.proc, err = redistest.StartProcess(cmd); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.proc.Kill()
		stderr.flush()
	})
	return c
}

// queue keeps a line until it is received, so that a child never waits for its test.
func (c *Child) queue(line []byte) {
	c.mu.Lock()
	c.lines = append(c.lines, line)
	c.mu.Unlock()
	select {
	case c.more <- struct{}{}:
	default:
	}
}

func (c *Child) next() ([]byte, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.lines) == 0 {
		return nil, false
	}
	line := c.lines[0]
	c.lines = c.lines[1:]
	return line, true
}

// Pid is the child's process id.
func (c *Child) Pid() int { return c.proc.Pid() }

// Send sends v to the child.
func (c *Child) Send(v any) {
	c.t.Helper()
	b, err := json.Marshal(v)
	if err == nil {
		_, err = c.input.Write(append(b, '\n'))
	}
	if err != nil {
		c.t.Fatalf("send to child %s: %v", c.role, err)
	}
}

// CloseInput tells the child that nothing more will come.
func (c *Child) CloseInput() {
	c.t.Helper()
	if err := c.input.Close(); err != nil && !errors.Is(err, os.ErrClosed) {
		c.t.Fatalf("close the input of child %s: %v", c.role, err)
	}
}

// Receive waits for the child's next message.
func (c *Child) Receive(v any) {
	c.t.Helper()
	if err := c.TryReceive(v, childLimit); err != nil {
		c.t.Fatalf("receive from child %s: %v", c.role, err)
	}
}

// TryReceive is Receive with a limit of one's own, and an error: io.EOF when the
// child has ended, os.ErrDeadlineExceeded when it said nothing for so long.
func (c *Child) TryReceive(v any, limit time.Duration) error {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	for {
		// Looked at before the queue: nothing is queued after the end.
		ended := false
		select {
		case <-c.proc.Exited():
			ended = true
		default:
		}
		if line, ok := c.next(); ok {
			return json.Unmarshal(line, v)
		}
		if ended {
			return io.EOF
		}
		select {
		case <-c.more:
		case <-c.proc.Exited():
		case <-timer.C:
			return os.ErrDeadlineExceeded
		}
	}
}

// Stop freezes the child until Cont.
func (c *Child) Stop() {
	c.t.Helper()
	c.must("stop", c.proc.Stop())
}

// Cont lets a stopped child go on.
func (c *Child) Cont() {
	c.t.Helper()
	c.must("continue", c.proc.Cont())
}

// Kill ends the child without a chance to clean up, and waits until it is gone.
func (c *Child) Kill() { c.proc.Kill() }

// Terminate ends the ctx of the child's role.
func (c *Child) Terminate() {
	c.t.Helper()
	c.must("terminate", c.proc.Signal(syscall.SIGTERM))
}

func (c *Child) must(what string, err error) {
	c.t.Helper()
	if err != nil {
		c.t.Fatalf("%s child %s: %v", what, c.role, err)
	}
}

// Wait waits until the child has ended by itself; an error is its failure.
func (c *Child) Wait() error {
	c.t.Helper()
	timer := time.NewTimer(childLimit)
	defer timer.Stop()
	select {
	case <-c.proc.Exited():
		return c.proc.Wait()
	case <-timer.C:
		return fmt.Errorf("child %s: %w", c.role, os.ErrDeadlineExceeded)
	}
}

// lineWriter calls line for each line written to it.
type lineWriter struct {
	line func([]byte)
	rest []byte
}

func (w *lineWriter) Write(b []byte) (int, error) {
	w.rest = append(w.rest, b...)
	for {
		line, rest, ok := bytes.Cut(w.rest, []byte("\n"))
		if !ok {
			return len(b), nil
		}
		w.line(bytes.Clone(line))
		w.rest = rest
	}
}

// flush passes on what no newline has ended: the last words of a killed process.
func (w *lineWriter) flush() {
	if len(w.rest) > 0 {
		w.line(w.rest)
	}
}
