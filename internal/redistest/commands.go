package redistest

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
)

// CountCommands returns a function that tells how often the server has run each
// command since this call, by the server's own count (INFO commandstats). Names
// are in lower case, a subcommand follows a bar: "client|kill". The count is
// the whole server's, with what scripts call and what a new connection says
// first; only INFO, which asks, is left out. Miniredis has no such statistics:
// there, count with a Proxy.
func CountCommands(t testing.TB, rdb redis.UniversalClient) func() map[string]int {
	t.Helper()
	before := commandStats(t, rdb)
	return func() map[string]int {
		t.Helper()
		delta := commandStats(t, rdb)
		for name, n := range before {
			if delta[name] -= n; delta[name] == 0 {
				delete(delta, name)
			}
		}
		delete(delta, "info")
		return delta
	}
}

func commandStats(t testing.TB, rdb redis.UniversalClient) map[string]int {
	t.Helper()
	// Cleanups count too, and t.Context has ended there.
	text, err := rdb.Info(context.WithoutCancel(t.Context()), "commandstats").Result()
	if err != nil {
		t.Fatalf("redistest: INFO commandstats: %v", err)
	}
	stats, err := parseCommandStats(text)
	if err != nil {
		t.Fatalf("redistest: INFO commandstats: %v", err)
	}
	return stats
}

// parseCommandStats reads lines like "cmdstat_get:calls=3,usec=12,...".
func parseCommandStats(text string) (map[string]int, error) {
	stats := make(map[string]int)
	for line := range strings.Lines(text) {
		rest, ok := strings.CutPrefix(strings.TrimSpace(line), "cmdstat_")
		if !ok {
			continue
		}
		name, fields, _ := strings.Cut(rest, ":calls=")
		calls, _, _ := strings.Cut(fields, ",")
		n, err := strconv.Atoi(calls)
		if err != nil {
			return nil, fmt.Errorf("line %q: %w", line, err)
		}
		stats[strings.ToLower(name)] = n
	}
	return stats, nil
}
