package rlock

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/redistest"
	"github.com/relock-go/relock/internal/script"
)

// inMasses has n waiters stand in the queue of l, which somebody else holds. They end
// with ctx.
func inMasses(t *testing.T, ctx context.Context, l *FairLock, n int) <-chan error {
	t.Helper()
	occupy(t, l.Key(), time.Minute)
	ended := make(chan error, n)
	for i := range n {
		go func() { ended <- l.Lock(WithOwner(ctx, Owner(fmt.Sprint("w", i)))) }()
	}
	eventually(t, func() bool { return queued(t, l) == int64(n) }, "all stand in the queue")
	return ended
}

// leavers are how many fields each call took out of the queue of l.
func leavers(p *redistest.Proxy, l *FairLock) (each []int) {
	for _, r := range p.Requests() {
		if len(r.Args) > 8 && r.Args[0] == "evalsha" && r.Args[1] == script.FairLeave.SHA && r.Args[3] == l.Key() {
			each = append(each, (len(r.Args)-8)/2)
		}
	}
	return each
}

// Redis serves nobody else while fields leave a queue, so no call takes out very many.
func TestFair_ManyGiveUpAtOnce(t *testing.T) {
	t.Parallel()
	c, p := onProxy(t)
	l := c.NewFairLock(unique("masses"))
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	n := 2*mostLeave + 50
	ended := inMasses(t, ctx, l, n)
	cancel()
	for range n {
		require.ErrorIs(t, recv(t, ended, "one that gives up"), context.Canceled)
	}
	eventually(t, func() bool { return queued(t, l) == 0 }, "all have left")
	each := leavers(p, l)
	require.LessOrEqual(t, slices.Max(each), mostLeave)
	require.Greater(t, len(each), 1)
}

// Close leaves nobody in the queue, however many stood there.
func TestFair_CloseTakesManyOut(t *testing.T) {
	t.Parallel()
	c, p := onProxy(t)
	l := c.NewFairLock(unique("masses"))
	n := 2*mostLeave + 50
	ended := inMasses(t, context.Background(), l, n)
	require.NoError(t, c.Close(context.Background()))
	require.Zero(t, queued(t, l))
	for range n {
		require.ErrorIs(t, recv(t, ended, "one that waits"), ErrClosed)
	}
	each := leavers(p, l)
	require.LessOrEqual(t, slices.Max(each), mostLeave)
	require.Greater(t, len(each), 1)
}

// One call of many that fails is no end: another attempt takes out all that are left.
func TestFair_ManyGiveUpAndOneCallFails(t *testing.T) {
	t.Parallel()
	c, p := onProxy(t)
	l := c.NewFairLock(unique("masses"))
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	n := 2*mostLeave + 50
	leave := redistest.And(redistest.Command("evalsha"), redistest.HasArg(script.FairLeave.SHA), redistest.HasArg(l.Key()))
	failed := p.On(leave, redistest.LoseReplyAndClose).Skip(1)
	ended := inMasses(t, ctx, l, n)
	cancel()
	for range n {
		require.ErrorIs(t, recv(t, ended, "one that gives up"), context.Canceled)
	}
	failed.Wait(t)
	eventually(t, func() bool { return queued(t, l) == 0 }, "all have left")
}
