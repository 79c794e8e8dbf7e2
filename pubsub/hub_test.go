package pubsub_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/relock-go/relock/pubsub"
)

// A pool of go-redis whose server has gone tries to dial once a second, and looks
// then only whether it was closed.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/redis/go-redis/v9/internal/pool.(*ConnPool).tryDial"))
}

// bubble is a Hub and its server in virtual time.
type bubble struct {
	*testing.T
	srv        *server
	hub        *pubsub.Hub
	reconnects atomic.Int32
	log        bytes.Buffer
}

func inBubble(t *testing.T, f func(b *bubble)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		b := &bubble{T: t, srv: newServer()}
		b.hub = pubsub.New(pubsub.Config{
			Open:        b.srv.open,
			Broadcast:   func(p string) bool { return p == "all" },
			Reconnected: func() { b.reconnects.Add(1) },
			Logger:      slog.New(slog.NewTextHandler(&b.log, nil)),
		})
		defer func() { _ = b.hub.Close(t.Context()) }() // when f has failed
		f(b)
		require.NoError(t, b.hub.Close(t.Context()))
		require.Zero(t, b.srv.live(), "connections left open")
	})
}

// ready subscribes and takes the wake-up of the confirmation.
func (b *bubble) ready(channel string) *pubsub.Subscription {
	b.Helper()
	sub := b.hub.Subscribe(channel)
	b.woken(sub)
	return sub
}

// take settles everything and takes the pending wake-up, if any.
func take(sub *pubsub.Subscription) bool {
	synctest.Wait()
	select {
	case <-sub.C():
		return true
	default:
		return false
	}
}

func (b *bubble) woken(subs ...*pubsub.Subscription) {
	b.Helper()
	for i, sub := range subs {
		require.True(b, take(sub), "subscription %d was not woken", i)
	}
}

func (b *bubble) asleep(subs ...*pubsub.Subscription) {
	b.Helper()
	for i, sub := range subs {
		require.False(b, take(sub), "subscription %d was woken", i)
	}
}

func TestConfirmationWakesAll(t *testing.T) {
	inBubble(t, func(b *bubble) {
		b.srv.set(func(s *server) { s.holding = true })
		x, y := b.hub.Subscribe("a"), b.hub.Subscribe("a")
		b.asleep(x, y)
		b.srv.release(-1)
		b.woken(x, y)
		b.asleep(x, y)
		b.woken(b.hub.Subscribe("a")) // at once, without traffic
		assert.Equal(b, []string{"SUBSCRIBE a"}, b.srv.commands())
	})
}

func TestMessageWakesOneInOrder(t *testing.T) {
	inBubble(t, func(b *bubble) {
		x, y, z := b.ready("a"), b.ready("a"), b.ready("a")
		other := b.ready("b")
		b.srv.publish("a", "free")
		b.srv.publish("a", "free")
		b.woken(x, y)
		b.asleep(z, other)
		for range 5 {
			b.srv.publish("a", "free")
		}
		b.woken(x, y, z)
		b.asleep(x, y, z, other)
	})
}

func TestBroadcastWakesAll(t *testing.T) {
	inBubble(t, func(b *bubble) {
		x, y := b.ready("a"), b.ready("a")
		other := b.ready("b")
		b.srv.publish("a", "all")
		b.woken(x, y)
		b.asleep(other)
	})
}

func TestWAIT5_CloseHandsOn(t *testing.T) {
	inBubble(t, func(b *bubble) {
		x, y := b.ready("a"), b.ready("a")
		b.srv.publish("a", "free")
		synctest.Wait()
		b.asleep(y)
		x.Close()
		x.Close()
		b.woken(y)
		b.asleep(x, y)
		y.Close()
		b.woken(b.hub.Subscribe("a"))
	})
}

