package main

import (
	"regexp"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/internal/test/migrated"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
)

func TestStatusBackfills_StatusShowsABackfill(t *testing.T) {
	skip.InShort(t, "it takes 4 s beside the others")
	db := migrated.New(t)
	t.Setenv("DATABASE_URL", db.DSN)
	pgtest.Exec(t, db, `insert into holdfast.consumer_backfill (consumer, node, began_at, partitions, partitions_left, done, remaining, per_second)
		values ('read-model-2', 'n', now() - interval '1 minute', 8, 5, 12000, 38000, 200)`)
	ago := regexp.MustCompile(`\S+ ago`)
	for _, c := range []struct {
		name, set string
		exit      int
		line      string
		says      string
	}{
		{"it runs", "done = done", 0, "read-model-2 12000 50000 3 of 8 200 3m10s T ago runs", "nothing needs a person"},
		{"nothing moves", "per_second = 0", 0, "read-model-2 12000 50000 3 of 8 0 - T ago runs", "nothing needs a person"},
		{"it takes for ever", "per_second = 1e-9", 0, "read-model-2 12000 50000 3 of 8 0 277777h46m40s T ago runs", "nothing needs a person"},
		{"it waits", "per_second = 0, waits = '9 events wait'", 1, "read-model-2 12000 50000 3 of 8 0 - T ago waits: 9 events wait", "the backfill of consumer read-model-2 waits: 9 events wait"},
		{"its node died", "told_at = now() - interval '2 minutes'", 0, "read-model-2 12000 50000 3 of 8 - - T ago no node runs it", "nothing needs a person"},
		{"it ended early", "ended_at = now(), error = 'stopped'", 0, "read-model-2 12000 50000 3 of 8 - - T ago ended early: stopped", "nothing needs a person"},
		{"it is done", "error = null, done = 50000, remaining = 0, partitions_left = 0", 0, "read-model-2 50000 50000 8 of 8 - - T ago done", "nothing needs a person"},
	} {
		pgtest.Exec(t, db, "update holdfast.consumer_backfill set "+c.set)
		out := wantStatus(t, c.exit, c.says, "status")
		if !strings.Contains(ago.ReplaceAllString(strings.Join(strings.Fields(out), " "), "T ago"), c.line) {
			t.Errorf("%s: %q is not in\n%s", c.name, c.line, out)
		}
	}
	wantStatus(t, 0, `"state":"done"`, "status", "--json")
	pgtest.Exec(t, db, "update holdfast.consumer_backfill set told_at = now() - interval '8 days'")
	if out := wantStatus(t, 0, "nothing needs a person", "status"); strings.Contains(out, "BACKFILLED") {
		t.Errorf("after a week it is still shown:\n%s", out)
	}

	// Somebody has paused the consumer: that is what needs a person.
	pgtest.Exec(t, db, "update holdfast.consumer_backfill set told_at = now(), ended_at = null, remaining = 1, waits = 'the consumer is paused'")
	pgtest.Exec(t, db, "insert into holdfast.pause (consumer, by, reason) values ('read-model-2', 'ann', 'a test')")
	if out := wantStatus(t, 1, "holdfast resume", "status"); strings.Contains(out, "the backfill of") || !strings.Contains(out, "waits: the consumer is paused") {
		t.Errorf("of a paused one it says\n%s", out)
	}
}
