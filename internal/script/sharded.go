package script

import (
	"context"

	"github.com/redis/go-redis/v9"
)

// AskSharded asks the server behind rdb whether it is a cluster's, and whether it
// has sharded pub/sub: nil means yes. It asks once, whatever rdb's retries are.
func AskSharded(ctx context.Context, rdb redis.UniversalClient) (cluster, sharded error) {
	ask := func(args ...any) *command { return &command{Cmd: *redis.NewCmd(ctx, args...)} }
	slot, channels := ask("cluster", "keyslot", "relock"), ask("pubsub", "shardnumsub")
	_, err := rdb.Pipelined(ctx, func(p redis.Pipeliner) error {
		_ = p.Process(ctx, slot) // each has an error of its own
		return p.Process(ctx, channels)
	})
	if slot.Err() == nil && channels.Err() == nil && slot.Val() == nil { // it was not sent
		return err, err
	}
	return slot.Err(), channels.Err()
}
