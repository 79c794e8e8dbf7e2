package pubsub_test

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/relock-go/relock/pubsub"
)

// noDeadline hides the method Deadline, which a bubble does not allow.
type noDeadline struct{ rapid.TB }

// redises is a *server or a *cluster.
type redises interface {
	publish(channel, payload string) int
	subscribed() map[string]bool
	live() int
	calm()
}

// hub is a *pubsub.Hub or a *pubsub.Shards.
type hub interface {
	Subscribe(channel string) *pubsub.Subscription
	Close(ctx context.Context) error
}

// world is the model of noWakeUpIsLost: who is subscribed, and which came
// last on a channel, a message or somebody taking a wake-up. Whoever takes one
// looks, so a message that came before has been seen.
type world struct {
	srv       redises
	hub       hub
	troubles  map[string]func(*rapid.T)
	subs      map[string][]*pubsub.Subscription // open, oldest first
	published map[string]bool                   // since the last take
}

func (w *world) pending(channel string) (n int) {
	for _, s := range w.subs[channel] {
		n += len(s.C())
	}
	return n
}

// settle ends all troubles and gives the Hub time to get over them.
func (w *world) settle() {
	w.srv.calm()
	time.Sleep(30 * time.Second)
	synctest.Wait()
	if c, ok := w.srv.(*cluster); ok {
		c.set(func(c *cluster) { clear(c.stolen) })
	}
}

// check is for a settled world.
func (w *world) check(t require.TestingT) {
	want := make(map[string]bool)
	for channel, subs := range w.subs {
		if len(subs) == 0 {
			continue
		}
		want[channel] = true
		if w.published[channel] {
			require.NotZero(t, w.pending(channel), "a message on %s woke nobody", channel)
		}
	}
	require.Equal(t, want, w.srv.subscribed())
}

func TestNoWakeUpIsLost(t *testing.T) {
	noWakeUpIsLost(t, func() *world {
		srv := newServer()
		hub := pubsub.New(pubsub.Config{Open: srv.open, Broadcast: func(p string) bool { return p == "all" }})
		return &world{srv: srv, hub: hub, troubles: troubles(srv)}
	})
}

// The same while channels move between nodes, and with nodes that fail, alone
// and together, and views of them that are late.
func TestShards_NoWakeUpIsLost(t *testing.T) {
	noWakeUpIsLost(t, func() *world {
		srv := newCluster(3)
		hub := pubsub.NewShards(pubsub.ShardsConfig{
			Config: pubsub.Config{Broadcast: func(p string) bool { return p == "all" }, OneByOne: true},
			Locate: srv.locate,
		})
		w := &world{srv: srv, hub: hub}
		node := rapid.IntRange(0, 2)
		move := func(t *rapid.T) {
			if c := channel.Draw(t, "channel"); srv.move(c, node.Draw(t, "to")) {
				w.published[c] = true // or might have been, meanwhile
			}
		}
		w.troubles = map[string]func(*rapid.T){
			"away":   move,
			"banish": move,
			"crown": func(t *rapid.T) {
				if c := channel.Draw(t, "channel"); srv.steal(c, node.Draw(t, "to")) {
					w.published[c] = true
				}
			},
			"fail":    func(t *rapid.T) { srv.fail(node.Draw(t, "node"), node.Draw(t, "heir")) },
			"stale":   func(*rapid.T) { srv.set(func(c *cluster) { c.stale = true }) },
			"fresh":   func(*rapid.T) { srv.set(func(c *cluster) { c.stale = false }) },
			"unwell":  func(*rapid.T) { srv.set(func(c *cluster) { c.unwell = replyError("CLUSTERDOWN not served") }) },
			"well":    func(*rapid.T) { srv.set(func(c *cluster) { c.unwell = nil }) },
			"unknown": func(*rapid.T) { srv.set(func(c *cluster) { c.errs = errNoState }) },
			"known":   func(*rapid.T) { srv.set(func(c *cluster) { c.errs = nil }) },
			"slow":    func(*rapid.T) { srv.set(func(c *cluster) { c.hang = cmp.Or(c.hang, make(chan struct{})) }) },
			"calm":    func(*rapid.T) { srv.calm() },
		}
		for name := range troubles(nil) {
			w.troubles[name] = func(t *rapid.T) { troubles(srv.nodes[node.Draw(t, "node")])[name](t) }
		}
		return w
	})
}

