package pubsub_test

import (
	"fmt"
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

// world is the model of TestNoWakeUpIsLost: who is subscribed, and which came
// last on a channel, a message or somebody taking a wake-up. Whoever takes one
// looks, so a message that came before has been seen.
type world struct {
	srv       *server
	hub       *pubsub.Hub
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
	w.srv.set(func(s *server) { s.down = nil })
	w.srv.release(-1)
	time.Sleep(30 * time.Second)
	synctest.Wait()
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

// Any order of events, with replies that arrive when they like: once things are
// quiet, a message that nobody has looked for has a wake-up pending, exactly the
// wanted channels are subscribed, and each further message makes the oldest
// subscription without a pending wake-up have one.
func TestNoWakeUpIsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rapid.Check(noDeadline{t}, func(t *rapid.T) {
			srv := newServer()
			w := &world{srv: srv, subs: make(map[string][]*pubsub.Subscription), published: make(map[string]bool)}
			w.hub = pubsub.New(pubsub.Config{Open: srv.open, Broadcast: func(p string) bool { return p == "all" }})
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

func (w *world) run(t *rapid.T) {
	channel := rapid.Custom(func(t *rapid.T) string { return fmt.Sprint("c", rapid.IntRange(0, 2).Draw(t, "n")) })
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
	t.Repeat(map[string]func(*rapid.T){
		"subscribe":       subscribe,
		"subscribe again": subscribe,
		"publish":         publish,
		"publish again":   publish,
		"close":           closeOne,
		"close again":     closeOne,
		"take": func(t *rapid.T) {
			c, i := some(t)
			select {
			case <-w.subs[c][i].C():
				w.published[c] = false
			default:
			}
		},
		"wait":   func(*rapid.T) { synctest.Wait() },
		"hold":   func(*rapid.T) { w.srv.set(func(s *server) { s.holding = true }) },
		"one":    func(*rapid.T) { w.srv.release(1) },
		"let go": func(*rapid.T) { w.srv.release(-1) },
		"kick":   func(t *rapid.T) { w.srv.kick(channel.Draw(t, "channel")) },
		"cut":    func(*rapid.T) { w.srv.cut() },
		"mute":   func(*rapid.T) { w.srv.silence() },
		"repeat": func(*rapid.T) { w.srv.repeat() },
		"down":   func(*rapid.T) { w.srv.set(func(s *server) { s.down = errDown }) },
		"up":     func(*rapid.T) { w.srv.set(func(s *server) { s.down = nil }) },
		"sleep": func(t *rapid.T) {
			time.Sleep(time.Duration(rapid.IntRange(1, 6000).Draw(t, "ms")) * time.Millisecond)
		},
		"settle": func(t *rapid.T) { w.settle(); w.check(t) },
	})
}
