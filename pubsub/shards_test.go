package pubsub_test

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/pubsub"
)

// shardsBubble is a Shards and its cluster in virtual time.
type shardsBubble struct {
	bubble // of which srv is node 0, and hub is nil
	*cluster
	shards *pubsub.Shards
}

func inCluster(t *testing.T, nodes int, f func(b *shardsBubble)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		b := &shardsBubble{bubble: bubble{T: t}, cluster: newCluster(nodes)}
		b.shards = pubsub.NewShards(pubsub.ShardsConfig{
			Config: pubsub.Config{
				Broadcast:   func(p string) bool { return p == "all" },
				OneByOne:    true,
				Reconnected: func() { b.reconnects.Add(1) },
				Logger:      slog.New(slog.NewTextHandler(&b.bubble.log, nil)),
			},
			Locate: b.locate,
		})
		defer func() { _ = b.shards.Close(t.Context()) }() // when f has failed
		f(b)
		require.NoError(t, b.shards.Close(t.Context()))
		synctest.Wait()
		require.Zero(t, b.live(), "connections left open")
	})
}

// on subscribes to a channel of a node that Locate knows.
func (b *shardsBubble) on(node int, channel string) *pubsub.Subscription {
	b.cluster.set(func(c *cluster) { c.owner[channel], c.view[channel] = node, node })
	return b.shards.Subscribe(channel)
}

// ready is on and takes the wake-up of the confirmation.
func (b *shardsBubble) ready(node int, channel string) *pubsub.Subscription {
	b.Helper()
	sub := b.on(node, channel)
	b.woken(sub)
	return sub
}

// served checks that a message wakes sub.
func (b *shardsBubble) served(channel string, sub *pubsub.Subscription) {
	b.Helper()
	require.Equal(b, 1, b.publish(channel, "free"))
	b.woken(sub)
}

// forget clears the counts and the logs of commands.
func (b *shardsBubble) forget() {
	synctest.Wait()
	b.cluster.set(func(c *cluster) { c.asked, c.doubted = 0, 0 })
	b.each(func(s *server) { s.commands() })
}

func TestShards_OneConnectionPerNode(t *testing.T) {
	inCluster(t, 3, func(b *shardsBubble) {
		var subs []*pubsub.Subscription
		for i := range 30 {
			subs = append(subs, b.ready(i%2, fmt.Sprint(i)))
		}
		assert.Equal(b, 2, b.dials())
		for i, sub := range subs {
			b.served(fmt.Sprint(i), sub)
		}
		b.asleep(subs...)
		b.woken(b.shards.Subscribe("0")) // at once, without asking anybody
		assert.Equal(b, 30, b.calls())
		assert.Zero(b, b.wrongs())

		b.forget()
		b.each(func(s *server) { s.set(func(s *server) { s.log = nil }) })
		time.Sleep(time.Minute)
		synctest.Wait()
		b.each(func(s *server) {
			s.set(func(s *server) { assert.LessOrEqual(b, len(s.log), 12, "one PING per Probe") })
		})
		assert.Equal(b, 4*30, b.calls(), "one per Recheck")
		assert.Zero(b, b.wrongs())
		b.asleep(subs...)
	})
}

func TestShards_OneByOne(t *testing.T) {
	inCluster(t, 1, func(b *shardsBubble) {
		var subs []*pubsub.Subscription
		for i := range 1000 {
			subs = append(subs, b.on(0, fmt.Sprint(i)))
		}
		b.woken(subs...)
		commands := b.nodes[0].commands()
		assert.Len(b, commands, 1000)
		for _, sub := range subs {
			sub.Close()
		}
		time.Sleep(5 * time.Second)
		synctest.Wait()
		commands = append(commands, b.nodes[0].commands()...)
		for _, c := range commands {
			require.Len(b, strings.Fields(c), 2, c)
		}
		assert.Equal(b, 1, b.dials())
		assert.Zero(b, b.live())
	})
}

