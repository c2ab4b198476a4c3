// Package skip is the one place that skips a test: always with a reason, and never where REQUIRE_SERVICES=1.
package skip

import (
	"os"
	"testing"
)

// Allowed says whether a test may be skipped: REQUIRE_SERVICES=1, as in CI, forbids it.
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

// InShort skips a test that takes long under -short, and lets it run where skipping is not allowed. why is what takes
// long.
func InShort(t testing.TB, why string) {
	t.Helper()
	if testing.Short() && Allowed() {
		t.Skipf("-short: %s", why)
	}
}
