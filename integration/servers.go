package integration

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/relock-go/relock/internal/redistest"
)

// What the environment can say about servers.
const (
	envAddr     = "RELOCK_REDIS_ADDR"    // host:port of a server that is there
	envImage    = "RELOCK_REDIS_IMAGE"   // the image to test with, redis:7 otherwise
	envNoDocker = "RELOCK_NO_DOCKER"     // 1: processes only
	envRequire  = "RELOCK_REQUIRE_REDIS" // 1: no Redis is a failure, not a reason to skip
)

// errNoRedis says that there is no way to a real Redis.
var errNoRedis = errors.New("no Redis: set " + envAddr + ", start Docker or install redis-server")

// Server is a real Redis.
type Server struct {
	Addr string // host:port
	Kind string // "address", "docker" or "process"

	backend backend
}

// backend is a server that the test may do anything to.
type backend interface {
	Stop() error
	Cont() error
	Kill() error
	Restart() error
	Close()
}

// Client returns a client of the server that is closed when t ends.
func (s *Server) Client(t testing.TB, opts ...func(*redis.Options)) *redis.Client {
	t.Helper()
	return redistest.NewClient(t, s.Addr, opts...)
}

// Proxy returns a fault proxy to the server that is closed when t ends.
func (s *Server) Proxy(t testing.TB) *redistest.Proxy {
	t.Helper()
	return redistest.NewProxy(t, s.Addr)
}

// Stop freezes a server of one's own: nothing is answered until Cont.
func (s *Server) Stop(t testing.TB) { s.do(t, backend.Stop) }

// Cont lets a stopped server go on.
func (s *Server) Cont(t testing.TB) { s.do(t, backend.Cont) }

// Kill ends a server of one's own without a word to its clients.
func (s *Server) Kill(t testing.TB) { s.do(t, backend.Kill) }

// Restart kills a server of one's own, if it runs, and starts it on the same
// address, with no data.
func (s *Server) Restart(t testing.TB) { s.do(t, backend.Restart) }

func (s *Server) do(t testing.TB, f func(backend) error) {
	t.Helper()
	if s.backend == nil {
		t.Fatalf("%s is shared: use OwnRedis", s.Addr)
	}
	if err := f(s.backend); err != nil {
		t.Fatalf("redis at %s: %v", s.Addr, err)
	}
}

// shared is the one server for all tests that get along with each other.
var shared struct {
	once   sync.Once
	server *Server
	err    error
}

// Redis returns the server that all tests of this binary share: the one at
// RELOCK_REDIS_ADDR, else one in Docker, else a redis-server process. Tests use
// names of their own on it and never flush, stop or reconfigure it. Without any
// of them t is skipped; RELOCK_REQUIRE_REDIS=1 makes it fail instead.
func Redis(t testing.TB) *Server {
	t.Helper()
	shared.once.Do(func() {
		if addr := os.Getenv(envAddr); addr != "" {
			shared.server, shared.err = external(addr)
			return
		}
		shared.server, shared.err = start(t.Logf, []starter{startDocker, startProcess})
	})
	need(t, shared.err)
	s := *shared.server
	s.backend = nil
	return &s
}

// OwnRedis returns a server for this test alone, which may stop, kill and flush
// it; args are added to its command line. It is a process where redis-server is
// on PATH, because that starts faster, unless RELOCK_REDIS_IMAGE asks for an
// image; else it is in Docker. It is closed when t ends.
func OwnRedis(t testing.TB, args ...string) *Server {
	t.Helper()
	order := []starter{startProcess, startDocker}
	if os.Getenv(envImage) != "" {
		order = []starter{startDocker, startProcess}
	}
	s, err := start(t.Logf, order, args...)
	need(t, err)
	t.Cleanup(s.backend.Close)
	return s
}

// need skips or fails t when there is no server.
func need(t testing.TB, err error) {
	t.Helper()
	switch {
	case err == nil:
	case errors.Is(err, errNoRedis) && os.Getenv(envRequire) != "1":
		t.Skip(err)
	default:
		t.Fatal(err)
	}
}

// external checks that a server which somebody else runs is there.
func external(addr string) (*Server, error) {
	rdb := redis.NewClient(&redis.Options{Addr: addr})
	defer rdb.Close()
	if err := rdb.Ping(context.Background()).Err(); err != nil {
		return nil, fmt.Errorf("%s=%s: %w", envAddr, addr, err)
	}
	return &Server{Addr: addr, Kind: "address"}, nil
}

// starter starts a server; errNoRedis means that it cannot do so here.
type starter func(logf func(string, ...any), args []string) (*Server, error)

// start takes the first starter that can. A server that was found and does not
// start is an error: the tests must not quietly run on another one.
func start(logf func(string, ...any), starters []starter, args ...string) (*Server, error) {
	for _, s := range starters {
		server, err := s(logf, args)
		if !errors.Is(err, errNoRedis) {
			return server, err
		}
	}
	return nil, errNoRedis
}

func startProcess(_ func(string, ...any), args []string) (*Server, error) {
	s, err := redistest.Start(args...)
	if errors.Is(err, redistest.ErrNoServer) {
		return nil, errNoRedis
	}
	if err != nil {
		return nil, err
	}
	return &Server{Addr: s.Addr, Kind: "process", backend: ownProcess{s}}, nil
}

// ownProcess is a redis-server process as a backend.
type ownProcess struct{ *redistest.Server }

func (p ownProcess) Kill() error {
	p.Server.Kill()
	return nil
}

// stopShared ends the shared servers that were started here.
func stopShared() {
	sharedPlain.close()
	sharedCluster.close()
	sharedSentinel.close()
	if s := shared.server; s != nil && s.backend != nil {
		s.backend.Close()
	}
}