// Without a Close of the Shards: the bubble fails if a goroutine is left.
func TestEND4_IdleShardsHasNoGoroutines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(2)
		c.owner["b"] = 1 // which Locate learns late
		shards := pubsub.NewShards(pubsub.ShardsConfig{Config: pubsub.Config{OneByOne: true}, Locate: c.locate})
		for _, channel := range []string{"a", "b"} {
			sub := shards.Subscribe(channel)
			<-sub.C()
			sub.Close()
		}
		c.set(func(c *cluster) { c.errs = errNoState })
		sub := shards.Subscribe("c")
		time.Sleep(time.Second)
		sub.Close()
		time.Sleep(5 * time.Second)
		synctest.Wait()
		assert.Zero(t, c.live())
	})
}

func TestShards_MovesWithItsChannel(t *testing.T) {
	inCluster(t, 2, func(b *shardsBubble) {
		x, y := b.ready(0, "a"), b.ready(0, "a")
		other := b.ready(0, "b")
		b.forget()
		b.nodes[1].set(func(s *server) { s.holding = true })
		b.move("a", 1)
		b.woken(x, y) // messages may have been lost
		b.asleep(x, y)
		b.nodes[1].release(-1)
		b.woken(x, y) // confirmed on the new node
		b.served("a", x)
		b.asleep(x, y, other)
		b.served("b", other)
		b.nodes[0].set(func(s *server) { // late, of a channel that is elsewhere
			s.conns[0].push(&redis.Message{Channel: "a"})
			s.conns[0].push(&redis.Subscription{Kind: "sunsubscribe", Channel: "a"})
		})
		b.asleep(x, y)
		assert.Equal(b, 1, b.wrongs())
		assert.Equal(b, 1, b.calls())
		assert.Empty(b, b.nodes[0].commands())
		assert.Equal(b, 2, b.dials())
		time.Sleep(time.Minute + time.Second) // and no answer is missing
		assert.Equal(b, 1, b.wrongs(), "rechecks need no refresh")

		b.move("b", 1)
		b.woken(other)
		time.Sleep(time.Millisecond)
		assert.Zero(b, b.nodes[0].live(), "nothing is served there any more")
		assert.Zero(b, b.reconnects.Load())
	})
}

// A node that does not serve a channel says so of that channel only.
func TestShards_Moved(t *testing.T) {
	inCluster(t, 2, func(b *shardsBubble) {
		x := b.ready(0, "a")
		b.cluster.set(func(c *cluster) { c.owner["b"] = 1 }) // and Locate says 0
		y := b.shards.Subscribe("b")
		b.woken(y)
		b.served("b", y)
		b.asleep(x)
		b.served("a", x)
		assert.Equal(b, 1, b.wrongs())
		assert.Equal(b, 2, b.dials())
		assert.Zero(b, b.reconnects.Load())
	})
}

// Of many requests on their way, exactly the moved ones are sent elsewhere.
func TestShards_MovedAmongMany(t *testing.T) {
	inCluster(t, 2, func(b *shardsBubble) {
		first := b.ready(0, "first")
		b.nodes[0].set(func(s *server) { s.holding = true })
		var subs []*pubsub.Subscription
		for i := range 300 {
			if i%3 == 0 { // and Locate says 0
				b.cluster.set(func(c *cluster) { c.owner[fmt.Sprint(i)] = 1 })
			}
			subs = append(subs, b.shards.Subscribe(fmt.Sprint(i)))
		}
		b.asleep(subs...)
		b.nodes[0].release(-1)
		b.woken(subs...)
		b.asleep(subs...)
		b.asleep(first)
		assert.Equal(b, 100, b.wrongs())
		assert.Equal(b, 2, b.dials())
		assert.Len(b, b.nodes[1].commands(), 100)
	})
}

// While Locate does not learn, the node is asked less and less often.
func TestCLU5_StaleLocate(t *testing.T) {
	inCluster(t, 2, func(b *shardsBubble) {
		keep, x := b.ready(0, "keep"), b.ready(0, "a")
		b.cluster.set(func(c *cluster) { c.stale = true })
		b.forget()
		b.move("a", 1)
		b.woken(x)
		time.Sleep(time.Minute)
		b.asleep(x, keep)
		n := len(b.nodes[0].commands())
		assert.Greater(b, n, 50)
		assert.Less(b, n, 150)
		b.cluster.set(func(c *cluster) { c.stale = false })
		time.Sleep(time.Second)
		b.woken(x)
		b.served("a", x)
		assert.Equal(b, 2, b.dials())

		// The pauses begin anew after a time in which all was well.
		time.Sleep(time.Second)
		b.move("a", 0)
		b.woken(x)
		b.served("a", x)
	})
}

