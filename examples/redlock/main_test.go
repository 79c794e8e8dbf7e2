package main

import (
	"strings"
	"testing"

	"github.com/redis/go-redis/v9/logging"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	logging.Disable()
	// go-redis looks once a second whether a pool whose server has gone was closed.
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/redis/go-redis/v9/internal/pool.(*ConnPool).tryDial"))
}

// The program checks itself; this has it run with all other tests.
func TestRun(t *testing.T) {
	var out strings.Builder
	require.NoError(t, run(t.Context(), &out), "%s", &out)
	t.Log(out.String())
	require.Regexp(t, `s  done\n$`, out.String())
}
