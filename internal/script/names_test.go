package script

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// A Java peer listens on exactly these.
func TestWAIT10_Channel(t *testing.T) {
	t.Parallel()
	for key, want := range map[string]string{
		"a":            "redisson_lock__channel:{a}",
		"test:lock:1":  "redisson_lock__channel:{test:lock:1}",
		"two words":    "redisson_lock__channel:{two words}",
		"zámek 锁":      "redisson_lock__channel:{zámek 锁}",
		"x}y":          "redisson_lock__channel:{x}y}",
		"{a}b":         "redisson_lock__channel:{a}b",
		"my{tag}lock":  "redisson_lock__channel:my{tag}lock",
		"a{}b":         "redisson_lock__channel:a{}b",
		"}{":           "redisson_lock__channel:}{",
		"{":            "redisson_lock__channel:{",
		"line\nbreak%": "redisson_lock__channel:{line\nbreak%}",
	} {
		require.Equal(t, want, Channel(key))
	}
}
