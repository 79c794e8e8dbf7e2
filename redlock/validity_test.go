package redlock

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/relock-go/relock/rlock"
)

// noDeadline hides the method Deadline, which a bubble does not allow.
type noDeadline struct{ rapid.TB }

// MULTI-2: the arithmetic of validity, over waits, leases and delays. Whatever happens,
// a hold is valid for lease - elapsed - drift at most, counted from before the first
// request of the attempt that got it and not of those before it, and is over, locally,
// before fewer than a majority of the servers have it.
func TestMULTI2_Validity(t *testing.T) {
	bubble(t, func(t *testing.T) {
		rapid.Check(noDeadline{t}, func(t *rapid.T) {
			defer time.Sleep(time.Minute) // what is open ends
			n := rapid.SampledFrom([]int{3, 5, 7}).Draw(t, "n")
			lease := time.Duration(rapid.IntRange(3, 20_000).Draw(t, "lease ms")) * time.Millisecond
			wait := time.Duration(rapid.IntRange(0, 3000).Draw(t, "wait ms")) * time.Millisecond
			factor := rapid.SampledFrom([]float64{0, 0.01, 0.1}).Draw(t, "drift")
			timeout := time.Duration(rapid.IntRange(1, 200).Draw(t, "node timeout ms")) * time.Millisecond
			all := servers(n)
			delays := make([]time.Duration, n)
			for i, s := range all {
				delays[i] = time.Duration(rapid.IntRange(0, 300).Draw(t, fmt.Sprint("delay ms ", i))) * time.Millisecond
				s.delay(delays[i])
				if taken := rapid.IntRange(-2000, 2000).Draw(t, fmt.Sprint("taken ms ", i)); taken > 0 {
					s.take("other", time.Duration(taken)*time.Millisecond)
				}
			}
			f := redlockOn(t, "a", all, WithNodeTimeout(timeout), WithDriftFactor(factor))
			f.doubts = rapid.Bool().Draw(t, "the first")
			ctx := rlock.WithOwner(t.Context(), "o")
			drift := time.Duration(float64(lease)*factor) + 2*time.Millisecond

			begin := time.Now()
			got, err := f.TryLock(ctx, wait, lease)
			if took := time.Since(begin); took > max(wait, mostLate*timeout) {
				t.Fatalf("it took %v", took)
			}
			if lease <= drift {
				require.ErrorIs(t, err, rlock.ErrInvalidLease)
				return
			}
			if err == nil && !got || err != nil {
				require.Zero(t, f.Validity(ctx))
				time.Sleep(2 * time.Second)
				require.Zero(t, slices.Max(f.held("o")), "everything is given back")
				return
			}
			// The servers count from the arrival, half a delay after the start.
			left, now := f.Validity(ctx), time.Now()
			slices.Sort(delays)
			settled := delays[f.quorum-1] // no majority is in before
			require.LessOrEqual(t, left, lease-settled-drift)
			require.GreaterOrEqual(t, left, lease-timeout-max(drift, lease/100), "what was waited before the attempt is not counted")
			require.LessOrEqual(t, f.proven(now), lease)
			require.LessOrEqual(t, left, f.proven(now), "it ends here first")

			if rapid.Bool().Draw(t, "extend") {
				longer := time.Duration(rapid.IntRange(3, 20_000).Draw(t, "longer ms")) * time.Millisecond
				drift := time.Duration(float64(longer)*factor) + 2*time.Millisecond
				asked := time.Now()
				if err := f.Extend(ctx, longer); err == nil {
					require.Less(t, time.Since(asked), left, "only before the old deadline")
					left, now = f.Validity(ctx), time.Now()
					require.LessOrEqual(t, left, longer-now.Sub(asked)-drift)
					require.LessOrEqual(t, left, f.proven(now))
				} else {
					require.LessOrEqual(t, f.Validity(ctx), max(0, left-time.Since(asked)))
				}
			}
			time.Sleep(f.Validity(ctx))
			require.Zero(t, f.Validity(ctx))
			require.ErrorIs(t, f.Unlock(ctx), rlock.ErrLost)
		})
	})
}

// Lost is told when the validity is over, and not when the nodes' holds are, which is later
// by the drift.
func TestLostWithTheValidity(t *testing.T) {
	for name, v := range map[string]struct {
		drift  float64
		before func(f *fakes) // the Lock
		after  func(t *testing.T, f *fakes)
	}{
		"an answer is long ago": {
			drift:  0.5,
			before: func(f *fakes) { f.servers[2].hang() },
			after:  func(_ *testing.T, f *fakes) { f.servers[2].wake() },
		},
		"the lease gets shorter while the timer looks": {
			drift: 0.5,
			after: func(t *testing.T, f *fakes) {
				time.Sleep(14 * time.Second) // it looks in a second
				for _, l := range f.locks {
					l.renew("o")
				}
				extended := make(chan error)
				f.hold("o").terms.in[2].Locker.(*fakeLock).onLook(func() {
					extended <- f.Extend(as(t, "o"), 10*time.Second)
				})
				require.NoError(t, <-extended)
			},
		},
		"who shortens it leaves": {
			drift: 0.1,
			after: func(t *testing.T, f *fakes) {
				short, cancel := context.WithTimeout(as(t, "o"), 700*time.Microsecond)
				defer cancel()
				require.ErrorIs(t, f.Extend(short, 10*time.Second), context.DeadlineExceeded)
				time.Sleep(time.Millisecond)
				require.Less(t, f.Validity(as(t, "o")), 10*time.Second)
			},
		},
		"the answers come after NodeTimeout": {
			drift: 0.1,
			after: func(t *testing.T, f *fakes) {
				for _, s := range f.servers {
					s.delay(22 * time.Second) // half of it there
				}
				require.ErrorIs(t, f.Extend(as(t, "o"), 20*time.Second), rlock.ErrUnsettled)
				for _, s := range f.servers {
					s.delay(2 * time.Second)
				}
				time.Sleep(3 * time.Second)
				require.Less(t, f.Validity(as(t, "o")), 10*time.Second)
			},
		},
		"the node that lasted longest is lost": {
			drift: 0.1,
			after: func(_ *testing.T, f *fakes) {
				time.Sleep(5 * time.Second)
				f.locks[2].renew("o")
				time.Sleep(9 * time.Second)
				f.locks[0].renew("o")
				f.locks[1].renew("o")
				time.Sleep(14 * time.Second)
				f.locks[0].lose("o")
			},
		},
	} {
		t.Run(name, inBubble(func(t *testing.T) {
			f := redlockOn(t, "a", servers(3), WithDriftFactor(v.drift), WithNodeTimeout(10*time.Second))
			ctx := as(t, "o")
			if v.before != nil {
				v.before(f)
			}
			require.NoError(t, f.Lock(ctx))
			lost := f.Lost(ctx)
			v.after(t, f)
			left := f.Validity(ctx)
			require.Positive(t, left)
			begin := time.Now()
			<-lost
			require.Equal(t, left, time.Since(begin))
			require.ErrorIs(t, f.Unlock(ctx), rlock.ErrLost)
		}))
	}
}

// proven is for how long a majority of the servers has it.
func (f *fakes) proven(now time.Time) time.Duration {
	var lefts []time.Duration
	for i, s := range f.servers {
		s.mu.Lock()
		if s.holder == f.locks[i].client+":o" {
			lefts = append(lefts, s.until.Sub(now))
		}
		s.mu.Unlock()
	}
	return majority(lefts, f.quorum)
}
