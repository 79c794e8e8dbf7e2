package integration

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/redistest"
	"github.com/relock-go/relock/internal/script"
	"github.com/relock-go/relock/rlock"
)

// TestKinds_Failover replaces the master while each kind of lock is held and waited for:
// CLU-1, CLU-4. The replica has the keys: what is held stays held, tokens go on rising,
// and a fair queue keeps its order.
func TestKinds_Failover(t *testing.T) {
	t.Parallel()
	for kind, start := range successions {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			for way, replace := range map[string]func(s *succession, old *redistest.Server){
				"by order": func(s *succession, _ *redistest.Server) { s.order() },
				"killed":   func(_ *succession, old *redistest.Server) { old.Kill() },
			} {
				t.Run(way, func(t *testing.T) { kindsKept(t, start(t), replace) })
			}
		})
	}
}

// kindKept is a lock that is held over a failover.
type kindKept struct {
	kind    string
	l       locker   // the holder's
	waiters []locker // of other clients, in the order in which they came
	got     []<-chan error
	token   uint64
}

func kindsKept(t *testing.T, s *succession, replace func(s *succession, old *redistest.Server)) {
	ctx, cancel := context.WithTimeout(context.Background(), 3*faultLimit)
	defer cancel()
	mine := lockClient(t, s.client(), rlock.WithWatchdogTimeout(15*time.Second))
	var theirs []*rlock.Client
	for range 2 {
		theirs = append(theirs, lockClient(t, s.client(), rlock.WithRecheck(failoverRecheck)))
	}
	a, b := rlock.WithOwner(ctx, alice), rlock.WithOwner(ctx, stranger)
	old := s.master()
	rdb := old.Client(t)

	var all []*kindKept
	for _, kind := range []string{"fair", "fenced", "spin", "read", "write"} {
		lock := "{" + failoverKey + "}:" + kind // in one slot, on the master that is replaced
		k := &kindKept{kind: kind, l: members[kind](familyOf(mine, lock))}
		require.NoError(t, k.l.Lock(a))
		require.NoError(t, k.l.Lock(a))
		if f, ok := k.l.(*rlock.FencedLock); ok {
			var err error
			k.token, err = f.Token(a)
			require.NoError(t, err)
		}
		for i, c := range theirs {
			w := members[kind](familyOf(c, lock))
			if kind == "read" {
				w = members["write"](familyOf(c, lock))
			}
			before := c.Stats().Waiting
			k.waiters = append(k.waiters, w)
			k.got = append(k.got, inBackground(func() error {
				for { // while nobody is master Lock ends with an error after some seconds
					if err := w.Lock(b); err == nil || ctx.Err() != nil {
						return err
					}
				}
			}))
			require.Eventually(t, func() bool { return c.Stats().Waiting > before }, faultLimit, time.Millisecond)
			if kind == "fair" {
				require.Eventually(t, func() bool {
					return rdb.LLen(ctx, script.QueueKey(lock)).Val() == int64(i+1)
				}, faultLimit, time.Millisecond)
			}
		}
		all = append(all, k)
	}
	replicated(t, old)

	renewals := mine.Stats().Renewals
	replace(s, old)
	next := s.next(old).Client(t)
	require.Eventually(t, func() bool { return mine.Stats().Renewals >= renewals+uint64(len(all)) }, faultLimit, 5*time.Millisecond, "renewed at the new master")
	for _, k := range all {
		require.NoError(t, k.l.Unlock(a), "%s: an inner unlock", k.kind)
		require.Positive(t, k.l.Validity(a), k.kind)
		n, err := k.l.HoldCount(a)
		require.NoError(t, err)
		require.Equal(t, 1, n, k.kind)
		for _, got := range k.got {
			select {
			case err := <-got:
				t.Fatalf("%s: a waiter is in beside the holder: %v", k.kind, err)
			default:
			}
		}
		require.NoError(t, k.l.Unlock(a), k.kind)
		k.served(t, a, b)
		free(t, next, k.l.Key())
	}
	require.Zero(t, mine.Stats().Lost+theirs[0].Stats().Lost+theirs[1].Stats().Lost)
}

// served has the waiters come in one after the other; those of a fair lock whose place
// outlived the failover do so in their order.
func (k *kindKept) served(t *testing.T, a, b context.Context) {
	t.Helper()
	last := k.token
	in := func(i int) {
		if f, ok := k.waiters[i].(*rlock.FencedLock); ok {
			token, err := f.Token(b)
			require.NoError(t, err)
			require.Greater(t, token, last, "tokens rise over the failover")
			last = token
		}
		require.NoError(t, k.waiters[i].Unlock(b), k.kind)
	}
	select {
	case err := <-k.got[0]:
		require.NoError(t, err, k.kind)
		in(0)
		require.NoError(t, result(t, faultLimit, k.got[1], k.kind+": the second"))
		in(1)
	case err := <-k.got[1]:
		require.NotEqual(t, "fair", k.kind, "the second came in first")
		require.NoError(t, err, k.kind)
		in(1)
		require.NoError(t, result(t, faultLimit, k.got[0], k.kind+": the other one"))
		in(0)
	case <-time.After(faultLimit):
		t.Fatalf("%s: no waiter came in", k.kind)
	}
}
