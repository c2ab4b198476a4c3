package backfill

import (
	"os"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/internal/test/migrated"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/plantest"
	"github.com/holdfast-go/holdfast/internal/test/roletest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

func TestBackfill_TheStateOfABackfill(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name                   string
		row                    Row
		state                  string
		reached, runs, waiting bool
	}{
		{"it runs", Row{Recent: true}, "runs", false, true, false},
		{"it waits", Row{Recent: true, Waits: "9 events wait"}, "waits: 9 events wait", false, true, true},
		{"its node died while it waited", Row{Waits: "9 events wait"}, "no node runs it", false, false, false},
		{"it is done", Row{Ended: true, Recent: true}, "done", true, false, false},
		{"it was done long ago", Row{Ended: true}, "done", true, false, false},
		{"it ended while it waited", Row{Ended: true, Recent: true, Waits: "9 events wait", Error: "stopped"}, "ended early: stopped", false, false, false},
	} {
		if state := c.row.State(); state != c.state || c.row.Reached() != c.reached || c.row.Runs() != c.runs || c.row.Waiting() != c.waiting {
			t.Errorf("%s: it is %q, reached %v, runs %v, waiting %v", c.name, state, c.row.Reached(), c.row.Runs(), c.row.Waiting())
		}
	}
}

func TestBackfill_TheTimeThatABackfillHasLeft(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		row     Row
		seconds float64
		known   bool
	}{
		{"it moves", Row{Recent: true, Remaining: 38000, Rate: 200}, 190, true},
		{"nothing moves", Row{Recent: true, Remaining: 1}, -1, false},
		{"nothing is left", Row{Recent: true}, 0, true},
		{"no node runs it", Row{Remaining: 38000, Rate: 200}, 190, false},
		{"it ended", Row{Recent: true, Ended: true, Remaining: 38000, Rate: 200}, 190, false},
		{"it takes for ever", Row{Recent: true, Remaining: 1 << 60, Rate: 1e-9}, 1e9, true},
	} {
		left := c.row.TimeLeft()
		if seconds := c.row.SecondsLeft(); seconds != c.seconds || (left != nil) != c.known || left != nil && *left != time.Duration(seconds*1e9) {
			t.Errorf("%s: %v seconds are left, %v", c.name, seconds, left)
		}
	}
}

// Whoever reads it has a row for each consumer, in their order.
func TestBackfill_RowsAreWhatNodesHaveToldOf(t *testing.T) {
	skip.InShort(t, "it takes 7 s beside the others")
	t.Parallel()
	db := migrated.New(t)
	plantest.EveryStatement(t, nil, map[string]string{"backfill.rows": "a row for each consumer"})
	plantest.Allowed(t, db.Pool, roletest.Make(t, db)+"_reader", Rows, "")
	pgtest.Exec(t, db, `insert into holdfast.consumer_backfill (consumer, node, began_at, told_at, partitions, partitions_left, done, remaining, per_second, waits, ended_at, error) values
		('b', 'n', now() - interval '90 seconds', now(), 8, 5, 12000, 38000, 199.5, '9 events wait', null, null),
		('a', 'n', now() - interval '2 hours', now() - interval '1 hour', 1, 1, 1, 2, 0, null, now() - interval '90 minutes', 'stopped'),
		('old', 'n', now() - interval '9 days', now() - interval '8 days', 1, 1, 1, 2, 0, null, null, null)`)
	rows, _ := db.Pool.Query(t.Context(), Rows)
	got, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Row])
	if err != nil {
		t.Fatal(err)
	}
	for i := range got {
		if took := got[i].ToldAt.Sub(got[i].BeganAt); took <= 0 {
			t.Errorf("%s was told of %v after it began", got[i].Consumer, took)
		}
		got[i].BeganAt, got[i].ToldAt = time.Time{}, time.Time{}
	}
	if len(got) != 2 || got[1].Told > 60 || got[0].Told < 3600 || got[0].Told > 3660 {
		t.Fatalf("got %+v", got)
	}
	got[0].Told, got[1].Told = 0, 0
	for i, want := range []Row{
		{Consumer: "a", Done: 1, Remaining: 2, Partitions: 1, PartitionsLeft: 1, Took: 1800, Ended: true, Error: "stopped"},
		{Consumer: "b", Done: 12000, Remaining: 38000, Partitions: 8, PartitionsLeft: 5, Rate: 199.5, Took: 90, Recent: true, Waits: "9 events wait"},
	} {
		if got[i] != want {
			t.Errorf("got %+v, want %+v", got[i], want)
		}
	}
}
