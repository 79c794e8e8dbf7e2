package integration

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/redistest"
	"github.com/relock-go/relock/internal/script"
	"github.com/relock-go/relock/rlock"
)

// rig is a Redis as the tests of faults see it: once through proxies that make
// the network fail, and once past them.
type rig struct {
	through redis.UniversalClient                    // impatient: gives an answer up after silence
	direct  redis.UniversalClient                    // patient, and never hit by a fault
	proxy   func(key string) *redistest.Proxy        // in front of the node that has key
	server  func(key string) *Server                 // that has key; only where the rig has servers of its own
	client  func(t testing.TB) redis.UniversalClient // one more like through

	each    forEach                                // of the servers; nil: direct has one only
	home    func(key string) redis.UniversalClient // that key's messages come to; nil: direct
	sharded bool                                   // messages are SPUBLISHed
}

// forEach calls f with a client of each server.
type forEach func(ctx context.Context, f func(ctx context.Context, rdb *redis.Client) error) error

// topology is a kind of Redis, and of client, that the tests of faults run on:
// each of them is one more column of the same tests.
type topology struct {
	name string
	// open makes a rig whose impatient client gives an answer up after silence.
	// own asks for servers that the test may stop, flush and restart.
	open func(t testing.TB, silence time.Duration, own bool) *rig
}

var topologies = []topology{
	{"single", openSingle},
	{"cluster", openCluster},
	{"slots", openSlots},
	{"failover", openFailover},
	{"ring", openRing},
	{"autopipeline", openAutoPipeliner},
}

// silence is after which the impatient client gives an answer up.
const silence = 500 * time.Millisecond

func openSingle(t testing.TB, silence time.Duration, own bool) *rig {
	t.Helper()
	s := Redis(t)
	if own {
		s = OwnRedis(t)
	}
	p := s.Proxy(t)
	client := func(t testing.TB) redis.UniversalClient {
		return redistest.NewClient(t, p.Addr, func(o *redis.Options) { o.ReadTimeout = silence })
	}
	return &rig{
		through: client(t),
		direct:  s.Client(t),
		proxy:   func(string) *redistest.Proxy { return p },
		server:  func(string) *Server { return s },
		client:  client,
	}
}

// onEach runs a test on each topology.
func onEach(t *testing.T, f func(t *testing.T, kind topology)) {
	t.Helper()
	for _, kind := range topologies {
		t.Run(kind.name, func(t *testing.T) {
			t.Parallel()
			f(t, kind)
		})
	}
}

// load puts the scripts on every server, so that no fault hits an EVALSHA that
// would have been answered NOSCRIPT.
func (r *rig) load(t testing.TB) {
	t.Helper()
	for _, s := range []*script.Script{
		script.Acquire, script.Keep, script.Release, script.Pass, script.Renew, script.Force,
		script.FairAcquire, script.FairRelease, script.FairPass, script.FairLeave,
		script.RWAcquire, script.RWKeep, script.RWRelease, script.RWPass, script.RWRenew, script.RWForce,
	} {
		r.loadText(t, s.Text)
	}
}

func (r *rig) loadText(t testing.TB, text string) {
	t.Helper()
	ctx := context.Background()
	if r.each == nil {
		require.NoError(t, r.direct.ScriptLoad(ctx, text).Err())
		return
	}
	require.NoError(t, r.each(ctx, func(ctx context.Context, rdb *redis.Client) error {
		return rdb.ScriptLoad(ctx, text).Err()
	}))
}

// The owners in a scene. All but the stranger are of the client that is hit.
const (
	alice    = rlock.Owner("alice")
	bob      = rlock.Owner("bob")
	carol    = rlock.Owner("carol")
	stranger = rlock.Owner("stranger")
)

const (
	// faultLimit bounds every wait. It is reached only when a test fails.
	faultLimit = 20 * time.Second
	// soon is long before any key of a scene ends by its TTL of 30 s or more, so
	// what happens within it was told and not waited out.
	soon = 10 * time.Second
)

// scene is one lock, a client whose line is made to fail, and another client
// whose line is good. Waiters do not look by themselves for an hour: they are
// told, or they come too late.
type scene struct {
	*testing.T
	*rig
	ctx    context.Context
	c      *rlock.Client // through the proxy
	l      *rlock.Lock
	other  *rlock.Client // past it
	theirs *rlock.Lock
	line   *redistest.Proxy
	tag    string // the first name

	pending <-chan error // of a Lock that waits, see wait
	told    func() int   // nil when messages cannot be counted
	before  int          // see frees
	emptied bool         // the server has lost what it had, so a loss is none of ours
}

