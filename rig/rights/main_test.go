// Package rights plays each role against the others: what a role of roles.sql may do is enough for its part, and nothing else. It has
// no code but tests.
package rights

import (
	"os"
	"testing"

	"github.com/holdfast-go/holdfast/internal/test/kafkatest"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
)

func TestMain(m *testing.M) {
	os.Exit(pgtest.Main(m, kafkatest.Stop))
}
