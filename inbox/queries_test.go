package inbox

import (
	"context"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/sqlschema"
	"github.com/holdfast-go/holdfast/internal/test/migrated"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/internal/test/waking"
)

func TestQueries_EveryStatementIsNamedAndFitsTheSchema(t *testing.T) {
	skip.InShort(t, "it takes 2 s beside the others")
	b := setup(t)
	if err := holdfast.Migrate(b.Context(), b.db.Pool, holdfast.SchemaConfig{Schema: "other_one"}); err != nil {
		t.Fatal(err)
	}
	for _, schema := range []string{"holdfast", "other_one"} {
		c := b.config().withDefaults()
		c.Schema = schema
		conn, err := b.db.Acquire(b.Context())
		if err != nil {
			t.Fatal(err)
		}
		q := reflect.ValueOf(newStatements(c))
		for i := range q.NumField() {
			name, statement := q.Type().Field(i).Name, q.Field(i).String()
			if name == "begin" || name == "retentionBegin" {
				continue
			}
			if !strings.HasPrefix(statement, "-- inbox.") {
				t.Errorf("%s has no name", name)
			}
			if strings.Contains(statement, "holdfast.") {
				t.Errorf("%s names a schema that is not the configured one", name)
			}
			if _, err := conn.Conn().Prepare(b.Context(), schema+name, statement); err != nil {
				t.Errorf("prepare %s: %v", name, err)
			}
		}
		conn.Release()
	}
}

// A worker resumes a queue after the head before it has gone.
func TestQueries_OnlyTheHeadOfAQueueIsResumed(t *testing.T) {
	t.Parallel()
	waking.OnlyTheHead(t, func(t *testing.T, db *pgtest.DB, key string) {
		pgtest.Exec(t, db.Pool, sqlschema.In("", resumeSQL), "billing", "orders", key)
	})
}

// touched is how many pages a statement reads and writes.
func (b *bundle) touched(name, statement string, args ...any) int {
	b.Helper()
	tx, err := b.db.Begin(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	rows, err := tx.Query(b.Context(), "explain (analyze, buffers, timing off) "+statement, append([]any{pgx.QueryExecModeSimpleProtocol}, args...)...)
	if err != nil {
		b.Fatal(name, err)
	}
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		b.Fatal(name, err)
	}
	pages := 0
	for _, line := range lines {
		if n, err := fmt.Sscanf(strings.TrimSpace(line), "Buffers: shared hit=%d", &pages); n == 1 && err == nil {
			return pages
		}
	}
	b.Fatalf("%s says nothing of its pages:\n%s", name, strings.Join(lines, "\n"))
	return 0
}

// What is done about the head of a key costs the same with 10,000 events behind it as with none.
func TestQueries_ALongQueueCostsItsHeadNothing(t *testing.T) {
	skip.InShort(t, "it takes 3 s beside the others")
	b := setup(t)
	in := b.inbox()
	const followers, keys = 10_000, 20
	pgtest.Exec(t, b.db, `insert into holdfast.stored (consumer, topic, key, place, source, event_id, type, time, hash, payload, next_at)
		select 'billing', 'orders', case when n <= $1 then 'long' else (n % $2)::text end, n, '', n::text, 'order.placed', now(), '', convert_to(repeat('x', 300), 'UTF8'),
		       case when n = 0 then now() else 'infinity' end
		  from generate_series(0, 2 * $1) n`, followers, keys)
	pgtest.Exec(t, b.db, "select setval('holdfast.stored_place', $1)", 2*followers+1)
	pgtest.Exec(t, b.db, "vacuum analyze holdfast.stored")
	token := uuid.NewString()
	for _, row := range []struct {
		name, statement string
		args            []any
		most            int // pages; the queue has some 600, and its index 60
	}{
		{"claim", in.sql.claim, []any{"billing", []string{"order.placed"}, int32(8), token, int64(1e6), []string{}, int64(1 << 20), true, nil, int64(0), true}, 50},
		{"store", in.sql.store, []any{"billing", "orders", "long", "", "new", "order.placed", nil, "{}", []byte{}, []byte{}, nil, nil, int32(0), []string{}, int64(0), nil, true, false, nil, 1, int32(0)}, 40},
		{"take", in.sql.take, []any{"billing", "orders", "long", int64(0), token}, 50},
		{"drop", in.sql.drop, []any{"billing", "orders", "long", int64(0), token}, 50},
		{"resume", in.sql.resume, []any{"billing", "orders", "long"}, 50},
		{"sweep", in.sql.sweep, []any{"billing"}, 50 * keys},
	} {
		if pages := b.touched(row.name, row.statement, row.args...); pages > row.most {
			t.Errorf("%s touches %d pages with %d events behind the head, want at most %d", row.name, pages, followers, row.most)
		} else {
			t.Logf("%s touches %d pages", row.name, pages)
		}
	}
}

