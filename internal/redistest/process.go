package redistest

import (
	"os"
	"os/exec"
	"runtime"
)

// Process is a child that dies with this process, where the system can do that.
type Process struct {
	cmd    *exec.Cmd
	exited chan struct{} // closed when it was reaped; err is set before
	err    error
}

// StartProcess starts cmd and waits for its end in the background.
func StartProcess(cmd *exec.Cmd) (*Process, error) {
	dieWithParent(cmd)
	p := &Process{cmd: cmd, exited: make(chan struct{})}
	started := make(chan error, 1)
	go func() {
		defer close(p.exited)
		// The child dies with the thread that started it, not with the process,
		// so that thread is kept until the child has ended.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			p.err = cmd.Wait()
		}
	}()
	if err := <-started; err != nil {
		<-p.exited
		return nil, err
	}
	return p, nil
}

// Pid is the process's id.
func (p *Process) Pid() int { return p.cmd.Process.Pid }

// Signal is an error once the child was reaped: no other process that has got
// its id since is hit.
func (p *Process) Signal(sig os.Signal) error { return p.cmd.Process.Signal(sig) }

// Kill ends the process at once, also a stopped one, and waits until it is gone.
func (p *Process) Kill() {
	_ = p.cmd.Process.Kill() // fails only when it is gone already
	<-p.exited
}

// Exited is closed when the process has ended and its output was read.
func (p *Process) Exited() <-chan struct{} { return p.exited }

// Wait waits for the end of the process and says how it ended.
func (p *Process) Wait() error {
	<-p.exited
	return p.err
}
