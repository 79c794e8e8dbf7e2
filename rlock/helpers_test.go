package rlock

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/redistest"
)

// limit bounds every wait of a test. It is reached only when a test fails.
const limit = 20 * time.Second

// bystander is a ctx owner that stands for somebody else in the same process.
const bystander = Owner("bystander")

// newClient is a client that the test closes.
func newClient(t testing.TB, rdb redis.UniversalClient, opts ...Option) *Client {
	t.Helper()
	// On a busy machine a hand-over must not turn into a release because of the time.
	opts = append([]Option{WithHandoffLimit(64, time.Minute)}, opts...)
	c, err := New(rdb, opts...)
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		_ = c.Close(ctx)
	})
	return c
}

// look is a client to see, and to change, what stands on the shared server.
func look(t testing.TB) *redis.Client {
	t.Helper()
	if shared.rdb == nil {
		if redistest.RequireRedis() {
			t.Fatal(shared.err)
		}
		t.Skipf("%v: install Redis to run this test", shared.err)
	}
	return shared.rdb
}

// onShared is a client on the shared server.
func onShared(t testing.TB, opts ...Option) *Client {
	t.Helper()
	look(t)
	return newClient(t, shared.server.Client(t), opts...)
}

// onProxy is a client that reaches the shared server through a proxy, with the
// scripts loaded and the connection made, and nothing counted yet.
func onProxy(t testing.TB, opts ...Option) (*Client, *redistest.Proxy) {
	t.Helper()
	look(t)
	return throughProxy(t, redistest.NewProxy(t, shared.server.Addr), opts...)
}

func throughProxy(t testing.TB, p *redistest.Proxy, opts ...Option) (*Client, *redistest.Proxy) {
	t.Helper()
	rdb := redistest.NewClient(t, p.Addr, func(o *redis.Options) { o.ReadTimeout = time.Second })
	c := newClient(t, rdb, opts...)
	l := c.NewLock(unique("warm"))
	ctx := WithOwner(context.Background(), NewOwner())
	require.NoError(t, l.Lock(ctx))
	require.NoError(t, l.Lock(ctx))
	require.NoError(t, l.Unlock(ctx))
	require.NoError(t, l.Unlock(ctx))
	p.ResetCounts()
	return c, p
}

var names atomic.Int64

// unique is a lock name that no other test uses.
func unique(what string) string {
	return fmt.Sprintf("rlock-test:%s:%d:%d", what, time.Now().UnixNano(), names.Add(1))
}

// eventually waits, in this goroutine, for cond.
func eventually(t testing.TB, cond func() bool, what string, args ...any) {
	t.Helper()
	for end := time.Now().Add(limit); !cond(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			require.FailNow(t, "still not: "+fmt.Sprintf(what, args...))
		}
	}
}

// settled is the first answer of try that is one: an attempt that a busy machine leaves
// unanswered until the wait is over is ErrUnsettled, rightly, and says nothing.
func settled(t testing.TB, try func() (bool, error)) (got bool, err error) {
	t.Helper()
	eventually(t, func() bool {
		got, err = try()
		return !errors.Is(err, ErrUnsettled)
	}, "a try is answered in time")
	return got, err
}

// async calls f in a goroutine of its own.
func async[T any](f func() T) <-chan T {
	c := make(chan T, 1)
	go func() { c <- f() }()
	return c
}

// recv waits for what c delivers.
func recv[T any](t testing.TB, c <-chan T, what string) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(limit):
		require.FailNow(t, "nothing came: "+what)
		panic("bug: the test went on after it failed")
	}
}

// elsewhere calls f in another goroutine and waits for it.
func elsewhere[T any](t testing.TB, f func() T) T {
	t.Helper()
	return recv(t, async(f), "the other goroutine")
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// fields is what stands at the key.
func fields(t testing.TB, key string) map[string]string {
	t.Helper()
	m, err := look(t).HGetAll(context.Background(), key).Result()
	require.NoError(t, err)
	return m
}

// pttl is the key's TTL; below 0 when there is none.
func pttl(t testing.TB, key string) time.Duration {
	t.Helper()
	d, err := look(t).PTTL(context.Background(), key).Result()
	require.NoError(t, err)
	return d
}

func exists(t testing.TB, key string) bool {
	t.Helper()
	n, err := look(t).Exists(context.Background(), key).Result()
	require.NoError(t, err)
	return n == 1
}

func remove(t testing.TB, key string) {
	t.Helper()
	n, err := look(t).Del(context.Background(), key).Result()
	require.NoError(t, err)
	require.EqualValues(t, 1, n, "the key was there")
}

// occupy makes somebody else the holder of key: a client that this test only
// pretends to be.
func occupy(t testing.TB, key string, ttl time.Duration) {
	t.Helper()
	ctx := context.Background()
	_, err := look(t).TxPipelined(ctx, func(p redis.Pipeliner) error { // what stands there may be about to expire
		p.Del(ctx, key)
		p.HSet(ctx, key, "foreign:1", 1)
		if ttl > 0 {
			p.PExpire(ctx, key, ttl)
		}
		return nil
	})
	require.NoError(t, err)
	t.Cleanup(func() { shared.rdb.Del(context.Background(), key) })
}

// waitForWaiters waits until n calls of c wait for a lock.
func waitForWaiters(t testing.TB, c *Client, n int) {
	t.Helper()
	eventually(t, func() bool { return c.Stats().Waiting == n }, "%d waiters", n)
}

// goroutineID is the runtime's own answer, not that of the code under test.
func goroutineID() string {
	buf := make([]byte, 64)
	return string(bytes.Fields(buf[:runtime.Stack(buf, false)])[1])
}

// between checks low < d <= high.
func between(t testing.TB, low, high, d time.Duration, what string) {
	t.Helper()
	require.Greater(t, d, low, what)
	require.LessOrEqual(t, d, high, what)
}

// free checks that the lock can be taken by anybody, at once.
func free(t testing.TB, key string) {
	t.Helper()
	require.Empty(t, fields(t, key), "the key is gone")
}