func TestQueries_ASweepResumesDormantHeadsAndNothingElse(t *testing.T) {
	b := setup(t)
	in := b.inbox()
	for id, at := range map[string]string{"a 1": "infinity", "a 2": "infinity", "b 3": "now", "b 4": "infinity", "c 5": "infinity", " 6": "infinity", " 7": "infinity"} {
		pgtest.Exec(t, b.db, `insert into holdfast.stored (consumer, topic, key, place, source, event_id, type, time, hash, next_at)
			select 'billing', t, split_part($1, ' ', 1), split_part($1, ' ', 2)::int, t, $1, 'order.placed', now(), '', $2 from unnest(array['orders', 'other']) t`, id, at)
	}
	pgtest.Exec(t, b.db, `insert into holdfast.letter (origin, consumer, reason, event_id, source, type, topic, key, time, hash, holds)
		values ('inbox', 'billing', 'x', 'l', '', 'order.placed', 'orders', 'c', now(), '', true)`)
	pgtest.Exec(t, b.db, "update holdfast.stored set consumer = 'shipping' where topic = 'other' and key = 'a'")
	if _, err := b.db.Exec(t.Context(), in.sql.sweep, "billing"); err != nil {
		t.Fatal(err)
	}
	var active string
	if err := b.db.QueryRow(t.Context(), "select string_agg(topic || ' ' || event_id, ', ' order by topic, place) from holdfast.stored where next_at < 'infinity'").Scan(&active); err != nil {
		t.Fatal(err)
	}
	if want := "orders a 1, orders b 3, orders  6, orders  7, other b 3, other c 5, other  6, other  7"; active != want {
		t.Errorf("active are %s; want %s", active, want)
	}
}

// BenchmarkConsume is a partition's way through the inbox, one transaction an event.
func BenchmarkConsume(b *testing.B) {
	db := migrated.New(b)
	log := make([]holdfast.Event, b.N)
	for i := range log {
		log[i] = event(fmt.Sprint(i), fmt.Sprint(i%100))
	}
	done := make(chan struct{})
	n := 0
	in, err := New(db.Pool, Config{Consumer: "billing", Observer: Observer{OnSettled: func(_ Assignment, position int64) {
		if n = int(position); n == len(log) {
			close(done)
		}
	}}})
	if err != nil {
		b.Fatal(err)
	}
	in.Handle("order.placed", func(context.Context, pgx.Tx, holdfast.Event) error { return nil })
	gens := make(chan *fakeGeneration, 1)
	gens <- newFakeGeneration(logOf(log...))
	ctx, cancel := context.WithCancel(b.Context())
	in.registry.start()
	b.ResetTimer()
	ended := make(chan error, 1)
	go func() { ended <- in.consume(ctx, &fakeSource{gens}) }()
	<-done
	b.StopTimer()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "events/s")
	cancel()
	if err := <-ended; err != nil {
		b.Fatal(err)
	}
}
