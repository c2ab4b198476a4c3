// Package deploy checks what is in the folder deploy with the tools that it is for: the image with Docker, the manifests with Kustomize and
// Kubernetes' own types, the unit with systemd, the migrations with goose and tern. It has no code but tests.
package deploy

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/holdfast-go/holdfast/internal/test/kafkatest"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
)

// The tests run in the folder that they check.
func TestMain(m *testing.M) {
	if err := os.Chdir("../../deploy"); err != nil {
		panic(err)
	}
	code := pgtest.Main(m, kafkatest.Stop)
	if binaryDir != "" {
		os.RemoveAll(binaryDir)
	}
	os.Exit(code)
}

// binaryDir has the binary that the image is made of, and is the context of its build.
var binaryDir string

// binary builds the command as deploy/Dockerfile does.
var binary = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "holdfast")
	if err != nil {
		return "", err
	}
	binaryDir = dir
	path := filepath.Join(dir, "holdfast")
	build := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w -buildid=", "-o", path, "../cmd/holdfast")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return "", errors.New(string(out))
	}
	return path, nil
})

// built is the binary.
func built(t *testing.T) string {
	t.Helper()
	path, err := binary()
	if err != nil {
		t.Fatalf("build: %v", err)
	}
	return path
}

// holdfast runs the command, and returns what it printed.
func holdfast(t *testing.T, env []string, args ...string) string {
	t.Helper()
	cmd := exec.Command(built(t), args...)
	cmd.Env = env
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	if err := cmd.Run(); err != nil {
		t.Fatalf("holdfast %s: %v\n%s%s", strings.Join(args, " "), err, out.String(), errOut.String())
	}
	return out.String()
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
