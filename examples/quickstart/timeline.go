package main

import (
	"fmt"
	"io"
	"slices"
	"sync"
	"time"
)

// timeline prints what happened: seconds since the start, who, what.
type timeline struct {
	mu    sync.Mutex
	out   io.Writer
	start time.Time
}

// fact is one line.
type fact struct {
	at   time.Time
	who  string
	what string
}

func (t *timeline) title(n int, title string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	fmt.Fprintf(t.out, "\n%d. %s\n", n, title)
}

// say prints what has happened just now.
func (t *timeline) say(who, format string, args ...any) {
	t.tell(fact{time.Now(), who, fmt.Sprintf(format, args...)})
}

// tell prints facts in the order in which they happened.
func (t *timeline) tell(facts ...fact) {
	t.mu.Lock()
	defer t.mu.Unlock()
	slices.SortStableFunc(facts, func(a, b fact) int { return a.at.Compare(b.at) })
	for _, f := range facts {
		fmt.Fprintf(t.out, "%8.3f s  %-8s  %s\n", f.at.Sub(t.start).Seconds(), f.who, f.what)
	}
}

// ms is d in milliseconds, for people.
func ms(d time.Duration) string {
	if d < 10*time.Millisecond {
		return fmt.Sprintf("%.1f ms", float64(d)/float64(time.Millisecond))
	}
	return fmt.Sprintf("%d ms", d.Milliseconds())
}
