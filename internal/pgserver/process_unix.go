//go:build unix

package pgserver

import (
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
)

// account is the user that the server's processes run as; nil means this process's own.
type account struct{ uid, gid uint32 }

// serverAccount returns whom to run as. initdb and postgres refuse root, so root borrows
// "postgres" where there is one, else "nobody".
func serverAccount() (*account, error) {
	if os.Geteuid() != 0 {
		return nil, nil //nolint:nilnil // no account is the ordinary case: run as who we are
	}
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, err := strconv.ParseUint(u.Uid, 10, 32)
		if err != nil {
			continue
		}
		gid, err := strconv.ParseUint(u.Gid, 10, 32)
		if err != nil {
			continue
		}
		return &account{uid: uint32(uid), gid: uint32(gid)}, nil
	}
	return nil, fmt.Errorf("find a user to run PostgreSQL as: it refuses root, and there is neither a user postgres nor nobody")
}

// own gives path and everything under it to the account.
func (a *account) own(path string) error {
	if a == nil {
		return nil
	}
	return filepath.WalkDir(path, func(p string, _ os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return os.Lchown(p, int(a.uid), int(a.gid))
	})
}

// prepare makes cmd run as the account and in a process group of its own, so that an interrupt
// typed at the terminal reaches the program and not the server under it.
func (a *account) prepare(cmd *exec.Cmd) {
	attr := &syscall.SysProcAttr{Setpgid: true}
	if a != nil {
		attr.Credential = &syscall.Credential{Uid: a.uid, Gid: a.gid}
	}
	dieWithParent(attr)
	cmd.SysProcAttr = attr
}

// The postmaster's signals, from its manual page.
var stopSignals = map[stopMode]syscall.Signal{
	stopFast:      syscall.SIGINT,
	stopImmediate: syscall.SIGQUIT,
}

// signalStop asks the postmaster of this server to stop. The caller waits for it.
func (s *Server) signalStop(mode stopMode) error {
	return s.proc.cmd.Process.Signal(stopSignals[mode])
}