// newScene makes a scene on a fresh name. opts are the client's that is hit.
func newScene(t *testing.T, r *rig, opts ...rlock.Option) *scene {
	t.Helper()
	r.load(t)
	ctx, cancel := context.WithTimeout(context.Background(), faultLimit)
	t.Cleanup(cancel)
	s := &scene{T: t, rig: r, ctx: ctx}
	usual := []rlock.Option{rlock.WithRecheck(time.Hour), rlock.WithHandoffLimit(1000, time.Hour)}
	s.c = lockClient(t, r.through, append(usual, opts...)...)
	s.other = lockClient(t, r.direct, usual...)
	s.again()
	return s
}

// rename goes on with a fresh name, at the same server, and sends nothing.
func (s *scene) rename() {
	n := name(s.T)
	if s.tag == "" {
		s.tag = n
	} else {
		n = "{" + s.tag + "}:" + n
	}
	s.l, s.theirs = s.c.NewLock(n), s.other.NewLock(n)
	s.line = s.proxy(s.l.Key())
}

// again goes on with a fresh name.
func (s *scene) again() {
	s.Helper()
	s.rename()
	s.told = s.listen(s.T, s.l.Key())
	s.before = s.frees()
}

// frees is how many releases have left a lock free.
func (s *scene) frees() (n int) {
	for _, c := range []*rlock.Client{s.c, s.other} {
		st := c.Stats()
		n += int(st.Released - st.HandedOff)
	}
	return n
}

// lockClient is a client that is closed when t ends, whatever state Redis is in.
func lockClient(t testing.TB, rdb redis.UniversalClient, opts ...rlock.Option) *rlock.Client {
	t.Helper()
	// On a busy machine a hand-over must not turn into a release because of the time.
	opts = append([]rlock.Option{rlock.WithHandoffLimit(64, time.Minute)}, opts...)
	c, err := rlock.New(rdb, opts...)
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		_ = c.Close(ctx) // a test that wants it to succeed closes by itself
	})
	return c
}

// listen counts the messages that tell of a release of key.
func (r *rig) listen(t testing.TB, key string) func() int {
	t.Helper()
	rdb := r.direct
	if r.home != nil {
		rdb = r.home(key)
	}
	subscribe, publish := rdb.Subscribe, rdb.Publish
	if r.sharded {
		subscribe, publish = rdb.SSubscribe, rdb.SPublish
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*faultLimit)
	t.Cleanup(cancel)
	channel := script.Channel(key)
	sub := subscribe(ctx, channel)
	t.Cleanup(func() { _ = sub.Close() })
	_, err := sub.Receive(ctx) // the confirmation
	require.NoError(t, err)
	count := 0
	return func() int {
		t.Helper()
		require.NoError(t, publish(ctx, channel, "mark").Err())
		for {
			m, err := sub.ReceiveMessage(ctx)
			require.NoError(t, err)
			if m.Payload == "mark" {
				return count
			}
			require.Equal(t, "0", m.Payload)
			count++
		}
	}
}

// as is a ctx that carries o.
func (s *scene) as(o rlock.Owner) context.Context { return rlock.WithOwner(s.ctx, o) }

// calls matches the calls of a script for the scene's lock.
func (s *scene) calls(what *script.Script) redistest.Match {
	key := s.l.Key()
	return func(r redistest.Request) bool {
		switch r.Command() {
		case "evalsha", "eval":
		default:
			return false
		}
		mine := false
		for _, a := range r.Args[2:] {
			mine = mine || a == key
		}
		return mine && (r.Args[1] == what.SHA || r.Args[1] == what.Text)
	}
}

// hit applies action to the next call of a script for the scene's lock.
func (s *scene) hit(what *script.Script, action redistest.Action) *redistest.Rule {
	return s.line.On(s.calls(what), action)
}

// sent is how many calls of a script the client that is hit has sent.
func (s *scene) sent(what *script.Script) (n int) {
	mine := s.calls(what)
	for _, r := range s.line.Requests() {
		if mine(r) {
			n++
		}
	}
	return n
}

// eventually waits for cond.
func (s *scene) eventually(cond func() bool, what string, args ...any) {
	s.Helper()
	s.within(faultLimit, cond, what, args...)
}

func (s *scene) within(d time.Duration, cond func() bool, what string, args ...any) {
	s.Helper()
	for end := time.Now().Add(d); !cond(); time.Sleep(3 * time.Millisecond) {
		if time.Now().After(end) {
			s.Fatalf("not within %v: %s", d, fmt.Sprintf(what, args...))
		}
	}
}

