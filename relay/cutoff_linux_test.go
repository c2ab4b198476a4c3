package relay

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/internal/test/cable"
	"github.com/holdfast-go/holdfast/internal/test/migrated"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/internal/test/wait"
)

// The row of its lane stays locked meanwhile, and no other relay claims the lane.
func TestCutoff_ARelayCutOffInsideAPipelineFreesItsLane(t *testing.T) {
	skip.InShort(t, "it takes 10 s beside the others")
	t.Parallel()
	db := migrated.New(t)
	conn, err := pgx.ConnectConfig(t.Context(), db.Pool.Config().ConnConfig)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	tx, err := conn.BeginTx(t.Context(), pgx.TxOptions{BeginQuery: beginGuarded})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), "select from holdfast.lane where lane = 0 for update"); err != nil {
		t.Fatal(err)
	}
	cable.PullInsideAPipeline(t, tx, db.Pool)
	begun := time.Now()
	const bound = 10 * time.Second
	var locked time.Duration // A look that comes late, on a busy machine, does not count.
	wait.Until(t, "the lane to be free", func() bool {
		at := time.Since(begun)
		if pgtest.Count(t, db.Pool, "select count(*) from (select from holdfast.lane where lane = 0 for update skip locked) free") == 1 {
			return true
		}
		locked = at
		return false
	})
	if locked > bound+time.Second {
		t.Errorf("the lane was locked after %v, want at most %v", locked, bound)
	} else {
		t.Logf("last locked after %v", locked)
	}
}
