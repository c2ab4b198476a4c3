//go:build unix

package bouncer

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"

	"github.com/holdfast-go/holdfast/internal/test/lifeline"
)

const (
	unsupported   = ""
	pauseSignal   = syscall.SIGSTOP
	unpauseSignal = syscall.SIGCONT
)

// account is the user that PgBouncer runs as; nil means this process's own.
type account struct{ uid, gid uint32 }

// serverAccount returns whom to run as. PgBouncer refuses root, so root borrows "nobody".
func serverAccount() (*account, error) {
	if os.Geteuid() != 0 {
		return nil, nil //nolint:nilnil // the ordinary case: run as who we are
	}
	u, err := user.Lookup("nobody")
	if err != nil {
		return nil, fmt.Errorf("PgBouncer refuses to run as root: %w", err)
	}
	uid, uidErr := strconv.ParseUint(u.Uid, 10, 32)
	gid, gidErr := strconv.ParseUint(u.Gid, 10, 32)
	if err := errors.Join(uidErr, gidErr); err != nil {
		return nil, fmt.Errorf("read the account of nobody: %w", err)
	}
	return &account{uid: uint32(uid), gid: uint32(gid)}, nil
}

// own gives dir and what is in it to the account.
func (a *account) own(dir string) error {
	if a == nil {
		return nil
	}
	return filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return os.Lchown(path, int(a.uid), int(a.gid))
	})
}

// prepare makes cmd run as the account and in a process group of its own, so that an interrupt typed at the terminal
// reaches the program and not the PgBouncer under it.
func (a *account) prepare(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if a != nil {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: a.uid, Gid: a.gid}
	}
}

// attachLifeline has PgBouncer ended, frozen or not, and its folder removed if this process ends without Stop.
func attachLifeline(dir string) (*lifeline.Line, error) {
	return lifeline.Attach(nil, nil, `if pid=$(cat "$1/pid" 2>/dev/null); then kill -KILL "$pid"; fi
rm -rf "$1"`, dir)
}
