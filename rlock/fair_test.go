package rlock

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/script"
)

// queued is the length of a fair lock's queue.
func queued(t testing.TB, l *FairLock) int64 {
	t.Helper()
	n, err := look(t).LLen(context.Background(), script.QueueKey(l.Key())).Result()
	require.NoError(t, err)
	scores, err := look(t).ZCard(context.Background(), script.ScoresKey(l.Key())).Result()
	require.NoError(t, err)
	if n != scores {
		return -1
	}
	return n
}

func TestFair_OrderOverClients(t *testing.T) {
	t.Parallel()
	clients := []*Client{onShared(t), onShared(t), onShared(t)}
	name := unique("fair")
	holder := clients[0].NewFairLock(name)
	require.NoError(t, holder.Lock(as("holder")))
	const waiters = 12
	order := make(chan int, waiters)
	for i := range waiters {
		l := clients[i%3].NewFairLock(name)
		go func() {
			o := as(Owner(fmt.Sprintf("w%d", i)))
			if l.Lock(o) == nil {
				order <- i
				_ = l.Unlock(o)
			}
		}()
		eventually(t, func() bool { return queued(t, holder) == int64(i+1) }, "waiter %d stands in the queue", i)
	}
	require.NoError(t, holder.Unlock(as("holder")))
	for i := range waiters {
		require.Equal(t, i, recv(t, order, "the next one"))
	}
	eventually(t, func() bool { return queued(t, holder) == 0 && len(fields(t, name)) == 0 }, "nothing is left")
}

func TestFair_LeavesTheQueue(t *testing.T) {
	t.Parallel()
	c := onShared(t)
	l := c.NewFairLock(unique("fair"))
	require.NoError(t, l.Lock(as("holder")))
	ctx, cancel := context.WithCancel(as("a"))
	first := async(func() error { return l.Lock(ctx) })
	eventually(t, func() bool { return queued(t, l) == 1 }, "it queues")
	second := async(func() error { return l.Lock(as("b")) })
	eventually(t, func() bool { return queued(t, l) == 2 }, "the second queues")
	cancel()
	require.ErrorIs(t, recv(t, first, "the cancelled one"), context.Canceled)
	eventually(t, func() bool { return queued(t, l) == 1 }, "it has left the queue")
	got, err := settled(t, func() (bool, error) { return l.TryLock(as("c"), 300*time.Millisecond, 0) })
	require.NoError(t, err)
	require.False(t, got)
	eventually(t, func() bool { return queued(t, l) == 1 }, "that one too")
	require.NoError(t, l.Unlock(as("holder")))
	require.NoError(t, recv(t, second, "the one that stayed"))
	require.NoError(t, l.Unlock(as("b")))
}

// One that gives up and tries again does not come in behind itself: it has left the queue
// before it asks, so nobody is told whose wait is over.
func TestFair_LeavesBeforeItComesAgain(t *testing.T) {
	t.Parallel()
	c, p := onProxy(t)
	l := c.NewFairLock(unique("again"))
	occupy(t, l.Key(), time.Minute)
	const tries = 20
	p.ResetCounts()
	for range tries {
		got, err := settled(t, func() (bool, error) { return l.TryLock(as("a"), 5*time.Millisecond, 0) })
		require.NoError(t, err)
		require.False(t, got)
	}
	stands, came := "", 0
	for _, r := range p.Requests() {
		if len(r.Args) < 8 || r.Args[0] != "evalsha" {
			continue
		}
		switch r.Args[1] {
		case script.FairAcquire.SHA:
			if r.Args[7] == stands {
				continue
			}
			require.Empty(t, stands, "it stands there still as %s comes", r.Args[7])
			stands = r.Args[7]
			came++
		case script.FairLeave.SHA:
			if slices.Contains(r.Args[8:], stands) {
				stands = ""
			}
		}
	}
	require.GreaterOrEqual(t, came, tries)
	eventually(t, func() bool { return queued(t, l) == 0 }, "it has left")
}
