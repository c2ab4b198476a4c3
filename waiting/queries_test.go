package waiting

import (
	"os"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/sqlschema"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
)

func TestQueries_EveryStatementIsPreparedAgainstTheSchema(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	if err := holdfast.Migrate(t.Context(), db.Pool, holdfast.SchemaConfig{Schema: "other"}); err != nil {
		t.Fatal(err)
	}
	conn, err := db.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	statements := []string{listRelay, listConsumer, listSchedule, groupRelay, groupConsumer, groupSchedule, showRelay, showConsumer, showSchedule,
		countRelay, boundRelay, lockLane, readOwner, disownLane, countLeft, giveUpRelay, redirectRelay, resumeRelay, retryRelay, countRetry, topicIsPaused,
		retryConsumer, wouldRetry, stillWaits, giveUpConsumer, recordStored, wakeKey, cancelScheduled, whereIs, pausePause, resumePause, listPaused, recordPause, listConsumers}
	for _, sql := range statements {
		sql = sqlschema.In("other", sql)
		if !strings.HasPrefix(sql, "-- waiting.") || strings.Contains(strings.SplitN(sql, "\n", 2)[1], "holdfast.") {
			t.Errorf("%s is not named, or not in the configured schema", sql)
		}
		if _, err := conn.Conn().Prepare(t.Context(), "", sql); err != nil {
			t.Errorf("%s: %v", sql, err)
		}
	}
	text, err := os.ReadFile("queries.go")
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(text), "`-- waiting."); n != len(statements) {
		t.Errorf("%d statements are prepared, and the file has %d", len(statements), n)
	}
}
