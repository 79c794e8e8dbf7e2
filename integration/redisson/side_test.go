package redisson

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/relock-go/relock/rlock"
)

// meanings are the exceptions that say what an error of relock says. Redisson
// does not tell a lock that was lost from one that was never held.
var meanings = []struct {
	class string
	err   error
}{
	{"java.lang.IllegalMonitorStateException", rlock.ErrNotHeld},
	{"java.lang.IllegalMonitorStateException", rlock.ErrLost},
	{"java.lang.InterruptedException", context.Canceled},
}

// side is a language.
type side interface {
	String() string
	// open returns a client of that language with that watchdog timeout.
	open(t testing.TB, watchdog time.Duration) peer
}

// peer is a client, what Redisson and relock know as one process.
type peer interface {
	// party returns a new owner, for the lock of that kind and name.
	party(t testing.TB, kind, name string) party
}

// party is an owner and a lock. It is for one goroutine at a time, but interrupt
// and asleep, which are for others while it waits.
type party interface {
	kind() string
	as(kind string) party           // the same owner, at a lock of that kind and the same name
	field() string                  // the owner's field in the lock's hash
	lock(lease time.Duration) error // lease 0: kept by the watchdog
	tryLock(wait, lease time.Duration) (bool, error)
	unlock() error
	forceUnlock() (bool, error)
	holdCount() (int, error)
	isLocked() (bool, error)
	isHeld() (bool, error)
	ttl() (time.Duration, error) // 0: free
	interrupt()                  // ends the lock that waits
	asleep() bool                // whether its lock waits for a message
}

// javaSide is Redisson.
type javaSide struct {
	*jvm
	on   *deployment
	mode mode

	mu      sync.Mutex // guards clients
	clients map[time.Duration]*javaPeer
}

// newJavaSide is Redisson in a mode. Its clients end with t.
func newJavaSide(t testing.TB, j *jvm, on *deployment, mode mode) *javaSide {
	s := &javaSide{jvm: j, on: on, mode: mode, clients: map[time.Duration]*javaPeer{}}
	t.Cleanup(func() {
		var closing errgroup.Group
		for _, p := range s.clients {
			closing.Go(p.shutdown)
		}
		require.NoError(t, closing.Wait())
	})
	return s
}

func (s *javaSide) String() string { return "java" }

// open returns the client with that watchdog timeout, which all tests share: one
// costs dozens of threads.
func (s *javaSide) open(t testing.TB, watchdog time.Duration) peer {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.clients[watchdog] == nil {
		s.clients[watchdog] = s.client(t, s.on.addrs, watchdog)
	}
	return s.clients[watchdog]
}

// client returns a client of its own, for any way to Redis. Whoever wants it to
// end before the JVM closes it. more are words of its command, see Clients.java.
func (s *javaSide) client(t testing.TB, addrs []string, watchdog time.Duration, more ...string) *javaPeer {
	t.Helper()
	p := &javaPeer{side: s, name: fmt.Sprintf("client-%d", s.serial.Add(1))}
	w := words{
		"op": "open", "thread": p.name, "client": p.name,
		"address": strings.Join(addrs, ","), "watchdog": millis(watchdog),
	}
	if s.on.cluster != nil {
		w = w.with("sharded", s.mode.java)
	}
	_, err := s.call(w.with(more...), &p.uuid)
	require.NoError(t, err)
	return p
}

type javaPeer struct {
	side       *javaSide
	name, uuid string
}

func (p *javaPeer) close(t testing.TB) {
	t.Helper()
	require.NoError(t, p.shutdown())
}

func (p *javaPeer) shutdown() error {
	_, err := p.side.call(words{"op": "close", "thread": p.name, "client": p.name}, nil)
	return err
}

func (p *javaPeer) party(t testing.TB, kind, name string) party { return p.worker(t, kind, name) }

func (p *javaPeer) worker(t testing.TB, kind, name string) *javaParty {
	t.Helper()
	j := &javaParty{peer: p, about: words{
		"thread": fmt.Sprintf("worker-%d", p.side.serial.Add(1)),
		"client": p.name, "kind": kind, "name": name,
	}}
	var err error
	j.thread, err = p.side.call(j.about.with("op", "ping"), nil)
	require.NoError(t, err)
	return j
}

// javaParty is a Java thread.
type javaParty struct {
	peer   *javaPeer
	about  words
	thread int64
}

func (j *javaParty) String() string { return "java" }

func (j *javaParty) kind() string { return j.about["kind"] }

