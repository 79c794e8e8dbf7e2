package integration

import (
	"context"
	"errors"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/script"
	"github.com/relock-go/relock/rlock"
)

// holder is an owner of the other client who is inside before.
const holder = rlock.Owner("holder")

// kindDeed is an operation on a lock of some kind that a fault can hit, and what it
// leaves.
type kindDeed struct {
	name    string
	script  *script.Script // whose next call is hit
	opts    []rlock.Option
	of      member // what it is about
	visitor member // what contends with it; nil: the same
	free    bool   // others who contend come after it: nobody of ours is in before, or it would wait behind them

	before func(s *kindStage)
	do     func(s *kindStage) error // the operation, to its end
	after  func(s *kindStage)       // when its seats have left; nil: nothing is to do

	seats []seat      // of ours afterwards
	owner rlock.Owner // who locks again after it, where that is not alice
}

// kindStage is a stage with what a deed has begun.
type kindStage struct {
	*stage
	pending <-chan error // of ours
	away    <-chan error // of the other client
	cancel  context.CancelFunc
}

func (d *kindDeed) visits() member {
	if d.visitor != nil {
		return d.visitor
	}
	return d.of
}

func (d *kindDeed) actor() rlock.Owner {
	if d.owner != "" {
		return d.owner
	}
	return alice
}

func only(o rlock.Owner, of member, depth int) []seat { return []seat{{o, of, depth}} }

// entered has alice lock n times.
func entered(n int) func(*kindStage) {
	return func(s *kindStage) {
		s.Helper()
		for range n {
			require.NoError(s, s.lock())
			s.note(s.mine(), alice)
		}
	}
}

func nothingBefore(*kindStage) {}

func locks(s *kindStage) error   { return s.lock() }
func unlocks(s *kindStage) error { return s.unlock() }

func extends(s *kindStage) error { return s.mine().Extend(s.as(alice), 35*time.Second) }

// outside has the other client hold the lock through by, and alice wait.
func outside(by member, what *script.Script, asks int) func(*kindStage) {
	return func(s *kindStage) {
		s.Helper()
		require.NoError(s, by(s.theirs).Lock(s.as(holder)))
		s.pending = s.begins(s.ctx, s.mine(), alice, what, asks)
	}
}

// freed has the other client unlock what it held through by.
func freed(by member) func(*kindStage) error {
	return func(s *kindStage) error {
		return errors.Join(by(s.theirs).Unlock(s.as(holder)), <-s.pending)
	}
}

// bobBehind has alice inside and bob in line.
func bobBehind(what *script.Script, asks int) func(*kindStage) {
	return func(s *kindStage) {
		s.Helper()
		entered(1)(s)
		s.pending = s.begins(s.ctx, s.mine(), bob, what, asks)
	}
}

// passes is alice's last Unlock with bob in line.
func passes(s *kindStage) error { return errors.Join(s.unlock(), <-s.pending) }

func (s *kindStage) renewed() error { return renewal(s.scene) }

var (
	noHandoff = []rlock.Option{rlock.WithHandoffLimit(0, 0)}
	shortly   = []rlock.Option{rlock.WithWatchdogTimeout(shortDog)}
)

