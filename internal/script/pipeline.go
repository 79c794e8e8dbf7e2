package script

import (
	"context"

	"github.com/redis/go-redis/v9"
)

// Call is a script with one key.
type Call struct {
	*Script
	Words []any // the key, then the arguments
}

// SendEach sends each of calls once, all in one pipeline, over the connections that
// go-redis keeps for pipelines. go-redis splits the pipeline by node and follows
// redirects; each call has an answer of its own.
func (r *Runner) SendEach(ctx context.Context, calls []Call) []Answer {
	answers := make([]Answer, len(calls))
	all := make([]int, len(calls))
	for i := range all {
		all[i] = i
	}
	unknown := r.sendSome(ctx, evalsha, calls, all, answers)
	if len(unknown) > 0 {
		r.sendSome(ctx, eval, calls, unknown, answers)
	}
	return answers
}

// sendSome sends the calls whose numbers are some, and sets their answers. It
// returns the numbers of those whose script the server does not know.
func (r *Runner) sendSome(ctx context.Context, verb any, calls []Call, some []int, answers []Answer) (unknown []int) {
	cmds := make([]*command, len(some))
	_, err := r.pipes().Pipelined(ctx, func(pipe redis.Pipeliner) error {
		for i, n := range some {
			what := calls[n].sha
			if verb == eval {
				what = calls[n].text
			}
			cmds[i] = r.command(ctx, verb, what, 1, calls[n].Words)
			if err := pipe.Process(ctx, cmds[i]); err != nil {
				return err
			}
		}
		return nil
	})
	for i, n := range some {
		if cmds[i] == nil { // the pipeline did not take it
			answers[n] = Answer{Fate: fateOf(err), Err: err}
			continue
		}
		err := cmds[i].Err()
		if err != nil && redis.HasErrorPrefix(err, "NOSCRIPT") {
			unknown = append(unknown, n)
		}
		answers[n] = answerOf(calls[n].Script, cmds[i], err)
	}
	return unknown
}
