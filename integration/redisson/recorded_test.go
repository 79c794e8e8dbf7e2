package redisson

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/redistest"
	"github.com/relock-go/relock/internal/script"
	"github.com/relock-go/relock/rlock"
)

// testPeer checks that the Java program can do for each kind what the tests here
// and later ones ask of it.
func testPeer(t *testing.T, h *harness) {
	for _, kind := range []string{"lock", "fair", "read", "write", "fenced", "spin", "multilock"} {
		m := newMatch(t, h, kind)
		if kind == "multilock" {
			m.key += "," + m.key + "-2"
		}
		p := h.java.open(t, long).(*javaPeer).worker(t, kind, m.key)
		require.NoError(t, p.lock(0), kind)
		m.yes(p.isHeld())
		require.NoError(t, p.unlock(), kind)
		m.yes(p.tryLock(0, 0))
		m.yes(p.tryLock(time.Second, 10*time.Second))
		if kind != "multilock" { // whose answer is UnsupportedOperationException
			m.yes(p.isLocked())
			is1(m, 2, p.holdCount)
			ttl, err := p.ttl()
			require.NoError(t, err)
			require.Positive(t, ttl)
		}
		if kind == "fenced" {
			token, err := ask[int64](p, "token")
			is(m, 3, token, err)
		}
		require.NoError(t, p.unlock(), kind)
		require.NoError(t, p.unlock(), kind)
		if kind == "fair" { // a release of a free fair lock is no error to Redisson
			require.NoError(t, p.unlock())
		} else {
			require.ErrorIs(t, p.unlock(), rlock.ErrNotHeld, kind)
		}
		m.no(p.isHeld())
		if kind != "multilock" {
			m.no(p.forceUnlock())
		}
		require.NoError(t, p.do(nil, "sleep", "millis", "1"))
		require.ErrorContains(t, p.do(nil, "no such command"), "no such command")
	}
}

// testRecorded holds Redisson to what relock and its documents take for granted.
func testRecorded(t *testing.T, h *harness) {
	m := newMatch(t, h, "lock")
	ctx, cancel := context.WithTimeout(m.ctx, waitLimit)
	defer cancel()
	sub := h.subscribe(ctx, t, script.Channel(m.key))
	// told is the messages since the last call.
	told := func() (messages []string) {
		require.NoError(t, h.publish(ctx, script.Channel(m.key), "7")) // which Redisson ignores
		for {
			message, err := sub.ReceiveMessage(ctx)
			require.NoError(t, err)
			if message.Payload == "7" {
				return messages
			}
			messages = append(messages, message.Payload)
		}
	}
	about := func(d time.Duration) {
		t.Helper()
		require.InDelta(t, d, m.pttl(), float64(time.Second))
	}
	client := h.java.open(t, long).(*javaPeer)
	a, b := client.worker(t, "lock", m.key), client.worker(t, "lock", m.key)

	require.NoError(t, a.lock(0))
	m.isHash(a, "1")
	about(long)
	require.NoError(t, a.lock(5*time.Second))
	m.isHash(a, "2")
	about(5 * time.Second) // a re-entry sets the TTL, also downwards
	m.no(b.tryLock(0, 20*time.Second))
	about(5 * time.Second)
	err := b.unlock()
	require.ErrorIs(t, err, rlock.ErrNotHeld)
	require.ErrorContains(t, err, "attempt to unlock lock, not locked by current thread by node id: "+client.uuid)
	require.NoError(t, a.lock(0))
	m.isHash(a, "3")
	about(5 * time.Second) // the object remembers the lease
	require.NoError(t, a.unlock())
	require.NoError(t, a.unlock())
	m.isHash(a, "1")
	about(5 * time.Second)
	require.Empty(t, told())
	require.NoError(t, a.unlock())
	require.Equal(t, []string{"0"}, told())
	require.NoError(t, a.lock(0))
	about(long) // an unlock that freed the lock has made it forget
	m.yes(b.forceUnlock())
	require.Equal(t, []string{"0"}, told())
	m.no(b.forceUnlock())
	require.ErrorIs(t, a.unlock(), rlock.ErrLost)
	require.Empty(t, told())

	// Whatever stands at the key, its TTL bounds how long Java waits, and a plain
	// DEL tells nobody.
	require.NoError(t, h.rdb.HSet(ctx, m.key, "somebody:else", 1).Err())
	require.NoError(t, h.rdb.PExpire(ctx, m.key, time.Second).Err())
	got := m.waits(a)
	m.enters(got, "the TTL is over")
	require.NoError(t, a.unlock())
	require.NoError(t, h.rdb.Set(ctx, m.key, "not a lock", time.Minute).Err())
	require.ErrorContains(t, a.lock(0), "WRONGTYPE")
	require.NoError(t, h.rdb.Del(ctx, m.key).Err())

	// The key that stands for an unlock goes when it was answered.
	m.eventually(func() bool {
		keys, err := h.keys(ctx, m.key)
		require.NoError(t, err)
		return len(keys) == 0
	}, "no key is left")
}

// testInterrupted records that an interrupt which comes while Redisson waits for
// Redis's answer, and not for a message, is a RedisException, after which the
// thread holds the lock if that is the answer: until it unlocks, for the
// watchdog renews it.
func testInterrupted(t *testing.T, h *harness) {
	m := newMatch(t, h, "lock")
	proxy := h.single.Proxy(t)
	client := h.java.client(t, []string{proxy.Addr}, short)
	defer client.close(t)
	a := client.worker(t, "lock", m.key)
	require.NoError(t, a.lock(0)) // so that the script is there
	require.NoError(t, a.unlock())
	late := proxy.On(redistest.And(redistest.Command("evalsha"), redistest.HasArg(m.key)), redistest.HoldReply)
	got := begin(func() error { return a.lock(0) })
	late.WaitExecuted(t, 1)
	a.interrupt()
	err := m.ends(got, "it is interrupted").err
	require.ErrorContains(t, err, "org.redisson.client.RedisException: java.lang.InterruptedException")
	require.NotErrorIs(t, err, context.Canceled)
	late.Release()
	m.kept(a, "1", 3)
	require.NoError(t, a.unlock())
	require.Empty(t, m.fields())
}
