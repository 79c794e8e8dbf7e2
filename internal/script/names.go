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

// The other names of a lock at key, each in its slot. They are Redisson's.

// TokenKey is the counter of a fenced lock's tokens.
func TokenKey(key string) string { return prefixed("redisson_lock_token", key) }

// QueueKey is the list of a fair lock's waiters, and ScoresKey the moments until which
// each of them is waited for.
func QueueKey(key string) string  { return prefixed("redisson_lock_queue", key) }
func ScoresKey(key string) string { return prefixed("redisson_lock_timeout", key) }

// TurnChannel is the channel on which the fair waiter of that field hears that it is
// next; channel is the lock's.
func TurnChannel(channel, field string) string { return channel + ":" + field }

// RWChannel is the channel on which the release of a read-write lock is told.
func RWChannel(key string) string { return prefixed("redisson_rwlock", key) }

// HoldBase is what the keys of a read-write lock's read holds begin with.
func HoldBase(key string) string {
	if strings.Contains(key, "{") {
		return key
	}
	return "{" + key + "}"
}
