package main

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
)

// The example runs as it is printed, here and on a real Redis if there is one.
func TestRun(t *testing.T) {
	urls := map[string]string{"embedded": ""}
	if url := os.Getenv("REDIS_URL"); url != "" {
		urls["real"] = url
	}
	for name, url := range urls {
		t.Run(name, func(t *testing.T) {
			var out strings.Builder
			if err := run(t.Context(), &out, url); err != nil {
				t.Fatal(err)
			}
			for _, want := range []string{"A wakes up and writes: refused", "the balance is 100\n"} {
				if !strings.Contains(out.String(), want) {
					t.Errorf("%q is missing in:\n%s", want, out.String())
				}
			}
		})
	}
}

// The row itself refuses, whatever the lock says.
func TestDeposit(t *testing.T) {
	ctx := context.Background()
	s, err := openStore(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	for _, step := range []struct {
		token uint64
		err   error
	}{{5, nil}, {4, errStale}, {5, errStale}, {1_900_000_000_000_000, nil}, {6, errStale}} {
		if err := s.deposit(ctx, step.token, 1); !errors.Is(err, step.err) {
			t.Fatalf("token %d: %v, want %v", step.token, err, step.err)
		}
	}
	if n, err := s.balance(ctx); err != nil || n != 2 {
		t.Fatalf("balance %d, %v; want 2", n, err)
	}
}
