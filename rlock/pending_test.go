//go:build pending

// Tests of sentences of the contract that the code does not keep yet. Run them
// with go test -tags pending.

package rlock

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/redistest"
	"github.com/relock-go/relock/internal/script"
)

// TestMaxHold_CauseWhenAnAnswerComesAtTheEnd: a request is answered after the end
// that WithMaxHold sets, before the wheel has come to it. The cause is the same.
func TestMaxHold_CauseWhenAnAnswerComesAtTheEnd(t *testing.T) {
	t.Parallel()
	for name, s := range map[string]*script.Script{"renewal": script.Renew, "extend": script.Keep} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.NoError(t, look(t).ScriptLoad(t.Context(), s.Text).Err())
			p := redistest.NewProxy(t, shared.server.Addr)
			c := newClient(t, redistest.NewClient(t, p.Addr), WithWatchdogTimeout(6*time.Second))
			k := steppable(c)
			l := c.NewLock(unique("max"), WithMaxHold(time.Hour))
			ctx := WithOwner(t.Context(), NewOwner())
			require.NoError(t, l.Lock(ctx))
			rule := p.On(sends(s, l), redistest.HoldReply)
			var extended <-chan error
			if s == script.Keep {
				extended = async(func() error { return l.Extend(ctx, 2*time.Hour) })
			}
			rule.Wait(t)
			k.mono.Add(int64(2 * time.Hour))
			k.wall.Add(int64(2 * time.Hour))
			rule.Off()
			if extended != nil {
				require.ErrorIs(t, recv(t, extended, "Extend"), ErrMaxHold)
			}
			eventually(t, func() bool { return c.Stats().Lost == 1 }, "the loss")
			require.ErrorIs(t, l.Unlock(ctx), ErrMaxHold)
		})
	}
}
