package main

import (
	"encoding/json"
	"flag"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/internal/backfill"
	"github.com/holdfast-go/holdfast/internal/nodes"
	"github.com/holdfast-go/holdfast/internal/sqlschema"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/plantest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
)

var (
	logEvents    = flag.Int("log-events", 20_000, "events in the log of TestStatusReadsFewRowsHoweverManyThereAre")
	storedEvents = flag.Int("stored-events", 20_000, "stored events in it")
)

// planNode is a node of EXPLAIN's JSON.
type planNode struct {
	Type    string     `json:"Node Type"`
	Rows    float64    `json:"Actual Rows"`
	Loops   float64    `json:"Actual Loops"`
	Removed float64    `json:"Rows Removed by Filter"`
	Plans   []planNode `json:"Plans"`
}

// read is how many rows its scans have read.
func (n planNode) read() (rows float64) {
	if strings.Contains(n.Type, "Scan") && len(n.Plans) == 0 {
		rows = (n.Rows + n.Removed) * n.Loops
	}
	for _, child := range n.Plans {
		rows += child.read()
	}
	return rows
}

// fill writes rows 1 to n, so many at a time. $1 and $2 are the first and the last, $3 is n.
func fill(t *testing.T, db *pgtest.DB, n int, insert string) {
	t.Helper()
	const atOnce = 250_000
	for first := 1; first <= n; first += atOnce {
		pgtest.Exec(t, db.Pool, insert, first, min(first+atOnce-1, n), n)
	}
}

