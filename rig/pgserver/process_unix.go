//go:build unix

package pgserver

import (
	"errors"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"

	"github.com/holdfast-go/holdfast/internal/test/lifeline"
)

// account is the user that the server's processes run as; nil means this process's own.
type account struct{ uid, gid uint32 }

// serverAccount returns whom to run as. initdb and postgres refuse root, so root borrows
// "postgres" where there is one, else "nobody".
func serverAccount() (*account, error) {
	if os.Geteuid() != 0 {
		return nil, nil //nolint:nilnil // the ordinary case: run as who we are
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
	return nil, errors.New("PostgreSQL refuses to run as root and there is neither a user postgres nor nobody to run it as: run as another user")
}

func (a *account) credential() *syscall.Credential {
	if a == nil {
		return nil
	}
	return &syscall.Credential{Uid: a.uid, Gid: a.gid}
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
	attr := &syscall.SysProcAttr{Setpgid: true, Credential: a.credential()}
	dieWithParent(attr)
	cmd.SysProcAttr = attr
}

// cleanUp stops the postmaster that the pid file names and removes the folder. It waits for the
// postmaster: one whose folder vanishes first writes into its log what nobody can read.
const cleanUp = `
if pid=$(head -n 1 "$1/data/postmaster.pid" 2>/dev/null); then
  kill -QUIT "$pid"
  for _ in 1 2 3 4 5 6 7 8 9 10; do kill -0 "$pid" && sleep 0.3 || break; done
fi
rm -rf "$1"
`

// attachLifeline has the server stopped and dir removed if this process ends without Stop. On
// Linux the parent death signal stops the server first; the folder is left to the lifeline.
func attachLifeline(a *account, dir string) (*lifeline.Line, error) {
	return lifeline.Attach(a.credential(), childEnv(), cleanUp, dir)
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
