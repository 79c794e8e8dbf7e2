// Package owner finds, makes and checks the names of lock owners.
package owner

import (
	"errors"
	"fmt"

	"github.com/google/uuid"
)

// maxLen is the longest owner text, in bytes.
const maxLen = 128

// New returns an owner text that no other call returns, in this process or in
// a copy of it. It is never all digits, so it cannot be taken for a
// goroutine's, and it passes Check.
func New() string {
	// The text form always has hyphens; its randomness is crypto/rand's.
	return uuid.NewString()
}

// Check returns an error that says what is wrong with s, unless s is 1 to 128
// of letters, digits, '-', '_' and '.'. Only ASCII counts: the text becomes
// part of a field name that clients in other languages read.
func Check(s string) error {
	if s == "" {
		return errors.New("owner is empty: use 1 to 128 of letters, digits, '-', '_', '.'")
	}
	if len(s) > maxLen {
		return fmt.Errorf("owner has %d bytes: use at most %d", len(s), maxLen)
	}
	for i := range len(s) {
		if !allowed(s[i]) {
			return fmt.Errorf("owner %q has %q at byte %d: use letters, digits, '-', '_', '.'", s, s[i], i)
		}
	}
	return nil
}

func allowed(c byte) bool {
	switch {
	case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9':
		return true
	}
	return c == '-' || c == '_' || c == '.'
}
