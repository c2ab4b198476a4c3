package inbox

import (
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/internal/test/plantest"
)

// Every event pays for these looks. Postgres would make each once for every use of its answer.
func TestWhatIsBeforeAnEventIsLookedForOnce(t *testing.T) {
	b := setup(t)
	for _, plan := range plantest.Of(t, b.db.Pool, insertSQL, "'billing', '', '12', 'orders', '12', 8, 0, '', 1, 1") {
		for _, index := range []string{"stored_pkey", "letter_holds_inbox", "consumer_position_pkey"} {
			if n := strings.Count(plan.Text, index); n != 1 {
				t.Errorf("index %s is read %d times, want once:\n%s", index, n, plan.Text)
			}
		}
	}
}
