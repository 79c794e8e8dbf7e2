package redisson

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/integration"
	"github.com/relock-go/relock/internal/script"
	"github.com/relock-go/relock/rlock"
)

func TestMain(m *testing.M) { integration.Main(m, nil, 4) }

// cell is something that holds between two sides, whichever holds the lock.
type cell struct {
	name string
	run  func(m *match)
	only string // the side that holds, where it is not true the other way round
}

// kinds are the kinds of lock and their cells.
var kinds = []struct {
	name  string
	cells []cell
}{
	{"lock", lockCells},
	{"fair", fairCells},
	{"write", writeCells},
	{"fenced", fencedCells},
	{"spin", spinCells},
	{"mixed", mixedCells},
}

// TestRedisson is all that shares the JVM: it takes seconds to start and to
// become fast.
func TestRedisson(t *testing.T) {
	j := startJVM(t)
	t.Run("single server", func(t *testing.T) {
		h := newHarness(t, j, singleServer(t), automatic)
		h.warmUp(t)
		t.Run("peer", func(t *testing.T) { testPeer(t, h) })
		t.Run("recorded", func(t *testing.T) { testRecorded(t, h) })
		t.Run("interrupted", func(t *testing.T) { testInterrupted(t, h) })
		t.Run("quiet in the queue", func(t *testing.T) { testQuiet(t, h) })
		t.Run("dead head of the queue", func(t *testing.T) { testDeadHead(t, h) })

		// These load the machine, so they run alone.
		t.Run("contention of processes", func(t *testing.T) { testProcesses(t, h, 8*time.Second) })
		t.Run("contention of threads", func(t *testing.T) { testThreads(t, h, 4*time.Second) })
		t.Run("handoff", func(t *testing.T) { testHandoff(t, h, 6*time.Second) })
		t.Run("lost replies", func(t *testing.T) { testLostReplies(t, h, 5*time.Second) })
		testMatrix(t, h)
	})
	t.Run("cluster", func(t *testing.T) {
		on := threeMasters(t)
		h := newHarness(t, j, on, automatic)
		h.warmUp(t)
		t.Run("peer", func(t *testing.T) { testPeer(t, h) })
		t.Run("recorded", func(t *testing.T) { testRecorded(t, h) })

		t.Run("contention on all masters", func(t *testing.T) { testMasters(t, h, 3*time.Second) })
		t.Run("handoff", func(t *testing.T) { testHandoff(t, h, 3*time.Second) })
		t.Run("handoff by plain messages", func(t *testing.T) {
			testHandoff(t, newHarness(t, j, on, plain), 3*time.Second)
		})
		t.Run("lost replies", func(t *testing.T) { testLostReplies(t, h, 4*time.Second) })
		testMatrix(t, h)
		testModes(t, j, on)
	})
}

// testMatrix runs all cells both ways.
func testMatrix(t *testing.T, h *harness) {
	for _, kind := range kinds {
		for _, c := range kind.cells {
			for _, sides := range [][2]side{{h.java, h.golang}, {h.golang, h.java}} {
				if c.only != "" && c.only != sides[0].String() {
					continue
				}
				t.Run(fmt.Sprintf("%s/%s/%s holds", kind.name, c.name, sides[0]), func(t *testing.T) {
					t.Parallel()
					m := newMatch(t, h, kind.name)
					m.holds, m.other = sides[0], sides[1]
					c.run(m)
				})
			}
		}
	}
}

// harness is the two languages on one Redis.
type harness struct {
	*deployment
	java   *javaSide
	golang *goSide
}

func newHarness(t testing.TB, j *jvm, on *deployment, mode mode) *harness {
	return &harness{deployment: on, java: newJavaSide(t, j, on, mode), golang: &goSide{on: on, mode: mode}}
}

// warmUp lets the JVM load and compile what it needs: the first calls take a
// hundred times as long as later ones.
func (h *harness) warmUp(t *testing.T) {
	t.Helper()
	m := newMatch(t, h, "lock")
	began := time.Now()
	m.contendBoth(m.javaThreads(10), nil, 1500*time.Millisecond, 0)
	t.Logf("the JVM was warm after %v", time.Since(began))
}

// soak is d, or what RELOCK_SOAK says.
func soak(t testing.TB, d time.Duration) time.Duration {
	t.Helper()
	text := os.Getenv("RELOCK_SOAK")
	if text == "" {
		return d
	}
	longer, err := time.ParseDuration(text)
	require.NoError(t, err)
	return longer
}

// match is a cell, or another test, on a lock of its own.
type match struct {
	*testing.T
	*harness
	ctx          context.Context
	kind, key    string
	holds, other side
}

func newMatch(t *testing.T, h *harness, kind string) *match {
	t.Helper()
	m := &match{T: t, harness: h, ctx: context.Background(), kind: kind}
	m.again()
	return m
}

// again goes on with a fresh name.
func (m *match) again() { m.key = m.deployment.name(strings.ReplaceAll(m.Name(), " ", "-")) }

// Watchdog timeouts. Nothing ends by one that is not renewed, but in the tests
// that wait for that.
const (
	long  = 30 * time.Second
	short = 1500 * time.Millisecond
)

