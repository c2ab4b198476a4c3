package auditlog_test

import (
	"context"
	"fmt"
	"os"
	"slices"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/test/migrated"
	"github.com/holdfast-go/holdfast/internal/test/oracle"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/outbox"
	"github.com/holdfast-go/holdfast/rig/internal/auditlog"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

func setup(t *testing.T) *pgtest.DB {
	t.Helper()
	db := migrated.New(t)
	if err := auditlog.Install(t.Context(), db); err != nil {
		t.Fatal(err)
	}
	return db
}

// as is a pool of a process of that name.
func as(t *testing.T, db *pgtest.DB, name string) *pgxpool.Pool {
	return db.PoolWith(t, func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["application_name"] = name })
}

func TestAuditlog_TheAuditLogSaysWhoChangedWhat(t *testing.T) {
	skip.InShort(t, "it takes 5 s beside the others")
	t.Parallel()
	db := setup(t)
	one, two, run := as(t, db, "one"), as(t, db, "two"), as(t, db, "run")
	lease := "lease_until = now() + interval '1 minute'"
	pgtest.Exec(t, one, "update holdfast.lane set owner = 'one', epoch = 1, "+lease+" where lane = 0")
	pgtest.Exec(t, two, "update holdfast.lane set owner = 'two', epoch = 2, "+lease+" where lane = 0")
	pgtest.Exec(t, one, "update holdfast.lane set owner = null where lane = 0")
	pgtest.Exec(t, two, "update holdfast.lane set owner = 'two', epoch = 3 where lane = 0")
	pgtest.Exec(t, two, "update holdfast.lane set lease_until = now() where lane = 0")
	pgtest.Exec(t, one, "update holdfast.lane set owner = null where lane = 0")
	pgtest.Exec(t, two, "update holdfast.lane set owner = 'two', epoch = 4, "+lease+" where lane = 0")
	pgtest.Exec(t, run, "update holdfast.lane set owner = null where lane = 0")
	pgtest.Exec(t, one, "insert into holdfast.consumer_position (consumer, topic, partition, epoch, position, owner) values ('c', 't', 1, 1, 5, 'node')")
	pgtest.Exec(t, two, "update holdfast.consumer_position set position = 7")
	pgtest.Exec(t, run, "update holdfast.consumer_position set position = 6")

	lanes, err := auditlog.Lanes(t.Context(), db, "run")
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, c := range lanes {
		got = append(got, fmt.Sprintf("%s: lane %d of %q, epoch %d, early %v, adopted %v", c.By, c.Lane, c.Owner, c.Epoch, c.Early, c.Adopted))
	}
	want := []string{`one: lane 0 of "one", epoch 1, early false, adopted false`, `two: lane 0 of "two", epoch 2, early true, adopted false`,
		`one: lane 0 of "", epoch 2, early true, adopted false`, `two: lane 0 of "two", epoch 3, early false, adopted false`,
		`two: lane 0 of "two", epoch 3, early false, adopted false`, `one: lane 0 of "", epoch 3, early false, adopted false`,
		`two: lane 0 of "two", epoch 4, early false, adopted false`, `: lane 0 of "", epoch 4, early false, adopted true`}
	if !slices.Equal(got, want) {
		t.Errorf("the audit log of lanes is %q, want %q", got, want)
	}

	positions, err := auditlog.Positions(t.Context(), db, "run")
	if err != nil {
		t.Fatal(err)
	}
	got = nil
	for _, c := range positions {
		got = append(got, fmt.Sprintf("%s: %s in %s/%d at %d, epoch %d of %s", c.By, c.Consumer, c.Topic, c.Partition, c.Position, c.Epoch, c.Owner))
	}
	want = []string{"one: c in t/1 at 5, epoch 1 of node", "two: c in t/1 at 7, epoch 1 of node", ": c in t/1 at 6, epoch 1 of node"}
	if !slices.Equal(got, want) {
		t.Errorf("the audit log of positions is %q, want %q", got, want)
	}
}

func TestAuditlog_ALookFindsWhatACursorHasSkipped(t *testing.T) {
	skip.InShort(t, "it takes 5 s beside the others")
	t.Parallel()
	db := setup(t)
	look := func(inKafka ...string) oracle.CursorSample {
		t.Helper()
		s, err := auditlog.Look(t.Context(), db, func(context.Context) (map[string]struct{}, error) {
			seen := map[string]struct{}{}
			for _, id := range inKafka {
				seen[id] = struct{}{}
			}
			return seen, nil
		})
		if err != nil {
			t.Fatal(err)
		}
		slices.Sort(s.Missing)
		return s
	}
	err := pgx.BeginFunc(t.Context(), db, func(tx pgx.Tx) error {
		return outbox.Write(t.Context(), tx, holdfast.Event{ID: "a", Source: "s", Type: "t", Topic: "o"}, holdfast.Event{ID: "b", Source: "s", Type: "t", Topic: "o"})
	})
	if err != nil {
		t.Fatal(err)
	}
	if s := look(); s.Done != 0 || len(s.Missing) != 0 {
		t.Errorf("before any cursor has moved: %+v", s)
	}
	pgtest.Exec(t, db, "update holdfast.lane set done = pg_current_snapshot()")
	if s := look("a"); s.Done != 2 || !slices.Equal(s.Missing, []string{"b"}) {
		t.Errorf("both are called published, and Kafka has a: %+v", s)
	}
	pgtest.Exec(t, db, "insert into holdfast.parked (lane, topic, key, place, why, next_at, id, source, type, time) select lane, topic, key, 1, 'topic', 'infinity', id, source, type, time from holdfast.event where id = 'b'")
	if s := look("a"); s.Done != 2 || len(s.Missing) != 0 {
		t.Errorf("b is parked: %+v", s)
	}
	pgtest.Exec(t, db, "select holdfast.redirect_parked(lane, topic, array[key], array[place], 'p', 'n') from holdfast.parked")
	if s := look("a"); s.Done != 2 || len(s.Missing) != 0 {
		t.Errorf("b is in the log again, for another topic: %+v", s)
	}
	if s := look("a", "b"); s.Done != 2 || len(s.Missing) != 0 {
		t.Errorf("Kafka has both: %+v", s)
	}
}
