package redistest

import (
	"testing"

	"github.com/alicebob/miniredis/v2"
)

// StartMini starts an embedded Redis that is closed when t ends. Its TTLs run
// down with the clock: time.Now, or what SetTime was given.
func StartMini(t testing.TB) *miniredis.Miniredis {
	t.Helper()
	m := miniredis.NewMiniRedis()
	m.ClockTTL(true)
	if err := m.Start(); err != nil {
		t.Fatalf("redistest: start miniredis: %v", err)
	}
	t.Cleanup(m.Close)
	return m
}