// party opens a client of s and returns an owner of it.
func (m *match) party(s side, watchdog time.Duration) party {
	m.Helper()
	return m.partyAt(m.kind, s, watchdog)
}

// partyAt is party for a lock of that kind.
func (m *match) partyAt(kind string, s side, watchdog time.Duration) party {
	m.Helper()
	return s.open(m.T, watchdog).party(m.T, kind, m.key)
}

// pair is one owner on each side.
func (m *match) pair(watchdog time.Duration) (holder, other party) {
	m.Helper()
	return m.party(m.holds, watchdog), m.party(m.other, watchdog)
}

// fields is the lock's hash.
func (m *match) fields() map[string]string {
	m.Helper()
	all, err := m.rdb.HGetAll(m.ctx, m.key).Result()
	require.NoError(m, err)
	fields := map[string]string{}
	for field, value := range all {
		fields[bare(field)] = value
	}
	require.Len(m, fields, len(all), "one owner stands there twice: %v", all)
	return fields
}

// isHash checks that p alone holds the lock in Redis, so many times.
func (m *match) isHash(p party, depth string) {
	m.Helper()
	want := map[string]string{p.field(): depth}
	if p.kind() == "read" || p.kind() == "write" {
		want["mode"] = p.kind()
	}
	require.Equal(m, want, m.fields())
}

// relock puts a number behind an owner whose field a request that was given up may
// still write.
var number = regexp.MustCompile(`\.\d+(:write)?$`)

// bare is a field as party.field has it.
func bare(field string) string { return number.ReplaceAllString(field, "$1") }

// pttl is what is left of the lock's key; 0 when there is none.
func (m *match) pttl() time.Duration {
	m.Helper()
	d, err := m.rdb.PTTL(m.ctx, m.key).Result()
	require.NoError(m, err)
	require.NotEqual(m, time.Duration(-1), d, "the key has no TTL")
	return max(d, 0)
}

// channels are those of the lock that somebody listens to: a fair lock has one for
// each waiter.
func (m *match) channels() []string {
	m.Helper()
	all, err := m.heard(m.ctx, m.key)
	require.NoError(m, err)
	return all
}

// listens tells whether p, which sleeps, is told when it may come in.
func (m *match) listens(p party) bool {
	m.Helper()
	all := m.channels()
	switch p.kind() {
	case "spin": // it polls
		return true
	case "fair":
		return slices.Contains(m.queue(), p.field()) && slices.ContainsFunc(all, func(c string) bool {
			return bare(c) == script.TurnChannel(script.Channel(m.key), p.field())
		})
	}
	return len(all) > 0
}

// waitLimit bounds every wait for a condition. It is reached only when a test
// fails, and is well below the long watchdog timeout: what happens within it was
// not waited out.
const waitLimit = 15 * time.Second

// eventually waits for cond.
func (m *match) eventually(cond func() bool, what string) {
	m.Helper()
	for end := time.Now().Add(waitLimit); !cond(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			m.Fatalf("not within %v: %s", waitLimit, what)
		}
	}
}

// outcome is how a call ended, and when.
type outcome struct {
	err error
	at  time.Time
}

// begin calls f in a goroutine of its own.
func begin(f func() error) <-chan outcome {
	c := make(chan outcome, 1)
	go func() {
		err := f()
		c <- outcome{err, time.Now()}
	}()
	return c
}

// waits begins a lock of p, and returns when it sleeps.
func (m *match) waits(p party) <-chan outcome {
	m.Helper()
	require.False(m, p.asleep())
	got := begin(func() error { return p.lock(0) })
	m.eventually(func() bool { return p.asleep() && m.listens(p) }, fmt.Sprintf("%v waits", p))
	return got
}

// ends waits for a call.
func (m *match) ends(c <-chan outcome, what string) outcome {
	m.Helper()
	select {
	case o := <-c:
		return o
	case <-time.After(waitLimit):
		m.Fatalf("not within %v: %s", waitLimit, what)
		panic("bug: the test went on after it failed")
	}
}

// enters waits until a lock that waits is granted.
func (m *match) enters(c <-chan outcome, what string) outcome {
	m.Helper()
	o := m.ends(c, what)
	require.NoError(m, o.err, what)
	return o
}

// still checks that a call has not ended.
func (m *match) still(c <-chan outcome, what string) {
	m.Helper()
	select {
	case o := <-c:
		m.Fatalf("%s: ended with %v", what, o.err)
	default:
	}
}

// timesOut checks that p waits in vain. An attempt that a busy machine leaves
// unanswered until the wait is over may have been granted, for all that p knows: it
// says so, and p tries again.
func (m *match) timesOut(p interface {
	tryLock(wait, lease time.Duration) (bool, error)
}, wait, lease time.Duration,
) {
	m.Helper()
	m.eventually(func() bool {
		got, err := p.tryLock(wait, lease)
		if errors.Is(err, rlock.ErrUnsettled) {
			return false
		}
		m.no(got, err)
		return true
	}, "it is refused")
}

// yes, no and is check answers of a party.
func (m *match) yes(v bool, err error) { m.Helper(); is(m, true, v, err) }
func (m *match) no(v bool, err error)  { m.Helper(); is(m, false, v, err) }

func is[T any](m *match, want, got T, err error) {
	m.Helper()
	require.NoError(m, err)
	require.Equal(m, want, got)
}