func TestCLU3_Recheck(t *testing.T) {
	inCluster(t, 2, func(b *shardsBubble) {
		x, y, other := b.ready(0, "a"), b.ready(0, "a"), b.ready(0, "b")
		lingers := b.ready(0, "c")
		b.forget()
		b.steal("a", 1)
		b.steal("c", 1)
		time.Sleep(11 * time.Second)
		lingers.Close()
		b.asleep(x, y, other)
		require.Zero(b, b.publish("a", "free"))
		time.Sleep(4 * time.Second)
		b.woken(x, y)
		b.asleep(other)
		b.served("a", x)
		assert.Equal(b, []string{"UNSUBSCRIBE a"}, b.nodes[0].commands())
		assert.Equal(b, []string{"SUBSCRIBE a"}, b.nodes[1].commands())

		b.cluster.set(func(c *cluster) { c.errs = errNoState })
		time.Sleep(time.Minute)
		b.asleep(x, y, other)
		b.served("a", x) // nobody moves without knowing where to
		b.served("b", other)
		assert.Equal(b, 2, b.dials())
	})
}

// A channel that changes while it is rechecked is left alone.
func TestShards_SlowRecheck(t *testing.T) {
	inCluster(t, 3, func(b *shardsBubble) {
		x, y, z := b.ready(0, "a"), b.ready(0, "b"), b.ready(0, "c")
		hang := make(chan struct{})
		b.cluster.set(func(c *cluster) { c.hang = hang })
		for _, channel := range []string{"a", "b", "c"} {
			b.steal(channel, 1)
		}
		time.Sleep(15 * time.Second)
		synctest.Wait()
		require.Equal(b, 3, b.busy)
		b.cluster.set(func(c *cluster) { c.hang = nil })
		b.nodes[0].kick("a") // so that it is lost, and located once more
		y.Close()            // lingers
		b.woken(x)
		close(hang)
		b.woken(z)
		b.asleep(x)
		b.served("a", x)
		b.served("c", z)
		synctest.Wait()
		assert.Equal(b, map[string]bool{"b": true}, b.nodes[0].subscribed())
		b.woken(b.shards.Subscribe("b")) // still there
	})
}

func TestShards_UnreadyNode(t *testing.T) {
	for _, why := range []string{
		"CLUSTERDOWN Hash slot not served", "TRYAGAIN Multiple keys request during rehashing of slot",
		"LOADING Redis is loading the dataset in memory", "MASTERDOWN Link with MASTER is down",
	} {
		inCluster(t, 1, func(b *shardsBubble) {
			x := b.ready(0, "a")
			b.cluster.set(func(c *cluster) { c.unwell = replyError(why) })
			b.forget()
			y := b.on(0, "b")
			b.asleep(y)
			n := len(b.nodes[0].commands())
			assert.Equal(b, 1, n, "not again without a pause")
			time.Sleep(time.Minute)
			b.asleep(x, y)
			n += len(b.nodes[0].commands())
			assert.Greater(b, n, 50)
			assert.Less(b, n, 150)
			assert.Equal(b, n-1, b.wrongs())
			b.cluster.set(func(c *cluster) { c.unwell = nil })
			time.Sleep(time.Second)
			b.woken(y)
			b.asleep(x)
			assert.Equal(b, 1, b.dials())
			assert.Less(b, strings.Count(b.bubble.log.String(), "\n"), 8, "one line in ten seconds")
		})
	}
}

