package main

import (
	"fmt"
	"io"
	"testing"

	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
)

func TestALaneWithoutAnOwnerNamesWhatLocksIt(t *testing.T) {
	t.Parallel()
	const alone = ", although a relay runs: it takes them within seconds, unless a transaction has their rows locked; its log says so. If it has died: start a relay"
	for _, c := range []struct {
		name    string
		running bool
		holders []holder
		want    string
	}{
		{"no relay", false, nil, ": start a relay"},
		{"a session that has locked them for long", true, []holder{{pid: 7, name: "psql", age: 5}, {pid: 8, age: 4}},
			", although a relay runs. Rows of the table lane may be locked: process 7 (psql) has held them in one transaction for 5s: end it with select pg_terminate_backend(7)"},
		{"a prepared transaction", true, []holder{{gid: "g", age: 90}},
			", although a relay runs. Rows of the table lane may be locked: prepared transaction 'g' has held them for 1m30s: in this database, run rollback prepared 'g', or commit prepared if its changes are wanted"},
		{"sessions of the relay itself", true, []holder{{pid: 8, age: 4}}, alone},
		{"a session of unknown age", true, []holder{{pid: 8, age: -1}}, alone},
		{"nobody", true, nil, alone},
	} {
		if got := whyUnowned(c.running, c.holders); got != c.want {
			t.Errorf("%s: got %q, want %q", c.name, got, c.want)
		}
	}
}

// Whoever has locked a lane's row is found; one that reads the table is not. Without a running relay nobody is looked for.
func TestWhoLocksALaneIsFound(t *testing.T) {
	skip.InShort(t, "it takes 2 s beside the others")
	db := installed(t)
	pgtest.Exec(t, db.Pool, "select holdfast.write('orders', 'k', 't', '')")
	wantStatus(t, 1, "1 lane has events and no owner: start a relay", "status")
	pgtest.Exec(t, db.Pool, "insert into holdfast.relay (name, seen_until) values ('r', now() + interval '1 minute')")
	wantStatus(t, 1, "1 lane has events and no owner, although a relay runs: it takes them", "status")

	var pids []int64
	for _, sql := range []string{"select from holdfast.lane where lane = 3 for update", "select from holdfast.lane"} {
		tx, err := db.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = tx.Rollback(t.Context()) })
		pgtest.Exec(t, tx, sql)
		pids = append(pids, pgtest.Count(t, tx, "select pg_backend_pid()"))
	}
	s := &status{db: db.Pool, schema: "holdfast", out: io.Discard, tables: map[string][]map[string]any{}, allLanes: []laneState{{lane: 3, unread: true}}}
	if err := s.unowned(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	if rows := s.tables["lane_holders"]; len(rows) != 1 || fmt.Sprint(rows[0]["pid"]) != fmt.Sprint(pids[0]) {
		t.Errorf("found %v, want process %d alone", rows, pids[0])
	}
}
