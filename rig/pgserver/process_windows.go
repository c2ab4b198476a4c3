package pgserver

import (
	"context"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/holdfast-go/holdfast/internal/test/lifeline"
)

// account is empty on Windows: the server runs as this process's user.
type account struct{}

func serverAccount() (*account, error) { return nil, nil }

func (a *account) own(string) error { return nil }

func (a *account) prepare(*exec.Cmd) {}

// attachLifeline does nothing: on Windows a program that is killed leaves its server behind.
func attachLifeline(*account, string) (*lifeline.Line, error) { return nil, nil }

// signalStop goes through pg_ctl, which has its own way to signal a server on Windows.
func (s *Server) signalStop(mode stopMode) error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	return exec.CommandContext(ctx, filepath.Join(s.binDir, "pg_ctl.exe"),
		"stop", "--no-wait", "-D", s.dataDir(), "-m", string(mode)).Run()
}