// inBackground calls f in a goroutine of its own.
func inBackground[T any](f func() T) <-chan T {
	c := make(chan T, 1)
	go func() { c <- f() }()
	return c
}

// result waits for what c delivers.
func result[T any](t testing.TB, d time.Duration, c <-chan T, what string) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(d):
		t.Fatalf("not within %v: %s", d, what)
		panic("bug: the test went on after it failed")
	}
}

// wait begins a Lock of o, in the client that is hit, that has to wait: it
// returns when Redis has answered the last request before it sleeps.
func (s *scene) wait(o rlock.Owner) <-chan error {
	s.Helper()
	before, held := s.c.Stats().Waiting, s.c.Stats().Held > 0
	ask := 2 // before it subscribes, and after
	if held {
		ask = 1 // it need not ask before
	}
	if before > 0 {
		ask = 0 // only the head of the line asks
	}
	watch := s.hit(script.Acquire, redistest.Action{}).Times(0)
	got := inBackground(func() error { return s.l.Lock(s.as(o)) })
	watch.WaitExecuted(s, ask)
	watch.Off()
	s.eventually(func() bool { return s.c.Stats().Waiting == before+1 }, "%s waits", o)
	return got
}

// visit is what became of a visitor.
type visit struct {
	err     error
	overlap string // who else was inside
	at      time.Time
}

// visits sends o in through l: it locks, looks whether it is alone, and unlocks.
// It waits until the visitor waits.
func (s *scene) visits(l *rlock.Lock, o rlock.Owner) <-chan visit {
	s.Helper()
	before := l.Client().Stats().Contended
	got := inBackground(func() (v visit) {
		if v.err = l.Lock(s.as(o)); v.err != nil {
			return v
		}
		v.at = time.Now()
		v.overlap = s.beside(l, o)
		v.err = l.Unlock(s.as(o))
		return v
	})
	s.eventually(func() bool { return l.Client().Stats().Contended > before }, "%s waits", o)
	return got
}

// beside names an owner that is inside together with o.
func (s *scene) beside(l *rlock.Lock, o rlock.Owner) string {
	type seat struct {
		l *rlock.Lock
		o rlock.Owner
	}
	for _, other := range []seat{{s.l, alice}, {s.l, bob}, {s.l, carol}, {s.theirs, stranger}} {
		if other.l == l && other.o == o {
			continue
		}
		// Looked at first: if o is still inside afterwards, both were.
		if v := other.l.Validity(s.as(other.o)); v > 0 && l.Validity(s.as(o)) > 0 {
			return fmt.Sprintf("%s has %v left", other.o, v)
		}
	}
	return ""
}

// gotIn checks that a visitor was served in time, and alone.
func (s *scene) gotIn(got <-chan visit, what string) {
	s.Helper()
	v := result(s.T, soon, got, what)
	require.NoError(s, v.err, what)
	require.Empty(s, v.overlap, what)
}

// fields is what stands at the lock's key.
func (s *scene) fields() map[string]string {
	s.Helper()
	m, err := s.direct.HGetAll(s.ctx, s.l.Key()).Result()
	require.NoError(s, err)
	return m
}

// pttl is the TTL of the lock's key; below 0 when there is none.
func (s *scene) pttl() time.Duration {
	s.Helper()
	d, err := s.direct.PTTL(s.ctx, s.l.Key()).Result()
	require.NoError(s, err)
	return d
}

func (s *scene) exists() bool {
	s.Helper()
	n, err := s.direct.Exists(s.ctx, s.l.Key()).Result()
	require.NoError(s, err)
	return n == 1
}

// stands checks that o of client c is inside at depth, alone, as Redis has it
// and as the client has it. It returns the field.
func (s *scene) stands(l *rlock.Lock, o rlock.Owner, depth int) string {
	s.Helper()
	all := s.fields()
	require.Len(s, all, 1)
	field := ""
	for f, d := range all {
		field = f
		require.Regexp(s, `^`+regexp.QuoteMeta(l.Client().ID()+":"+string(o))+`(\.\d+)?$`, f)
		require.Equal(s, strconv.Itoa(depth), d, "depth")
	}
	require.Positive(s, s.pttl(), "the key expires")
	require.Empty(s, s.beside(l, o))
	s.holds(l, o)
	return field
}

// holds checks that o was not told of a loss.
func (s *scene) holds(l *rlock.Lock, o rlock.Owner) {
	s.Helper()
	require.Positive(s, l.Validity(s.as(o)), "validity of %s", o)
	require.False(s, told(l.Lost(s.as(o))), "%s was told of a loss", o)
	s.noLoss()
}

