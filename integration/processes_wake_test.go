package integration

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/rlock"
)

// An Unlock in one process wakes a waiter in another one by its message. Nothing
// else could: the TTL is 30 s, and the waiter does not ask again by itself.
func TestUnlockWakesAnotherProcess(t *testing.T) {
	t.Parallel()
	s := Redis(t)
	ws := []*worker{startWorker(t, settings{Addr: s.Addr, Recheck: never}), startWorker(t, settings{Addr: s.Addr, Recheck: never})}
	lock := name(t)
	ws[0].do(order{Do: "lock", Lock: lock, Owner: "me"})
	var took []int64
	for round := range 30 {
		holder, waiter := ws[round%2], ws[1-round%2]
		waiting := waiter.begin(order{Do: "lock", Lock: lock, Owner: "me"})
		waiter.do(order{Do: "waiting", N: 1})
		gone := holder.do(order{Do: "unlock", Lock: lock, Owner: "me"})
		in := waiter.await(waiting)
		require.Empty(t, in.Err)
		took = append(took, in.Return-gone.Call)
		// 300 ms is what we ask for, the rest is for the machine.
		require.Less(t, in.Return-gone.Call, int64(slack), "round %d", round)
	}
	slices.Sort(took)
	t.Logf("from Unlock to Lock: median %s, longest %s", ms(took[len(took)/2]), ms(took[len(took)-1]))
	require.Less(t, took[len(took)/2], int64(300*time.Millisecond), "the median")
	finish(ws...)
}

// END-1: a process that closes with holds and waiters tells its holders, fails
// its waiters and lets another process's waiters in, at once and in this order.
func TestCloseLetsAnotherProcessIn(t *testing.T) {
	t.Parallel()
	s := Redis(t)
	rdb := s.Client(t)
	other := startWorker(t, settings{Addr: s.Addr, Recheck: never})
	ws := []*worker{other}
	for range 3 {
		closing := startWorker(t, settings{Addr: s.Addr, Recheck: never})
		held := holdAll(t, kinds, closing, other, 30*time.Second)
		var local []int
		for i, h := range held {
			local = append(local, closing.begin(order{Do: "lock", Lock: h.lock, Owner: "second"}))
			closing.do(order{Do: "waiting", N: i + 1})
		}
		closed := closing.do(order{Do: "close"})
		for i, k := range held {
			next, told := other.await(k.waiting), closing.await(k.watching)
			require.Empty(t, next.Err)
			require.Less(t, told.Held, next.Return, "%s: the holder still held when the next was in", k.name)
			require.NotZero(t, told.All, "%s: Validity, Lost and ctx all tell", k.name)
			t.Logf("%s: the next in %s after Close began, told %s before", k.name, ms(next.Return-closed.Call), ms(next.Return-told.Told))
			require.Less(t, next.Return, closed.Call+int64(slack), "by the message, far before the TTL")
			if k.do {
				require.Contains(t, told.Cause, rlock.ErrClosed.Error())
			}
			second := closing.await(local[i])
			require.True(t, second.is(rlock.ErrClosed), second.Err)
			late := closing.await(closing.begin(order{Do: "unlock", Lock: k.lock, Owner: "holder"}))
			require.True(t, late.is(rlock.ErrClosed), late.Err)
			require.Equal(t, map[string]string{other.id() + ":next": "1"}, rdb.HGetAll(t.Context(), k.lock).Val())
			other.do(order{Do: "unlock", Lock: k.lock, Owner: "next"})
		}
		ws = append(ws, closing)
	}
	finish(ws...)
}
