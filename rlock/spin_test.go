package rlock

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestSpin_PollsAndNeverSubscribes(t *testing.T) {
	t.Parallel()
	c, other := onShared(t), onShared(t)
	name := unique("spin")
	require.NoError(t, other.NewLock(name).Lock(as("holder")))
	l := c.NewSpinLock(name)
	got := async(func() error { return l.Lock(as("a")) })
	eventually(t, func() bool { return c.Stats().Attempts > 5 }, "it polls")
	channel := l.keys.channel.(string)
	n, err := look(t).PubSubNumSub(t.Context(), channel).Result()
	require.NoError(t, err)
	require.Zero(t, n[channel])
	require.NoError(t, other.NewLock(name).Unlock(as("holder")))
	require.NoError(t, recv(t, got, "the lock"))
	require.NoError(t, l.Unlock(as("a")))
	bad := c.NewLock(name, WithBackoff(nil))
	require.ErrorContains(t, bad.Lock(as("a")), "SpinLock")
}

// Nobody hears of those who poll, so a process that had its share lets the lock be for a
// while, long enough for one of them to find it free.
func TestSpin_OthersGetTheirTurn(t *testing.T) {
	t.Parallel()
	c := onShared(t, WithHandoffLimit(0, 0)) // its share is one hold
	l := c.NewSpinLock(unique("turns"), WithBackoff(ConstantBackoff{Delay: time.Millisecond}))
	require.NoError(t, l.Lock(as("a")))
	type grant struct {
		err error
		at  time.Time
	}
	next := async(func() grant { err := l.Lock(as("b")); return grant{err, time.Now()} })
	waitForWaiters(t, c, 1)
	began := time.Now()
	require.NoError(t, l.Unlock(as("a")))
	g := recv(t, next, "the next one")
	require.NoError(t, g.err)
	require.GreaterOrEqual(t, g.at.Sub(began), 15*time.Millisecond)
	require.NoError(t, l.Unlock(as("b")))
}
