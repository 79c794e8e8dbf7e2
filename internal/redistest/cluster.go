package redistest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

const slots = 16384

// Cluster is a Redis Cluster of redis-server processes on loopback. Its methods
// may be called by several goroutines, other than those of its nodes.
type Cluster struct {
	Nodes []*Server // those that were masters at the start, then their replicas

	asks []*redis.Client // of each node
}

// StartCluster starts a cluster that is killed when t ends: masters that share
// the slots evenly, each with that many replicas. args are added to the nodes'
// command lines; without "--cluster-node-timeout" a node is down after 2000 ms.
// Without a redis-server it does what StartServer does.
func StartCluster(t testing.TB, masters, replicas int, args ...string) *Cluster {
	t.Helper()
	c, err := OpenCluster(masters, replicas, args...)
	needServer(t, err)
	t.Cleanup(c.Close)
	logIfFailed(t, c.Nodes)
	return c
}

// needServer skips or fails t when servers could not be started.
func needServer(t testing.TB, err error) {
	t.Helper()
	switch {
	case errors.Is(err, ErrNoServer) && !RequireRedis():
		t.Skipf("%v: install Redis to run this test", err)
	case err != nil:
		t.Fatal(err)
	}
}

// logIfFailed shows what the servers have logged when t fails. It must be called
// after the cleanup that removes their files was registered.
func logIfFailed(t testing.TB, servers []*Server) {
	t.Cleanup(func() {
		if t.Failed() {
			for _, s := range servers {
				t.Logf("log of redis-server %s:\n%s", s.Addr, s.Log())
			}
		}
	})
}

