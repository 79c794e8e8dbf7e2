package integration

import (
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A stopped server costs a call and one that waits for it, not one for each attempt. It
// runs alone: it counts goroutines.
func TestRedLockHungServerCostsOneCall(t *testing.T) {
	servers := startFive(t)
	f := redlockAt(t, name(t), addrsOf(servers), nil)
	ctx := owned(t.Context(), "o")
	require.NoError(t, f.Lock(ctx))
	require.NoError(t, f.Unlock(ctx))
	f.waitFree(t)
	require.NoError(t, servers[4].Stop())
	most := 0
	for range 200 {
		require.NoError(t, f.Lock(ctx))
		require.NoError(t, f.Unlock(ctx))
		most = max(most, calls())
	}
	require.NoError(t, servers[4].Cont())
	// Two, and on a busy machine a few that are about to end.
	require.Less(t, most, 30)
}

// calls is how many goroutines of RedLocks call a server, or wait for that.
func calls() int {
	buf := make([]byte, 4<<20)
	return strings.Count(string(buf[:runtime.Stack(buf, true)]), "created by github.com/relock-go/relock/redlock.(*round).askLocked")
}