func (j *javaParty) as(kind string) party {
	return &javaParty{peer: j.peer, about: j.about.with("kind", kind), thread: j.thread}
}

func (j *javaParty) field() string {
	return fieldOf(j.kind(), j.peer.uuid+":"+strconv.FormatInt(j.thread, 10))
}

// fieldOf is an owner's field in the hash of a lock of that kind.
func fieldOf(kind, owner string) string {
	if kind == "write" {
		return owner + ":write"
	}
	return owner
}

func (j *javaParty) do(value any, op string, more ...string) error {
	_, err := j.peer.side.call(j.about.with(append(more, "op", op)...), value)
	return err
}

func ask[T any](j *javaParty, op string, more ...string) (v T, err error) {
	err = j.do(&v, op, more...)
	return v, err
}

func (j *javaParty) lock(lease time.Duration) error {
	if lease == 0 {
		return j.do(nil, "lockInterruptibly")
	}
	return j.do(nil, "lockInterruptibly", "lease", millis(lease))
}

func (j *javaParty) tryLock(wait, lease time.Duration) (bool, error) {
	var more []string
	if wait > 0 || lease > 0 {
		more = append(more, "wait", millis(wait))
	}
	if lease > 0 {
		more = append(more, "lease", millis(lease))
	}
	return ask[bool](j, "tryLock", more...)
}

func (j *javaParty) unlock() error              { return j.do(nil, "unlock") }
func (j *javaParty) forceUnlock() (bool, error) { return ask[bool](j, "forceUnlock") }
func (j *javaParty) holdCount() (int, error)    { return ask[int](j, "holdCount") }
func (j *javaParty) isLocked() (bool, error)    { return ask[bool](j, "isLocked") }
func (j *javaParty) isHeld() (bool, error)      { return ask[bool](j, "isHeldByCurrentThread") }

func (j *javaParty) ttl() (time.Duration, error) {
	ms, err := ask[int64](j, "ttl")
	if ms == -2 {
		ms = 0
	}
	return time.Duration(ms) * time.Millisecond, err
}

func (j *javaParty) interrupt() { <-j.peer.side.send(j.about.with("op", "interrupt")) }

func (j *javaParty) asleep() bool {
	asleep, err := ask[bool](j, "asleep")
	return err == nil && asleep
}

// tally is what came of a contention.
type tally struct {
	Entries int
	Waited  time.Duration // for all entries together
	Longest time.Duration
	Late    int // entries after a longer wait than handoffLimit, Java's only
}

// contend takes the lock again and again for that long and increments counter
// inside; it stays for work, and comes back after pause.
func (j *javaParty) contend(counter string, d, work, pause time.Duration) (tally, error) {
	return ask[tally](j, "contend", "counter", counter,
		"millis", millis(d), "work", millis(work), "pause", millis(pause), "limit", millis(handoffLimit))
}

// goSide is relock. Each client is a test's own.
type goSide struct {
	on   *deployment
	mode mode
}

func (s *goSide) String() string { return "go" }

func (s *goSide) open(t testing.TB, watchdog time.Duration) peer {
	t.Helper()
	return s.client(t, s.on.client(t), rlock.WithWatchdogTimeout(watchdog))
}

// client is open for any way to Redis, and any options.
func (s *goSide) client(t testing.TB, rdb redis.UniversalClient, opts ...rlock.Option) *goPeer {
	t.Helper()
	p := &goPeer{}
	// A waiter does not look by itself for an hour: it is told, or it comes when the
	// TTL is over.
	own := []rlock.Option{rlock.WithRecheck(time.Hour), rlock.WithTrace(&rlock.Trace{
		Waiting: func(_ string, o rlock.Owner) { p.waiting.Store(o, true) },
	})}
	opts = slices.Concat(own, s.mode.golang, opts)
	var err error
	p.c, err = rlock.New(rdb, opts...)
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		require.NoError(t, p.c.Close(ctx))
	})
	return p
}

type goPeer struct {
	c       *rlock.Client
	waiting sync.Map // owners that found the lock taken
}

func (p *goPeer) party(t testing.TB, kind, name string) party { return p.worker(t, kind, name) }

// owner is a worker at a plain lock.
func (p *goPeer) owner(t testing.TB, name string) *goParty {
	t.Helper()
	return p.worker(t, "lock", name)
}

func (p *goPeer) worker(t testing.TB, kind, name string) *goParty {
	t.Helper()
	owner := rlock.NewOwner()
	g := &goParty{peer: p, about: kind, owner: owner, ctx: rlock.WithOwner(context.Background(), owner)}
	g.l = p.lock(kind, name)
	return g
}

