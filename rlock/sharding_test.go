package rlock

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
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

// hook fails after the command has run, with an error that looks as if it had not.
type hook struct{ on atomic.Bool }

func (h *hook) DialHook(next redis.DialHook) redis.DialHook { return next }
func (h *hook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}
func (h *hook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		if h.on.Load() {
			return &net.OpError{Op: "dial", Net: "udp", Err: errors.New("metrics: connection refused")}
		}
		return err
	}
}

// TestHook_ErrorBesideAReply: the reply counts.
func TestHook_ErrorBesideAReply(t *testing.T) {
	t.Parallel()
	look(t)
	rdb := shared.server.Client(t)
	h := &hook{}
	rdb.AddHook(h)
	l, ctx := newClient(t, rdb).NewLock(unique("hook")), WithOwner(t.Context(), "mine")
	require.NoError(t, l.Lock(ctx))
	require.NoError(t, l.Unlock(ctx))
	h.on.Store(true)
	got, err := l.TryLock(ctx, 0, 0)
	require.NoError(t, err)
	require.True(t, got)
	require.NoError(t, l.Unlock(ctx))
	require.Empty(t, fields(t, l.Key()))
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
