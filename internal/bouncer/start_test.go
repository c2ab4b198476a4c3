package bouncer

import (
	"errors"
	"net"
	"os"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/internal/freeport"
	"github.com/holdfast-go/holdfast/internal/skip"
)

func TestStartChoosesAnotherPortWhenOneIsTaken(t *testing.T) {
	t.Parallel()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	go func() { // nobody gets an answer there
		for {
			c, err := taken.Accept()
			if err != nil {
				return
			}
			_ = c.Close()
		}
	}()
	asked := 0
	s, err := Start(t.Context(), Options{Target: "127.0.0.1:1", User: "u", choosePort: func() (int, error) {
		if asked++; asked < 3 {
			return taken.Addr().(*net.TCPAddr).Port, nil
		}
		return freeport.Find()
	}})
	if errors.Is(err, ErrNoBouncer) {
		skip.Without(t, "PgBouncer", "apt-get install pgbouncer", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	s.Stop()
	if asked != 3 {
		t.Errorf("asked for %d ports, want 3", asked)
	}
}

func TestAStartThatFailsSaysWhyAndLeavesNothing(t *testing.T) {
	dir, err := os.MkdirTemp("", "holdfast-test-") // as root PgBouncer's user may not enter t.TempDir
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	t.Setenv("TMPDIR", dir)
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	_, err = Start(t.Context(), Options{Target: "127.0.0.1:1", User: "u", Settings: map[string]string{"pool_mode": "no such mode"}})
	if errors.Is(err, ErrNoBouncer) {
		skip.Without(t, "PgBouncer", "apt-get install pgbouncer", err)
	}
	if err == nil || !strings.Contains(err.Error(), "pool_mode") {
		t.Errorf("the error does not say what PgBouncer said: %v", err)
	}
	if left, _ := os.ReadDir(dir); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
}
