package multilock

import (
	"context"
	"testing"

	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	redis.SetLogger(silence{}) // tests take servers away
	goleak.VerifyTestMain(m,
		// go-redis looks once a second whether a server that has gone is back.
		goleak.IgnoreAnyFunction("github.com/redis/go-redis/v9/internal/pool.(*ConnPool).tryDial"))
}

type silence struct{}

func (silence) Printf(context.Context, string, ...any) {}
