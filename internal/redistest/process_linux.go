package redistest

import (
	"os/exec"
	"syscall"
)

// dieWithParent lets the kernel kill the child when this process dies, however
// it does: no cleanup runs after a panic or a SIGKILL.
func dieWithParent(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}
