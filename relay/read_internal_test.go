package relay

import (
	"encoding/json"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/sqlschema"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
)

// openLog makes a log with lanes and a reader of lane 0.
func openLog(t testing.TB, lanes, limit int) (*pgxpool.Pool, *logReader) {
	t.Helper()
	db := pgtest.New(t)
	if err := holdfast.Migrate(t.Context(), db.Pool, holdfast.SchemaConfig{Lanes: lanes}); err != nil {
		t.Fatal(err)
	}
	r := &logReader{pool: db.Pool, sql: sqlschema.For("holdfast"), limit: limit, span: int64(limit * lanes), now: time.Now}
	if err := db.QueryRow(t.Context(), "select l.done::text, i.token::text from holdfast.lane l, holdfast.incarnation i where lane = 0").Scan(&r.at.cursor.done, &r.token); err != nil {
		t.Fatal(err)
	}
	return db.Pool, r
}

// appendMany writes n events of one transaction.
func appendMany(t testing.TB, pool *pgxpool.Pool, name string, n int) {
	t.Helper()
	pgtest.Exec(t, pool, `select holdfast.append(array_agg($1::text || '/' || g), array_agg(''::text), array_agg('t'::text), array_agg('orders'::text),
		array_agg($1::text), array_agg(now()), null, array_agg('payload'::bytea), null, null) from generate_series(0, $2::int - 1) g`, name, n)
}

func TestAPageOfOneHugeTransactionCostsWhatItReturns(t *testing.T) {
	t.Parallel()
	const huge, page = 50_000, 200
	pool, r := openLog(t, 1, page)
	for i := range 30 {
		appendMany(t, pool, fmt.Sprintf("small %d", i), 1)
	}
	appendMany(t, pool, "huge", huge)
	for i := range 30 {
		appendMany(t, pool, fmt.Sprintf("small %d", i+30), 1)
	}
	pgtest.Exec(t, pool, "analyze")

	buffers := func() (blocks, rows float64) {
		var text string
		err := pool.QueryRow(t.Context(), "explain (analyze, buffers, format json) "+r.sql.In(readPlanned),
			r.lane, texts(r.at.plan.small), r.at.cursor.upto, r.at.cursor.pos, r.limit, r.token, texts(r.at.plan.big)).Scan(&text)
		if err != nil {
			t.Fatal(err)
		}
		var plans []struct {
			Plan map[string]any
		}
		if err := json.Unmarshal([]byte(text), &plans); err != nil {
			t.Fatal(err)
		}
		p := plans[0].Plan
		return p["Shared Hit Blocks"].(float64) + p["Shared Read Blocks"].(float64), p["Actual Rows"].(float64)
	}
	events, byPlan, most := 0, 0, 0.0
	var last int64
	for pages := 0; ; pages++ {
		p, err := r.next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if p.last && len(p.records) == 0 {
			break
		}
		for _, rec := range p.records {
			if rec.seq <= last {
				t.Fatalf("seq %d came after %d", rec.seq, last)
			}
			last = rec.seq
		}
		events += len(p.records)
		if r.at.state == planned {
			byPlan++
			if byPlan%50 == 1 {
				blocks, rows := buffers()
				if most = max(most, blocks); blocks > 6*rows+500 {
					t.Fatalf("page %d touched %.0f blocks for %.0f rows", pages, blocks, rows)
				}
			}
		}
	}
	if events != huge+60 {
		t.Errorf("%d events were read, want %d", events, huge+60)
	}
	if byPlan < huge/page-pagesUnplanned-3 {
		t.Errorf("only %d pages of the window were planned", byPlan)
	}
	t.Logf("at most %.0f blocks a page of %d rows", most, page)
}

func TestAReaderStopsWhereItsRowsAreNotTheLogs(t *testing.T) {
	t.Parallel()
	pool, r := openLog(t, 1, 10)
	appendMany(t, pool, "k", 1)
	open := reading{state: inWindow, cursor: r.at.cursor}
	if err := pool.QueryRow(t.Context(), "select pg_current_snapshot()::text").Scan(&open.cursor.upto); err != nil {
		t.Fatal(err)
	}
	asks := map[string]func() error{
		"a page":                       func() error { _, err := r.next(t.Context()); return err },
		"the cuts of a backlog":        func() error { _, _, err := r.readCut(t.Context(), r.at); return err },
		"the transactions of a window": func() error { _, err := r.readPlan(t.Context(), open); return err },
	}
	refused := func(when string) {
		t.Helper()
		for what, ask := range asks {
			if err := ask(); !errors.Is(err, errCrashed) {
				t.Errorf("%s was read %s: %v", what, when, err)
			}
		}
	}
	for what, ask := range asks {
		if what == "a page" { // It moves the reader on.
			continue
		}
		if err := ask(); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	pgtest.Exec(t, pool, "delete from holdfast.incarnation")
	refused("without the incarnation that the lane was claimed under")
	pgtest.Exec(t, pool, "insert into holdfast.incarnation default values")
	refused("under another incarnation")
}

func TestAnEventThatNoDoorWouldLetInDoesNotStopItsLane(t *testing.T) {
	t.Parallel()
	pool, r := openLog(t, 1, 10)
	pgtest.Exec(t, pool, `select holdfast.append(array['a'], array[''], array['t'], array['orders'], array['k'], null,
		array['{"text": "s", "number": 1, "null": null, "list": ["x"]}'], null, null, null)`)
	p, err := r.next(t.Context())
	if err != nil || len(p.records) != 1 {
		t.Fatalf("%d records, %v", len(p.records), err)
	}
	if h := p.records[0].Headers; h["text"] != "s" || h["number"] != "1" || h["list"] != `["x"]` {
		t.Errorf("headers are %q", h)
	}
	for _, bad := range []string{"infinity", "-infinity", "0044-03-15 00:00:00+00 BC", "10000-01-01 00:00:00+00"} {
		_, err := pool.Exec(t.Context(), `select holdfast.append(array['b'], array[''], array['t'], array['orders'], array['k'], array[$1::text::timestamptz], null, null, null, null)`, bad)
		if err == nil {
			t.Errorf("an event of the time %s was let in", bad)
		}
	}
}