var fairDeeds = []kindDeed{
	{
		name: "fair acquire", script: script.FairAcquire, of: fairOf, free: true,
		before: nothingBefore, do: locks, seats: only(alice, fairOf, 1),
	},
	{
		// Its first request is hit, which puts it into the queue.
		name: "fair queueing", script: script.FairAcquire, of: fairOf, free: true,
		before: func(s *kindStage) { require.NoError(s, s.theirs.fair.Lock(s.as(holder))) },
		do: func(s *kindStage) error {
			s.pending = inBackground(s.lock)
			s.eventually(func() bool { return s.c.Stats().Waiting > 0 }, "alice waits")
			require.Equal(s, 1, s.stood(alice), "in the queue")
			return freed(fairOf)(s)
		},
		seats: only(alice, fairOf, 1),
	},
	{
		name: "fair acquire out of the queue", script: script.FairAcquire, of: fairOf, free: true,
		before: outside(fairOf, script.FairAcquire, 2), do: freed(fairOf),
		seats: only(alice, fairOf, 1),
	},
	{
		name: "fair re-entry", script: script.Keep, of: fairOf,
		before: entered(1), do: locks, seats: only(alice, fairOf, 2),
	},
	{
		name: "fair inner unlock", script: script.Keep, of: fairOf,
		before: entered(3), do: unlocks, seats: only(alice, fairOf, 2),
	},
	{
		name: "fair release", script: script.FairRelease, of: fairOf, opts: noHandoff,
		before: entered(1), do: unlocks,
	},
	{
		name: "fair pass", script: script.FairPass, of: fairOf,
		before: bobBehind(script.FairAcquire, 1), do: passes, seats: only(bob, fairOf, 1),
	},
	{
		// Redis finds the other client's waiter first, and frees the lock for it.
		name: "fair pass that frees", script: script.FairPass, of: fairOf,
		before: func(s *kindStage) {
			require.NoError(s, s.lock())
			before := s.other.Stats().Contended
			s.away = inBackground(func() error { return s.theirs.fair.Lock(s.as(holder)) })
			s.eventually(func() bool { return s.other.Stats().Contended > before }, "the holder to be waits")
			s.pending = s.begins(s.ctx, s.mine(), bob, script.FairAcquire, 1)
		},
		do: func(s *kindStage) error {
			return errors.Join(s.unlock(), <-s.away, s.theirs.fair.Unlock(s.as(holder)), <-s.pending)
		},
		seats: only(bob, fairOf, 1),
	},
	{
		name: "fair leave", script: script.FairLeave, of: fairOf, free: true,
		before: func(s *kindStage) {
			require.NoError(s, s.theirs.fair.Lock(s.as(holder)))
			var ctx context.Context
			ctx, s.cancel = context.WithCancel(s.ctx)
			s.pending = s.begins(ctx, s.mine(), alice, script.FairAcquire, 1)
		},
		do: func(s *kindStage) error {
			s.cancel()
			return wanted(context.Canceled, <-s.pending)
		},
		after: func(s *kindStage) { require.NoError(s, s.theirs.fair.Unlock(s.as(holder))) },
	},
}