func TestShards_LocateFails(t *testing.T) {
	inCluster(t, 1, func(b *shardsBubble) {
		b.cluster.set(func(c *cluster) { c.errs = errNoState })
		x := b.on(0, "a")
		time.Sleep(time.Minute)
		b.asleep(x)
		assert.Greater(b, b.calls(), 50)
		assert.Less(b, b.calls(), 150)
		assert.Zero(b, b.wrongs(), "it has said nothing yet")
		b.cluster.set(func(c *cluster) { c.errs = nil })
		time.Sleep(time.Second)
		b.woken(x)
		assert.Contains(b, b.bubble.log.String(), errNoState.Error())
	})
}

// A short pause is not as long as the one of another channel.
func TestShards_ShortAndLongPauses(t *testing.T) {
	inCluster(t, 1, func(b *shardsBubble) {
		b.cluster.set(func(c *cluster) { c.errs = errNoState })
		b.on(0, "a")
		time.Sleep(time.Minute)
		x := b.on(0, "b")
		b.asleep(x)
		b.cluster.set(func(c *cluster) { c.errs = nil })
		time.Sleep(11 * time.Millisecond)
		b.woken(x)
	})
}

// Nodes that come and go are forgotten, but not when one may be dialled next.
func TestShards_ManyNodes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv, dead := newServer(), newServer()
		dead.down = errDown
		shards := pubsub.NewShards(pubsub.ShardsConfig{
			Config: pubsub.Config{Linger: time.Millisecond},
			Locate: func(_ context.Context, channel string, _ bool) (pubsub.Node, error) {
				if channel == "dead" {
					return pubsub.Node{ID: channel, Open: dead.open}, nil
				}
				return pubsub.Node{ID: channel, Open: srv.open}, nil
			},
		})
		for i := range 500 {
			sub, never := shards.Subscribe(fmt.Sprint(i)), shards.Subscribe("dead")
			require.True(t, take(sub))
			sub.Close()
			time.Sleep(10 * time.Millisecond)
			never.Close()
		}
		synctest.Wait()
		assert.Less(t, dead.dials(), 50)
		assert.LessOrEqual(t, shards.Hubs(), 3)
		require.NoError(t, shards.Close(t.Context()))
	})
}

// Somebody who comes while the channel is unsubscribed waits for no pause.
func TestShards_SubscribeWhileUnsubscribing(t *testing.T) {
	inCluster(t, 1, func(b *shardsBubble) {
		keep := b.ready(0, "keep")
		for range 10 {
			b.ready(0, "a").Close()
			time.Sleep(5*time.Second - 1)
			b.nodes[0].set(func(s *server) { s.holding = true })
			time.Sleep(time.Nanosecond)
			synctest.Wait()
			x := b.shards.Subscribe("a")
			b.asleep(x)
			b.nodes[0].release(-1)
			b.woken(x)
			x.Close()
		}
		b.asleep(keep)
		assert.Zero(b, b.wrongs())
		assert.Equal(b, 1, b.dials())
	})
}

func TestShards_SlowLocateBlocksNobody(t *testing.T) {
	inCluster(t, 2, func(b *shardsBubble) {
		ready := b.ready(0, "ready")
		hang := make(chan struct{})
		b.cluster.set(func(c *cluster) { c.hang = hang })
		began := time.Now()
		var subs []*pubsub.Subscription
		for i := range 100 {
			subs = append(subs, b.on(1, fmt.Sprint(i)))
		}
		b.asleep(subs...)
		b.on(1, "0").Close()
		subs[0].Close() // in a Locate
		subs[99].Close()
		b.served("ready", ready)
		assert.Zero(b, time.Since(began))
		close(hang)
		b.woken(subs[1:99]...)
		assert.Equal(b, 4, b.maxBusy)
		want := map[string]bool{"ready": true}
		for i := 1; i < 99; i++ {
			want[fmt.Sprint(i)] = true
		}
		assert.Equal(b, want, b.subscribed())
	})
}

func TestShards_LocateThatNeverEndsIsGivenUp(t *testing.T) {
	inCluster(t, 1, func(b *shardsBubble) {
		b.cluster.set(func(c *cluster) { c.hang = make(chan struct{}) })
		x := b.on(0, "a")
		synctest.Wait()
		b.cluster.set(func(c *cluster) { c.hang = nil })
		time.Sleep(31 * time.Second)
		b.woken(x)
	})
}

