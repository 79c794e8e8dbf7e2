package integration

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/redistest"
	"github.com/relock-go/relock/internal/script"
	"github.com/relock-go/relock/rlock"
)

// eachMember are the kinds of locks that a test goes through.
var eachMember = []string{"lock", "fair", "fenced", "spin", "read", "write"}

// replicas are a master, those who follow it, and a client of the master through a proxy.
type replicas struct {
	*testing.T
	ctx    context.Context
	master *redistest.Server
	all    []*redistest.Server
	line   *redistest.Proxy
	direct *redis.Client // of the master
}

func startReplicas(t *testing.T, n int) *replicas {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), faultLimit)
	t.Cleanup(cancel)
	r := &replicas{T: t, ctx: ctx, master: redistest.StartServer(t, "--repl-diskless-sync-delay", "0")}
	host, port, err := net.SplitHostPort(r.master.Addr)
	require.NoError(t, err)
	for range n {
		r.all = append(r.all, redistest.StartServer(t, "--replicaof", host+" "+port))
	}
	r.line, r.direct = redistest.NewProxy(t, r.master.Addr), r.master.Client(t)
	// Else the first call of each would be two, with a WAIT each.
	(&rig{direct: r.direct}).load(t)
	r.follow(n)
	return r
}

// follow waits until n replicas have what the master has.
func (r *replicas) follow(n int) {
	r.Helper()
	require.NoError(r, r.direct.Set(r.ctx, "follow", time.Now().String(), 0).Err())
	require.Eventually(r, func() bool {
		have, err := r.direct.Wait(r.ctx, n, time.Second).Result()
		return err == nil && int(have) >= n
	}, faultLimit, 5*time.Millisecond, "%d replicas follow", n)
}

// ackTimeout is long for a replica, and short for those who wait in vain for one.
const ackTimeout = 200 * time.Millisecond

// client waits for n replicas. Nobody looks by himself for an hour.
func (r *replicas) client(n int, opts ...rlock.Option) *rlock.Client {
	r.Helper()
	opts = append([]rlock.Option{rlock.WithReplicaAcks(n, ackTimeout), rlock.WithRecheck(time.Hour)}, opts...)
	return lockClient(r, redistest.NewClient(r, r.line.Addr), opts...)
}

// asked is how often a command was sent.
func (r *replicas) asked(command string) int { return r.line.CountCommand(command) }

// nothing checks that nothing of a lock is left, and that c holds nothing.
func (r *replicas) nothing(c *rlock.Client, lock string) {
	r.Helper()
	free(r.T, r.direct, lock)
	require.Zero(r, c.Stats().Held)
	require.Zero(r, c.Stats().Waiting)
	require.Zero(r, c.Stats().Lost, "it was never held, so nothing is lost")
}

// A Lock that returns is at all the replicas that it asked for. What is no fresh
// acquisition waits for none.
func TestReplicas_Enough(t *testing.T) {
	t.Parallel()
	r := startReplicas(t, 2)
	for name, opts := range map[string][]rlock.Option{"plain": nil, "WithAutoPipeline": {rlock.WithAutoPipeline()}} {
		t.Run(name, func(t *testing.T) {
			c := r.client(2, opts...)
			for _, kind := range eachMember {
				lock := kind + name
				l, ctx := members[kind](familyOf(c, lock)), rlock.WithOwner(r.ctx, alice)
				r.line.ResetCounts()
				require.NoError(t, l.Lock(ctx), kind)
				for _, one := range r.all {
					require.EqualValues(t, 1, one.Client(t).Exists(ctx, lock).Val(), "%s is at each replica", kind)
				}
				require.Equal(t, 1, r.asked("wait"), "%s: one WAIT", kind)
				require.NoError(t, l.Lock(ctx))
				require.NoError(t, l.Extend(ctx, time.Minute))
				require.NoError(t, l.Unlock(ctx))
				require.NoError(t, l.Unlock(ctx))
				require.Equal(t, 1, r.asked("wait"), "%s: only a fresh acquisition waits", kind)
				r.nothing(c, lock)
			}
		})
	}
}

