//go:build pending

package integration

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/redistest"
	"github.com/relock-go/relock/internal/script"
	"github.com/relock-go/relock/rlock"
)

// TestFaults_DeafAfterYield: the message of a release wakes the releaser's own
// waiter before the release is answered, so it waits for its turn while its
// client yields. It is refused then, and must still hear of the next release.
func TestFaults_DeafAfterYield(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, kind topology) {
		s := newScene(t, kind.open(t, 10*time.Second, false), rlock.WithHandoffLimit(0, 0))
		inside(1)(s)
		got := s.wait(carol)
		theirs := inBackground(func() error { return s.theirs.Lock(s.as(stranger)) })
		s.eventually(func() bool { return s.other.Stats().Waiting == 1 }, "the stranger waits")

		rule := s.hit(script.Release, redistest.HoldReply)
		done := inBackground(func() error { return unlock(s) })
		rule.WaitExecuted(s, 1)
		require.NoError(s, result(s.T, soon, theirs, "the stranger"))
		time.Sleep(50 * time.Millisecond) // carol hears of it too, and wants her turn
		asked := s.sent(script.Acquire)
		rule.Release()
		require.NoError(s, result(s.T, soon, done, "the unlock"))
		s.eventually(func() bool { return s.sent(script.Acquire) > asked }, "carol asks")
		time.Sleep(50 * time.Millisecond)
		require.NoError(s, s.theirs.Unlock(s.as(stranger)))
		require.NoError(s, result(s.T, soon, got, "carol was told of the release"))
		require.NoError(s, s.l.Unlock(s.as(carol)))
		s.over()
	})
}
