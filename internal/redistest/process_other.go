//go:build !linux

package redistest

import "os/exec"

// dieWithParent does nothing here: only Linux ties a child's life to its parent's.
func dieWithParent(*exec.Cmd) {}
