package rlock

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestBackoff_Pauses(t *testing.T) {
	t.Parallel()
	for _, x := range []struct {
		b       Backoff
		attempt int
		most    time.Duration
	}{
		{ExponentialBackoff{}, 1, time.Millisecond},
		{ExponentialBackoff{}, 4, 8 * time.Millisecond},
		{ExponentialBackoff{}, 8, 128 * time.Millisecond},
		{ExponentialBackoff{}, 1 << 40, 128 * time.Millisecond},
		{ExponentialBackoff{Initial: time.Second}, 1, 128 * time.Millisecond},
		{ExponentialBackoff{Initial: 2 * time.Millisecond, Multiplier: 1, Max: time.Second}, 1 << 40, 2 * time.Millisecond},
		{ExponentialBackoff{Initial: time.Millisecond, Multiplier: 1.5, Max: time.Hour}, 3, 2250 * time.Microsecond},
		{ConstantBackoff{}, 7, 64 * time.Millisecond},
		{ConstantBackoff{Delay: time.Second}, 1, time.Second},
	} {
		seen := map[time.Duration]bool{}
		for range 50 {
			d := x.b.Next(x.attempt)
			require.GreaterOrEqual(t, d, x.most/2, "%+v after %d", x.b, x.attempt)
			require.LessOrEqual(t, d, x.most, "%+v after %d", x.b, x.attempt)
			seen[d] = true
		}
		require.Greater(t, len(seen), 1, "it has jitter")
	}
}

func TestBackoff_BadOnes(t *testing.T) {
	t.Parallel()
	c := onShared(t)
	for _, b := range []Backoff{
		ExponentialBackoff{Initial: -1}, ExponentialBackoff{Max: -1}, ExponentialBackoff{Multiplier: 0.5}, ConstantBackoff{Delay: -1},
	} {
		require.ErrorContains(t, c.NewSpinLock(unique("bad"), WithBackoff(b)).Lock(as("a")), "WithBackoff")
	}
	require.ErrorContains(t, c.NewFairLock(unique("bad"), WithBackoff(nil)).Lock(as("a")), "SpinLock")
	l := c.NewSpinLock(unique("default"), WithBackoff(nil))
	require.NoError(t, l.Lock(as("a")))
	require.NoError(t, l.Unlock(as("a")))
}

// odd is a Backoff of a user's that is not what it should be.
type odd struct{ next func() time.Duration }

func (o odd) Next(int) time.Duration { return o.next() }

// Whatever a Backoff of the user's does, the lock goes on.
func TestBackoff_OfTheUsers(t *testing.T) {
	t.Parallel()
	c := onShared(t)
	name := unique("odd")
	require.NoError(t, c.NewLock(name).Lock(as("holder")))
	panics := c.NewSpinLock(name, WithBackoff(odd{func() time.Duration { panic("oh") }}))
	require.PanicsWithValue(t, "oh", func() { _ = panics.Lock(as("a")) })
	asks := c.NewSpinLock(name) // uses the lock inside
	inside := c.NewSpinLock(name, WithBackoff(odd{func() time.Duration {
		if asks.Validity(as("b")) > 0 {
			return time.Hour
		}
		return -time.Hour
	}}))
	got := async(func() error { return inside.Lock(as("b")) })
	waitForWaiters(t, c, 1)
	require.NoError(t, c.NewLock(name).Unlock(as("holder")))
	require.NoError(t, recv(t, got, "the lock"))
	require.NoError(t, inside.Unlock(as("b")))
	nothingLeft(t, inside)
}
