package redistest

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// eachBackend runs test against a miniredis and against a real server, with
// both versions of the protocol.
func eachBackend(t *testing.T, test func(t *testing.T, p *Proxy, direct *redis.Client, protocol func(*redis.Options))) {
	t.Helper()
	t.Parallel()
	for _, version := range []int{2, 3} {
		protocol := func(o *redis.Options) { o.Protocol = version }
		t.Run(fmt.Sprintf("mini/resp%d", version), func(t *testing.T) {
			t.Parallel()
			addr := StartMini(t).Addr()
			test(t, NewProxy(t, addr), NewClient(t, addr), protocol)
		})
		t.Run(fmt.Sprintf("server/resp%d", version), func(t *testing.T) {
			t.Parallel()
			addr := StartServer(t).Addr
			test(t, NewProxy(t, addr), NewClient(t, addr), protocol)
		})
	}
}

func eventually(t *testing.T, cond func() bool, what string) {
	t.Helper()
	require.Eventually(t, cond, 10*time.Second, time.Millisecond, what)
}

func TestProxyPassesEverything(t *testing.T) {
	eachBackend(t, func(t *testing.T, p *Proxy, _ *redis.Client, protocol func(*redis.Options)) {
		rdb := NewClient(t, p.Addr, protocol)
		ctx := t.Context()

		big := strings.Repeat("x\r\n", 1<<20)
		require.NoError(t, rdb.Set(ctx, "big", big, 0).Err())
		require.Equal(t, big, rdb.Get(ctx, "big").Val())
		require.ErrorIs(t, rdb.Get(ctx, "none").Err(), redis.Nil)
		require.NoError(t, rdb.HSet(ctx, "h", "a", "1", "b", "").Err())
		require.Equal(t, map[string]string{"a": "1", "b": ""}, rdb.HGetAll(ctx, "h").Val())
		nested, err := rdb.Eval(ctx, "return {1, {'a', {}}, false, 'b'}", nil).Slice()
		require.NoError(t, err)
		require.Equal(t, []any{int64(1), []any{"a", []any{}}, nil, "b"}, nested)
		require.Error(t, rdb.Eval(ctx, "return redis.error_reply('ERR no')", nil).Err())

		cmds, err := rdb.Pipelined(ctx, func(pipe redis.Pipeliner) error {
			for i := range 500 {
				pipe.Echo(ctx, i)
			}
			return nil
		})
		require.NoError(t, err)
		for i, c := range cmds {
			require.Equal(t, fmt.Sprint(i), c.(*redis.StringCmd).Val())
		}
		require.Equal(t, 500, p.CountCommand("ECHO"))
		require.Equal(t, 2, p.Counts()["eval"])
		p.ResetCounts()
		require.NoError(t, rdb.Ping(ctx).Err())
		require.Len(t, p.Requests(), 1)
		require.Equal(t, "ping", p.Requests()[0].Command())
	})
}

func TestProxyPubSub(t *testing.T) {
	eachBackend(t, func(t *testing.T, p *Proxy, direct *redis.Client, protocol func(*redis.Options)) {
		ctx := t.Context()
		sub := NewClient(t, p.Addr, protocol).Subscribe(ctx, "a", "b")
		defer sub.Close()
		for range 2 {
			m, err := sub.Receive(ctx)
			require.NoError(t, err)
			require.IsType(t, &redis.Subscription{}, m)
		}
		lost := p.On(Command("subscribe"), Reply("-NOPERM no\r\n"))
		require.NoError(t, sub.Subscribe(ctx, "c"))
		lost.Wait(t)
		_, err := sub.Receive(ctx)
		require.ErrorContains(t, err, "NOPERM")

		require.NoError(t, direct.Publish(ctx, "a", "1").Err())
		m, err := sub.ReceiveMessage(ctx)
		require.NoError(t, err)
		require.Equal(t, "1", m.Payload)
		require.NoError(t, sub.Ping(ctx))
		m2, err := sub.Receive(ctx)
		require.NoError(t, err)
		require.IsType(t, &redis.Pong{}, m2)
		require.NoError(t, direct.Publish(ctx, "b", strings.Repeat("y", 1<<16)).Err())
		m, err = sub.ReceiveMessage(ctx)
		require.NoError(t, err)
		require.Len(t, m.Payload, 1<<16)
	})
}