func TestShards_NodeFailsForGood(t *testing.T) {
	inCluster(t, 3, func(b *shardsBubble) {
		x, y, z := b.ready(0, "a"), b.ready(0, "b"), b.ready(1, "c")
		b.nodes[2].set(func(s *server) { s.holding = true })
		b.forget()
		b.fail(0, 2)
		b.woken(x, y)
		b.asleep(x, y, z)
		assert.Equal(b, 2, b.wrongs())
		b.nodes[2].release(-1)
		b.woken(x, y)
		b.asleep(z)
		assert.EqualValues(b, 1, b.reconnects.Load())
		dials := b.nodes[0].dials()
		time.Sleep(time.Hour)
		assert.Equal(b, dials, b.nodes[0].dials(), "the dead node is left alone")
		b.asleep(x, y, z)
	})
}

// A node that stays away while everybody believes in it.
func TestShards_NodeIsDown(t *testing.T) {
	inCluster(t, 2, func(b *shardsBubble) {
		x, y, other := b.ready(0, "a"), b.ready(0, "b"), b.ready(1, "c")
		b.forget()
		b.nodes[0].set(func(s *server) { s.down = errDown })
		b.nodes[0].cut()
		b.woken(x, y)
		time.Sleep(time.Minute)
		b.asleep(x, y, other)
		assert.Less(b, b.nodes[0].dials(), 150)
		assert.Less(b, b.calls(), 2*150)
		assert.LessOrEqual(b, b.calls()-b.wrongs(), 4, "those of the other channel")
		assert.Zero(b, b.reconnects.Load())
		b.nodes[0].set(func(s *server) { s.down = nil })
		time.Sleep(2 * time.Second)
		b.woken(x, y)
		assert.EqualValues(b, 1, b.reconnects.Load())
		assert.LessOrEqual(b, strings.Count(b.bubble.log.String(), "\n"), 3, b.bubble.log.String())

		// Subscribing for a moment does not shorten the pauses.
		b.nodes[1].set(func(s *server) { s.down = errDown })
		b.nodes[1].cut()
		time.Sleep(time.Minute)
		other.Close()
		synctest.Wait()
		before := b.nodes[1].dials()
		for range 100 {
			b.on(1, "c").Close()
			synctest.Wait()
			s := b.on(1, "c")
			synctest.Wait()
			s.Close()
		}
		assert.LessOrEqual(b, b.nodes[1].dials()-before, 1)
	})
}

// A node that accepts, and then breaks at once, is not dialled in a loop either.
func TestShards_NodeFlaps(t *testing.T) {
	inCluster(t, 1, func(b *shardsBubble) {
		b.on(0, "a")
		for range 60_000 {
			time.Sleep(time.Millisecond)
			b.nodes[0].cut()
		}
		assert.Less(b, b.dials(), 150)
	})
}

// A server that ends the subscription as soon as it has confirmed it.
func TestShards_ChannelFlaps(t *testing.T) {
	inCluster(t, 1, func(b *shardsBubble) {
		b.on(0, "a")
		for range 60_000 {
			time.Sleep(time.Millisecond)
			b.nodes[0].kick("a")
		}
		assert.Less(b, len(b.nodes[0].commands()), 150)
	})
}

func TestWAIT2_ShardsHalfOpenConnection(t *testing.T) {
	inCluster(t, 2, func(b *shardsBubble) {
		x, y := b.ready(0, "a"), b.ready(1, "b")
		b.nodes[0].silence()
		time.Sleep(8*time.Second + 10*time.Millisecond)
		b.woken(x)
		b.asleep(y)
		b.served("a", x)
		assert.Equal(b, 3, b.dials())
		assert.EqualValues(b, 1, b.reconnects.Load())
	})
}

