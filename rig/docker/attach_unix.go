//go:build unix

package docker

import (
	"os"
	"os/exec"

	"github.com/holdfast-go/holdfast/internal/test/lifeline"
)

// attachable tells whether attach works on this machine.
func attachable() bool {
	_, err := exec.LookPath("docker")
	return err == nil
}

// attach has the container removed when this process ends without having called Release. It
// needs the command docker; where there is none it does nothing, and the reaper of
// testcontainers-go has to do.
func attach(containerID string) *lifeline.Line {
	docker, err := exec.LookPath("docker")
	if err != nil {
		return nil
	}
	line, err := lifeline.Attach(nil, os.Environ(), `"$1" rm --force --volumes "$2" >/dev/null 2>&1`, docker, containerID)
	if err != nil {
		return nil // a convenience: the container works without
	}
	return line
}
