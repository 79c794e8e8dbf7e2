//go:build pending

package redisson

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/rlock"
)

// TestPending is what relock does not do yet. With plain messages on a cluster, a
// release counts only those who listen at the lock's own node. relock has a single
// connection for all names: once that is at another node, a Java thread at this one
// is taken for relock itself, so nobody pauses for it, and it is starved.
func TestPending(t *testing.T) {
	j := startJVM(t)
	h := newHarness(t, j, threeMasters(t), mode{"OFF", []rlock.Option{rlock.WithShardedPubSub(false)}})
	h.warmUp(t)
	for try := 1; ; try++ {
		m := newMatch(t, h, "lock") // the next name is another master's
		client := h.golang.client(t, h.client(t))
		holder, waiter := client.owner(t, m.key), client.owner(t, m.key)
		require.NoError(t, holder.lock(0))
		got := m.waits(waiter)
		java := handoff(t, h, client, 4*time.Second)
		require.NoError(t, holder.unlock())
		m.enters(got, "the hand-off")
		require.NoError(t, waiter.unlock())
		if 10*java.Late <= java.Entries {
			return
		}
		require.Less(t, try, tries, "Java waits for longer than %v", handoffLimit)
	}
}
