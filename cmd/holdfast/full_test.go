package main

import (
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast/internal/test/pgtest"
)

func TestAFullLogNamesWhatKeepsItFull(t *testing.T) {
	t.Parallel()
	const unread = "events in older segments are unread in "
	for _, c := range []struct {
		name    string
		holders []holder
		behind  []int
		want    []string // how each reason begins
	}{
		{"a session that holds it for long", []holder{{pid: 7, name: "psql", age: 3600}, {pid: 8, age: 2}}, nil, []string{"process 7 (psql) has held it in one transaction for 1h0m0s: end it with select pg_terminate_backend(7)"}},
		{"a session that says no name", []holder{{pid: 7, age: 61}}, nil, []string{"process 7 (-) has held it"}},
		{"a prepared transaction older than a session", []holder{{gid: "it's", age: 90}, {pid: 7, age: 70}}, nil, []string{"prepared transaction 'it''s' has held it for 1m30s: in this database, run rollback prepared 'it''s'"}},
		{"a lane and young sessions", []holder{{pid: 7, age: 59}}, []int{3}, []string{unread + "lane 3: "}},
		{"lanes and an old session", []holder{{pid: 7, age: 60}}, []int{3, 5}, []string{"process 7 ", unread + "lanes 3, 5: "}},
		{"lanes and sessions of unknown age", []holder{{pid: 7, age: -1}}, []int{0}, []string{unread + "lane 0: "}},
		{"only sessions of unknown age", []holder{{pid: 8, age: 3}, {pid: 7, age: -1}}, nil, []string{"process 7 holds it in a transaction of unknown age: grant pg_read_all_stats"}},
		{"nobody", nil, nil, []string{"the older segments are read"}},
		{"only a young session", []holder{{pid: 7, age: 3}}, nil, []string{"the older segments are read"}},
	} {
		got := whyFull(c.holders, c.behind)
		if len(got) != len(c.want) {
			t.Errorf("%s: got %q", c.name, got)
			continue
		}
		for i := range got {
			if !strings.HasPrefix(got[i], c.want[i]) {
				t.Errorf("%s: got %q, want %q", c.name, got[i], c.want[i])
			}
		}
	}
}

// A transaction that has written to the log or reads it is found, prepared or not; one that writes elsewhere,
// here or in another database, holds nothing.
func TestWhoHoldsTheLogIsFound(t *testing.T) {
	db := installed(t)
	begin := func(db *pgtest.DB, sql string) pgx.Tx {
		t.Helper()
		tx, err := db.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = tx.Rollback(t.Context()) })
		pgtest.Exec(t, tx, sql)
		return tx
	}
	pid := func(tx pgx.Tx) (n int64) { return pgtest.Count(t, tx, "select pg_backend_pid()") }
	gid := "it's " + t.Name() + fmt.Sprint(db.Config().ConnConfig.Database)
	literal := "'" + strings.ReplaceAll(gid, "'", "''") + "'"
	const write = "select holdfast.write('orders', 'k', 't', '')"
	pgtest.Exec(t, begin(db, write), "prepare transaction "+literal)
	t.Cleanup(func() { pgtest.Exec(t, db.Pool, "rollback prepared "+literal) })
	begin(db, "create table elsewhere ()")
	begin(pgtest.New(t), "create table elsewhere ()")
	writer, reader := begin(db, write), begin(db, "select from holdfast.event_2")

	s := &status{db: db.Pool, schema: "holdfast", out: io.Discard, tables: map[string][]map[string]any{}}
	if err := s.full(t.Context()); err != nil {
		t.Fatal(err)
	}
	found := map[string]bool{}
	for _, row := range s.tables["log_holders"] {
		found[fmt.Sprint(row["pid"], " ", row["prepared"])] = true
		if age, _ := row["seconds"].(int64); age < 0 || age > 60 {
			t.Errorf("its age is %v", row)
		}
	}
	for _, want := range []string{fmt.Sprint("0 ", gid), fmt.Sprint(pid(writer), " "), fmt.Sprint(pid(reader), " ")} {
		if !found[want] {
			t.Errorf("%q is not found: %v", want, found)
		}
	}
	if len(found) != 3 {
		t.Errorf("got %v, want three", found)
	}

	role := "looker_" + db.Config().ConnConfig.Database
	pgtest.Exec(t, db.Pool, "create role "+role+"; grant usage on schema holdfast to "+role+"; grant select on all tables in schema holdfast to "+role)
	t.Cleanup(func() { pgtest.Exec(t, db.Pool, "drop owned by "+role+"; drop role "+role) })
	s.db, s.trouble = db.PoolWith(t, func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["role"] = role }), nil
	if err := s.full(t.Context()); err != nil || len(s.trouble) != 1 || !strings.Contains(s.trouble[0], "grant pg_read_all_stats") {
		t.Errorf("a role that may not see the ages: %q, %v", s.trouble, err)
	}
}