// The server's own end of a subscription comes just before our UNSUBSCRIBE, so
// an error follows that is not the answer to the request behind it.
func TestShards_UnsubscribeTooLate(t *testing.T) {
	inCluster(t, 2, func(b *shardsBubble) {
		keep := b.ready(0, "keep")
		b.ready(0, "a").Close()
		time.Sleep(5*time.Second - 1)
		b.nodes[0].set(func(s *server) { s.holding = true })
		b.move("a", 1)
		b.forget()
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		x := b.on(0, "b")
		synctest.Wait()
		require.Equal(b, []string{"UNSUBSCRIBE a", "SUBSCRIBE b"}, b.nodes[0].commands())
		b.nodes[0].release(-1)
		b.woken(x)
		b.asleep(keep)
		time.Sleep(time.Minute)
		b.asleep(x, keep)
		assert.Zero(b, b.wrongs())
		assert.Equal(b, 1, b.dials())
		assert.Equal(b, map[string]bool{"keep": true, "b": true}, b.subscribed())
	})
}

// A channel that is wanted again while its UNSUBSCRIBE comes too late.
func TestShards_UnsubscribeTooLateAndWantedAgain(t *testing.T) {
	inCluster(t, 2, func(b *shardsBubble) {
		keep := b.ready(0, "keep")
		b.ready(0, "a").Close()
		time.Sleep(5*time.Second - 1)
		b.nodes[0].set(func(s *server) { s.holding = true })
		b.move("a", 1)
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		x := b.shards.Subscribe("a")
		b.asleep(x)
		b.nodes[0].release(-1)
		b.woken(x)
		b.served("a", x)
		b.asleep(keep)
		assert.Equal(b, 2, b.dials())
	})
}

func TestWAIT9_ShardsRefusedChannel(t *testing.T) {
	inCluster(t, 1, func(b *shardsBubble) {
		b.nodes[0].set(func(s *server) { s.denied["no"] = true })
		x, no, y := b.on(0, "x"), b.on(0, "no"), b.on(0, "y")
		b.woken(x, y)
		b.asleep(no)
		b.forget()
		time.Sleep(9 * time.Second)
		synctest.Wait()
		assert.Empty(b, b.nodes[0].commands())
		b.nodes[0].set(func(s *server) { delete(s.denied, "no") })
		time.Sleep(time.Second)
		b.woken(no)
		assert.Zero(b, b.calls())
		assert.Equal(b, 1, b.dials())
	})
}

// go-redis mends a connection by naming all channels in one SSUBSCRIBE, which
// nobody has asked for one by one: nothing is known about that connection.
func TestShards_CrossSlotIsNotOurs(t *testing.T) {
	inCluster(t, 1, func(b *shardsBubble) {
		x, y := b.ready(0, "a"), b.ready(0, "b")
		b.nodes[0].set(func(s *server) { s.holding = true })
		z := b.on(0, "c")
		synctest.Wait()
		b.nodes[0].set(func(s *server) {
			s.holding = false
			s.conns[0].held = nil
			s.conns[0].push(replyError("CROSSSLOT Keys in request don't hash to the same slot"))
		})
		b.woken(x, y)
		time.Sleep(time.Second)
		b.woken(x, y, z)
		assert.Equal(b, 2, b.dials())
	})
}

// The client of a node may be closed and made anew, for the same address.
func TestShards_NewestOpenCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		old, new := newServer(), newServer()
		open := old.open
		shards := pubsub.NewShards(pubsub.ShardsConfig{
			Locate: func(_ context.Context, _ string, wrong bool) (pubsub.Node, error) {
				if wrong {
					open = new.open
				}
				return pubsub.Node{ID: "same", Open: open}, nil
			},
		})
		sub := shards.Subscribe("a")
		<-sub.C()
		old.set(func(s *server) { s.down = errDown })
		old.cut()
		<-sub.C()
		<-sub.C()
		assert.Equal(t, 1, new.live())
		require.NoError(t, shards.Close(t.Context()))
	})
}

