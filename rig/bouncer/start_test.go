package bouncer

import (
	"errors"
	"net"
	"os"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/internal/test/freeport"
	"github.com/holdfast-go/holdfast/internal/test/skip"
)

// needsBouncer skips a test whose start failed because there is no PgBouncer.
func needsBouncer(t *testing.T, err error) {
	t.Helper()
	if errors.Is(err, ErrNoBouncer) {
		skip.Without(t, "PgBouncer", "apt-get install pgbouncer", err)
	}
}

func TestStart_StartChoosesAnotherPortWhenOneIsTaken(t *testing.T) {
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
	needsBouncer(t, err)
	if err != nil {
		t.Fatal(err)
	}
	s.Stop()
	if asked != 3 {
		t.Errorf("asked for %d ports, want 3", asked)
	}
}

func TestStart_AStartThatFailsSaysWhyAndLeavesNothing(t *testing.T) {
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
	needsBouncer(t, err)
	if err == nil || !strings.Contains(err.Error(), "pool_mode") {
		t.Errorf("the error does not say what PgBouncer said: %v", err)
	}
	if left, _ := os.ReadDir(dir); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestStart_ItSaysWhenItEndedAlthoughNobodyAsked(t *testing.T) {
	t.Parallel()
	s, err := Start(t.Context(), Options{Target: "127.0.0.1:1", User: "u"})
	needsBouncer(t, err)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Stop)
	if err := s.Err(); err != nil {
		t.Errorf("it runs, and %v", err)
	}
	if err := s.Kill(); err != nil || s.Err() != nil {
		t.Errorf("it was killed as asked: %v, %v", err, s.Err())
	}
	if err := s.Restart(t.Context()); err != nil || s.Err() != nil {
		t.Errorf("it runs again: %v, %v", err, s.Err())
	}
	if err := s.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	<-s.done
	if err := s.Err(); err == nil || !strings.Contains(err.Error(), "ended by itself: signal: killed") || !strings.Contains(err.Error(), "listening on") {
		t.Errorf("got %v", err)
	}
	if ended, err := s.Revive(t.Context()); err != nil || ended == nil || !strings.Contains(ended.Error(), "signal: killed") {
		t.Errorf("revived: %v, it had ended by %v", err, ended)
	}
	if err := s.answers(t.Context()); err != nil || s.Err() != nil {
		t.Errorf("it was revived, and %v, %v", err, s.Err())
	}
	if ended, err := s.Revive(t.Context()); ended != nil || err != nil {
		t.Errorf("it runs: %v, %v", ended, err)
	}
	if err := s.Kill(); err != nil {
		t.Fatal(err)
	}
	if ended, err := s.Revive(t.Context()); ended != nil || err != nil || s.runs() {
		t.Errorf("it was killed as asked, and revived: %v, %v", ended, err)
	}
}
