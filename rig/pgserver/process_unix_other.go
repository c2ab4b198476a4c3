//go:build unix && !linux

package pgserver

import "syscall"

// dieWithParent does nothing: only Linux has a parent death signal. The watchdog does it here.
func dieWithParent(*syscall.SysProcAttr) {}