func TestSubscribesGather(t *testing.T) {
	inBubble(t, func(b *bubble) {
		hang := make(chan struct{})
		b.srv.set(func(s *server) { s.hang = hang })
		subs := []*pubsub.Subscription{b.hub.Subscribe("first")}
		synctest.Wait()
		for i := range 1200 {
			subs = append(subs, b.hub.Subscribe(fmt.Sprint(i)))
		}
		gone := b.hub.Subscribe("gone")
		gone.Close() // nobody is left who wants it sent
		close(hang)
		b.woken(subs...)
		var sizes []int
		for _, c := range b.srv.commands() {
			sizes = append(sizes, len(strings.Fields(c))-1)
		}
		assert.Equal(b, []int{1, 500, 500, 200}, sizes)
		assert.Equal(b, 1, b.srv.dials())
	})
}

func TestWAIT3_SlowDialBlocksNobody(t *testing.T) {
	inBubble(t, func(b *bubble) {
		hang := make(chan struct{})
		b.srv.set(func(s *server) { s.hang = hang })
		began := time.Now()
		x := b.hub.Subscribe("a")
		synctest.Wait()
		b.hub.Subscribe("b").Close()
		b.hub.Subscribe("a").Close()
		assert.Zero(b, time.Since(began))
		time.Sleep(12 * time.Second) // longer than a probe takes
		close(hang)
		b.woken(x)
		assert.Equal(b, 1, b.srv.dials())
	})
}

func TestDialThatNeverEndsIsGivenUp(t *testing.T) {
	inBubble(t, func(b *bubble) {
		hang := make(chan struct{})
		b.srv.set(func(s *server) { s.hang = hang })
		x := b.hub.Subscribe("a")
		synctest.Wait()
		b.srv.set(func(s *server) { s.hang = nil })
		time.Sleep(31 * time.Second)
		b.woken(x)
		assert.Equal(b, 2, b.srv.dials())
		close(hang)
	})
}

func TestLingerThenNothingRuns(t *testing.T) {
	inBubble(t, func(b *bubble) {
		x := b.ready("a")
		y := b.ready("b")
		b.srv.commands()
		x.Close()
		time.Sleep(4 * time.Second)
		x = b.ready("a") // costs nothing
		x.Close()
		time.Sleep(4999 * time.Millisecond)
		synctest.Wait()
		assert.Empty(b, b.srv.commands())
		time.Sleep(time.Millisecond)
		synctest.Wait()
		assert.Equal(b, []string{"UNSUBSCRIBE a"}, b.srv.commands())
		y.Close()
		time.Sleep(5 * time.Second)
		synctest.Wait()
		assert.Equal(b, []string{"UNSUBSCRIBE b"}, b.srv.commands())
		assert.Zero(b, b.srv.live())

		b.ready("a") // and it all begins again
		assert.Equal(b, 2, b.srv.dials())
		assert.Zero(b, b.reconnects.Load())
	})
}

func TestLingeringChannelIsKept(t *testing.T) {
	inBubble(t, func(b *bubble) {
		b.ready("a").Close()
		x := b.ready("a")
		time.Sleep(time.Minute)
		b.asleep(x)
		assert.Equal(b, []string{"SUBSCRIBE a"}, b.srv.commands())
	})
}

// Without a Close of the Hub: the bubble fails if a goroutine is left.
func TestEND4_IdleHubHasNoGoroutines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := newServer()
		hub := pubsub.New(pubsub.Config{Open: srv.open})
		sub := hub.Subscribe("a")
		<-sub.C()
		sub.Close()
		time.Sleep(5 * time.Second)
	})
}

