//go:build linux

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"github.com/holdfast-go/holdfast/internal/test/lifeline"
)

// smallDisks are two small file systems in memory, so that Postgres and Kafka can run out of space without harm to
// others. Mounting them needs root. Without it servers use the usual disk, and never run out.
type smallDisks struct {
	dir     string
	mounted []string
	why     error          // why there are none
	line    *lifeline.Line // unmounts them when this process is killed
}

// Sizes in MiB: enough for new servers, and for a run of some hours.
const (
	postgresDisk = 3072
	kafkaDisk    = 3072
)

// makeSmallDisks makes them in a folder of their own, which other users may enter: servers are not run as root.
func makeSmallDisks() *smallDisks {
	dir, err := os.MkdirTemp("", "holdfast-disks-")
	if err == nil {
		err = os.Chmod(dir, 0o755)
	}
	if err != nil {
		return &smallDisks{why: err}
	}
	d := &smallDisks{dir: dir}
	if d.line, err = lifeline.Attach(nil, os.Environ(), `umount -l "$1"/* 2>/dev/null; rm -rf "$1"`, dir); err != nil {
		d.remove()
		return &smallDisks{why: err}
	}
	for name, size := range map[string]int{postgres: postgresDisk, broker: kafkaDisk} {
		path := filepath.Join(dir, name)
		err := os.MkdirAll(path, 0o777)
		if err == nil {
			err = syscall.Mount("tmpfs", path, "tmpfs", 0, fmt.Sprintf("size=%dm,mode=0777", size))
		}
		if err != nil {
			d.remove()
			return &smallDisks{why: fmt.Errorf("mount a tmpfs: %w (that needs root)", err)}
		}
		d.mounted = append(d.mounted, path)
	}
	return d
}

func (d *smallDisks) have() bool { return len(d.mounted) > 0 }

// missing says why there are no small disks, or "".
func (d *smallDisks) missing() string {
	if d.have() {
		return ""
	}
	return fmt.Sprintf("there is no small disk: %v", d.why)
}

// postgres and kafka are the folders to run the servers in; "" leaves the choice to them.
func (d *smallDisks) postgres() string { return d.folder(postgres) }
func (d *smallDisks) kafka() string    { return d.folder(broker) }

func (d *smallDisks) folder(name string) string {
	if !d.have() {
		return ""
	}
	return filepath.Join(d.dir, name)
}

func (d *smallDisks) remove() {
	for _, path := range d.mounted {
		_ = syscall.Unmount(path, syscall.MNT_DETACH)
	}
	if d.dir != "" {
		_ = os.RemoveAll(d.dir)
	}
	d.line.Release()
	d.mounted = nil
}

// fill uses up a disk, and returns a function that frees it.
func (d *smallDisks) fill(name string) (free func() error, err error) {
	path := filepath.Join(d.dir, name, "ballast")
	f, err := os.Create(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var room syscall.Statfs_t
	if err := syscall.Statfs(filepath.Dir(path), &room); err != nil {
		return nil, err
	}
	left := int64(room.Bavail) * room.Bsize
	// All free space, in ever smaller pieces: others write at the same time.
	for offset, piece := int64(0), left; piece >= 4096; {
		if err := syscall.Fallocate(int(f.Fd()), 0, offset, piece); err != nil {
			piece /= 2
			continue
		}
		offset += piece
	}
	return func() error { return os.Remove(path) }, nil
}
