package script

import "strings"

// Channel is the channel on which the release of the lock at key is told.
// Redisson 4 uses the same name.
func Channel(key string) string { return prefixed("redisson_lock__channel", key) }

// prefixed puts prefix before key so that both lie in one cluster slot. A key
// that has a brace of its own is taken to have a hash tag and stays as it is;
// that is Redisson's only test, so it is ours.
func prefixed(prefix, key string) string {
	if strings.Contains(key, "{") {
		return prefix + ":" + key
	}
	return prefix + ":{" + key + "}"
}
