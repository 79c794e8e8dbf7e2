package redistest

import (
	"bufio"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// ErrNoServer says that this machine has no redis-server to start.
var ErrNoServer = errors.New("redistest: no redis-server on PATH")

// startLimit is how long a server may take until it answers.
const startLimit = 15 * time.Second

// Server is a redis-server process on loopback that keeps nothing on disk. Its
// methods are for the one goroutine that runs the test.
type Server struct {
	Addr string // host:port; stays the same over Restart

	args []string
	dir  string
	pass string
	proc *Process
}

// RequireRedis reports whether tests have to fail, not skip, without a
// redis-server process: RELOCK_REQUIRE_REDIS=1 says so, unless
// RELOCK_DOCKER_ONLY=1 says that Docker is the only way to a Redis here, which
// only the integration tests go.
func RequireRedis() bool {
	return os.Getenv("RELOCK_REQUIRE_REDIS") == "1" && os.Getenv("RELOCK_DOCKER_ONLY") != "1"
}

// StartServer starts a redis-server that is killed when t ends. args are added
// to its command line ("--maxmemory", "10mb"); a first one that does not begin
// with a dash is its configuration file. Without a redis-server on PATH, t is
// skipped, or fails where RequireRedis says so.
func StartServer(t testing.TB, args ...string) *Server {
	t.Helper()
	s, err := Start(args...)
	switch {
	case errors.Is(err, ErrNoServer) && !RequireRedis():
		t.Skipf("%v: install Redis to run this test", err)
	case err != nil:
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("log of redis-server %s:\n%s", s.Addr, s.Log())
		}
	})
	return s
}

// Start is StartServer for a server that outlives a test: the caller closes it.
func Start(args ...string) (*Server, error) {
	if _, err := exec.LookPath("redis-server"); err != nil {
		return nil, ErrNoServer
	}
	dir, err := os.MkdirTemp("", "redistest-")
	if err != nil {
		return nil, fmt.Errorf("redistest: %w", err)
	}
	s := &Server{args: args, dir: dir}
	for i := range len(args) - 1 {
		if args[i] == "--requirepass" {
			s.pass = args[i+1]
		}
	}
	// A port that was free a moment ago may be another's by now.
	for range 5 {
		port, perr := FreePort()
		if perr != nil {
			err = perr
			break
		}
		s.Addr = net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
		if err = s.start(); err == nil {
			return s, nil
		}
	}
	os.RemoveAll(dir)
	return nil, err
}

// start runs the process on s.Addr and waits until it answers.
func (s *Server) start() error {
	_, port, _ := net.SplitHostPort(s.Addr)
	var args []string
	rest := s.args
	if len(rest) > 0 && !strings.HasPrefix(rest[0], "-") {
		args, rest = append(args, rest[0]), rest[1:]
	}
	args = append(args, "--port", port, "--bind", "127.0.0.1", "--dir", s.dir,
		"--logfile", filepath.Join(s.dir, "log"), "--daemonize", "no")
	sentinel := false
	for _, a := range rest {
		sentinel = sentinel || a == "--sentinel"
	}
	if !sentinel { // which knows no such directives
		args = append(args, "--save", "", "--appendonly", "no")
	}
	p, err := StartProcess(exec.Command("redis-server", append(args, rest...)...))
	if err != nil {
		return fmt.Errorf("redistest: start redis-server: %w", err)
	}
	s.proc = p
	deadline := time.Now().Add(startLimit)
	for {
		err := s.answers()
		if err == nil {
			return nil
		}
		select {
		case <-p.Exited():
			return fmt.Errorf("redistest: redis-server on %s ended while starting:\n%s", s.Addr, s.Log())
		case <-time.After(5 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			s.Kill()
			return fmt.Errorf("redistest: redis-server on %s does not answer (%w):\n%s", s.Addr, err, s.Log())
		}
	}
}

// answers checks that it is this process that answers on the port, and not
// another one that was quicker to take it.
func (s *Server) answers() error {
	c, err := net.DialTimeout("tcp", s.Addr, time.Second)
	if err != nil {
		return err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(time.Second)); err != nil {
		return err
	}
	if s.pass != "" {
		fmt.Fprintf(c, "*2\r\n$4\r\nAUTH\r\n$%d\r\n%s\r\n", len(s.pass), s.pass)
	} else {
		fmt.Fprintf(c, "*1\r\n$4\r\nPING\r\n")
	}
	r := bufio.NewReader(c)
	f, err := readFrame(r)
	if err != nil {
		return err
	}
	switch reply := string(f.raw); {
	case strings.HasPrefix(reply, "+"):
	case strings.HasPrefix(reply, "-LOADING"), strings.HasPrefix(reply, "-BUSY"), strings.HasPrefix(reply, "-MASTERDOWN"):
		return errors.New(strings.TrimSpace(reply))
	default:
		return nil // an ACL or the like keeps us out: it answers, that is all we can know
	}
	fmt.Fprintf(c, "*2\r\n$4\r\nINFO\r\n$6\r\nserver\r\n")
	if f, err = readFrame(r); err != nil {
		return err
	}
	if want := fmt.Sprintf("process_id:%d\r\n", s.proc.Pid()); !strings.Contains(string(f.raw), want) {
		return errors.New("another process has the port")
	}
	return nil
}

// Client returns a client of the server that is closed when t ends.
func (s *Server) Client(t testing.TB, opts ...func(*redis.Options)) *redis.Client {
	t.Helper()
	return NewClient(t, s.Addr, append([]func(*redis.Options){func(o *redis.Options) { o.Password = s.pass }}, opts...)...)
}

// NewClient returns a client of addr, which may be a Proxy's or a Miniredis's,
// that is closed when t ends.
func NewClient(t testing.TB, addr string, opts ...func(*redis.Options)) *redis.Client {
	t.Helper()
	o := &redis.Options{Addr: addr}
	for _, opt := range opts {
		opt(o)
	}
	rdb := redis.NewClient(o)
	t.Cleanup(func() { _ = rdb.Close() }) // the test may have closed it already
	return rdb
}

// Pid is the process's id.
func (s *Server) Pid() int { return s.proc.Pid() }

// Stop freezes the server: connections stay open and new ones are accepted by
// the kernel, but nothing is answered until Cont.
func (s *Server) Stop() error { return s.proc.Stop() }

// Cont lets a stopped server go on.
func (s *Server) Cont() error { return s.proc.Cont() }

// Kill ends the server at once and waits until it is gone. Its address refuses
// connections until Restart.
func (s *Server) Kill() { s.proc.Kill() }

// Restart kills the server if it runs and starts it again on the same address,
// with no data.
func (s *Server) Restart() error {
	s.Kill()
	return s.start()
}

// Close kills the server and removes its files.
func (s *Server) Close() {
	s.Kill()
	os.RemoveAll(s.dir)
}

// Log is what the server has logged so far.
func (s *Server) Log() string {
	b, err := os.ReadFile(filepath.Join(s.dir, "log"))
	if err != nil {
		return err.Error()
	}
	return string(b)
}

// FreePort finds a loopback port that nobody listens on, and whose cluster bus
// port (10,000 above) is free as well. It lies below the range from which the
// kernel takes the ports of outgoing connections, so that no client occupies it
// while its server is down.
func FreePort() (int, error) {
	for range 200 {
		port := 10_500 + rand.IntN(12_000)
		if portFree(port) && portFree(port+10_000) {
			return port, nil
		}
	}
	return 0, errors.New("redistest: no free port on loopback")
}

func portFree(port int) bool {
	l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err != nil {
		return false
	}
	return l.Close() == nil
}
