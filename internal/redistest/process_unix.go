//go:build unix

package redistest

import "syscall"

// Stop freezes the process until Cont.
func (p *Process) Stop() error { return p.Signal(syscall.SIGSTOP) }

// Cont lets a stopped process go on.
func (p *Process) Cont() error { return p.Signal(syscall.SIGCONT) }