// With fewer replicas than are asked for nothing is held, and the acquisition runs once.
func TestReplicas_TooFew(t *testing.T) {
	t.Parallel()
	for what, set := range map[string]struct {
		start, want int
		stop        bool // one of them
	}{
		"none": {0, 1, false}, "one of two": {1, 2, false}, "one is stopped": {2, 2, true}, "the only one is stopped": {1, 1, true},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			r := startReplicas(t, set.start)
			if set.stop {
				require.NoError(t, r.all[0].Stop())
				defer func() { _ = r.all[0].Cont() }()
			}
			c := r.client(set.want)
			ctx := rlock.WithOwner(r.ctx, alice)
			for _, kind := range eachMember {
				l := members[kind](familyOf(c, kind))
				ways := map[string]func() error{"Lock": func() error { return l.Lock(ctx) }}
				if kind == "lock" || kind == "fair" {
					ways["TryLock"] = func() error { return second(l.TryLock(ctx, 0, 0)) }
					ways["TryLock and wait"] = func() error { return second(l.TryLock(ctx, time.Minute, 0)) }
				}
				for way, lock := range ways {
					before := c.Stats()
					began := time.Now()
					require.ErrorIs(t, lock(), rlock.ErrReplicas, "%s of %s", way, kind)
					require.GreaterOrEqual(t, time.Since(began), ackTimeout, "%s of %s: they had their time", way, kind)
					require.Zero(t, l.Validity(ctx))
					require.ErrorIs(t, l.Unlock(ctx), rlock.ErrNotHeld, "%s of %s", way, kind)
					r.nothing(c, kind)
					after := c.Stats()
					require.EqualValues(t, 1, after.Attempts-before.Attempts, "%s of %s runs once", way, kind)
					require.EqualValues(t, before.Acquired, after.Acquired)
					require.EqualValues(t, 1, after.Failed-before.Failed)
				}
			}
			if set.stop { // it comes back, and all is well
				require.NoError(t, r.all[0].Cont())
				r.follow(set.want)
				l := c.NewLock("again")
				require.NoError(t, l.Lock(ctx))
				require.NoError(t, l.Unlock(ctx))
			}
		})
	}
}

// SCRIPT FLUSH: the script is sent whole, once, and waited for.
func TestReplicas_NoScript(t *testing.T) {
	t.Parallel()
	r := startReplicas(t, 1)
	c := r.client(1)
	ctx := rlock.WithOwner(r.ctx, alice)
	for _, kind := range eachMember {
		require.NoError(t, r.direct.ScriptFlush(ctx).Err())
		l := members[kind](familyOf(c, kind))
		r.line.ResetCounts()
		require.NoError(t, l.Lock(ctx), kind)
		require.Equal(t, 1, r.asked("eval"), kind)
		require.EqualValues(t, 1, r.all[0].Client(t).Exists(ctx, kind).Val(), "%s is at the replica", kind)
		n, err := l.HoldCount(ctx)
		require.NoError(t, err)
		require.Equal(t, 1, n)
		require.NoError(t, l.Unlock(ctx))
		r.nothing(c, kind)
	}
}

// A hand-over inside the process waits too: without the replica the next one is not in,
// though it was its turn, and the lock is free.
func TestReplicas_HandOver(t *testing.T) {
	t.Parallel()
	r := startReplicas(t, 1)
	c := r.client(1, rlock.WithHandoffLimit(1000, time.Hour))
	a, b := rlock.WithOwner(r.ctx, alice), rlock.WithOwner(r.ctx, bob)
	for _, kind := range []string{"lock", "fair", "fenced", "write"} {
		l := members[kind](familyOf(c, kind))
		waits := func() <-chan error {
			before := c.Stats().Contended
			got := inBackground(func() error { return l.Lock(b) })
			require.Eventually(t, func() bool { return c.Stats().Contended > before }, faultLimit, time.Millisecond)
			return got
		}
		require.NoError(t, l.Lock(a))
		got := waits()
		r.line.ResetCounts()
		passed := c.Stats().HandedOff
		require.NoError(t, l.Unlock(a))
		require.NoError(t, result(t, soon, got, "bob"))
		require.EqualValues(t, 1, c.Stats().HandedOff-passed, "%s is passed on", kind)
		require.Positive(t, r.asked("wait"), "%s: the pass waits", kind)
		require.NoError(t, l.Unlock(b))
		r.nothing(c, kind)

		require.NoError(t, l.Lock(a))
		got = waits()
		require.NoError(t, r.all[0].Stop())
		require.NoError(t, l.Unlock(a), "%s: Redis had it until it was given back", kind)
		require.ErrorIs(t, result(t, soon, got, "bob"), rlock.ErrReplicas, kind)
		require.Zero(t, l.Validity(b))
		r.nothing(c, kind)
		require.NoError(t, r.all[0].Cont())
		r.follow(1)
		require.NoError(t, l.Lock(a), "%s: all goes on", kind)
		require.NoError(t, l.Unlock(a))
	}
}

