package relay

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
)

// A page of events is in memory, and those of all lanes are. So it ends by its bytes, too: 16,000 events of 100 KB, in pages of
// 2,000, took 1.6 GiB.
func TestPage_APageEndsByItsBytesAndAlwaysHasAnEvent(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name             string
		events, size     int
		headers          int // bytes of one header's value
		bytes            int64
		limit, most, per int // events of a page: at most, and in each but the last
	}{
		{"small events end by their number", 40, 10, 0, 10_000, 8, 8, 8},
		{"larger ones by their bytes", 40, 100, 0, 1000, 100, 10, 10},
		{"headers count", 20, 0, 991, 3000, 100, 3, 3}, // {"h": "…"} has nine bytes more
		{"one alone may have more", 5, 5000, 0, 1000, 100, 1, 1},
		{"as many as one page may have, exactly", 10, 100, 0, 1000, 100, 10, 10},
		{"stored beside their rows", 6, 300_000, 0, 500_000, 100, 2, 2},
	} {
		for _, planning := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, planned %v", c.name, planning), func(t *testing.T) {
				t.Parallel()
				pool, r := openLog(t, 1, c.limit)
				r.bytes = c.bytes
				for i := range c.events {
					pgtest.Exec(t, pool, `select holdfast.append(array[$1], array[''], array['t'], array['orders'], array['k'], null,
						array[case when $2 > 0 then jsonb_build_object('h', repeat('x', $2))::text end], array[(select string_agg(sha256(g::text::bytea), '') from generate_series(0, $3 / 32) g)], null, null)`,
						fmt.Sprint(i), c.headers, c.size)
				}
				pgtest.Exec(t, pool, "update holdfast.event_0 set payload = substr(payload, 1, $1), snap = null", c.size)
				if planning {
					var now string
					if err := pool.QueryRow(t.Context(), "select pg_current_snapshot()::text").Scan(&now); err != nil {
						t.Fatal(err)
					}
					r.at = startReading(cursor{done: "3:3:", upto: now}).byPlan(plan{})
				} else {
					r.at = reading{state: live, cursor: cursor{done: "3:3:"}}
				}
				next := 0
				for {
					p, err := r.next(t.Context())
					if err != nil {
						t.Fatal(err)
					}
					for _, e := range p.events {
						if e.ID != fmt.Sprint(next) || len(e.Payload) != c.size {
							t.Fatalf("event %s of %d bytes came, want %d of %d", e.ID, len(e.Payload), next, c.size)
						}
						next++
					}
					if len(p.events) > c.most || next < c.events && len(p.events) < c.per {
						t.Fatalf("a page of %d events, want %d", len(p.events), c.per)
					}
					if p.last {
						break
					}
				}
				if next != c.events {
					t.Errorf("%d events were read, want %d", next, c.events)
				}
			})
		}
	}
}

// counting counts statements by their names.
type counting struct {
	database
	n map[string]int
}

func (c counting) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	name, _, _ := strings.Cut(sql, "\n")
	c.n[name]++
	return c.database.Query(ctx, sql, args...)
}

// Where a backlog has no cuts, every page would sort all of it again. What comes next is listed many pages at a time.
func TestPage_ABacklogWithoutCutsIsListedManyPagesAtATime(t *testing.T) {
	skip.InShort(t, "it takes 3 s beside the others")
	t.Parallel()
	pool, r := openLog(t, 1, 20)
	const events = 3000
	pgtest.Exec(t, pool, fmt.Sprintf(`do $$ begin for i in 1..%d loop
		perform holdfast.append_one(i::text, '', 't', 'orders', 'k', null, null, 'p'); commit; end loop; end $$`, events))
	pgtest.Exec(t, pool, "update holdfast.event_0 set snap = null")
	statements := counting{pool, map[string]int{}}
	r.pool = statements
	r.at = startReading(cursor{done: r.at.cursor.done})
	// The update has given the rows another version, not another transaction: xid is a column.
	for next := 1; ; {
		p, err := r.next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range p.events {
			if e.ID != fmt.Sprint(next) {
				t.Fatalf("event %s came, want %d", e.ID, next)
			}
			next++
		}
		if p.last {
			if next != events+1 {
				t.Errorf("%d events were read, want %d", next-1, events)
			}
			break
		}
	}
	if n := statements.n["-- relay.places"]; n != 1 {
		t.Errorf("%d lists were read for %d pages, want 1", n, statements.n["-- relay.planned_page"])
	}
	if n := statements.n["-- relay.page"]; n > pagesUnplanned+3 {
		t.Errorf("%d pages sorted the rest of the backlog, want %d at most", n, pagesUnplanned+3)
	}
}

// A cut of a transaction of a higher isolation is older than its event, and than events of others that it never saw. Rule 6:
// it is a moment that existed all the same.
func TestPage_WritersOfEveryIsolationLeaveCuts(t *testing.T) {
	t.Parallel()
	for _, level := range []pgx.TxIsoLevel{pgx.ReadCommitted, pgx.RepeatableRead, pgx.Serializable} {
		t.Run(string(level), func(t *testing.T) {
			t.Parallel()
			pool, r := openLog(t, 1, 10)
			cuts := 0
			for began := time.Now(); cuts == 0 && time.Since(began) < time.Minute; {
				err := pgx.BeginTxFunc(t.Context(), pool, pgx.TxOptions{IsoLevel: level}, func(tx pgx.Tx) error {
					for _, sql := range []string{"select 1", `select holdfast.append(array_agg(g::text), array_agg(''::text), array_agg('t'::text), array_agg('orders'::text),
						array_agg('k'::text), null, null, null, null, null) from generate_series(1, 500) g`} {
						if _, err := tx.Exec(t.Context(), sql); err != nil {
							return err
						}
					}
					return nil
				})
				if err != nil {
					t.Fatal(err)
				}
				cuts = int(pgtest.Count(t, pool, "select count(*) from holdfast.event where snap is not null"))
			}
			if cuts == 0 {
				t.Fatal("no event has a cut: a backlog of such writers is read as a whole, again for every page")
			}
			at := startReading(cursor{done: "3:3:"})
			if _, found, err := r.readCut(t.Context(), at); err != nil || !found {
				t.Errorf("no cut was found: %v", err)
			}
		})
	}
}