func TestProxyLoseReply(t *testing.T) {
	for name, action := range map[string]Action{"close": LoseReplyAndClose, "hang": LoseReplyAndHang} {
		t.Run(name, func(t *testing.T) {
			eachBackend(t, func(t *testing.T, p *Proxy, direct *redis.Client, protocol func(*redis.Options)) {
				rdb := NewClient(t, p.Addr, protocol, impatient)
				ctx := t.Context()
				rule := p.On(And(Command("incr"), HasArg("n")), action).Skip(1)
				require.NoError(t, rdb.Incr(ctx, "n").Err())
				start := time.Now()
				require.Error(t, rdb.Incr(ctx, "n").Err())
				if name == "hang" {
					require.GreaterOrEqual(t, time.Since(start), 100*time.Millisecond, "the client hears nothing")
				}
				rule.WaitExecuted(t, 1)
				require.Equal(t, []string{":2\r\n"}, rule.Replies())
				require.Equal(t, "2", direct.Get(ctx, "n").Val())
				require.NoError(t, rdb.Incr(ctx, "n").Err(), "only one is lost")
				require.Equal(t, 1, rule.Count())
			})
		})
	}
}

func TestProxyHoldRequest(t *testing.T) {
	eachBackend(t, func(t *testing.T, p *Proxy, direct *redis.Client, protocol func(*redis.Options)) {
		rdb := NewClient(t, p.Addr, protocol, impatient)
		ctx := t.Context()

		// The client has given up and closed when it is delivered.
		rule := p.On(Command("incr"), HoldRequest)
		require.Error(t, rdb.Incr(ctx, "n").Err())
		require.Equal(t, []string{"incr", "n"}, (<-rule.Seen()).Args)
		require.NoError(t, rdb.Set(ctx, "n", "10", 0).Err(), "others overtake it")
		require.Zero(t, len(rule.Replies()))
		rule.Release()
		rule.WaitExecuted(t, 1)
		require.Equal(t, "11", direct.Get(ctx, "n").Val())

		// The client is still there.
		patient := NewClient(t, p.Addr, protocol)
		rule = p.On(Command("incr"), HoldRequest)
		got := make(chan int64, 1)
		go func() { got <- patient.Incr(ctx, "n").Val() }()
		rule.Wait(t)
		require.Equal(t, "11", direct.Get(ctx, "n").Val())
		rule.Release()
		require.EqualValues(t, 12, <-got)

		// It is still there, but the reply is lost.
		rule = p.On(Command("incr"), HoldRequestLoseReply)
		errs := make(chan error, 1)
		go func() { errs <- rdb.Incr(ctx, "n").Err() }()
		rule.Wait(t)
		rule.Release()
		rule.WaitExecuted(t, 1)
		require.Error(t, <-errs)
		require.Equal(t, "13", direct.Get(ctx, "n").Val())
	})
}

// A held request outlives even the cut of its connection.
func TestProxyHoldRequestThenCut(t *testing.T) {
	t.Parallel()
	m := StartMini(t)
	p := NewProxy(t, m.Addr())
	rdb := NewClient(t, p.Addr, impatient, func(o *redis.Options) { o.ReadTimeout = time.Minute })
	rule := p.On(Command("incr"), HoldRequest).Times(0)
	errs := make(chan error, 3)
	for range 3 {
		go func() { errs <- rdb.Incr(t.Context(), "n").Err() }()
	}
	rule.WaitCount(t, 3)
	require.Equal(t, 3, p.CutConns(func(Conn) bool { return true }))
	for range 3 {
		require.Error(t, <-errs)
	}
	require.Empty(t, m.Keys())
	rule.Release()
	rule.WaitExecuted(t, 3)
	got, err := m.Get("n")
	require.NoError(t, err)
	require.Equal(t, "3", got)
}

func TestProxyHoldReply(t *testing.T) {
	eachBackend(t, func(t *testing.T, p *Proxy, direct *redis.Client, protocol func(*redis.Options)) {
		rdb := NewClient(t, p.Addr, protocol)
		ctx := t.Context()
		rule := p.On(Command("incr"), HoldReply)
		got := make(chan int64, 1)
		go func() { got <- rdb.Incr(ctx, "n").Val() }()
		rule.WaitExecuted(t, 1)
		require.Equal(t, "1", direct.Get(ctx, "n").Val())
		require.EqualValues(t, 2, rdb.Incr(ctx, "n").Val(), "the second answer comes first")
		require.Empty(t, got)
		rule.Off()
		require.EqualValues(t, 1, <-got)
	})
}

