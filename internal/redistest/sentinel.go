package redistest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
)

// MasterName is what a Sentinel calls its master.
const MasterName = "main"

// Sentinel is a master, a replica and three sentinels that watch over them, two
// of which decide, as processes on loopback.
type Sentinel struct {
	Nodes     []*Server // the first was the master at the start
	Sentinels []*Server

	asks []*redis.SentinelClient // of each sentinel
	dir  string                  // of the sentinels' configuration files
}

// StartSentinel starts a Sentinel that is killed when t ends. args are added to
// the command lines of master and replica. A master is down after 500 ms, if Set
// does not say otherwise. Without a redis-server it does what StartServer does.
func StartSentinel(t testing.TB, args ...string) *Sentinel {
	t.Helper()
	s, err := OpenSentinel(args...)
	needServer(t, err)
	t.Cleanup(s.Close)
	logIfFailed(t, slices.Concat(s.Nodes, s.Sentinels))
	return s
}

// OpenSentinel is StartSentinel for one that outlives a test: the caller closes it.
func OpenSentinel(args ...string) (*Sentinel, error) {
	s := &Sentinel{}
	if err := s.open(args); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

func (s *Sentinel) open(args []string) error {
	args = append([]string{"--repl-diskless-sync-delay", "0", "--rdb-del-sync-files", "yes"}, args...)
	master, err := Start(args...)
	if err != nil {
		return err
	}
	s.Nodes = append(s.Nodes, master)
	host, port, _ := net.SplitHostPort(master.Addr)
	replica, err := Start(append([]string{"--replicaof", host + " " + port}, args...)...)
	if err != nil {
		return err
	}
	s.Nodes = append(s.Nodes, replica)
	if s.dir, err = os.MkdirTemp("", "redistest-"); err != nil {
		return fmt.Errorf("redistest: %w", err)
	}
	ctx := context.Background()
	for i := range 3 {
		conf := filepath.Join(s.dir, fmt.Sprintf("%d.conf", i))
		text := fmt.Sprintf("sentinel monitor %[1]s %[2]s %[3]s 2\n"+
			"sentinel down-after-milliseconds %[1]s 500\n"+
			"sentinel failover-timeout %[1]s 2000\n", MasterName, host, port)
		if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
			return fmt.Errorf("redistest: %w", err)
		}
		sentinel, err := Start(conf, "--sentinel")
		if err != nil {
			return err
		}
		s.Sentinels = append(s.Sentinels, sentinel)
		s.asks = append(s.asks, redis.NewSentinelClient(adminOptions(sentinel.Addr)))
		// They would hear news only every few seconds. But whoever has not heard of a
		// promotion for four times the publish-period takes it back, and the one who
		// promotes notices that it has only after a second.
		hurry := redis.NewStatusCmd(ctx, "sentinel", "debug",
			"info-period", 500, "publish-period", 600, "ask-period", 100)
		if err := s.asks[i].Process(ctx, hurry); err != nil {
			return fmt.Errorf("redistest: sentinel debug: %w", err)
		}
	}
	return until(startLimit, func() error {
		return s.settled(func(m map[string]string) bool { return m["num-other-sentinels"] == "2" })
	})
}

// Close kills all and removes their files.
func (s *Sentinel) Close() {
	for _, rdb := range s.asks {
		_ = rdb.Close() // nobody uses it any more
	}
	for _, p := range slices.Concat(s.Sentinels, s.Nodes) {
		p.Close()
	}
	os.RemoveAll(s.dir)
}

// Client returns a client of the master that is closed when t ends.
func (s *Sentinel) Client(t testing.TB, opts ...func(*redis.FailoverOptions)) *redis.Client {
	t.Helper()
	o := &redis.FailoverOptions{MasterName: MasterName, SentinelAddrs: addrs(s.Sentinels)}
	for _, opt := range opts {
		opt(o)
	}
	rdb := redis.NewFailoverClient(o)
	t.Cleanup(func() { _ = rdb.Close() }) // the test may have closed it already
	return rdb
}

// Proxies returns fault proxies of master, replica and sentinels that are closed
// when t ends.
func (s *Sentinel) Proxies(t testing.TB) *Proxies {
	t.Helper()
	return NewProxies(t, append(addrs(s.Nodes), addrs(s.Sentinels)...)...)
}

