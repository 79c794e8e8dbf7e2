package script

import (
	"context"
	"fmt"
	"strconv"

	"github.com/redis/go-redis/v9"
)

// Standing is what stands at a lock's key.
type Standing struct {
	TTL    int64             // PTTL in milliseconds: -1 without expiry, -2 when it is free
	Fields map[string]string // of the hash
	Queue  []string          // of a fair lock
}

// Read asks what stands at a lock's key, in queue, unless that is empty, and with the
// keys of read holds that begin with base, unless that is. A script goes to the master
// whatever the client's options say of replicas, and to the node that has the key.
func (r *Runner) Read(ctx context.Context, key any, queue, base string) (Standing, error) {
	ask := func(verb, what any) *redis.Cmd {
		r.Sent.Add(1)
		cmd := redis.NewCmd(ctx, verb, what, 1, key, queue, base) // go-redis may repeat it: it changes nothing
		if err := r.Client.Process(ctx, cmd); err != nil {
			cmd.SetErr(err)
		}
		return cmd
	}
	cmd := ask(evalsha, Info.sha)
	if redis.HasErrorPrefix(cmd.Err(), "NOSCRIPT") {
		cmd = ask(eval, Info.text)
	}
	reply, err := cmd.Slice()
	if cmd.Err() != nil {
		return Standing{}, cmd.Err()
	}
	bad := fmt.Errorf("%w %v to script %s", errReply, cmd.Val(), Info.Name)
	if err != nil || len(reply) != 3 {
		return Standing{}, bad
	}
	ttl, ok := reply[0].(string)
	fields, ok2 := texts(reply[1])
	queued, ok3 := texts(reply[2])
	s := Standing{Fields: make(map[string]string, len(fields)/2), Queue: queued}
	if s.TTL, err = strconv.ParseInt(ttl, 10, 64); err != nil || !ok || !ok2 || !ok3 || len(fields)%2 != 0 {
		return Standing{}, bad
	}
	for i := 0; i < len(fields); i += 2 {
		s.Fields[fields[i]] = fields[i+1]
	}
	return s, nil
}

// texts is a reply that is a list of strings.
func texts(reply any) ([]string, bool) {
	list, ok := reply.([]any)
	some := make([]string, len(list))
	for i, word := range list {
		text, is := word.(string)
		some[i], ok = text, ok && is
	}
	return some, ok
}
