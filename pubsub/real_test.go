package pubsub_test

import (
	"context"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/pubsub"
)

// patience is how long these tests wait for what ought to come at once.
const patience = 10 * time.Second

func await(t *testing.T, c <-chan struct{}) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(patience):
		t.Fatal("nothing came")
	}
}

// real starts a miniredis and a Hub on it. cfg.Open is set here.
func real(t *testing.T, cfg pubsub.Config) (*miniredis.Miniredis, *redis.Client, *pubsub.Hub) {
	t.Helper()
	mr := miniredis.RunT(t)
	rdb := redis.NewClient(&redis.Options{Addr: mr.Addr()})
	t.Cleanup(func() { _ = rdb.Close() })
	cfg.Open = func(ctx context.Context) pubsub.Conn { return rdb.Subscribe(ctx) }
	hub := pubsub.New(cfg)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		assert.NoError(t, hub.Close(ctx))
	})
	return mr, rdb, hub
}

func TestReal_Wakes(t *testing.T) {
	_, rdb, hub := real(t, pubsub.Config{Broadcast: func(p string) bool { return p == "all" }})
	x, y, other := hub.Subscribe("a"), hub.Subscribe("a"), hub.Subscribe("b")
	await(t, x.C())
	await(t, y.C())
	await(t, other.C())

	require.NoError(t, rdb.Publish(t.Context(), "a", "free").Err())
	await(t, x.C())
	require.NoError(t, rdb.Publish(t.Context(), "a", "all").Err())
	await(t, x.C())
	await(t, y.C())
	assert.Empty(t, other.C())
}

func TestReal_LingerEndsTheConnection(t *testing.T) {
	mr, _, hub := real(t, pubsub.Config{Linger: time.Millisecond})
	sub := hub.Subscribe("a")
	await(t, sub.C())
	require.Equal(t, 1, mr.CurrentConnectionCount())
	sub.Close()
	assert.Eventually(t, func() bool { return mr.CurrentConnectionCount() == 0 }, patience, time.Millisecond)
	assert.Empty(t, mr.PubSubChannels(""))
}

func TestReal_Restart(t *testing.T) {
	reconnected := make(chan struct{}, 1)
	mr, rdb, hub := real(t, pubsub.Config{Reconnected: func() { signal(reconnected) }})
	sub := hub.Subscribe("a")
	await(t, sub.C())
	mr.Close()
	await(t, sub.C()) // the loss
	require.NoError(t, mr.Restart())
	await(t, reconnected)
	await(t, sub.C()) // the new confirmation
	require.NoError(t, rdb.Publish(t.Context(), "a", "free").Err())
	await(t, sub.C())
}

// pongs tells of each Pong that a connection receives.
type pongs struct {
	pubsub.Conn
	seen chan struct{}
}

func (p pongs) ReceiveTimeout(ctx context.Context, timeout time.Duration) (any, error) {
	v, err := p.Conn.ReceiveTimeout(ctx, timeout)
	if _, ok := v.(*redis.Pong); ok {
		signal(p.seen)
	}
	return v, err
}

func TestReal_ProbeIsAnswered(t *testing.T) {
	for _, protocol := range []int{2, 3} {
		rdb := redis.NewClient(&redis.Options{Addr: miniredis.RunT(t).Addr(), Protocol: protocol})
		defer rdb.Close()
		pong, reconnected := make(chan struct{}, 1), make(chan struct{}, 1)
		hub := pubsub.New(pubsub.Config{
			Open:        func(ctx context.Context) pubsub.Conn { return pongs{rdb.Subscribe(ctx), pong} },
			Probe:       time.Millisecond,
			Reconnected: func() { signal(reconnected) },
		})
		sub := hub.Subscribe("a")
		await(t, sub.C())
		for range 20 {
			await(t, pong)
		}
		assert.Empty(t, reconnected)
		assert.Empty(t, sub.C())
		require.NoError(t, hub.Close(t.Context()))
	}
}

func TestReal_ClientClosedFirst(t *testing.T) {
	_, rdb, hub := real(t, pubsub.Config{})
	sub := hub.Subscribe("a")
	await(t, sub.C())
	require.NoError(t, rdb.Close())
	await(t, sub.C())
	hub.Subscribe("b").Close()
}
