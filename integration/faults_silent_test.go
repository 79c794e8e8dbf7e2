package integration

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/relock-go/relock/rlock"
)

// bounded is what a call to a silent server may take; it is not what it should.
const bounded = 5 * time.Second

// TestFaults_SilentServer asks a server that does not answer: CTX-1, ACQ-3.
func TestFaults_SilentServer(t *testing.T) {
	t.Parallel()
	silences := []struct {
		name      string
		own       bool
		fall, end func(s *scene)
	}{
		{
			"killed", true,
			func(s *scene) { s.server(s.l.Key()).Kill(s) },
			func(s *scene) {
				s.server(s.l.Key()).Restart(s)
				s.emptied = true // a release that was never sent finds nothing
			},
		},
		{
			"stopped", true,
			func(s *scene) { s.server(s.l.Key()).Stop(s) },
			func(s *scene) { s.server(s.l.Key()).Cont(s) },
		},
		{
			"black hole", false,
			func(s *scene) { s.line.BlackHole(true) },
			func(s *scene) { s.line.BlackHole(false) },
		},
	}
	calls := []struct {
		name string
		do   func(s *scene) (bool, error)
	}{
		{"trylock with a wait", func(s *scene) (bool, error) { return s.l.TryLock(s.as(alice), 200*time.Millisecond, 0) }},
		{"trylock without", func(s *scene) (bool, error) { return s.l.TryLock(s.as(alice), 0, 0) }},
		{"lock with a deadline", func(s *scene) (bool, error) {
			ctx, cancel := context.WithTimeout(s.as(alice), 200*time.Millisecond)
			defer cancel()
			err := s.l.Lock(ctx)
			require.ErrorIs(s, err, context.DeadlineExceeded)
			return err == nil, err
		}},
		{"lock that is cancelled", func(s *scene) (bool, error) {
			ctx, cancel := context.WithCancel(s.as(alice))
			defer time.AfterFunc(200*time.Millisecond, cancel).Stop()
			err := s.l.Lock(ctx)
			require.ErrorIs(s, err, context.Canceled)
			return err == nil, err
		}},
	}
	onEach(t, func(t *testing.T, kind topology) {
		for _, silent := range silences {
			t.Run(silent.name, func(t *testing.T) {
				t.Parallel()
				s := newScene(t, kind.open(t, silence, silent.own), rlock.WithReleaseTimeout(200*time.Millisecond))
				held := *s
				held.again()
				require.NoError(t, held.l.Lock(s.as(alice)))

				silent.fall(s)
				for _, call := range calls {
					s.rename()
					began := time.Now()
					got, err := call.do(s)
					require.Less(t, time.Since(began), bounded, call.name)
					require.Error(t, err, call.name)
					require.False(t, got, call.name)
					require.Zero(t, s.l.Validity(s.as(alice)))
				}
				began := time.Now()
				require.ErrorIs(t, held.l.Unlock(s.as(alice)), rlock.ErrUnsettled)
				require.Less(t, time.Since(began), bounded)
				require.Zero(t, held.l.Validity(s.as(alice)), "it was given back")
				require.ErrorIs(t, held.l.Unlock(s.as(alice)), rlock.ErrNotHeld)

				silent.end(s)
				require.NoError(t, held.theirs.Lock(s.as(stranger)))
				require.NoError(t, held.theirs.Unlock(s.as(stranger)))
				held.within(soon, func() bool { return !held.exists() }, "the release goes on")
				require.NoError(t, s.l.Lock(s.as(alice)))
				s.stands(s.l, alice, 1)
				s.leave(alice, 1)
				s.gone()
			})
		}
	})
}

// TestFaults_CloseWhenUnreachable closes a client whose Redis does not answer, or
// whose connections the user has closed: END-1, END-2, END-4. It is not parallel,
// so that goroutines of other tests are not taken for its own.
func TestFaults_CloseWhenUnreachable(t *testing.T) {
	for _, kind := range topologies {
		for name, fall := range map[string]func(s *scene){
			"black hole": func(s *scene) { s.line.BlackHole(true) },
			"refused": func(s *scene) {
				require.NoError(s, s.line.Refuse(true))
				s.line.CutAll()
			},
			"closed by the user": func(s *scene) { require.NoError(s, s.through.Close()) },
		} {
			t.Run(kind.name+"/"+name, func(t *testing.T) {
				// The servers that tests share stay.
				t.Run("servers", func(t *testing.T) { kind.open(t, silence, false) })
				leak := goleak.IgnoreCurrent()
				t.Run("scene", func(t *testing.T) {
					closeUnreachable(t, newScene(t, kind.open(t, silence, false)), fall)
				})
				goleak.VerifyNone(t, append(leakOptions(), leak)...)
			})
		}
	}
}

func closeUnreachable(t *testing.T, s *scene, fall func(*scene)) {
	waiting := *s
	waiting.again()
	require.NoError(t, waiting.theirs.Lock(s.as(stranger)))
	waiter := waiting.wait(bob)

	require.NoError(t, s.l.Lock(s.as(alice)))
	lost := s.l.Lost(s.as(alice))
	inDo, cause := make(chan struct{}), make(chan error, 1)
	guarded := s.c.NewLock(name(t))
	done := inBackground(func() error {
		return guarded.Do(s.as(carol), func(ctx context.Context) error {
			close(inDo)
			<-ctx.Done()
			cause <- context.Cause(ctx)
			return nil
		})
	})
	result(t, soon, inDo, "Do")

	fall(s)
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	closed := inBackground(func() error { return s.c.Close(ctx) })
	result(t, bounded, lost, "the holder is told")
	require.ErrorIs(t, result(t, bounded, cause, "Do is told"), rlock.ErrClosed)
	require.Zero(t, s.l.Validity(s.as(alice)))
	if err := result(t, bounded, waiter, "the waiter"); !errors.Is(err, redis.ErrClosed) { // as it may hear first
		require.ErrorIs(t, err, rlock.ErrClosed)
	}
	err := result(t, bounded, closed, "Close")
	require.ErrorContains(t, err, s.l.Key(), "what could not be released is named")
	require.ErrorIs(t, result(t, bounded, done, "Do"), rlock.ErrClosed)
	require.ErrorIs(t, unlock(s), rlock.ErrClosed)
	require.ErrorIs(t, s.l.Lock(s.as(alice)), rlock.ErrClosed)
	require.NoError(t, s.c.Close(s.ctx), "a second Close is harmless")
	require.NoError(t, waiting.theirs.Unlock(s.as(stranger)))
}
