package script

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/redis/go-redis/v9"
)

// Runner sends scripts. It never repeats one by itself, with one exception: on
// NOSCRIPT the text follows, because NOSCRIPT proves that nothing ran.
type Runner struct {
	Client redis.UniversalClient
	Pipes  redis.UniversalClient // for pipelines; nil: Client
	Sent   atomic.Uint64         // script calls sent so far
}

func (r *Runner) pipes() redis.UniversalClient {
	if r.Pipes != nil {
		return r.Pipes
	}
	return r.Client
}

// Answer is what came of one script call.
type Answer struct {
	Text   string // the reply; empty unless Fate is Ran
	Acks   int    // SendAcked: how many replicas have what the script wrote
	AckErr error  // and why that is not known
	Told   int    // release: how many subscribers heard of it, as far as the server knows; -1 unknown
	Fate   Fate
	Err    error // nil exactly when Fate is Ran
}

// Send sends s once. words are the keys, numKeys of them, then the arguments.
//
// ctx carries values for hooks of the user's client. Whether its end stops the
// call is a matter of that client: go-redis looks at a deadline only with
// ContextTimeoutEnabled, and never at a cancellation.
func (r *Runner) Send(ctx context.Context, s *Script, numKeys int, words ...any) Answer {
	cmd, err := r.process(ctx, evalsha, s.sha, numKeys, words)
	if err != nil && redis.HasErrorPrefix(err, "NOSCRIPT") {
		cmd, err = r.process(ctx, eval, s.text, numKeys, words)
	}
	return answerOf(s, cmd, err)
}

// process sends one command. A deferred autopipeliner returns from Process before
// it is answered; Err waits for that.
func (r *Runner) process(ctx context.Context, verb, what any, numKeys int, words []any) (*command, error) {
	cmd := r.command(ctx, verb, what, numKeys, words)
	if err := r.Client.Process(ctx, cmd); err != nil {
		return cmd, err
	}
	return cmd, cmd.Err()
}

// SendApart is Send over the connections that go-redis keeps for pipelines, so
// that it does not queue behind the user's own commands.
func (r *Runner) SendApart(ctx context.Context, s *Script, numKeys int, words ...any) Answer {
	send := func(verb, what any) (*command, error) {
		cmd := r.command(ctx, verb, what, numKeys, words)
		_, err := r.pipes().Pipelined(ctx, func(pipe redis.Pipeliner) error {
			return pipe.Process(ctx, cmd)
		})
		return cmd, err
	}
	cmd, err := send(evalsha, s.sha)
	if err != nil && redis.HasErrorPrefix(err, "NOSCRIPT") {
		cmd, err = send(eval, s.text)
	}
	return answerOf(s, cmd, err)
}

func answerOf(s *Script, cmd *command, err error) Answer {
	if err != nil {
		return Answer{Fate: fateOf(err), Err: err}
	}
	switch reply := cmd.Val().(type) {
	case string:
		return Answer{Text: reply, Fate: Ran}
	case int64:
		if text, told := meaning(reply); text != "" {
			return Answer{Text: text, Told: told, Fate: Ran}
		}
	}
	err = fmt.Errorf("%w %v of type %T to script %s", errReply, cmd.Val(), cmd.Val(), s.Name)
	return Answer{Fate: Unknown, Err: err}
}

// meaning is what a number says. The numbers are small because Go keeps those
// below 256 ready: such a reply costs no allocation. None stands for a quantity,
// so none can be taken for a TTL.
func meaning(code int64) (text string, told int) {
	switch {
	case code == 201:
		return "granted", 0
	case code == 202:
		return "kept", 0
	case code == 203:
		return "passed", 0
	case code == 204:
		return "gone", 0
	case code == 205:
		return "released:others", 0
	case code == 206:
		return "left", 0
	case code >= 210 && code < 250:
		return "released", int(code - 210)
	case code == 250:
		return "released", -1
	}
	return "", 0
}

// errReply: whatever answered did not run our script. The state is open.
var errReply = errors.New("unexpected reply")

// BadReply is the answer to a reply that no script of ours gives.
func BadReply(s *Script, text string) Answer {
	if len(text) > 64 {
		text = text[:64] + "..."
	}
	return Answer{Fate: Unknown, Err: fmt.Errorf("%w %q to script %s", errReply, text, s.Name)}
}

var evalsha, eval any = "evalsha", "eval"

func (r *Runner) command(ctx context.Context, verb, what any, numKeys int, words []any) *command {
	r.Sent.Add(1)
	args := make([]any, 3+len(words))
	args[0], args[1], args[2] = verb, what, numKeys
	copy(args[3:], words)
	return &command{Cmd: *redis.NewCmd(ctx, args...)}
}

// command is a command that go-redis must not repeat: a script whose reply was
// lost may have run, and only the caller knows what a second run would mean.
type command struct{ redis.Cmd }

func (c *command) NoRetry() bool { return true }

// Clone is a command to be sent instead of c. It keeps NoRetry, which the clone of
// a redis.Cmd would lose.
func (c *command) Clone() redis.Cmder {
	return &command{Cmd: *redis.NewCmd(context.Background(), c.Args()...)}
}
