// Package integration tests relock on real Redis servers. It is a module of its
// own, so that what starts the servers never reaches the library's users.
//
// The package itself is what its tests, and those in folders below, stand on:
// servers (Redis, OwnRedis), processes that can be stopped and killed
// (StartChild), and histories of locks that are judged (CheckMutex).
package integration
