package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
)

// server is the Redis of the story.
type server struct {
	what    string // for people
	options redis.Options
	mini    *miniredis.Miniredis // nil for a real one
}

// openServer starts an embedded Redis, or finds the one at rawURL.
func openServer(ctx context.Context, rawURL string) (*server, error) {
	if rawURL == "" {
		mini := miniredis.NewMiniRedis()
		mini.ClockTTL(true) // keys expire as time passes
		if err := mini.Start(); err != nil {
			return nil, fmt.Errorf("the embedded Redis does not start: %w", err)
		}
		return &server{what: "an embedded Redis (miniredis)", options: redis.Options{Addr: mini.Addr()}, mini: mini}, nil
	}
	options, err := redis.ParseURL(rawURL)
	if err != nil {
		var parse *url.Error
		if errors.As(err, &parse) {
			err = parse.Err // without the URL, which may have a password in it
		}
		return nil, fmt.Errorf("REDIS_URL is not usable: %w. It looks like redis://user:password@host:6379/0", err)
	}
	options.DialTimeout = 3 * time.Second
	s := &server{what: "the Redis at " + options.Addr, options: *options}
	if err := s.ping(ctx); err != nil {
		return nil, err
	}
	return s, nil
}

// ping finds out early, and says clearly, that the server is of no use.
func (s *server) ping(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 4*time.Second)
	defer cancel()
	options := s.options
	options.MaxRetries = -1
	options.DialerRetries = 1
	rdb := redis.NewClient(&options)
	defer rdb.Close()
	err := rdb.Ping(ctx).Err()
	var refusal redis.Error
	switch {
	case err == nil:
		return nil
	case errors.As(err, &refusal):
		return fmt.Errorf("%s refuses the connection: %w. Put user and password in REDIS_URL", s.what, err)
	default:
		return fmt.Errorf("%s does not answer: %w. Start it, or run without REDIS_URL to use an embedded one", s.what, err)
	}
}

func (s *server) close() {
	if s.mini != nil {
		s.mini.Close()
	}
}