// As a Ring does it: SUBSCRIBE, several channels in one command.
func TestShards_Gather(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := newServer()
		hang := make(chan struct{})
		srv.hang = hang
		shards := pubsub.NewShards(pubsub.ShardsConfig{
			Locate: func(context.Context, string, bool) (pubsub.Node, error) { return pubsub.Node{Open: srv.open}, nil },
		})
		subs := []*pubsub.Subscription{shards.Subscribe("first")}
		synctest.Wait()
		for i := range 100 {
			subs = append(subs, shards.Subscribe(fmt.Sprint(i)))
		}
		synctest.Wait()
		close(hang)
		for _, sub := range subs {
			require.True(t, take(sub))
		}
		assert.Len(t, srv.commands(), 2)
		require.NoError(t, shards.Close(t.Context()))
	})
}

func TestShards_NodeWithoutConnection(t *testing.T) {
	for name, node := range map[string]pubsub.Node{
		"no Open": {ID: "a"},
		"no Conn": {ID: "a", Open: func(context.Context) pubsub.Conn { return nil }},
	} {
		synctest.Test(t, func(t *testing.T) {
			var n atomic.Int32
			shards := pubsub.NewShards(pubsub.ShardsConfig{
				Locate: func(context.Context, string, bool) (pubsub.Node, error) { n.Add(1); return node, nil },
			})
			shards.Subscribe("a")
			time.Sleep(time.Minute)
			assert.Less(t, n.Load(), int32(150), name)
			assert.Greater(t, n.Load(), int32(50), name)
			require.NoError(t, shards.Close(t.Context()))
		})
	}
}

func TestShards_Close(t *testing.T) {
	inCluster(t, 2, func(b *shardsBubble) {
		x, y := b.ready(0, "a"), b.ready(1, "b")
		b.cluster.set(func(c *cluster) { c.hang = make(chan struct{}) }) // until ctx ends
		z := b.on(1, "c")
		b.asleep(z)
		began := time.Now()
		require.NoError(b, b.shards.Close(b.Context()))
		assert.Zero(b, time.Since(began))
		b.woken(x, y, z) // for the last time
		w := b.shards.Subscribe("a")
		b.asleep(x, y, z, w)
		for _, s := range []*pubsub.Subscription{w, x, y, z} {
			s.Close()
		}
	})
}

func TestEND3_CloseWhileLocateHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hang := make(chan struct{})
		shards := pubsub.NewShards(pubsub.ShardsConfig{
			Locate: func(context.Context, string, bool) (pubsub.Node, error) { <-hang; return pubsub.Node{}, errNoState },
		})
		x := shards.Subscribe("a")
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		require.ErrorIs(t, shards.Close(ctx), context.DeadlineExceeded)
		require.True(t, take(x))
		close(hang)
		require.NoError(t, shards.Close(t.Context()))
	})
}

func TestShards_CloseDuringThePause(t *testing.T) {
	inCluster(t, 1, func(b *shardsBubble) {
		b.cluster.set(func(c *cluster) { c.errs = errNoState })
		b.on(0, "a")
		time.Sleep(10*time.Second + 1)
		synctest.Wait()
		began := time.Now()
		require.NoError(b, b.shards.Close(b.Context()))
		assert.Zero(b, time.Since(began))
	})
}

func TestShards_LocateMayUseTheShards(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := newServer()
		var shards *pubsub.Shards
		shards = pubsub.NewShards(pubsub.ShardsConfig{
			Locate: func(_ context.Context, channel string, _ bool) (pubsub.Node, error) {
				if channel == "a" {
					shards.Subscribe("b")
				}
				return pubsub.Node{Open: srv.open}, nil
			},
		})
		<-shards.Subscribe("a").C()
		synctest.Wait()
		assert.True(t, srv.subscribed()["b"])
		require.NoError(t, shards.Close(t.Context()))
	})
}

func TestShards_Misuse(t *testing.T) {
	locate := func(context.Context, string, bool) (pubsub.Node, error) { return pubsub.Node{}, nil }
	require.Panics(t, func() { pubsub.NewShards(pubsub.ShardsConfig{}) })
	require.Panics(t, func() {
		pubsub.NewShards(pubsub.ShardsConfig{Locate: locate, Config: pubsub.Config{Open: newServer().open}})
	})
	unused := pubsub.NewShards(pubsub.ShardsConfig{Locate: locate})
	require.NoError(t, unused.Close(t.Context()))
	require.NoError(t, unused.Close(t.Context()))
}
