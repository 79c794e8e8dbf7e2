package rlock

import (
	"testing"

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
