package script

import (
	"context"
	"fmt"
	"strconv"

	"github.com/redis/go-redis/v9"
)

// Read asks what stands at a lock's key: its PTTL in milliseconds, -2 when it is
// free, and its fields. A script goes to the master whatever the client's options
// say of replicas, and to the node that has the key.
func (r *Runner) Read(ctx context.Context, key any) (pttl int64, fields map[string]string, err error) {
	ask := func(verb, what any) *redis.Cmd {
		r.Sent.Add(1)
		cmd := redis.NewCmd(ctx, verb, what, 1, key) // go-redis may repeat it: it changes nothing
		if err := r.Client.Process(ctx, cmd); err != nil {
			cmd.SetErr(err)
		}
		return cmd
	}
	cmd := ask(evalsha, Info.sha)
	if redis.HasErrorPrefix(cmd.Err(), "NOSCRIPT") {
		cmd = ask(eval, Info.text)
	}
	if err := cmd.Err(); err != nil {
		return 0, nil, err
	}
	words, err := cmd.StringSlice()
	if err != nil || len(words)%2 == 0 {
		return 0, nil, fmt.Errorf("%w %v to script %s", errReply, cmd.Val(), Info.Name)
	}
	if pttl, err = strconv.ParseInt(words[0], 10, 64); err != nil {
		return 0, nil, fmt.Errorf("%w %q to script %s", errReply, words[0], Info.Name)
	}
	fields = make(map[string]string, len(words)/2)
	for i := 1; i < len(words); i += 2 {
		fields[words[i]] = words[i+1]
	}
	return pttl, fields, nil
}
