package pgserver

import "syscall"

// dieWithParent has the kernel stop the server at once when the thread that started it ends.
// SIGQUIT, not SIGKILL, so that the postmaster takes its children and shared memory with it.
func dieWithParent(attr *syscall.SysProcAttr) { attr.Pdeathsig = syscall.SIGQUIT }
