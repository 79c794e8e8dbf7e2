package script

import "strings"

// OneSlot tells whether a cluster keeps a lock's key, its channel and whatever
// else Redisson names after it in one slot. It does not for names whose braces
// mean something else to Redis than to the rule of prefixed, "a{b" say.
func OneSlot(key string) bool { return key != "" && tag(key) == tag(Channel(key)) }

// tag is the part of a key that a cluster hashes: what stands between the first
// brace and the next closing one, if that is anything; else all of it.
func tag(key string) string {
	_, rest, open := strings.Cut(key, "{")
	inner, _, closed := strings.Cut(rest, "}")
	if !open || !closed || inner == "" {
		return key
	}
	return inner
}
