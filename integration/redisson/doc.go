// Package redisson tests relock beside the real Redisson, on a single Redis and on
// a cluster of three masters with sharded pub/sub.
//
// The folder java holds a program on Redisson that the tests drive: it is built
// with Maven when its sources have changed, and one JVM serves all tests.
// Without a JDK or Maven they skip; RELOCK_REQUIRE_REDISSON=1 makes that a
// failure.
//
// What is tested of a kind of lock is a list of cells (lockCells, for one). A
// cell is written once, for two sides that it does not know, and runs both ways:
// Java holds and Go is the other, and the reverse. All cells run on both
// deployments.
package redisson
