package relay

import (
	"encoding/json"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast/internal/sqlschema"
	"github.com/holdfast-go/holdfast/internal/test/migrated"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
)

// openLog makes a log with lanes and a reader of lane 0.
func openLog(t testing.TB, lanes, limit int) (*pgxpool.Pool, *logReader) {
	t.Helper()
	db := migrated.Lanes(t, lanes)
	r := &logReader{pool: db.Pool, sql: sqlschema.For("holdfast"), limit: limit, bytes: usualBounds.pageBytes, places: usualBounds.places, span: int64(limit * lanes), now: time.Now}
	if err := db.QueryRow(t.Context(), "select l.done::text, i.token from holdfast.lane l, holdfast.current_incarnation i where lane = 0").Scan(&r.at.cursor.done, &r.token); err != nil {
		t.Fatal(err)
	}
	return db.Pool, r
}

// nextEvents is the next page that has events. The first of a backlog may have none: append keeps a cut with one event in a thousand, and
// a window that ends there ends before it.
func nextEvents(t testing.TB, r *logReader) page {
	t.Helper()
	for {
		p, err := r.next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if len(p.events) > 0 || p.last {
			return p
		}
	}
}

// appendMany writes n events of one transaction.
func appendMany(t testing.TB, db pgtest.Querier, name string, n int) {
	t.Helper()
	pgtest.Exec(t, db, `select holdfast.append_unchecked(array_agg($1::text || '/' || g), array_agg(''::text), array_agg('t'::text), array_agg('orders'::text),
		array_agg($1::text), array_agg(now()), null, array_agg('payload'::bytea), null, null) from generate_series(0, $2::int - 1) g`, name, n)
}

func TestRead_APageOfOneHugeTransactionCostsWhatItReturns(t *testing.T) {
	skip.InShort(t, "it takes 10 s beside the others")
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
			r.lane, r.at.plan.page(r.limit).xids, r.at.cursor.upto, r.at.cursor.pos, r.limit, r.token, texts(r.at.plan.big), r.at.plan.page(r.limit).seqs, r.bytes).Scan(&text)
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
		if p.last && len(p.events) == 0 {
			break
		}
		for _, rec := range p.events {
			if rec.seq <= last {
				t.Fatalf("seq %d came after %d", rec.seq, last)
			}
			last = rec.seq
		}
		events += len(p.events)
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

func TestRead_AReaderStopsWhereItsRowsAreNotTheLogs(t *testing.T) {
	t.Parallel()
	pool, r := openLog(t, 1, 10)
	appendMany(t, pool, "k", 1)
	open := reading{state: inWindow, cursor: r.at.cursor}
	if err := pool.QueryRow(t.Context(), "select pg_current_snapshot()::text").Scan(&open.cursor.upto); err != nil {
		t.Fatal(err)
	}
	asks := map[string]func() error{
		"a page": func() error {
			_, _, _, err := r.read(t.Context(), reading{state: live, cursor: r.at.cursor})
			return err
		},
		"a planned page":               func() error { _, _, _, err := r.read(t.Context(), open.byPlan(plan{})); return err },
		"the cuts of a backlog":        func() error { _, _, err := r.readCut(t.Context(), r.at); return err },
		"the transactions of a window": func() error { _, err := r.readPlan(t.Context(), open); return err },
		"the places of a window":       func() error { _, err := r.readPlaces(t.Context(), open); return err },
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
		if err := ask(); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	// Rule 2. A function of the same name, before Postgres's own in the search path, makes the server a standby.
	pgtest.Exec(t, pool, "create schema standby")
	pgtest.Exec(t, pool, "create function standby.pg_is_in_recovery() returns boolean language sql as 'select true'")
	config := pool.Config()
	config.ConnConfig.RuntimeParams["search_path"] = "standby, pg_catalog"
	standby, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	defer standby.Close()
	r.pool = standby
	for what, ask := range asks {
		if err := ask(); !errors.Is(err, errStandby) {
			t.Errorf("%s was read on a standby: %v", what, err)
		}
	}
	if n := pgtest.Exec(t, standby, r.sql.In(probeLanes), []int16{0}, []*string{nil}, r.token); n != 0 {
		t.Errorf("a standby said of %d lanes what they have", n)
	}
	r.pool = pool
	pgtest.Exec(t, pool, "delete from holdfast.incarnation")
	refused("without the incarnation that the lane was claimed under")
	pgtest.Exec(t, pool, "insert into holdfast.incarnation default values")
	refused("under another incarnation")
}

// A cut may be older than what has been read: the snapshot of a transaction of a higher isolation that has taken its time.
// Where its end does not lie ahead, a window up to it would move the cursor back (rule 6).
func TestRead_ABacklogIsNeverCutBelowTheCursor(t *testing.T) {
	t.Parallel()
	pool, r := openLog(t, 1, 10)
	var old string
	if err := pool.QueryRow(t.Context(), "select pg_current_snapshot()::text").Scan(&old); err != nil {
		t.Fatal(err)
	}
	appendMany(t, pool, "read", 3)
	if p := nextEvents(t, r); len(p.events) != 3 {
		t.Fatalf("%d events", len(p.events))
	}
	appendMany(t, pool, "unread", 3)
	pgtest.Exec(t, pool, "update holdfast.event_0 set snap = case when key = 'unread' then $1::pg_snapshot end", old)
	if c, found, err := r.readCut(t.Context(), r.at); err != nil || found {
		t.Fatalf("it is cut at %s, %v: the cursor stands at %s", c.upto, err, r.at.cursor.done)
	}
	r.at.state = lagging
	p, err := r.next(t.Context())
	if err != nil || len(p.events) != 3 || !p.last {
		t.Fatalf("%d events, last %v, %v", len(p.events), p.last, err)
	}
	for i, rec := range p.events {
		if want := fmt.Sprintf("unread/%d", i); rec.ID != want {
			t.Errorf("event %d is %s, want %s", i, rec.ID, want)
		}
	}
}

func TestRead_AnEventThatNoDoorWouldLetInDoesNotStopItsLane(t *testing.T) {
	t.Parallel()
	pool, r := openLog(t, 1, 10)
	pgtest.Exec(t, pool, `select holdfast.append_unchecked(array['a'], array[''], array['t'], array['orders'], array['k'], null,
		array['{"text": "s", "number": 1, "null": null, "list": ["x"]}'], null, null, null)`)
	p := nextEvents(t, r)
	if len(p.events) != 1 {
		t.Fatalf("%d events", len(p.events))
	}
	if h := p.events[0].Headers; h["text"] != "s" || h["number"] != "1" || h["list"] != `["x"]` {
		t.Errorf("headers are %q", h)
	}
	for _, bad := range []string{"infinity", "-infinity", "0044-03-15 00:00:00+00 BC", "10000-01-01 00:00:00+00"} {
		_, err := pool.Exec(t.Context(), `select holdfast.append(array['b'], array[''], array['t'], array['orders'], array['k'], array[$1::text::timestamptz], null, null, null, null)`, bad)
		if err == nil {
			t.Errorf("an event of the time %s was let in", bad)
		}
	}
}