// Any order of events, with replies that arrive when they like: once things are
// quiet, a message that nobody has looked for has a wake-up pending, exactly the
// wanted channels are subscribed, and each further message makes the oldest
// subscription without a pending wake-up have one.
func noWakeUpIsLost(t *testing.T, build func() *world) {
	synctest.Test(t, func(t *testing.T) {
		rapid.Check(noDeadline{t}, func(t *rapid.T) {
			w := build()
			srv := w.srv
			w.subs, w.published = make(map[string][]*pubsub.Subscription), make(map[string]bool)
			// Not from a Cleanup: those of rapid run when the bubble is over.
			defer func() {
				w.settle()
				_ = w.hub.Close(t.Context())
			}()
			w.run(t)
			w.settle()
			w.check(t)

			for channel, subs := range w.subs {
				for _, s := range subs {
					if rapid.Bool().Draw(t, "take") {
						take(s)
					}
				}
				i := slices.IndexFunc(subs, func(s *pubsub.Subscription) bool { return len(s.C()) == 0 })
				n := w.pending(channel)
				srv.publish(channel, "free")
				synctest.Wait()
				if i >= 0 {
					require.Len(t, subs[i].C(), 1)
					n++
				}
				require.Equal(t, n, w.pending(channel))
			}
			for _, subs := range w.subs {
				for _, s := range subs {
					s.Close()
				}
			}
			w.settle()
			require.Zero(t, srv.live())
		})
	})
}

var channel = rapid.Custom(func(t *rapid.T) string { return fmt.Sprint("c", rapid.IntRange(0, 2).Draw(t, "n")) })

// troubles are what can happen to a server.
func troubles(srv *server) map[string]func(*rapid.T) {
	return map[string]func(*rapid.T){
		"hold":   func(*rapid.T) { srv.set(func(s *server) { s.holding = true }) },
		"one":    func(*rapid.T) { srv.release(1) },
		"let go": func(*rapid.T) { srv.release(-1) },
		"kick":   func(t *rapid.T) { srv.kick(channel.Draw(t, "channel")) },
		"cut":    func(*rapid.T) { srv.cut() },
		"mute":   func(*rapid.T) { srv.silence() },
		"repeat": func(*rapid.T) { srv.repeat() },
		"down":   func(*rapid.T) { srv.set(func(s *server) { s.down = errDown }) },
		"up":     func(*rapid.T) { srv.set(func(s *server) { s.down = nil }) },
	}
}

func (w *world) run(t *rapid.T) {
	some := func(t *rapid.T) (string, int) {
		c := channel.Draw(t, "channel")
		if len(w.subs[c]) == 0 {
			t.Skip("nobody there")
		}
		return c, rapid.IntRange(0, len(w.subs[c])-1).Draw(t, "i")
	}
	subscribe := func(t *rapid.T) {
		c := channel.Draw(t, "channel")
		w.subs[c] = append(w.subs[c], w.hub.Subscribe(c))
	}
	publish := func(t *rapid.T) {
		c := channel.Draw(t, "channel")
		w.published[c] = true
		w.srv.publish(c, rapid.SampledFrom([]string{"free", "free", "all"}).Draw(t, "payload"))
	}
	closeOne := func(t *rapid.T) {
		c, i := some(t)
		w.subs[c][i].Close()
		w.subs[c] = slices.Delete(w.subs[c], i, i+1)
	}
	names := slices.Sorted(maps.Keys(w.troubles))
	trouble := func(t *rapid.T) { w.troubles[rapid.SampledFrom(names).Draw(t, "trouble")](t) }
	t.Repeat(map[string]func(*rapid.T){ // rapid likes the first ones best
		"arrive":         subscribe,
		"arrive again":   subscribe,
		"bad luck":       trouble,
		"bad luck again": trouble,
		"publish":        publish,
		"publish again":  publish,
		"close":          closeOne,
		"close again":    closeOne,
		"take": func(t *rapid.T) {
			c, i := some(t)
			select {
			case <-w.subs[c][i].C():
				w.published[c] = false
			default:
			}
		},
		"wait": func(*rapid.T) { synctest.Wait() },
		"sleep": func(t *rapid.T) {
			time.Sleep(time.Duration(rapid.IntRange(1, 6000).Draw(t, "ms")) * time.Millisecond)
		},
		"settle": func(t *rapid.T) { w.settle(); w.check(t) },
	})
}
