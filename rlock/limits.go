package rlock

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/relock-go/relock/internal/owner"
	"github.com/relock-go/relock/internal/script"
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

// checkKey is checkName for a key, which a cluster must not tear apart.
func checkKey(key string, tags bool) error {
	err := checkName(key)
	switch {
	case err != nil:
		return fmt.Errorf("%w, after mapping", err)
	case tags && !script.OneSlot(key):
		return fmt.Errorf("%w: %q would be torn apart: its key and its channel are placed by different hash tags; "+
			"use no brace at all, or put one part of the name in braces as in \"{orders}:17\"", ErrInvalidName, key)
	}
	return nil
}

// checkLease wants whole milliseconds in effect: Redis knows no less. 0 is the
// watchdog's.
func checkLease(lease time.Duration) error {
	if lease != 0 && (lease < time.Millisecond || lease > longestLease) {
		return fmt.Errorf("%w: %v; use 0 for the watchdog, or 1ms to 10 years", ErrInvalidLease, lease)
	}
	return nil
}

func checkID(id string) error {
	if err := owner.Check(id); err != nil {
		return errors.New(strings.ReplaceAll(err.Error(), "owner", "id"))
	}
	return nil
}
