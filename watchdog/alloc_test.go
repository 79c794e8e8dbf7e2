package watchdog

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestKeepDrop_DoNotAllocate(t *testing.T) {
	w := New(Config[int]{Period: period, Attempt: attempt, Renew: func(context.Context, []*Lease[int]) {}})
	defer w.Close(t.Context())
	l := &Lease[int]{}
	now := time.Now()
	w.Keep(l, now.Add(period), now.Add(lifetime)) // starts the ticker
	require.Zero(t, testing.AllocsPerRun(1000, func() {
		w.Keep(l, now.Add(period), now.Add(lifetime))
		w.Drop(l)
	}))
}
