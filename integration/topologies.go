package integration

import (
	"errors"
	"net"
	"strings"
	"sync"
	"testing"

	"github.com/relock-go/relock/internal/redistest"
)

// common is what all tests of this binary share, started by the first that asks.
type common[T interface{ Close() }] struct {
	once  sync.Once
	value T
	err   error
	runs  bool
}

func (c *common[T]) get(start func() (T, error)) (T, error) {
	c.once.Do(func() {
		c.value, c.err = start()
		c.runs = c.err == nil
	})
	return c.value, c.err
}

func (c *common[T]) close() {
	if c.runs {
		c.value.Close()
	}
}

// plain are servers that do not know of each other.
type plain []*redistest.Server

func startPlain() (plain, error) {
	var all plain
	for range 3 {
		s, err := redistest.Start()
		if err != nil {
			all.Close()
			return nil, err
		}
		all = append(all, s)
	}
	return all, nil
}

func (p plain) Close() {
	for _, s := range p {
		s.Close()
	}
}

// at is the server at addr, of which a client with manual slots keeps the port.
func (p plain) at(addr string) *redistest.Server {
	_, port, _ := net.SplitHostPort(addr)
	for _, s := range p {
		if strings.HasSuffix(s.Addr, ":"+port) {
			return s
		}
	}
	return nil
}

// The deployments that tests share, beside the one server of Redis.
var (
	sharedPlain    common[plain]
	sharedCluster  common[*redistest.Cluster]
	sharedSentinel common[*redistest.Sentinel]
)

// patience is after how many milliseconds a node that is silent is taken for
// down. Tests stop and restart nodes within it, and nobody takes their place.
const patience = "30000"

func startCluster() (*redistest.Cluster, error) {
	return redistest.OpenCluster(3, 0, "--cluster-node-timeout", patience)
}

func startSentinel() (*redistest.Sentinel, error) {
	s, err := redistest.OpenSentinel()
	if err != nil {
		return nil, err
	}
	if err := s.Set("down-after-milliseconds", patience); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// deploy returns what start starts: t's own, or what all tests share. They are
// processes always; without redis-server it does what redistest.StartServer does.
func deploy[T interface{ Close() }](t testing.TB, own bool, all *common[T], start func() (T, error)) T {
	t.Helper()
	get := start
	if !own {
		get = func() (T, error) { return all.get(start) }
	}
	v, err := get()
	switch {
	case errors.Is(err, redistest.ErrNoServer) && !redistest.RequireRedis():
		t.Skipf("%v: install Redis to run this test", err)
	case err != nil:
		t.Fatal(err)
	case own:
		t.Cleanup(v.Close)
	}
	return v
}

// clusterNode is a node as a backend: restarted, it has to be taken back.
type clusterNode struct {
	ownProcess
	c *redistest.Cluster
}

func (n clusterNode) Restart() error { return n.c.Restart(n.Server) }