// goLock is what all kinds of locks of relock's can do.
type goLock interface {
	rlock.Locker
	ForceUnlock(ctx context.Context) (bool, error)
	HoldCount(ctx context.Context) (int, error)
	IsLocked(ctx context.Context) (bool, error)
	IsHeld(ctx context.Context) (bool, error)
	TTL(ctx context.Context) (time.Duration, error)
}

func (p *goPeer) lock(kind, name string) goLock {
	switch kind {
	case "lock":
		return p.c.NewLock(name)
	case "fair":
		return p.c.NewFairLock(name)
	case "read":
		return p.c.NewReadWriteLock(name).ReadLock()
	case "write":
		return p.c.NewReadWriteLock(name).WriteLock()
	case "fenced":
		return p.c.NewFencedLock(name)
	case "spin":
		return p.c.NewSpinLock(name)
	}
	panic("bug: no such kind: " + kind)
}

// goParty is an owner of relock's.
type goParty struct {
	peer  *goPeer
	about string // the kind of l
	l     goLock
	owner rlock.Owner
	ctx   context.Context

	mu     sync.Mutex // guards what follows
	cancel context.CancelFunc
	asks   uint64 // the client's attempts after which this owner sleeps
}

func (g *goParty) String() string { return "go" }

func (g *goParty) kind() string { return g.about }

func (g *goParty) as(kind string) party {
	return &goParty{peer: g.peer, about: kind, l: g.peer.lock(kind, g.l.Name()), owner: g.owner, ctx: g.ctx}
}

func (g *goParty) field() string { return fieldOf(g.kind(), g.peer.c.ID()+":"+string(g.owner)) }

func (g *goParty) lock(lease time.Duration) error {
	ctx, cancel := context.WithTimeout(g.ctx, answerLimit)
	defer cancel()
	defer g.peer.waiting.Delete(g.owner)
	g.mu.Lock()
	g.cancel = cancel
	now := g.peer.c.Stats()
	switch {
	case now.Waiting > 0: // only the first in line asks
		g.asks = now.Attempts
	case now.Held > 0: // it need not ask before it subscribes
		g.asks = now.Attempts + 1
	default:
		g.asks = now.Attempts + 2
	}
	g.mu.Unlock()
	return g.l.LockLease(ctx, lease)
}

func (g *goParty) tryLock(wait, lease time.Duration) (bool, error) {
	return g.l.TryLock(g.ctx, wait, lease)
}

func (g *goParty) unlock() error               { return g.l.Unlock(g.ctx) }
func (g *goParty) forceUnlock() (bool, error)  { return g.l.ForceUnlock(g.ctx) }
func (g *goParty) holdCount() (int, error)     { return g.l.HoldCount(g.ctx) }
func (g *goParty) isLocked() (bool, error)     { return g.l.IsLocked(g.ctx) }
func (g *goParty) isHeld() (bool, error)       { return g.l.IsHeld(g.ctx) }
func (g *goParty) ttl() (time.Duration, error) { return g.l.TTL(g.ctx) }

func (g *goParty) interrupt() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.cancel()
}

func (g *goParty) asleep() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	_, waits := g.peer.waiting.Load(g.owner)
	return waits && g.peer.c.Stats().Attempts >= g.asks
}

// contend is as that of javaParty. The increments go past any fault.
func (g *goParty) contend(rdb redis.UniversalClient, counter string, d, work, pause time.Duration) (c tally, err error) {
	for began := time.Now(); time.Since(began) < d; time.Sleep(pause) {
		asked := time.Now()
		if err := g.l.Lock(g.ctx); err != nil {
			return c, err
		}
		wait := time.Since(asked)
		err := increment(g.ctx, rdb, counter)
		time.Sleep(work)
		if err := errors.Join(err, g.l.Unlock(g.ctx)); err != nil {
			return c, err
		}
		c.Entries++
		c.Waited += wait
		c.Longest = max(c.Longest, wait)
	}
	return c, nil
}

// increment reads and writes back: two at once lose one.
func increment(ctx context.Context, rdb redis.UniversalClient, counter string) error {
	n, err := rdb.Get(ctx, counter).Int()
	if err != nil && !errors.Is(err, redis.Nil) {
		return err
	}
	return rdb.Set(ctx, counter, n+1, 0).Err()
}

func millis(d time.Duration) string { return strconv.FormatInt(d.Milliseconds(), 10) }
