package rlock

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/relock-go/relock/internal/owner"
)

const (
	longestName  = 1024
	longestLease = 10 * 365 * 24 * time.Hour
)

func checkName(name string) error {
	if name == "" {
		return fmt.Errorf("%w: it is empty", ErrInvalidName)
	}
	if len(name) > longestName {
		return fmt.Errorf("%w: %d bytes; at most %d", ErrInvalidName, len(name), longestName)
	}
	return nil
}

// checkLease wants whole milliseconds in effect: Redis knows no less. 0 is the
// watchdog's.
func checkLease(lease time.Duration) error {
	if lease != 0 && (lease < time.Millisecond || lease > longestLease) {
		return fmt.Errorf("%w: %v; use 0 for the watchdog, or 1ms to %v", ErrInvalidLease, lease, longestLease)
	}
	return nil
}

func checkID(id string) error {
	if err := owner.Check(id); err != nil {
		return errors.New(strings.ReplaceAll(err.Error(), "owner", "id"))
	}
	return nil
}
