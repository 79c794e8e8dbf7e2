package owner

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestNew(t *testing.T) {
	seen := make(map[string]bool)
	for range 10_000 {
		s := New()
		require.NoError(t, Check(s))
		require.NotEmpty(t, strings.Trim(s, "0123456789"), "all digits are a goroutine's")
		require.False(t, seen[s], "twice: %s", s)
		seen[s] = true
	}
}

func TestCheck(t *testing.T) {
	for _, good := range []string{"a", "7", "-", "_", ".", "azAZ09-_.", strings.Repeat("x", 128)} {
		assert.NoError(t, Check(good), good)
	}
	for bad, why := range map[string]string{
		"":                       "empty",
		strings.Repeat("x", 129): "129 bytes",
		"a b":                    "byte 1",
		"a:b":                    "byte 1",
		"{a}":                    "byte 0",
		"a\x00":                  "byte 1",
		"ä":                      "byte 0",
		"ab/":                    "byte 2",
	} {
		assert.ErrorContains(t, Check(bad), why, "%q", bad)
	}
}
