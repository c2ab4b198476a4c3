// Package endtoend has the tests of the whole path under faults: killed processes, stopped servers, load on keys, nodes
// and topics, a process that ends at each failpoint. It has no code but tests.
package endtoend

import (
	"flag"
	"os"
	"testing"

	"github.com/holdfast-go/holdfast/internal/test/endtoend"
	"github.com/holdfast-go/holdfast/internal/test/kafkatest"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/rig/internal/heavy"
)

func TestMain(m *testing.M) {
	if isPart() {
		os.Exit(runPart())
	}
	// Each of these is many processes, or a load on the servers. -parallel wins: flags are parsed later.
	_ = flag.Set("test.parallel", "2")
	heavy.Wait()
	os.Exit(pgtest.Main(m, kafkatest.Stop))
}

// path is endtoend.Path with what only the tests under faults do.
type path struct{ *endtoend.Path }

func setupPath(t testing.TB, db *pgtest.DB, cluster *kafkatest.Cluster, partitions int) *path {
	t.Helper()
	return &path{endtoend.Setup(t, db, cluster, partitions)}
}
