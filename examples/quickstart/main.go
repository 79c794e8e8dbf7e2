// Command quickstart shows what a relock lock does, as a timeline.
//
// Two clients stand for two processes that want one lock. They wait for each
// other, one of them dies, and one of them loses what it holds. Each line was
// observed when it was printed; the program fails if anything is otherwise.
//
//	go run ./examples/quickstart                                      # embedded Redis
//	REDIS_URL=redis://localhost:6379/0 go run ./examples/quickstart   # a real one
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"time"

	"github.com/redis/go-redis/v9/logging"
)

// timeLimit is for the whole program. It needs about half of it.
const timeLimit = 15 * time.Second

func main() {
	if len(os.Args) > 1 {
		fmt.Fprintln(os.Stderr, "quickstart takes no arguments. Set REDIS_URL=redis://host:port/db to use a real Redis.")
		os.Exit(2)
	}
	logging.Disable() // go-redis would report the connections that this program cuts
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Stdout, os.Getenv("REDIS_URL")); err != nil {
		fmt.Fprintln(os.Stderr, "quickstart:", err)
		os.Exit(1)
	}
}

// run tells the story on the Redis at url, or on an embedded one if url is empty.
func run(ctx context.Context, out io.Writer, url string) (err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, timeLimit,
		fmt.Errorf("it took longer than %v: the Redis or this machine is too slow for the story", timeLimit))
	defer cancel()

	server, err := openServer(ctx, url)
	if err != nil {
		return err
	}
	defer server.close()

	s, err := newStory(out, server)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()

	scenes := []struct {
		title string
		play  func(context.Context, *story) error
	}{
		{"Two processes, one lock", sharing},
		{"The watchdog keeps a lock for longer than its lease", keeping},
		{"A holder dies", dying},
		{"A lock is taken away, and its holder is told", losing},
	}
	for i, scene := range scenes {
		s.line.title(i+1, scene.title)
		if err := scene.play(ctx, s); err != nil {
			if cause := context.Cause(ctx); cause != nil {
				err = cause
			}
			return fmt.Errorf("scene %d did not go as it should: %w", i+1, err)
		}
	}
	return s.summary(ctx, len(scenes))
}