func (s *scene) noLoss() {
	s.Helper()
	if s.emptied {
		return
	}
	require.Zero(s, s.c.Stats().Lost, "false loss")
	require.Zero(s, s.other.Stats().Lost, "false loss of the other client")
}

func told(lost <-chan struct{}) bool {
	select {
	case <-lost:
		return true
	default:
		return false
	}
}

// leave gives back all of o's holds but the visitors': exactly depth Unlocks.
func (s *scene) leave(o rlock.Owner, depth int) {
	s.Helper()
	for range depth {
		require.NoError(s, s.l.Unlock(s.as(o)))
	}
	require.ErrorIs(s, s.l.Unlock(s.as(o)), rlock.ErrNotHeld, "one Unlock more than Locks")
}

// over checks that nothing is left, and that each release that freed the lock
// was told once.
func (s *scene) over() {
	s.Helper()
	require.False(s, s.exists(), "the key is gone")
	for _, c := range []*rlock.Client{s.c, s.other} {
		require.Zero(s, c.Stats().Held)
		require.Zero(s, c.Stats().Waiting)
	}
	s.noLoss()
	if s.told != nil {
		require.Equal(s, s.frees()-s.before, s.told(), "messages")
	}
}

// deed is an operation on a lock that a fault can hit, and what it leaves.
type deed struct {
	name   string
	script *script.Script // whose next call is hit
	opts   []rlock.Option
	free   bool // the key is free before, or somebody else's: nobody of ours is in yet

	before func(s *scene)
	do     func(s *scene) error // the operation, to its end

	holder rlock.Owner // afterwards
	depth  int         // of holder; 0: nobody is inside
	owner  rlock.Owner // who locks again after it, where that is not alice
}

func (d *deed) actor() rlock.Owner {
	if d.owner != "" {
		return d.owner
	}
	return alice
}

// inside makes alice lock n times.
func inside(n int) func(*scene) {
	return func(s *scene) {
		s.Helper()
		for range n {
			require.NoError(s, s.l.Lock(s.as(alice)))
		}
	}
}

func unlock(s *scene) error { return s.l.Unlock(s.as(alice)) }

func besideBob(s *scene) {
	inside(1)(s)
	s.pending = s.wait(bob)
}

// handOver is alice's last Unlock with bob in line.
func handOver(s *scene) error {
	return errors.Join(unlock(s), <-s.pending)
}

// shortDog makes renewals come each 0.7 s.
const shortDog = 2 * time.Second

var deeds = []deed{
	{
		name: "acquire", script: script.Acquire, free: true,
		before: func(*scene) {},
		do:     func(s *scene) error { return s.l.Lock(s.as(alice)) },
		holder: alice, depth: 1,
	},
	{
		name: "acquire after a wait", script: script.Acquire, free: true,
		before: func(s *scene) {
			require.NoError(s, s.theirs.Lock(s.as(stranger)))
			s.pending = s.wait(alice)
		},
		do: func(s *scene) error {
			return errors.Join(s.theirs.Unlock(s.as(stranger)), <-s.pending)
		},
		holder: alice, depth: 1,
	},
	{
		name: "re-entry", script: script.Keep,
		before: inside(1),
		do:     func(s *scene) error { return s.l.Lock(s.as(alice)) },
		holder: alice, depth: 2,
	},
	{
		name: "inner unlock", script: script.Keep,
		before: inside(3), do: unlock,
		holder: alice, depth: 2,
	},
	{
		name: "last unlock", script: script.Release,
		opts:   []rlock.Option{rlock.WithHandoffLimit(0, 0)},
		before: inside(1), do: unlock,
	},
	{
		name: "hand-over", script: script.Pass,
		before: besideBob, do: handOver,
		holder: bob, depth: 1,
	},
	{
		name: "extend", script: script.Keep,
		before: inside(1),
		do:     func(s *scene) error { return s.l.Extend(s.as(alice), 35*time.Second) },
		holder: alice, depth: 1,
	},
	{
		name: "renewal", script: script.Renew,
		opts:   []rlock.Option{rlock.WithWatchdogTimeout(shortDog)},
		before: inside(1),
		do:     renewal,
		holder: alice, depth: 1,
	},
}

// renewal waits until one has succeeded.
func renewal(s *scene) error {
	before := s.c.Stats().Renewals
	for end := time.Now().Add(shortDog + soon); s.c.Stats().Renewals == before; time.Sleep(3 * time.Millisecond) {
		if time.Now().After(end) {
			return errors.New("no renewal has succeeded")
		}
	}
	return nil
}
