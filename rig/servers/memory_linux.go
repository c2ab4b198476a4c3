package main

import (
	"os"
	"syscall"
)

const (
	memoryFS = "/dev/shm"
	// memoryNeeded must be free there. A server takes 100 MB, its log of changes up to memoryLog, a test's database 10 MB.
	memoryNeeded = 2 << 30
	tmpfsMagic   = 0x01021994 // TMPFS_MAGIC of statfs(2)
)

// memoryDir is a folder in memory for a server whose tests need nothing of the disk, or "" where there is none with room,
// or where TMPDIR says where temporary files go. Making a database writes some 300 files: on a disk that is what tests
// spend most of their time on.
func memoryDir() string {
	var fs syscall.Statfs_t
	if os.Getenv("TMPDIR") != "" || syscall.Statfs(memoryFS, &fs) != nil {
		return ""
	}
	if int64(fs.Type) != tmpfsMagic || int64(fs.Bavail)*int64(fs.Bsize) < memoryNeeded {
		return ""
	}
	probe, err := os.MkdirTemp(memoryFS, "holdfast-probe-")
	if err != nil {
		return ""
	}
	_ = os.Remove(probe)
	return memoryFS
}