func TestSubscribeWhileUnsubscribing(t *testing.T) {
	inBubble(t, func(b *bubble) {
		keep := b.ready("keep")
		b.ready("a").Close()
		b.srv.commands()
		time.Sleep(5*time.Second - 1)
		b.srv.set(func(s *server) { s.holding = true })
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		require.Contains(b, b.srv.commands(), "UNSUBSCRIBE a")

		x := b.hub.Subscribe("a")
		b.asleep(x)
		b.srv.release(1) // the PONG that fell due
		b.srv.release(1) // the late answer to the UNSUBSCRIBE
		b.asleep(x)
		assert.Equal(b, []string{"SUBSCRIBE a"}, b.srv.commands())
		b.srv.release(-1)
		b.woken(x)
		b.srv.publish("a", "free")
		b.woken(x)
		b.asleep(keep)
	})
}

func TestLostConnection(t *testing.T) {
	inBubble(t, func(b *bubble) {
		x, y, z := b.ready("a"), b.ready("a"), b.ready("b")
		w := b.ready("lingers")
		w.Close()
		b.srv.set(func(s *server) { s.down = errors.New("connection refused") })
		b.srv.cut()
		b.woken(x, y, z) // messages may have been lost
		time.Sleep(time.Minute)
		b.asleep(x, y, z) // an outage wakes nobody again
		assert.Less(b, b.srv.dials(), 150, "tries in a minute")
		assert.Zero(b, b.reconnects.Load())
		b.srv.set(func(s *server) { s.down = nil })
		time.Sleep(time.Second)
		b.woken(x, y, z)
		assert.EqualValues(b, 1, b.reconnects.Load())
		assert.Equal(b, map[string]bool{"a": true, "b": true}, b.srv.subscribed())
		assert.Equal(b, 1, strings.Count(b.log.String(), "\n"), b.log.String())
	})
}

// Also if nobody is left of those who were hit.
func TestReconnectIsCounted(t *testing.T) {
	inBubble(t, func(b *bubble) {
		x := b.ready("a")
		b.srv.set(func(s *server) { s.down = errDown })
		b.srv.cut()
		time.Sleep(time.Second)
		y := b.hub.Subscribe("b")
		x.Close()
		b.srv.set(func(s *server) { s.down = nil })
		time.Sleep(time.Second)
		b.woken(y)
		assert.EqualValues(b, 1, b.reconnects.Load())
	})
}

func TestWAIT2_HalfOpenConnection(t *testing.T) {
	inBubble(t, func(b *bubble) {
		x := b.ready("a")
		b.srv.silence()
		assert.Zero(b, b.srv.publish("a", "free"))
		time.Sleep(7 * time.Second)
		b.asleep(x)
		time.Sleep(time.Second + 10*time.Millisecond)
		b.woken(x)
		assert.EqualValues(b, 1, b.reconnects.Load())
		assert.Equal(b, 2, b.srv.dials())
	})
}

// A writer that hangs, with everything else that needs its mutex.
func TestWAIT2_HangingWriter(t *testing.T) {
	inBubble(t, func(b *bubble) {
		x := b.ready("a")
		hang := make(chan struct{})
		b.srv.set(func(s *server) { s.hang = hang })
		y := b.hub.Subscribe("b")
		synctest.Wait()
		b.srv.set(func(s *server) { s.hang = nil })
		time.Sleep(8*time.Second + 10*time.Millisecond)
		b.woken(x, y)
		close(hang)
	})
}

func TestIdleCost(t *testing.T) {
	inBubble(t, func(b *bubble) {
		for i := range 100 {
			b.ready(fmt.Sprint(i))
		}
		b.srv.commands()
		time.Sleep(time.Minute)
		synctest.Wait()
		b.srv.set(func(s *server) { assert.Len(b, s.log, 12) }) // one PING per Probe
		assert.Equal(b, 1, b.srv.dials())
	})
}

func TestProbeShorterThanItsTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := newServer()
		hub := pubsub.New(pubsub.Config{Open: srv.open, Probe: time.Second, ProbeTimeout: time.Minute})
		<-hub.Subscribe("a").C()
		time.Sleep(10 * time.Second)
		synctest.Wait()
		srv.set(func(s *server) { assert.Len(t, s.log, 1+10) })
		require.NoError(t, hub.Close(t.Context()))
	})
}