// Set changes an option of the master on all sentinels, such as
// "down-after-milliseconds".
func (s *Sentinel) Set(option, value string) error {
	for i, rdb := range s.asks {
		if err := rdb.Set(context.Background(), MasterName, option, value).Err(); err != nil {
			return fmt.Errorf("redistest: %s: %w", s.Sentinels[i].Addr, err)
		}
	}
	return nil
}

// Master is the master, as the first sentinel says that answers; nil when none does.
func (s *Sentinel) Master() *Server {
	for i, rdb := range s.asks {
		if !listens(s.Sentinels[i].Addr) {
			continue
		}
		addr, err := rdb.GetMasterAddrByName(context.Background(), MasterName).Result()
		if err == nil && len(addr) == 2 {
			return s.at(net.JoinHostPort(addr[0], addr[1]))
		}
	}
	return nil
}

// Replicas are the nodes that follow the master, as the first sentinel says that
// answers.
func (s *Sentinel) Replicas() (list []*Server) {
	for i, rdb := range s.asks {
		if !listens(s.Sentinels[i].Addr) {
			continue
		}
		replicas, err := rdb.Replicas(context.Background(), MasterName).Result()
		if err != nil {
			continue
		}
		for _, r := range replicas {
			if following(r) {
				list = append(list, s.at(net.JoinHostPort(r["ip"], r["port"])))
			}
		}
		return list
	}
	return nil
}

func following(replica map[string]string) bool {
	return replica["flags"] == "slave" && replica["master-link-status"] == "ok"
}

func (s *Sentinel) at(addr string) *Server {
	for _, n := range s.Nodes {
		if n.Addr == addr {
			return n
		}
	}
	return nil
}

// Failover makes the replica take the master's place, and waits until all
// sentinels know and the former master follows it.
func (s *Sentinel) Failover(t testing.TB) {
	t.Helper()
	former := s.Master()
	wait(t, func() error { // refused while the one before is not over
		return s.asks[0].Failover(context.Background(), MasterName).Err()
	})
	master := s.WaitMaster(t, former)
	// The sentinels do this as well, but first wait whether it knows by itself.
	rdb := adminClient(former.Addr)
	defer rdb.Close()
	host, port, _ := net.SplitHostPort(master.Addr)
	if err := rdb.ReplicaOf(context.Background(), host, port).Err(); err != nil {
		t.Fatalf("redistest: %s: %v", former.Addr, err)
	}
	wait(t, func() error { return s.settled(func(map[string]string) bool { return true }) })
}

// WaitMaster waits until all sentinels that answer say that somebody else than
// not is the master, and this one agrees. It returns it.
func (s *Sentinel) WaitMaster(t testing.TB, not *Server) (master *Server) {
	t.Helper()
	wait(t, func() error {
		if master = s.Master(); master == nil || master == not {
			return errors.New("nobody else is the master")
		}
		for i, rdb := range s.asks {
			if !listens(s.Sentinels[i].Addr) {
				continue
			}
			addr, err := rdb.GetMasterAddrByName(context.Background(), MasterName).Result()
			if err == nil && net.JoinHostPort(addr[0], addr[1]) != master.Addr {
				return fmt.Errorf("%s says %v is the master", s.Sentinels[i].Addr, addr)
			}
		}
		rdb := adminClient(master.Addr)
		defer rdb.Close()
		info, err := rdb.Info(context.Background(), "replication").Result()
		if err != nil {
			return err
		}
		if !strings.Contains(info, "role:master") {
			return fmt.Errorf("%s is not promoted yet", master.Addr)
		}
		return nil
	})
	return master
}

// settled checks that every sentinel sees a master that is well and followed by
// all others, and that good accepts what it says of it.
func (s *Sentinel) settled(good func(map[string]string) bool) error {
	ctx := context.Background()
	for i, rdb := range s.asks {
		m, err := rdb.Master(ctx, MasterName).Result()
		if err != nil {
			return err
		}
		replicas, err := rdb.Replicas(ctx, MasterName).Result()
		if err != nil {
			return err
		}
		n := 0
		for _, r := range replicas {
			if following(r) {
				n++
			}
		}
		if m["flags"] != "master" || n != len(s.Nodes)-1 || !good(m) {
			return fmt.Errorf("%s says of the master %v, of the replicas %v", s.Sentinels[i].Addr, m, replicas)
		}
	}
	return nil
}