func TestProxyDropReplyDelay(t *testing.T) {
	eachBackend(t, func(t *testing.T, p *Proxy, direct *redis.Client, protocol func(*redis.Options)) {
		rdb := NewClient(t, p.Addr, protocol, impatient)
		ctx := t.Context()
		p.On(Command("incr"), DropRequest)
		require.Error(t, rdb.Incr(ctx, "n").Err())
		require.ErrorIs(t, direct.Get(ctx, "n").Err(), redis.Nil)

		// The answer that the proxy makes up keeps its place in a pipeline.
		p.On(Command("get"), Reply("$4\r\nfake\r\n"))
		cmds, err := rdb.Pipelined(ctx, func(pipe redis.Pipeliner) error {
			pipe.Incr(ctx, "n")
			pipe.Get(ctx, "n")
			pipe.Get(ctx, "n")
			return nil
		})
		require.NoError(t, err)
		require.Equal(t, []string{"1", "fake", "1"}, []string{
			fmt.Sprint(cmds[0].(*redis.IntCmd).Val()), cmds[1].(*redis.StringCmd).Val(), cmds[2].(*redis.StringCmd).Val()})

		patient := NewClient(t, p.Addr, protocol)
		for _, a := range []Action{Delay(30 * time.Millisecond), DelayReply(30 * time.Millisecond)} {
			p.On(Command("incr"), a)
			start := time.Now()
			require.NoError(t, patient.Incr(ctx, "n").Err())
			require.GreaterOrEqual(t, time.Since(start), 30*time.Millisecond)
		}
		p.Latency(20 * time.Millisecond)
		start := time.Now()
		require.NoError(t, patient.Incr(ctx, "n").Err())
		require.GreaterOrEqual(t, time.Since(start), 20*time.Millisecond)
		p.Latency(0)

		late := p.On(Command("incr"), Delay(300*time.Millisecond))
		require.Error(t, rdb.Incr(ctx, "n").Err())
		late.WaitExecuted(t, 1)
		require.Equal(t, "5", direct.Get(ctx, "n").Val(), "delivered though its client has gone")
	})
}

func TestProxyBlackHole(t *testing.T) {
	eachBackend(t, func(t *testing.T, p *Proxy, direct *redis.Client, protocol func(*redis.Options)) {
		rdb := NewClient(t, p.Addr, protocol, impatient)
		patient := NewClient(t, p.Addr, protocol)
		ctx := t.Context()
		require.NoError(t, rdb.Ping(ctx).Err())
		require.NoError(t, patient.Ping(ctx).Err())

		p.BlackHole(true)
		require.Error(t, rdb.Incr(ctx, "lost").Err())
		raw, err := net.Dial("tcp", p.Addr)
		require.NoError(t, err, "new connections are accepted")
		defer raw.Close()
		got := make(chan int64, 1)
		go func() { got <- patient.Incr(ctx, "n").Val() }()
		eventually(t, func() bool { return p.CountCommand("incr") == 2 }, "the proxy has read it")
		require.ErrorIs(t, direct.Get(ctx, "n").Err(), redis.Nil)

		p.BlackHole(false)
		require.EqualValues(t, 1, <-got)
		require.NoError(t, rdb.Incr(ctx, "n").Err())
		require.ErrorIs(t, direct.Get(ctx, "lost").Err(), redis.Nil, "the client had closed")
	})
}

func TestProxyRefuseAndCut(t *testing.T) {
	t.Parallel()
	p := NewProxy(t, StartMini(t).Addr())
	rdb := NewClient(t, p.Addr, impatient, func(o *redis.Options) { o.PoolSize = 1 })
	ctx := t.Context()
	require.NoError(t, rdb.Ping(ctx).Err())
	require.NoError(t, p.Refuse(true))
	require.NoError(t, p.Refuse(true))
	require.NoError(t, rdb.Ping(ctx).Err(), "what is open goes on")
	p.CutAll()
	eventually(t, func() bool { return len(p.Conns()) == 0 }, "all are cut")
	require.Error(t, rdb.Ping(ctx).Err())
	_, err := net.Dial("tcp", p.Addr)
	require.ErrorContains(t, err, "refused")
	require.NoError(t, p.Refuse(false))
	eventually(t, func() bool { return rdb.Ping(ctx).Err() == nil }, "it listens again")
}