// Whichever answer is lost, the script's or its WAIT's, both are sent again, and the depth
// is right.
func TestReplicas_LostReply(t *testing.T) {
	t.Parallel()
	r := startReplicas(t, 1)
	impatient := redistest.NewClient(t, r.line.Addr, func(o *redis.Options) { o.ReadTimeout = silence })
	c := lockClient(t, impatient, rlock.WithReplicaAcks(1, ackTimeout), rlock.WithRecheck(time.Hour))
	ctx := rlock.WithOwner(r.ctx, alice)
	for kind, acquire := range map[string]*script.Script{
		"lock": script.Acquire, "fair": script.FairAcquire, "fenced": script.Acquire, "read": script.RWAcquire, "write": script.RWAcquire,
	} {
		l := members[kind](familyOf(c, kind))
		for name, match := range map[string]redistest.Match{
			"script": redistest.And(redistest.HasArg(acquire.SHA), redistest.HasArg(kind)), "WAIT": redistest.Command("wait"),
		} {
			for _, action := range []redistest.Action{redistest.LoseReplyAndClose, redistest.LoseReplyAndHang, redistest.DropRequest} {
				rule := r.line.On(match, action)
				before := c.Stats()
				require.NoError(t, l.Lock(ctx), "%s, %s", kind, name)
				rule.Wait(t)
				require.EqualValues(t, 2, c.Stats().Attempts-before.Attempts, "%s, %s: asked again", kind, name)
				n, err := l.HoldCount(ctx)
				require.NoError(t, err)
				require.Equal(t, 1, n)
				require.NoError(t, l.Unlock(ctx))
				r.nothing(c, kind)
			}
		}
	}
}

// New refuses what cannot work.
func TestReplicas_Refused(t *testing.T) {
	t.Parallel()
	s := Redis(t)
	rdb := s.Client(t, func(o *redis.Options) { o.ReadTimeout = time.Second })
	ap, err := rdb.AutoPipeline()
	require.NoError(t, err)
	t.Cleanup(func() { _ = ap.Close() })
	type wrapped struct{ redis.UniversalClient }
	for name, c := range map[string]struct {
		rdb     redis.UniversalClient
		n       int
		timeout time.Duration
		says    string
	}{
		"AutoPipeliner":      {ap, 1, 100 * time.Millisecond, "AutoPipeliner"},
		"somebody's own":     {wrapped{rdb}, 1, 100 * time.Millisecond, "one connection"},
		"as long as a read":  {rdb, 1, time.Second, "ReadTimeout"},
		"longer than a read": {rdb, 1, 2 * time.Second, "ReadTimeout"},
		"no replica":         {rdb, 0, 100 * time.Millisecond, "1 to 16"},
		"too many":           {rdb, 17, 100 * time.Millisecond, "1 to 16"},
		"no time":            {rdb, 1, 0, "1ms"},
		"more than a minute": {rdb, 1, 2 * time.Minute, "1m"},
		"less than nothing":  {rdb, -1, time.Second, "1 to 16"},
		"less than no time":  {rdb, 1, -time.Second, "1ms"},
		"half a millisecond": {rdb, 1, 500 * time.Microsecond, "1ms"},
		"a cluster's read":   {redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{s.Addr}, ReadTimeout: time.Second}), 1, time.Second, "ReadTimeout"},
	} {
		_, err := rlock.New(c.rdb, rlock.WithReplicaAcks(c.n, c.timeout))
		require.ErrorContains(t, err, c.says, name)
	}
}