// OpenCluster is StartCluster for a cluster that outlives a test: the caller
// closes it.
func OpenCluster(masters, replicas int, args ...string) (*Cluster, error) {
	c := &Cluster{}
	if err := c.open(masters, replicas, args); err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

func (c *Cluster) open(masters, replicas int, args []string) error {
	args = append([]string{
		"--cluster-enabled", "yes", "--cluster-config-file", "nodes.conf",
		"--cluster-node-timeout", "2000", "--cluster-announce-ip", "127.0.0.1",
		"--cluster-allow-replica-migration", "no", "--cluster-replica-validity-factor", "0",
		"--repl-diskless-sync-delay", "0", "--rdb-del-sync-files", "yes",
	}, args...)
	for range masters * (1 + replicas) {
		s, err := Start(args...)
		if err != nil {
			return err
		}
		c.Nodes = append(c.Nodes, s)
		c.asks = append(c.asks, adminClient(s.Addr))
	}
	ctx := context.Background()
	for i, rdb := range c.asks {
		// Nodes that meet with the same epoch would have to settle who yields.
		if err := rdb.Do(ctx, "cluster", "set-config-epoch", i+1).Err(); err != nil {
			return fmt.Errorf("redistest: set epoch: %w", err)
		}
		if i < masters {
			if err := rdb.ClusterAddSlotsRange(ctx, i*slots/masters, (i+1)*slots/masters-1).Err(); err != nil {
				return fmt.Errorf("redistest: add slots: %w", err)
			}
		}
		// Gossip would tell them of each other as well, but takes seconds.
		for _, other := range c.Nodes[:i] {
			host, port, _ := net.SplitHostPort(other.Addr)
			if err := rdb.ClusterMeet(ctx, host, port).Err(); err != nil {
				return fmt.Errorf("redistest: meet: %w", err)
			}
		}
	}
	if err := until(startLimit, c.met); err != nil {
		return err
	}
	for i, rdb := range c.asks[masters:] {
		id, err := c.asks[i%masters].ClusterMyID(ctx).Result()
		if err != nil {
			return fmt.Errorf("redistest: id: %w", err)
		}
		if err := rdb.ClusterReplicate(ctx, id).Err(); err != nil {
			return fmt.Errorf("redistest: replicate: %w", err)
		}
	}
	return until(startLimit, func() error {
		if err := c.met(); err != nil {
			return err
		}
		for _, v := range c.views() {
			if n := len(slices.DeleteFunc(v.members, func(m member) bool { return !m.is("slave") })); n != masters*replicas {
				return fmt.Errorf("%s knows %d replicas", v.node.Addr, n)
			}
		}
		return errors.Join(c.settled(), c.synced())
	})
}

// adminOptions are of clients that ask about the state of servers, of which some
// are down: they say so soon.
func adminOptions(addr string) *redis.Options {
	return &redis.Options{
		Addr: addr, MaxRetries: -1, DialerRetries: 1, DialTimeout: time.Second, ReadTimeout: time.Second,
	}
}

func adminClient(addr string) *redis.Client { return redis.NewClient(adminOptions(addr)) }

// listens checks that somebody accepts connections at addr.
func listens(addr string) bool {
	conn, err := net.DialTimeout("tcp", addr, time.Second)
	if err != nil {
		return false
	}
	return conn.Close() == nil
}

// until calls cond until it is satisfied, and returns what it still misses after limit.
func until(limit time.Duration, cond func() error) error {
	for deadline := time.Now().Add(limit); ; time.Sleep(10 * time.Millisecond) {
		err := cond()
		if err == nil {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("redistest: not within %v: %w", limit, err)
		}
	}
}

// wait is until as the test's failure.
func wait(t testing.TB, cond func() error) {
	t.Helper()
	if err := until(waitLimit, cond); err != nil {
		t.Fatal(err)
	}
}

// Close kills the nodes and removes their files.
func (c *Cluster) Close() {
	for _, rdb := range c.asks {
		_ = rdb.Close() // nobody uses it any more
	}
	for _, s := range c.Nodes {
		s.Close()
	}
}

// Addrs are the addresses of all nodes.
func (c *Cluster) Addrs() []string { return addrs(c.Nodes) }

func addrs(servers []*Server) (list []string) {
	for _, s := range servers {
		list = append(list, s.Addr)
	}
	return list
}

// Client returns a client of the cluster that is closed when t ends.
func (c *Cluster) Client(t testing.TB, opts ...func(*redis.ClusterOptions)) *redis.ClusterClient {
	t.Helper()
	o := &redis.ClusterOptions{Addrs: c.Addrs()}
	for _, opt := range opts {
		opt(o)
	}
	rdb := redis.NewClusterClient(o)
	t.Cleanup(func() { _ = rdb.Close() }) // the test may have closed it already
	return rdb
}

// Proxies returns fault proxies of all nodes that are closed when t ends.
func (c *Cluster) Proxies(t testing.TB) *Proxies {
	t.Helper()
	return NewProxies(t, c.Addrs()...)
}

// Slot is the slot of key.
func (c *Cluster) Slot(key string) int {
	if _, rest, ok := strings.Cut(key, "{"); ok {
		if tag, _, ok := strings.Cut(rest, "}"); ok && tag != "" {
			key = tag
		}
	}
	var crc uint16 // XMODEM
	for _, b := range []byte(key) {
		crc ^= uint16(b) << 8
		for range 8 {
			top := crc >> 15
			crc = crc<<1 ^ top*0x1021
		}
	}
	return int(crc) % slots
}

// Master is the node that serves key now, as those nodes say that answer; nil
// when nobody does.
func (c *Cluster) Master(key string) *Server { return c.owner(c.Slot(key)) }

// owner is the node that serves slot. Of claims that differ the one of the
// highest epoch is the newest.
func (c *Cluster) owner(slot int) (owner *Server) {
	epoch := -1
	for _, v := range c.views() {
		for _, m := range v.members {
			if m.epoch > epoch && m.serves(slot) {
				owner, epoch = c.at(m.addr), m.epoch
			}
		}
	}
	return owner
}

// Replica is a node that follows master, nil when there is none.
func (c *Cluster) Replica(master *Server) *Server {
	for _, v := range c.views() {
		if me := v.myself(); me.is("slave") && v.addrOf(me.master) == master.Addr {
			return v.node
		}
	}
	return nil
}

func (c *Cluster) at(addr string) *Server {
	if i := slices.Index(c.Addrs(), addr); i >= 0 {
		return c.Nodes[i]
	}
	return nil
}

func (c *Cluster) ask(s *Server) *redis.Client { return c.asks[slices.Index(c.Nodes, s)] }

// WaitMaster waits until somebody other than not serves key and all nodes that
// answer agree, and returns it.
func (c *Cluster) WaitMaster(t testing.TB, key string, not *Server) (master *Server) {
	t.Helper()
	wait(t, func() error {
		if master = c.Master(key); master == nil || master == not {
			return errors.New("nobody else serves the key")
		}
		return c.settled()
	})
	return master
}

// Failover makes replica take its master's place, and waits until all agree on
// that and the former master follows it.
func (c *Cluster) Failover(t testing.TB, replica *Server) {
	t.Helper()
	if err := c.ask(replica).ClusterFailover(context.Background()).Err(); err != nil {
		t.Fatalf("redistest: failover to %s: %v", replica.Addr, err)
	}
	wait(t, func() error {
		for _, v := range c.views() {
			if me := v.myself(); v.node == replica && !me.is("master") {
				return errors.New("the replica is not promoted")
			}
		}
		return errors.Join(c.settled(), c.synced())
	})
}

// Restart kills node, if it runs, and starts it again with no data but its place
// in the cluster. It waits until the nodes that answer take the cluster for
// whole, which a master does two seconds after its start.
func (c *Cluster) Restart(node *Server) error {
	if err := node.Restart(); err != nil {
		return err
	}
	return until(startLimit, func() error {
		return errors.Join(c.ask(node).Ping(context.Background()).Err(), c.settled())
	})
}

// Migrate moves slot with its keys to another node.
func (c *Cluster) Migrate(t testing.TB, slot int, to *Server) {
	t.Helper()
	m := c.StartMigration(t, slot, to)
	m.MoveKeys()
	m.Finish()
}

// Migration is a slot on its way.
type Migration struct {
	From, To *Server

	t    testing.TB
	c    *Cluster
	slot int
	id   string // of To
}

// StartMigration begins to move slot to another node. Until Finish, the one that
// has it answers for the keys it still has, and for others with ASK.
func (c *Cluster) StartMigration(t testing.TB, slot int, to *Server) *Migration {
	t.Helper()
	m := &Migration{From: c.owner(slot), To: to, t: t, c: c, slot: slot}
	if m.From == nil || m.From == to {
		t.Fatalf("redistest: slot %d has no other owner than %s", slot, to.Addr)
	}
	ctx := context.Background()
	from, err := c.ask(m.From).ClusterMyID(ctx).Result()
	if err != nil {
		t.Fatal(err)
	}
	if m.id, err = c.ask(to).ClusterMyID(ctx).Result(); err != nil {
		t.Fatal(err)
	}
	m.set(to, "importing", from)
	m.set(m.From, "migrating", m.id)
	return m
}

// set is CLUSTER SETSLOT.
func (m *Migration) set(on *Server, state, id string) {
	m.t.Helper()
	if err := m.c.ask(on).Do(context.Background(), "cluster", "setslot", m.slot, state, id).Err(); err != nil {
		m.t.Fatalf("redistest: setslot %d %s on %s: %v", m.slot, state, on.Addr, err)
	}
}

// MoveKeys moves the slot's keys: they are asked for at To from now on.
func (m *Migration) MoveKeys() {
	m.t.Helper()
	ctx := context.Background()
	host, port, _ := net.SplitHostPort(m.To.Addr)
	from := m.c.ask(m.From)
	for {
		keys, err := from.ClusterGetKeysInSlot(ctx, m.slot, 100).Result()
		if err != nil {
			m.t.Fatal(err)
		}
		if len(keys) == 0 {
			return
		}
		args := []any{"migrate", host, port, "", 0, 1000, "keys"}
		for _, k := range keys {
			args = append(args, k)
		}
		if err := from.Do(ctx, args...).Err(); err != nil {
			m.t.Fatalf("redistest: migrate from %s: %v", m.From.Addr, err)
		}
	}
}

// Finish moves what keys are left, gives the slot to To and waits until all
// nodes know.
func (m *Migration) Finish() {
	m.t.Helper()
	m.MoveKeys()
	m.set(m.To, "node", m.id) // first, so that the slot is never nobody's
	m.set(m.From, "node", m.id)
	for _, v := range m.c.views() {
		if v.node != m.To && v.node != m.From && v.myself().is("master") {
			m.set(v.node, "node", m.id)
		}
	}
	wait(m.t, func() error {
		if m.c.owner(m.slot) != m.To {
			return fmt.Errorf("slot %d is not at %s", m.slot, m.To.Addr)
		}
		return m.c.settled()
	})
}

// member is what a node knows of another, or of itself: a line of CLUSTER NODES.
type member struct {
	id, addr string
	flags    []string
	master   string // its id, of a replica
	epoch    int
	linked   bool
	slots    []string // ranges as "0-99" and single ones
}

func (m member) is(flag string) bool { return slices.Contains(m.flags, flag) }

func (m member) serves(slot int) bool {
	return slices.ContainsFunc(m.slots, func(r string) bool {
		from, to, ok := strings.Cut(r, "-")
		if !ok {
			to = from
		}
		low, err1 := strconv.Atoi(from)
		high, err2 := strconv.Atoi(to)
		return err1 == nil && err2 == nil && low <= slot && slot <= high
	})
}

// view is all that a node knows.
type view struct {
	node    *Server
	members []member
}

func (v view) myself() member {
	if i := slices.IndexFunc(v.members, func(m member) bool { return m.is("myself") }); i >= 0 {
		return v.members[i]
	}
	return member{}
}

func (v view) addrOf(id string) string {
	if i := slices.IndexFunc(v.members, func(m member) bool { return m.id == id }); i >= 0 {
		return v.members[i].addr
	}
	return ""
}

// shares is who serves what, in a form that can be compared.
func (v view) shares() string {
	var list []string
	for _, m := range v.members {
		if len(m.slots) > 0 {
			list = append(list, m.addr+" "+strings.Join(m.slots, " "))
		}
	}
	slices.Sort(list)
	return strings.Join(list, ", ")
}

// parseNodes reads lines like
// "id 127.0.0.1:1@10001,name myself,master - 0 0 3 connected 0-99 101 [102->-id]".
func parseNodes(text string) (members []member) {
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if len(f) < 8 {
			continue
		}
		addr, _, _ := strings.Cut(f[1], "@")
		epoch, _ := strconv.Atoi(f[6])
		own := slices.DeleteFunc(f[8:], func(s string) bool { return strings.HasPrefix(s, "[") }) // on their way
		members = append(members, member{
			id: f[0], addr: addr, flags: strings.Split(f[2], ","), master: f[3],
			epoch: epoch, linked: f[7] == "connected", slots: own,
		})
	}
	return members
}