func TestProxyMute(t *testing.T) {
	eachBackend(t, func(t *testing.T, p *Proxy, direct *redis.Client, protocol func(*redis.Options)) {
		rdb := NewClient(t, p.Addr, protocol)
		ctx := t.Context()
		subscribe := func() *redis.PubSub {
			sub := rdb.Subscribe(ctx, "ch")
			t.Cleanup(func() { _ = sub.Close() })
			_, err := sub.Receive(ctx)
			require.NoError(t, err)
			return sub
		}
		quiet := func(sub *redis.PubSub) {
			t.Helper()
			require.NoError(t, direct.Publish(ctx, "ch", "x").Err())
			_, err := sub.ReceiveTimeout(ctx, 50*time.Millisecond)
			require.Error(t, err)
			require.NoError(t, rdb.Set(ctx, "k", "v", 0).Err(), "commands go on")
		}
		p.MutePubSub(false)
		sub := subscribe()
		p.MutePubSub(true)
		quiet(sub)
		p.MutePubSub(false)

		// For good, but a new subscription works.
		sub = subscribe()
		require.Positive(t, p.MuteConns(func(c Conn) bool { return c.PubSub }))
		quiet(sub)
		sub = subscribe()
		require.NoError(t, direct.Publish(ctx, "ch", "y").Err())
		_, err := sub.ReceiveMessage(ctx)
		require.NoError(t, err)
	})
}

func TestProxyBackendGone(t *testing.T) {
	t.Parallel()
	s := StartServer(t)
	p := NewProxy(t, s.Addr)
	rdb := NewClient(t, p.Addr, impatient)
	require.NoError(t, rdb.Ping(t.Context()).Err())
	s.Kill()
	require.Error(t, rdb.Ping(t.Context()).Err())
	require.NoError(t, s.Restart())
	eventually(t, func() bool { return rdb.Ping(t.Context()).Err() == nil }, "it goes on with the backend")
}

// A lost confirmation: subscribed on the server, unheard by the client.
func TestProxyLoseConfirmation(t *testing.T) {
	eachBackend(t, func(t *testing.T, p *Proxy, direct *redis.Client, protocol func(*redis.Options)) {
		ctx := t.Context()
		rule := p.On(Command("subscribe"), LoseReplyAndHang)
		sub := NewClient(t, p.Addr, protocol).Subscribe(ctx, "ch")
		defer sub.Close()
		_, err := sub.ReceiveTimeout(ctx, 50*time.Millisecond)
		require.Error(t, err)
		rule.WaitExecuted(t, 1)
		require.Contains(t, rule.Replies()[0], "subscribe")
	})
}

// Many clients under random faults: nothing hangs, nothing is mixed up.
func TestProxyManyConns(t *testing.T) {
	t.Parallel()
	p := NewProxy(t, StartMini(t).Addr())
	p.On(Command("echo"), LoseReplyAndClose).Skip(50).Times(20)
	p.On(Command("echo"), DelayReply(time.Millisecond)).Times(0)
	rdb := NewClient(t, p.Addr, func(o *redis.Options) { o.MaxRetries = -1; o.PoolSize = 16 })
	var wg sync.WaitGroup
	for g := range 16 {
		wg.Go(func() {
			for i := range 50 {
				want := fmt.Sprintf("%d.%d", g, i)
				if got, err := rdb.Echo(context.Background(), want).Result(); err == nil && got != want {
					t.Errorf("got %q, want %q", got, want)
				}
			}
		})
	}
	wg.Wait()
	require.Equal(t, 16*50, p.CountCommand("echo"))
}

func TestFrames(t *testing.T) {
	t.Parallel()
	for _, raw := range []string{
		"+OK\r\n", "-ERR x\r\n", ":1\r\n", "_\r\n", "#t\r\n", ",1.5\r\n", "(12345678901234567890\r\n",
		"$-1\r\n", "*-1\r\n", "$0\r\n\r\n", "=7\r\ntxt:a\r\n\r\n", "!3\r\nERR\r\n",
		"*2\r\n$1\r\na\r\n*1\r\n:1\r\n", "%1\r\n+k\r\n~2\r\n:1\r\n_\r\n", ">2\r\n+a\r\n+b\r\n",
		"|1\r\n+ttl\r\n:3\r\n*1\r\n+v\r\n",
	} {
		f, err := readFrame(bufio.NewReader(strings.NewReader(raw + "+next\r\n")))
		require.NoError(t, err, raw)
		require.Equal(t, raw, string(f.raw))
	}
	for _, raw := range []string{"", "x\r\n", "+OK\n", "$a\r\n", "$5\r\nab\r\n", "*2\r\n+a\r\n", strings.Repeat("*1\r\n", 100) + "+a\r\n"} {
		_, err := readFrame(bufio.NewReader(strings.NewReader(raw)))
		require.Error(t, err, raw)
	}
	args, raw, err := readRequest(bufio.NewReader(strings.NewReader("PING hello\r\n")))
	require.NoError(t, err)
	require.Equal(t, []string{"PING", "hello"}, args)
	require.Equal(t, "PING hello\r\n", string(raw))
}