func TestTrafficNeedsNoProbe(t *testing.T) {
	inBubble(t, func(b *bubble) {
		b.ready("a")
		for range 30 {
			time.Sleep(time.Second)
			b.srv.publish("a", "free")
		}
		b.srv.set(func(s *server) { assert.Equal(b, []string{"SUBSCRIBE a"}, s.log) })
	})
}

// go-redis can lose a request while it moves a connection, without an error.
func TestLostRequestIsNoticed(t *testing.T) {
	inBubble(t, func(b *bubble) {
		b.ready("a")
		b.srv.set(func(s *server) { s.holding = true })
		x := b.hub.Subscribe("b")
		synctest.Wait()
		b.srv.set(func(s *server) { s.conns[0].held, s.holding = nil, false })
		for range 14 {
			time.Sleep(time.Second)
			b.srv.publish("a", "free") // so the connection is never silent
		}
		b.woken(x)
		assert.Equal(b, 2, b.srv.dials())
	})
}

func TestUnsubscribePush(t *testing.T) {
	inBubble(t, func(b *bubble) {
		x, y, z := b.ready("a"), b.ready("a"), b.ready("b")
		b.srv.set(func(s *server) { s.holding = true })
		b.srv.kick("a")
		b.srv.release(1)
		b.woken(x, y)
		b.asleep(z)
		b.srv.release(-1)
		b.woken(x, y)
		b.asleep(z)
		assert.Equal(b, map[string]bool{"a": true, "b": true}, b.srv.subscribed())
	})
}

func TestSilentReconnect(t *testing.T) {
	inBubble(t, func(b *bubble) {
		x, y, z := b.ready("a"), b.ready("a"), b.ready("b")
		for i := range 2 {
			b.srv.repeat()
			b.woken(x, y, z)
			assert.EqualValues(b, i+1, b.reconnects.Load())
		}
		assert.Equal(b, 1, b.srv.dials())
	})
}

func TestWAIT9_RefusedChannel(t *testing.T) {
	inBubble(t, func(b *bubble) {
		b.srv.set(func(s *server) { s.denied["no"] = true; s.denied["never"] = true })
		hang := make(chan struct{})
		b.srv.set(func(s *server) { s.hang = hang })
		first := b.hub.Subscribe("first")
		synctest.Wait()
		x, no, y := b.hub.Subscribe("x"), b.hub.Subscribe("no"), b.hub.Subscribe("y")
		b.hub.Subscribe("never")
		close(hang)
		b.woken(first, x, y) // one bad channel does not spoil the others
		b.asleep(no)
		b.srv.commands()

		// Nobody hammers, nobody reconnects, and newcomers do not ask either.
		time.Sleep(9 * time.Second)
		b.hub.Subscribe("no").Close()
		synctest.Wait()
		assert.Empty(b, b.srv.commands())
		assert.Equal(b, 1, strings.Count(b.log.String(), "NOPERM"))

		b.srv.set(func(s *server) { delete(s.denied, "no") })
		time.Sleep(time.Second)
		b.woken(no)
		assert.Equal(b, 1, b.srv.dials())
		assert.Zero(b, b.reconnects.Load())
	})
}

func TestWAIT9_CancelledWhileSubscribing(t *testing.T) {
	inBubble(t, func(b *bubble) {
		b.srv.set(func(s *server) { s.holding = true })
		x := b.hub.Subscribe("a")
		b.asleep(x)
		x.Close()
		y := b.hub.Subscribe("a")
		y.Close()
		b.srv.release(-1)
		z := b.hub.Subscribe("a")
		b.woken(z)
		b.asleep(x, y)
		z.Close()
		time.Sleep(5 * time.Second)
		synctest.Wait()
		assert.Zero(b, b.srv.live())
	})
}

