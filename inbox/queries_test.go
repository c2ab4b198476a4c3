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
	"github.com/holdfast-go/holdfast/internal/pgtest"
)

func TestEveryStatementIsNamedAndFitsTheSchema(t *testing.T) {
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
		q := reflect.ValueOf(newQueries(c))
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

func TestTheHotStatementsUseTheirIndexes(t *testing.T) {
	b := setup(t)
	in := b.inbox()
	pgtest.Exec(t, b.db, `insert into holdfast.stored (consumer, topic, key, place, source, event_id, type, time, hash, next_at)
		select 'billing', 'orders', (n % 100)::text, n, '', n::text, 'order.placed', now(), '', case when n < 100 then now() else 'infinity' end
		  from generate_series(0, 20000) n`)
	pgtest.Exec(t, b.db, "analyze holdfast.stored")
	plan := func(statement string, args ...any) string {
		t.Helper()
		tx, err := b.db.Begin(b.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = tx.Rollback(context.Background()) }()
		rows, err := tx.Query(b.Context(), "explain "+statement, append([]any{pgx.QueryExecModeSimpleProtocol}, args...)...)
		if err != nil {
			t.Fatal(err)
		}
		lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			t.Fatal(err)
		}
		return strings.Join(lines, "\n")
	}
	for what, row := range map[string]struct {
		plan    string
		indexes []string
	}{
		"claim":  {plan(in.q.claim, "billing", []string{"order.placed"}, int32(8), uuid.NewString(), int64(1e6)), []string{"stored_due", "stored_pkey", "letter_holds_inbox"}},
		"insert": {plan(in.q.insert, "billing", "", "1", "orders", "k", int32(0), int64(0), []byte{}, int32(1), int64(1)), []string{"stored_pkey", "letter_holds_inbox", "consumer_position_pkey"}},
		"insert many": {plan(in.q.insertMany, "billing", "orders", int32(0), int64(1), []string{""}, []string{"1"}, []string{"k"}, []int64{0}, [][]byte{{}}),
			[]string{"stored_pkey", "letter_holds_inbox", "consumer_position_pkey"}},
		"take": {plan(in.q.take, "billing", "orders", "1", int64(1), uuid.NewString()), []string{"stored_pkey"}},
		"wake": {plan(in.q.wake, "billing", "orders", "1"), []string{"stored_pkey"}},
	} {
		for _, index := range row.indexes {
			if !strings.Contains(row.plan, index) {
				t.Errorf("%s does not use %s:\n%s", what, index, row.plan)
			}
		}
		if strings.Contains(row.plan, "Seq Scan on stored") || strings.Contains(row.plan, "Seq Scan on inbox") {
			t.Errorf("%s reads a whole table:\n%s", what, row.plan)
		}
	}
}

// BenchmarkConsume is a partition's way through the inbox, one transaction an event.
func BenchmarkConsume(b *testing.B) {
	db := pgtest.New(b)
	if err := holdfast.Migrate(b.Context(), db.Pool, holdfast.SchemaConfig{}); err != nil {
		b.Fatal(err)
	}
	log := make([]holdfast.Event, b.N)
	for i := range log {
		log[i] = event(fmt.Sprint(i), fmt.Sprint(i%100))
	}
	done := make(chan struct{})
	n := 0
	in, err := New(db.Pool, Config{Consumer: "billing", Observer: Observer{OnSettled: func(_ Partition, position int64) {
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
	in.start()
	b.ResetTimer()
	ended := make(chan error, 1)
	go func() { ended <- in.consume(ctx, &fakeSource{gens}, consumeOptions{}) }()
	<-done
	b.StopTimer()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "events/s")
	cancel()
	if err := <-ended; err != nil {
		b.Fatal(err)
	}
}
