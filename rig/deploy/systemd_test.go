package deploy

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/internal/test/skip"
)

// unit is a copy of the unit that starts the binary of this test.
func unit(t *testing.T, change ...string) string {
	t.Helper()
	if _, err := exec.LookPath("systemd-analyze"); err != nil {
		skip.Without(t, "systemd-analyze", "install systemd", err)
	}
	const installed = "/usr/local/bin/holdfast"
	text := read(t, "systemd/holdfast-relay.service")
	if strings.Count(text, "ExecStart="+installed+" ") != 1 {
		t.Fatalf("the unit does not start %s", installed)
	}
	text = strings.NewReplacer(append([]string{"ExecStart=" + installed, "ExecStart=" + built(t)}, change...)...).Replace(text)
	path := filepath.Join(t.TempDir(), "holdfast-relay.service")
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestSystemd_SystemdFindsNothingWrongWithTheUnit(t *testing.T) {
	out, err := exec.Command("systemd-analyze", "verify", "--man=no", unit(t)).CombinedOutput()
	if err != nil || len(out) > 0 {
		t.Errorf("%v: %s", err, out)
	}
	if out, _ = exec.Command("systemd-analyze", "verify", "--man=no", unit(t, "ProtectClock=", "ProtectClocks=")).CombinedOutput(); !strings.Contains(string(out), "ProtectClocks") {
		t.Errorf("of a setting that is none it says %q", out)
	}
}

func TestSystemd_TheUnitIsHardened(t *testing.T) {
	// 100 is no protection at all. A service that talks to other machines has some 10.
	out, err := exec.Command("systemd-analyze", "security", "--offline=true", "--no-pager", "--threshold=15", unit(t)).CombinedOutput()
	if err != nil {
		t.Errorf("%v: %s", err, out)
	}
	if out, err := exec.Command("systemd-analyze", "security", "--offline=true", "--no-pager", "--threshold=15", unit(t, "DynamicUser=yes", "User=root", "CapabilityBoundingSet=\n", "")).CombinedOutput(); err == nil {
		t.Errorf("as root it is as good: %s", out)
	}
}

// What the unit runs takes its settings: the command, the file and the credential.
func TestSystemd_TheUnitStartsARelay(t *testing.T) {
	text := read(t, "systemd/holdfast-relay.service")
	for _, want := range []string{"holdfast relay --config /etc/holdfast/relay.yaml\n", "LoadCredential=database-url:/etc/holdfast/database-url\n", "Environment=DATABASE_URL_FILE=%d/database-url\n"} {
		if !strings.Contains(text, want) {
			t.Errorf("the unit has no %q", want)
		}
	}
	dir := t.TempDir()
	for name, content := range map[string]string{"relay.yaml": "brokers: b:9092\n", "database-url": "postgres://u@h/x\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	out := holdfast(t, []string{"DATABASE_URL_FILE=" + filepath.Join(dir, "database-url")}, "relay", "--config", filepath.Join(dir, "relay.yaml"), "--print-config")
	if !strings.Contains(out, "DATABASE_URL_FILE") || !strings.Contains(out, "brokers: b:9092") {
		t.Error(out)
	}
}