func TestEND2_ClientClosedFirst(t *testing.T) {
	inBubble(t, func(b *bubble) {
		x := b.ready("a")
		b.srv.set(func(s *server) { s.down = errors.New("redis: client is closed") })
		b.srv.cut()
		time.Sleep(time.Minute)
		b.woken(x)
		assert.Less(b, b.srv.dials(), 150)
		x.Close()
		synctest.Wait()
		assert.Zero(b, b.srv.live())

		// Subscribing for a moment does not shorten the pauses.
		before := b.srv.dials()
		for range 100 {
			b.hub.Subscribe("a").Close()
			synctest.Wait()
		}
		assert.LessOrEqual(b, b.srv.dials()-before, 1)
	})
}

func TestTimeoutThatIsNoneIsAnError(t *testing.T) {
	inBubble(t, func(b *bubble) {
		x := b.ready("a")
		b.srv.set(func(s *server) { s.conns[0].broken = timeoutError{} })
		b.srv.publish("a", "free")
		b.woken(x) // by the loss, at once; anything else would spin
		time.Sleep(time.Second)
		assert.Equal(b, 2, b.srv.dials())
	})
}

func TestOpenWithoutConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n atomic.Int32
		hub := pubsub.New(pubsub.Config{Open: func(context.Context) pubsub.Conn { n.Add(1); return nil }})
		hub.Subscribe("a")
		time.Sleep(time.Minute)
		assert.Less(t, n.Load(), int32(150))
		require.NoError(t, hub.Close(t.Context()))
	})
}

func TestClose(t *testing.T) {
	inBubble(t, func(b *bubble) {
		x, y := b.ready("a"), b.ready("b")
		require.NoError(b, b.hub.Close(b.Context()))
		b.woken(x, y) // for the last time
		z := b.hub.Subscribe("a")
		b.asleep(x, y, z)
		x.Close()
		z.Close()
		z.Close()
		ended, cancel := context.WithCancel(b.Context())
		cancel()
		require.NoError(b, b.hub.Close(ended))
	})
}

func TestCloseUnused(t *testing.T) {
	hub := pubsub.New(pubsub.Config{Open: func(context.Context) pubsub.Conn { return nil }})
	require.NoError(t, hub.Close(t.Context()))
	require.NoError(t, hub.Close(t.Context()))
	require.Panics(t, func() { pubsub.New(pubsub.Config{}) })
}

func TestEND3_CloseWhileTheConnBlocks(t *testing.T) {
	inBubble(t, func(b *bubble) {
		x := b.ready("a")
		hang := make(chan struct{})
		b.srv.set(func(s *server) { s.hang = hang })
		b.hub.Subscribe("b")
		synctest.Wait()
		ctx, cancel := context.WithTimeout(b.Context(), time.Second)
		defer cancel()
		began := time.Now()
		require.ErrorIs(b, b.hub.Close(ctx), context.DeadlineExceeded)
		assert.Equal(b, time.Second, time.Since(began))
		b.woken(x)
		close(hang)
	})
}

func TestCloseDuringThePause(t *testing.T) {
	inBubble(t, func(b *bubble) {
		b.srv.set(func(s *server) { s.down = errors.New("connection refused") })
		b.hub.Subscribe("a")
		time.Sleep(10*time.Second + 1)
		synctest.Wait()
		began := time.Now()
		require.NoError(b, b.hub.Close(b.Context()))
		assert.Zero(b, time.Since(began))
	})
}

func TestReconnectedMayUseTheHub(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := newServer()
		var hub *pubsub.Hub
		hub = pubsub.New(pubsub.Config{Open: srv.open, Reconnected: func() { hub.Subscribe("b") }})
		<-hub.Subscribe("a").C()
		srv.cut()
		time.Sleep(time.Second)
		synctest.Wait()
		assert.True(t, srv.subscribed()["b"])
		require.NoError(t, hub.Close(t.Context()))
	})
}