// views asks all nodes at once; those that do not answer are left out.
func (c *Cluster) views() []view {
	all := make([]view, len(c.Nodes))
	var wg sync.WaitGroup
	for i, rdb := range c.asks {
		wg.Go(func() {
			if !listens(c.Nodes[i].Addr) { // go-redis would log that, again and again
				return
			}
			if text, err := rdb.ClusterNodes(context.Background()).Result(); err == nil {
				all[i] = view{c.Nodes[i], parseNodes(text)}
			}
		})
	}
	wg.Wait()
	return slices.DeleteFunc(all, func(v view) bool { return len(v.members) == 0 })
}

// met checks that every node knows every other.
func (c *Cluster) met() error {
	views := c.views()
	if len(views) < len(c.Nodes) {
		return errors.New("a node does not answer")
	}
	for _, v := range views {
		known := 0
		for _, m := range v.members {
			if m.linked && !m.is("handshake") {
				known++
			}
		}
		if known != len(c.Nodes) || len(v.members) != known {
			return fmt.Errorf("%s knows %d of %d", v.node.Addr, known, len(c.Nodes))
		}
	}
	return nil
}

// settled checks that the nodes that answer agree on who serves what, and take
// the cluster for whole.
func (c *Cluster) settled() error {
	views := c.views()
	if len(views) == 0 {
		return errors.New("no node answers")
	}
	for _, v := range views {
		if a, b := v.shares(), views[0].shares(); a != b {
			return fmt.Errorf("%s says %s, %s says %s", v.node.Addr, a, views[0].node.Addr, b)
		}
		info, err := c.ask(v.node).ClusterInfo(context.Background()).Result()
		if err != nil {
			return err
		}
		if !strings.Contains(info, "cluster_state:ok") {
			return fmt.Errorf("%s: %s", v.node.Addr, strings.TrimSpace(info))
		}
	}
	return nil
}

// synced checks that the replicas follow their masters.
func (c *Cluster) synced() error {
	for _, v := range c.views() {
		if !v.myself().is("slave") {
			continue
		}
		info, err := c.ask(v.node).Info(context.Background(), "replication").Result()
		if err != nil {
			return err
		}
		if !strings.Contains(info, "master_link_status:up") {
			return fmt.Errorf("%s does not follow its master", v.node.Addr)
		}
	}
	return nil
}
