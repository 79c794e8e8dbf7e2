package redistest

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

func TestSentinelFailover(t *testing.T) {
	t.Parallel()
	began := time.Now()
	s := StartSentinel(t)
	t.Logf("started in %v", time.Since(began))
	ctx := t.Context()
	rdb := s.Client(t)
	first := s.Master()
	require.Same(t, s.Nodes[0], first)
	require.Equal(t, s.Nodes[1:], s.Replicas())
	require.NoError(t, rdb.Set(ctx, "k", "v", 0).Err())
	require.EqualValues(t, 1, rdb.Wait(ctx, 1, time.Second).Val())

	began = time.Now()
	s.Failover(t)
	t.Logf("failover in %v", time.Since(began))
	second := s.Master()
	require.Same(t, s.Nodes[1], second)
	require.Equal(t, []*Server{first}, s.Replicas())
	require.Eventually(t, func() bool { return rdb.Set(ctx, "k", "w", 0).Err() == nil }, 5*time.Second, 10*time.Millisecond)
	require.Equal(t, "w", second.Client(t).Get(ctx, "k").Val())

	began = time.Now()
	second.Kill()
	require.Same(t, first, s.WaitMaster(t, second))
	t.Logf("another one in %v", time.Since(began))
	require.Eventually(t, func() bool { return rdb.Set(ctx, "k", "x", 0).Err() == nil }, 5*time.Second, 10*time.Millisecond)
	require.Equal(t, "x", first.Client(t).Get(ctx, "k").Val())
	require.NoError(t, second.Restart())
	require.Eventually(t, func() bool { return len(s.Replicas()) == 1 }, 10*time.Second, 10*time.Millisecond)
}

func TestSentinelProxies(t *testing.T) {
	t.Parallel()
	s := StartSentinel(t)
	ps := s.Proxies(t)
	ctx := t.Context()
	rdb := s.Client(t, func(o *redis.FailoverOptions) { o.Dialer = ps.Dialer() })
	p := ps.For(s.Master().Addr)
	lost := p.On(Command("incr"), LoseReplyAndClose)
	require.NoError(t, rdb.Incr(ctx, "k").Err())
	require.Equal(t, 1, lost.Count())
	require.Equal(t, "2", s.Client(t).Get(ctx, "k").Val(), "it was sent twice")
	s.Failover(t)
	require.Eventually(t, func() bool { return rdb.Incr(ctx, "k").Err() == nil }, 5*time.Second, 10*time.Millisecond)
	require.Positive(t, ps.For(s.Master().Addr).CountCommand("incr"))
}
