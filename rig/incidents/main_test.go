// Package incidents has the tests of what an operator goes by: dashboards, alerts and runbooks. They hold every expression to the
// metrics that exist, and make each incident of docs/operations/runbooks.md on real servers. It has no code but tests, and is a
// module of its own, because nothing else may need Prometheus.
package incidents

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"testing"

	"github.com/holdfast-go/holdfast/internal/test/kafkatest"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/rig/internal/heavy"
)

const (
	dashboards = "../../docs/dashboards"
	operations = "../../docs/operations"
)

func TestMain(m *testing.M) {
	_ = flag.Set("test.parallel", "4") // Each incident has a relay or a consumer of its own. -parallel wins: flags are parsed later.
	heavy.Wait()
	os.Exit(pgtest.Main(m, kafkatest.Stop, func() { os.RemoveAll(built) }))
}

var built = filepath.Join(os.TempDir(), fmt.Sprintf("holdfast-incidents-%d", os.Getpid()))

// program builds cmd/holdfast once, and returns its path.
var program = sync.OnceValues(func() (string, error) {
	if err := os.MkdirAll(built, 0o755); err != nil {
		return "", err
	}
	path := filepath.Join(built, "holdfast")
	if runtime.GOOS == "windows" {
		path += ".exe"
	}
	if out, err := exec.Command("go", "build", "-o", path, "github.com/holdfast-go/holdfast/cmd/holdfast").CombinedOutput(); err != nil {
		return "", fmt.Errorf("build cmd/holdfast: %w: %s", err, out)
	}
	return path, nil
})

func need[T any](t testing.TB) func(value T, err error) T {
	return func(value T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return value
	}
}
