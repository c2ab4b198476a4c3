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
	// A bare descriptor, which nothing closes before the process ends, and the lock with it.
	fd, err := syscall.Open(name, syscall.O_CREAT|syscall.O_RDWR|syscall.O_NOFOLLOW|syscall.O_CLOEXEC, 0o600)
	if err != nil {
		return
	}
	for syscall.Flock(fd, syscall.LOCK_EX) == syscall.EINTR {
	}
}
