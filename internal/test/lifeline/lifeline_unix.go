//go:build unix

package lifeline

import (
	"fmt"
	"os/exec"
	"syscall"
)

// prelude waits for the one line that Release writes, or for the end of the pipe. Interrupts
// typed at the terminal and hang-ups are for the program, not for what cleans up after it.
const prelude = `trap '' HUP INT TERM
if read -r _; then exit 0; fi
`

// Attach starts a shell that runs script with args as $1, $2, … once this process has ended
// without Release. credential is whom the shell runs as; nil means this process's own user.
func Attach(credential *syscall.Credential, env []string, script string, args ...string) (*Line, error) {
	cmd := exec.Command("/bin/sh", append([]string{"-c", prelude + script, "holdfast-lifeline"}, args...)...)
	cmd.Dir = "/"
	cmd.Env = env
	// A group of its own, and none of our outputs: a program that waits for those to be closed, as go
	// test does, must not wait for the shell.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Credential: credential}
	pipe, err := cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("make the lifeline's pipe: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start the lifeline's shell: %w", err)
	}
	return &Line{cmd: cmd, pipe: pipe}, nil
}
