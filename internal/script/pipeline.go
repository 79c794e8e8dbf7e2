package script

import (
	"context"

	"github.com/redis/go-redis/v9"
)

// SendEach sends s once for each of calls, all in one pipeline, over the
// connections that go-redis keeps for pipelines. words are the one key of a call,
// then its arguments. go-redis splits the pipeline by node and follows redirects;
// each call has an answer of its own.
func (r *Runner) SendEach(ctx context.Context, s *Script, calls [][]any) []Answer {
	answers := make([]Answer, len(calls))
	all := make([]int, len(calls))
	for i := range all {
		all[i] = i
	}
	unknown := r.sendSome(ctx, s, evalsha, s.sha, calls, all, answers)
	if len(unknown) > 0 {
		r.sendSome(ctx, s, eval, s.text, calls, unknown, answers)
	}
	return answers
}

// sendSome sends the calls whose numbers are some, and sets their answers. It
// returns the numbers of those whose script the server does not know.
func (r *Runner) sendSome(ctx context.Context, s *Script, verb, what any, calls [][]any, some []int, answers []Answer) (unknown []int) {
	cmds := make([]*command, len(some))
	_, err := r.pipes().Pipelined(ctx, func(pipe redis.Pipeliner) error {
		for i, n := range some {
			cmds[i] = r.command(ctx, verb, what, 1, calls[n])
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
		answers[n] = answerOf(s, cmds[i], err)
	}
	return unknown
}
