//go:build unix

// Package heavy keeps test binaries apart that each load a machine by themselves. Side by side, as go test runs packages,
// they delay each other so much that tests which judge delays see the machine's.
package heavy

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// Wait returns when no other heavy test binary of this user runs. It gives way by ending, however it ends. Where no lock
// can be had it returns at once.
func Wait() {
	name := filepath.Join(os.TempDir(), fmt.Sprintf("holdfast-heavy-tests-%d", os.Getuid()))
	f, err := os.OpenFile(name, os.O_CREATE|os.O_RDWR|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return
	}
	held = f
	for syscall.Flock(int(f.Fd()), syscall.LOCK_EX) == syscall.EINTR {
	}
}

// held keeps the file open, and with it the lock, until the process ends.
var held *os.File
