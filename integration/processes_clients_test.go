package integration

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"

	"github.com/relock-go/relock/internal/redistest"
)

// deployment says which client of go-redis a process opens, and where that finds
// its servers.
type deployment struct {
	Kind  string   // a name of topologies; "" is "single"
	Addrs []string // of nodes, or of sentinels
	Auto  bool     // WithAutoPipeline
}

// open opens it with what o says beside. shut closes it.
func (d deployment) open(o redis.UniversalOptions) (rdb redis.UniversalClient, shut func() error, err error) {
	o.Addrs = d.Addrs
	switch d.Kind {
	case "", "single":
		rdb = redis.NewClient(o.Simple())
	case "cluster":
		rdb = redis.NewClusterClient(o.Cluster())
	case "slots":
		var p plain
		for _, addr := range d.Addrs {
			p = append(p, &redistest.Server{Addr: addr})
		}
		c := o.Cluster()
		c.Addrs, c.ClusterSlots = nil, p.slots
		rdb = redis.NewClusterClient(c)
	case "failover":
		o.MasterName = redistest.MasterName
		rdb = redis.NewFailoverClient(o.Failover())
	case "ring":
		shards := map[string]string{}
		for i, addr := range d.Addrs {
			shards[fmt.Sprint("shard", i)] = addr
		}
		// None is taken for down, see openRing.
		up := func(context.Context, *redis.Client) bool { return true }
		rdb = redis.NewRing(&redis.RingOptions{Addrs: shards, HeartbeatFn: up, ReadTimeout: o.ReadTimeout, DialTimeout: o.DialTimeout})
	case "autopipeline":
		plain := redis.NewClient(o.Simple())
		ap, err := plain.AutoPipeline()
		if err != nil {
			return nil, nil, errors.Join(err, plain.Close())
		}
		return ap, func() error { return errors.Join(ap.Close(), plain.Close()) }, nil
	default:
		return nil, nil, fmt.Errorf("no such client: %q", d.Kind)
	}
	return rdb, rdb.Close, nil
}

// spins is how often a hog goes round between two pieces of work, which take it to
// where it may have to wait for others.
const spins = 100_000

// strain makes life hard in this process, as the settings say: Hogs goroutines take
// the processor, and do some work now and then, and the user has a slow command under way at each
// server all the time, over a connection of the client that the locks use. ease
// ends both.
func (p *party) strain(ctx context.Context, work func(hog int)) (ease func() error) {
	var off atomic.Bool
	var hogs sync.WaitGroup
	for i := range p.Hogs {
		hogs.Go(func() {
			for turns := 0; !off.Load(); turns++ {
				if turns%spins == 0 {
					work(i)
				}
			}
		})
	}
	var slow errgroup.Group
	if p.Slow > 0 {
		slow.Go(func() error {
			again := func(ctx context.Context, rdb *redis.Client) error {
				for !off.Load() {
					// There is no replica to wait for, so it takes its time.
					err := rdb.Do(ctx, "wait", 1, p.Slow.Milliseconds()).Err()
					if err != nil && !errors.Is(err, redis.ErrPoolTimeout) {
						return err
					}
				}
				return nil
			}
			switch rdb := p.rdb.(type) {
			case *redis.Client:
				return again(ctx, rdb)
			case *redis.ClusterClient:
				return rdb.ForEachMaster(ctx, again)
			}
			return fmt.Errorf("no slow commands for a %T", p.rdb)
		})
	}
	return func() error {
		off.Store(true)
		hogs.Wait()
		return slow.Wait()
	}
}