// Status reads a bounded number of rows. The log has a backlog in one lane and a half-read window of one large transaction in
// another; stored events are those of one consumer on many keys and of another on one key. The command of docs/performance.md
// gives it the sizes of an outage, and logs how long each statement takes.
func TestStatusReadsFewRowsHoweverManyThereAre(t *testing.T) {
	skip.InShort(t, "it takes 4 s beside the others")
	db := installed(t)
	fill(t, db, *logEvents/2, `insert into holdfast.event_0 (xid, lane, id, type, topic, key, time)
		select (1000 + n / 10)::text::xid8, n % 7, n::text, 't', 'orders', (n % 5000)::text, now() - interval '2 hours' from generate_series($1::integer, $2::integer) n where $3 > 0`)
	fill(t, db, *logEvents/2, `insert into holdfast.event_1 (xid, lane, id, type, topic, key, time)
		select '900', 7, n::text, 't', 'orders', (n % 5000)::text, now() - interval '3 hours' from generate_series($1::integer, $2::integer) n where $3 > 0`)
	fill(t, db, *storedEvents/2, `insert into holdfast.stored (consumer, topic, key, place, source, event_id, type, time, hash, next_at, first_at, errors, payload)
		select 'billing', 'orders', 'k' || n % ($3 / 10), n, 's', n::text, 't' || n % 50, now(), '', case when n <= $3 / 10 then now() - interval '1 hour' else 'infinity' end,
		       now() - interval '1 hour', '{boom}', convert_to(repeat('x', 300), 'UTF8') from generate_series($1::integer, $2::integer) n`)
	fill(t, db, *storedEvents/2, `insert into holdfast.stored (consumer, topic, key, place, source, event_id, type, time, hash, next_at, first_at)
		select 'mail', 'orders', 'one', n, 's', n::text, 't', now(), '', case when n = 1 then now() + interval '1 minute' else 'infinity' end, now() - interval '1 hour'
		  from generate_series($1::integer, $2::integer) n where $3 > 0`)
	fill(t, db, *storedEvents, `insert into holdfast.parked (lane, topic, key, place, why, next_at, first_at, id, source, type, time, partition)
		select n % 8, 'orders', 'k' || n % 5000, n, case when n % 3 = 0 then 'topic' when n % 3 = 1 then 'record' else 'partition' end, now(), now() - interval '1 hour', n::text, '', 't', now(),
		       case when n % 3 = 2 then n % 12 end from generate_series($1::integer, $2::integer) n where $3 > 0`)
	fill(t, db, *storedEvents/2, `insert into holdfast.letter (origin, consumer, reason, event_id, source, type, topic, key, time, hash, lane)
		select case n % 2 when 0 then 'relay' else 'inbox' end, case n % 2 when 0 then '' else 'billing' end, 'r', n::text, '', 't', 'orders', 'k', now(), '', n % 8
		  from generate_series($1::integer, $2::integer) n where $3 > 0`)
	for _, sql := range []string{
		"update holdfast.lane set owner = 'r', lease_until = now() + interval '1 hour', done = '800:800:', upto = '999:999:', pos = (select last_value - 10 from holdfast.event_seq) where lane = 7",
		"update holdfast.lane set owner = 'r', lease_until = now() + interval '1 hour', done = '1000:1010:1003,1005' where lane < 6",
		"update holdfast.lane set owner = 'r', lease_until = now() + interval '1 hour', done = '900000000:900000000:' where lane = 6",
		"analyze holdfast.event_0", "analyze holdfast.event_1", "analyze holdfast.stored", "analyze holdfast.parked", "analyze holdfast.letter", "analyze holdfast.lane",
	} {
		pgtest.Exec(t, db.Pool, sql)
	}
	var asked []string
	for _, q := range []struct {
		sql  string
		args string // literals
		most float64
	}{
		{statusLanes, "100", 2_500},
		{statusHeld, "100, 10", 2_500},
		{statusLongParked, "600, 100", 2_500},
		{statusLetters, "1000", 2_100},
		{statusConsumers, "1000, 20, 20, '{billing,hooks}'", 4_500},
		{nodes.Rows, "120000000, 60000000", 100},
		{statusBlocked, "100, 200", 2_500},
		{statusSegments, "", 100},
		{statusSizes, "", 100},
		{statusSkipped, "", 100},
		{backfill.Rows, "", 100},
		{statusPauses, "", 100},
		{statusPositions, "", 100},
		{statusPartitions, "", 100},
		{statusRelays, "", 100},
		{statusBehind, "", 1_000},
	} {
		asked = append(asked, q.sql)
		for _, mode := range []string{"force_custom_plan", "force_generic_plan"} {
			var text string
			began := time.Now()
			if err := pgx.BeginFunc(t.Context(), db.Pool, func(tx pgx.Tx) error {
				prepared, execute := "prepare asked as "+sqlschema.In("holdfast", q.sql), "explain (analyze, format json) execute asked"
				if q.args != "" {
					execute += " (" + q.args + ")"
				}
				for _, sql := range []string{statusSettings, "set local plan_cache_mode = " + mode, prepared} {
					if _, err := tx.Exec(t.Context(), sql, pgx.QueryExecModeSimpleProtocol); err != nil {
						return err
					}
				}
				defer func() { _, _ = tx.Exec(t.Context(), "deallocate asked") }()
				return tx.QueryRow(t.Context(), execute, pgx.QueryExecModeSimpleProtocol).Scan(&text)
			}); err != nil {
				t.Fatalf("%s: %v", q.sql, err)
			}
			var plans []struct{ Plan planNode }
			if err := json.Unmarshal([]byte(text), &plans); err != nil {
				t.Fatal(err)
			}
			name, _, _ := strings.Cut(strings.TrimPrefix(q.sql, "-- "), "\n")
			t.Logf("%s, %s: %.0f rows, %v", name, mode, plans[0].Plan.read(), time.Since(began).Round(time.Millisecond))
			if rows := plans[0].Plan.read(); rows > q.most {
				t.Errorf("%s, %s, reads %.0f rows, at most %.0f are allowed:\n%s", name, mode, rows, q.most, text)
			}
		}
	}
	tx, err := db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(t.Context()) }()
	pgtest.Exec(t, tx, statusSettings)
	began := time.Now()
	s := &status{db: tx, schema: "holdfast", out: io.Discard, ages: ages{time.Minute, time.Minute, time.Minute}}
	for n, part := range s.parts() {
		at := time.Now()
		if err := part.read(t.Context()); err != nil {
			t.Fatal(err)
		}
		t.Logf("part %d, %s: %v", n, part.name, time.Since(at).Round(time.Millisecond))
	}
	t.Logf("all statements of status: %v", time.Since(began).Round(time.Millisecond))
	for _, want := range []string{"lanes 0, 1, 2, 3, 4, 5, 7 have events that are not published, the oldest of them for 3h", "consumer billing has ", "consumer mail has "} {
		if !strings.Contains(strings.Join(s.trouble, "\n"), want) {
			t.Errorf("status does not say %q: %q", want, s.trouble)
		}
	}
	plantest.EveryStatement(t, asked, map[string]string{
		"status.settings": "it reads no table",
		"status.history":  "it reads tables of one row",
		"doctor.xmin":     "it reads Postgres's own views", "doctor.connections": "it reads Postgres's own views", "doctor.session": "it reads no table", "doctor.clock": "it reads no table",
		"doctor.lanes": "a row for each lane", "doctor.groups": "a row for each partition", "doctor.topics": "a row for each partition", "doctor.largest": "it reads one function",
		"status.holders": "it reads Postgres's own table of locks", "status.lane_holders": "it reads Postgres's own table of locks", "status.pauses": "a row for each pause",
	})
}
