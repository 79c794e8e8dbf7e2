package rlock

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/redistest"
)

// forced is a client that has to ask first, through a proxy.
func forced(t *testing.T) (*Client, *redistest.Proxy) {
	look(t)
	p := redistest.NewProxy(t, shared.server.Addr)
	rdb := redistest.NewClient(t, p.Addr, func(o *redis.Options) { o.ReadTimeout = 300 * time.Millisecond })
	return newClient(t, rdb, WithShardedPubSub(true)), p
}

// TestForced_SilentServer: the question before the first attempt is one attempt too.
func TestForced_SilentServer(t *testing.T) {
	t.Parallel()
	c, p := forced(t)
	p.BlackHole(true)
	began := time.Now()
	_, err := c.NewLock(unique("forced")).TryLock(WithOwner(t.Context(), "mine"), 0, 0)
	require.Error(t, err)
	require.Less(t, time.Since(began), 3*time.Second, "go-redis would repeat it three times")
	require.LessOrEqual(t, p.CountCommand("pubsub"), 3)
}

// TestForced_DownForAMoment: the question is repeated as a request is.
func TestForced_DownForAMoment(t *testing.T) {
	t.Parallel()
	c, p := forced(t)
	down := p.On(redistest.Any, redistest.Reply("-LOADING Redis is loading the dataset in memory\r\n")).Times(0)
	l, ctx := c.NewLock(unique("forced")), WithOwner(t.Context(), "mine")
	got := async(func() error { return l.Lock(ctx) })
	down.WaitCount(t, 6) // of one attempt, two commands and a greeting or two
	down.Off()
	require.NoError(t, recv(t, got, "Lock goes on asking"))
	require.NoError(t, l.Unlock(ctx))
}

// TestForced_NoRightToAsk: the user's word counts then.
func TestForced_NoRightToAsk(t *testing.T) {
	t.Parallel()
	s := redistest.StartServer(t)
	require.NoError(t, s.Client(t).ACLSetUser(t.Context(), "mute", "on", ">secret", "~*", "&*", "+@all", "-pubsub").Err())
	rdb := s.Client(t, func(o *redis.Options) { o.Username, o.Password = "mute", "secret" })
	require.NoError(t, newClient(t, rdb, WithShardedPubSub(true)).NewLock("forced").Lock(t.Context()))
}

// TestQuestions_AreRepeated by go-redis: they change nothing.
func TestQuestions_AreRepeated(t *testing.T) {
	t.Parallel()
	c, p := onProxy(t)
	l := c.NewLock(unique("asked"))
	_, err := l.IsLocked(t.Context())
	require.NoError(t, err)
	for name, trouble := range map[string]redistest.Action{
		"reply lost": redistest.LoseReplyAndClose,
		"loading":    redistest.Reply("-LOADING Redis is loading the dataset in memory\r\n"),
	} {
		p.On(redistest.HasArg(l.Key()), trouble)
		_, err := l.IsLocked(t.Context())
		require.NoError(t, err, name)
	}
}
