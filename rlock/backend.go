package rlock

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// backend is what a client of go-redis says about the Redis behind it.
type backend struct {
	rdb         redis.UniversalClient
	readTimeout time.Duration // 0: not known, or none
	oneServer   bool          // a call may name the keys of several locks
	tags        bool          // it places keys by their hash tags: one lock's must agree
	slots       bool          // its servers may be a cluster's
	apart       bool          // they may be single ones, which do not pass messages on

	// node is the server that has a key. nil: there is but one, or nobody can say.
	node func(ctx context.Context, key string) (*redis.Client, error)
	// refresh has a stale answer of node replaced, soon. nil: there is no such thing.
	refresh func(ctx context.Context)
}

// backendOf knows the clients of go-redis by their types. Of any other one it only
// takes for granted that a script goes to the server of its first key.
func backendOf(rdb redis.UniversalClient) (backend, error) {
	if v := reflect.ValueOf(rdb); rdb == nil || v.Kind() == reflect.Pointer && v.IsNil() {
		return backend{}, errors.New("the Redis client is nil; make one with redis.NewClient, say")
	}
	b := backend{rdb: rdb}
	switch rdb := rdb.(type) {
	case *redis.Client:
		b.readTimeout = rdb.Options().ReadTimeout
		b.oneServer = true
	case *redis.ClusterClient:
		o := rdb.Options()
		b.readTimeout = o.ReadTimeout
		b.tags, b.slots = true, true
		b.apart = o.ClusterSlots != nil // the user says which server has what
		b.node = rdb.MasterForKey
		b.refresh = rdb.ReloadState
	case *redis.Ring:
		b.readTimeout = rdb.Options().ReadTimeout
		b.tags, b.apart = true, true
		b.node = func(_ context.Context, key string) (*redis.Client, error) { return rdb.GetShardClientForKey(key) }
	}
	return b, nil
}

// ring tells whether keys are spread over servers that know nothing of each other
// by a client that may change its mind.
func (b *backend) ring() bool {
	_, ok := b.rdb.(*redis.Ring)
	return ok
}

// sender is the client that single scripts go through.
func (b *backend) sender(auto bool) (redis.UniversalClient, error) {
	if !auto {
		return b.rdb, nil
	}
	ap, err := b.rdb.AutoPipeline()
	if err != nil {
		return nil, fmt.Errorf("WithAutoPipeline: %w; leave the option out", err)
	}
	return ap, nil
}

// failed hears of every error. Those that no server has sent, and those of one that
// does not serve the key, may mean that another one has taken over. go-redis would
// ask which after a minute only: it asks when it repeats a command, and ours it
// does not repeat.
func (b *backend) failed(ctx context.Context, err error) {
	var reply redis.Error
	if b.refresh != nil && (!errors.As(err, &reply) || servedElsewhere(reply)) {
		b.refresh(ctx)
	}
}

func servedElsewhere(reply redis.Error) bool {
	if strings.Contains(reply.Error(), "READONLY ") { // Redis 6.2 wraps what a script raises
		return true
	}
	for _, word := range []string{"MOVED ", "ASK ", "CLUSTERDOWN ", "MASTERDOWN ", "LOADING "} {
		if strings.HasPrefix(reply.Error(), word) {
			return true
		}
	}
	return false
}
