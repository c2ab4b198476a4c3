package bouncer

import (
	"os/exec"
	"syscall"

	"github.com/holdfast-go/holdfast/internal/test/lifeline"
)

const (
	unsupported   = "not tried on Windows"
	pauseSignal   = syscall.SIGINT
	unpauseSignal = syscall.SIGINT
)

// account is empty on Windows, where there is no bouncer.
type account struct{}

func serverAccount() (*account, error) { return nil, nil }

func (a *account) own(string) error { return nil }

func (a *account) prepare(*exec.Cmd) {}

func attachLifeline(string) (*lifeline.Line, error) { return nil, nil }
