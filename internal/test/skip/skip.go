// Package skip is the one place that skips a test: always with a reason. What a machine lacks is a failure where
// REQUIRE_SERVICES=1; what takes long is left out by -short alone.
package skip

import (
	"os"
	"testing"
)

// Allowed says whether a test may be skipped for what the machine lacks: REQUIRE_SERVICES=1, as in CI, forbids it.
func Allowed() bool { return os.Getenv("REQUIRE_SERVICES") != "1" }

// Without ends a test that cannot get what it needs: skipped, or failed where that is not allowed. remedy is what to do
// about it, err why it could not be had. It does not return.
func Without(t testing.TB, need, remedy string, err error) {
	t.Helper()
	if !Allowed() {
		t.Fatalf("%s is required by REQUIRE_SERVICES=1, so %s: %v", need, remedy, err)
	}
	t.Skipf("needs %s, so %s: %v", need, remedy, err)
}

// InShort skips a test under -short, wherever it runs. why says what takes long, or what of the test depends on how busy
// the machine is. docs/project/testing.md says where such a test runs.
func InShort(t testing.TB, why string) {
	t.Helper()
	if testing.Short() {
		t.Skipf("-short: %s", why)
	}
}
