package main

import (
	"os/exec"
	"syscall"
)

// endWithParent ends cmd when this process ends, however it does.
func endWithParent(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }
