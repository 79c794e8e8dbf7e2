package redistest

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

func TestMiniTTLRunsDown(t *testing.T) {
	t.Parallel()
	m := StartMini(t)
	rdb := NewClient(t, m.Addr())
	ctx := t.Context()
	require.NoError(t, rdb.Set(ctx, "long", "x", time.Minute).Err())
	require.NoError(t, rdb.Set(ctx, "short", "x", 30*time.Millisecond).Err())
	first, err := rdb.PTTL(ctx, "long").Result()
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		left, err := rdb.Eval(ctx, "return redis.call('pttl', KEYS[1])", []string{"long"}).Int64()
		return err == nil && time.Duration(left)*time.Millisecond < first
	}, 5*time.Second, time.Millisecond, "a script sees the TTL fall")
	require.Eventually(t, func() bool {
		return rdb.Get(ctx, "short").Err() == redis.Nil
	}, 5*time.Second, time.Millisecond, "the key expires")
}
