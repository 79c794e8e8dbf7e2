package redlock

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/rlock"
)

// Many owners of one process ask while servers hang. Each hears what came of it within
// NodeTimeout, or twice that if it waits for another's attempt first: they do not wait for
// one silence each.
func TestSilenceIsShared(t *testing.T) {
	broken := errors.New("broken")
	for name, v := range map[string]struct {
		taken, failed int // so many of five
		hung          int
		err           error
	}{
		"a majority hangs":       {0, 0, 3, rlock.ErrUnsettled},
		"two hang, one fails":    {0, 1, 2, rlock.ErrUnsettled},
		"two hang, one is taken": {1, 0, 2, nil},
	} {
		for _, wait := range []time.Duration{0, -1} {
			if v.err == nil && wait < 0 {
				continue // that is waited for
			}
			t.Run(fmt.Sprint(name, ", wait ", wait), inBubble(func(t *testing.T) {
				f := redlockOn(t, "a", servers(5))
				for i, s := range f.servers {
					switch {
					case i < v.taken:
						s.take("other", time.Hour)
					case i < v.taken+v.failed:
						s.fail(broken)
					case i < v.taken+v.failed+v.hung:
						s.hang()
						defer s.wake()
					}
				}
				const owners = 50
				type outcome struct {
					took time.Duration
					got  bool
					err  error
				}
				all := make(chan outcome)
				for i := range owners {
					go func() {
						began := time.Now()
						got, err := f.TryLock(as(t, rlock.Owner(fmt.Sprint("o", i))), wait, 0)
						all <- outcome{time.Since(began), got, err}
					}()
				}
				for range owners {
					o := <-all
					require.False(t, o.got)
					require.ErrorIs(t, o.err, v.err)
					require.LessOrEqual(t, o.took, 2*50*time.Millisecond)
				}
			}))
		}
	}
}