var rwDeeds = []kindDeed{
	{
		name: "read acquire", script: script.RWAcquire, of: readOf, visitor: writeOf, free: true,
		before: nothingBefore, do: locks, seats: only(alice, readOf, 1),
	},
	{
		name: "read acquire after a wait", script: script.RWAcquire, of: readOf, visitor: writeOf, free: true,
		before: outside(writeOf, script.RWAcquire, 2), do: freed(writeOf), seats: only(alice, readOf, 1),
	},
	{
		name: "read beside a reader", script: script.RWAcquire, of: readOf, visitor: writeOf, free: true,
		before: func(s *kindStage) { require.NoError(s, s.ours.read.Lock(s.as(bob))) },
		do:     locks, seats: []seat{{alice, readOf, 1}, {bob, readOf, 1}},
	},
	{
		name: "read re-entry", script: script.RWKeep, of: readOf, visitor: writeOf,
		before: entered(1), do: locks, seats: only(alice, readOf, 2),
	},
	{
		name: "read inner unlock", script: script.RWKeep, of: readOf, visitor: writeOf,
		before: entered(3), do: unlocks, seats: only(alice, readOf, 2),
	},
	{
		name: "read extend", script: script.RWKeep, of: readOf, visitor: writeOf,
		before: entered(1), do: extends, seats: only(alice, readOf, 1),
	},
	{
		name: "read renewal", script: script.RWRenew, of: readOf, visitor: writeOf, opts: shortly,
		before: entered(2), do: (*kindStage).renewed, seats: only(alice, readOf, 2),
	},
	{
		name: "read release", script: script.RWRelease, of: readOf, visitor: writeOf,
		before: entered(1), do: unlocks,
	},
	{
		name: "read release beside a reader", script: script.RWRelease, of: readOf, visitor: writeOf,
		before: func(s *kindStage) {
			entered(1)(s)
			require.NoError(s, s.ours.read.Lock(s.as(bob)))
		},
		do: unlocks, seats: only(bob, readOf, 1),
	},
	{
		name: "read beside one's own write", script: script.RWAcquire, of: readOf, visitor: writeOf,
		before: func(s *kindStage) { require.NoError(s, s.ours.write.Lock(s.as(alice))) },
		do:     locks, seats: []seat{{alice, readOf, 1}, {alice, writeOf, 1}},
	},
	{
		name: "write acquire", script: script.RWAcquire, of: writeOf, free: true,
		before: nothingBefore, do: locks, seats: only(alice, writeOf, 1),
	},
	{
		name: "write acquire after a wait", script: script.RWAcquire, of: writeOf, free: true,
		before: outside(readOf, script.RWAcquire, 2), do: freed(readOf), seats: only(alice, writeOf, 1),
	},
	{
		name: "write re-entry", script: script.RWKeep, of: writeOf, visitor: readOf,
		before: entered(1), do: locks, seats: only(alice, writeOf, 2),
	},
	{
		name: "write inner unlock", script: script.RWKeep, of: writeOf,
		before: entered(3), do: unlocks, seats: only(alice, writeOf, 2),
	},
	{
		name: "write renewal", script: script.RWRenew, of: writeOf, opts: shortly,
		before: entered(1), do: (*kindStage).renewed, seats: only(alice, writeOf, 1),
	},
	{
		name: "write release", script: script.RWRelease, of: writeOf, opts: noHandoff,
		before: entered(1), do: unlocks,
	},
	{
		name: "write pass", script: script.RWPass, of: writeOf,
		before: bobBehind(script.RWAcquire, 1), do: passes, seats: only(bob, writeOf, 1),
	},
	{
		name: "downgrade", script: script.RWRelease, of: writeOf,
		before: func(s *kindStage) {
			entered(1)(s)
			for range 2 {
				require.NoError(s, s.ours.read.Lock(s.as(alice)))
			}
		},
		do: unlocks, seats: only(alice, readOf, 2),
	},
}

var fencedDeeds = []kindDeed{
	{
		name: "fenced acquire", script: script.Acquire, of: fencedOf, free: true,
		before: nothingBefore, do: locks, seats: only(alice, fencedOf, 1),
	},
	{
		name: "fenced acquire after a wait", script: script.Acquire, of: fencedOf, free: true,
		before: outside(fencedOf, script.Acquire, 2), do: freed(fencedOf), seats: only(alice, fencedOf, 1),
	},
	{
		name: "keep that draws a token", script: script.Keep, of: fencedOf,
		before: func(s *kindStage) { require.NoError(s, s.ours.plain.Lock(s.as(alice))) },
		do:     locks, seats: only(alice, fencedOf, 2),
	},
	{
		name: "fenced inner unlock", script: script.Keep, of: fencedOf,
		before: entered(2), do: unlocks, seats: only(alice, fencedOf, 1),
	},
	{
		name: "fenced release", script: script.Release, of: fencedOf, opts: noHandoff,
		before: entered(1), do: unlocks,
	},
	{
		name: "fenced pass", script: script.Pass, of: fencedOf,
		before: bobBehind(script.Acquire, 1), do: passes, seats: only(bob, fencedOf, 1),
	},
	{
		name: "fenced pass from a plain lock", script: script.Pass, of: fencedOf,
		before: func(s *kindStage) {
			require.NoError(s, s.ours.plain.Lock(s.as(alice)))
			s.pending = s.begins(s.ctx, s.mine(), bob, script.Acquire, 1)
		},
		do: passes, seats: only(bob, fencedOf, 1),
	},
}
