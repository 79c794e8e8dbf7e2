package rlock

import (
	"context"
	"errors"
	"flag"
	"testing"

	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"github.com/relock-go/relock/internal/redistest"
)

// shared is the redis-server of the tests that do it no harm, with a client to
// look at it. Both are nil when this machine has none.
var shared struct {
	server *redistest.Server
	rdb    *redis.Client
	err    error
}

func TestMain(m *testing.M) { goleak.VerifyTestMain(&suite{m}, goredis) }

// goredis ignores what go-redis starts when a server cannot be dialled: it looks
// once a second whether the server is back, and whether its client was closed.
var goredis = goleak.IgnoreAnyFunction("github.com/redis/go-redis/v9/internal/pool.(*ConnPool).tryDial")

// suite runs the tests with the shared server, and ends that before goleak looks.
type suite struct{ *testing.M }

func (s *suite) Run() int {
	flag.Parse()
	if f := flag.Lookup("test.parallel"); f.Value.String() == f.DefValue {
		_ = f.Value.Set("8") // most tests wait for Redis, not for a core
	}
	redis.SetLogger(silence{}) // tests take servers away all the time
	shared.server, shared.err = redistest.Start()
	if shared.err != nil && !errors.Is(shared.err, redistest.ErrNoServer) {
		panic(shared.err)
	}
	if shared.server != nil {
		shared.rdb = redis.NewClient(&redis.Options{Addr: shared.server.Addr})
		defer shared.server.Close()
		defer shared.rdb.Close()
	}
	return s.M.Run()
}

type silence struct{}

func (silence) Printf(context.Context, string, ...any) {}
