package script

import (
	"context"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// SendAcked is Send to one server, with a WAIT for n replicas behind the script, on the
// same connection and in one round trip: a WAIT elsewhere would wait for the writes of
// others. Acks of its answer says how many replicas have what the script wrote; AckErr,
// why it is not known. ask sends ASKING before: the server takes the slot over.
func (r *Runner) SendAcked(ctx context.Context, node *redis.Client, ask bool, n int, timeout time.Duration, s *Script, numKeys int, words ...any) Answer {
	send := func(verb, what any) (*command, *redis.IntCmd) {
		cmd := r.command(ctx, verb, what, numKeys, words)
		wait := redis.NewIntCmd(ctx, "wait", n, timeout.Milliseconds())
		_, err := node.Pipelined(ctx, func(pipe redis.Pipeliner) error {
			if ask {
				_ = pipe.Process(ctx, redis.NewStatusCmd(ctx, "asking"))
			}
			_ = pipe.Process(ctx, cmd)
			return pipe.Process(ctx, wait)
		})
		if err != nil && cmd.Err() == nil && cmd.Val() == nil { // it did not get there
			cmd.SetErr(err)
		}
		return cmd, wait
	}
	cmd, wait := send(evalsha, s.sha)
	if redis.HasErrorPrefix(cmd.Err(), "NOSCRIPT") {
		cmd, wait = send(eval, s.text)
	}
	a := answerOf(s, cmd, cmd.Err())
	a.Acks, a.AckErr = int(wait.Val()), wait.Err()
	return a
}

// Redirect tells which server a cluster's node has sent the asker to, and whether only
// for this once.
func Redirect(err error) (addr string, ask, ok bool) {
	if err == nil {
		return "", false, false
	}
	words := strings.Fields(err.Error())
	if len(words) != 3 || words[0] != "MOVED" && words[0] != "ASK" {
		return "", false, false
	}
	return words[2], words[0] == "ASK", true
}
