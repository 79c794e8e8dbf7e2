// Package redistest gives tests a Redis of their own and ways to make it fail:
// a redis-server process, an embedded miniredis whose TTLs run down, a proxy
// that loses, holds back and reorders what passes between client and server,
// and a count of the commands that the server has run.
//
// Everything listens on loopback, on a port of its own, and ends with the test.
package redistest
