package rlock

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Whatever a holder does next, it hears that its lock is gone when another key
// stands in its place, and that key is not touched.
func TestACQ14_TheKeyIsReplacedUnderAHolder(t *testing.T) {
	for name, next := range map[string]func(*Lock) error{
		"re-entry": func(l *Lock) error { return l.Lock(t.Context()) },
		"extend":   func(l *Lock) error { return l.Extend(t.Context(), time.Minute) },
		"unlock":   func(l *Lock) error { return l.Unlock(t.Context()) },
	} {
		t.Run(name, func(t *testing.T) {
			c := onShared(t)
			l := c.NewLock(unique("replaced"))
			rdb := c.redis.rdb
			require.NoError(t, l.Lock(t.Context()))
			require.NoError(t, rdb.Set(t.Context(), l.Key(), "precious", time.Minute).Err())
			lost := l.Lost(t.Context())
			require.ErrorIs(t, next(l), ErrLost)
			recv(t, lost, "the loss")
			require.Equal(t, "precious", rdb.Get(t.Context(), l.Key()).Val())
		})
	}
}
