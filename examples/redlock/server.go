package main

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/alicebob/miniredis/v2"
	redisserver "github.com/alicebob/miniredis/v2/server"
)

// server is an embedded Redis that can be stopped, and comes up empty on the same
// address. The restart guard asks a server for how long it has run, with INFO server;
// miniredis does not know that section, so it is added here.
type server struct {
	mini  *miniredis.Miniredis
	addr  string
	since atomic.Int64 // when it was started, in Unix milliseconds
}

func startServer() (*server, error) {
	s := &server{mini: miniredis.NewMiniRedis()}
	s.mini.ClockTTL(true) // keys expire as time passes
	if err := s.start(); err != nil {
		return nil, err
	}
	s.addr = s.mini.Addr()
	return s, nil
}

func (s *server) start() error {
	s.mini.FlushAll()
	s.startedAt(time.Now())
	start := s.mini.Start
	if s.addr != "" {
		start = func() error { return s.mini.StartAddr(s.addr) }
	}
	if err := start(); err != nil {
		return fmt.Errorf("the embedded Redis does not start: %w", err)
	}
	s.mini.Server().SetPreHook(s.info)
	return nil
}

func (s *server) startedAt(t time.Time) { s.since.Store(t.UnixMilli()) }

func (s *server) stop() { s.mini.Close() }

// waitFree waits until nobody has the lock: a request that was repeated while the server
// was away may reach it late, and is undone then.
func (s *server) waitFree(ctx context.Context) error {
	for s.mini.Exists(lockName) {
		select {
		case <-time.After(time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// info answers INFO server, and leaves all else to miniredis.
func (s *server) info(c *redisserver.Peer, cmd string, args ...string) bool {
	if cmd != "INFO" || len(args) != 1 || !strings.EqualFold(args[0], "server") {
		return false
	}
	up := time.Since(time.UnixMilli(s.since.Load()))
	c.WriteBulk(fmt.Sprintf("# Server\r\nuptime_in_seconds:%d\r\n", int64(up.Seconds())))
	return true
}
