package inbox

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
)

// beginnings counts the statements of a pool that begin with a text.
type beginnings struct {
	of    string
	mu    sync.Mutex
	count int
}

func (b *beginnings) see(sql string) {
	if strings.HasPrefix(sql, b.of) {
		b.mu.Lock()
		b.count++
		b.mu.Unlock()
	}
}

func (b *beginnings) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	b.see(data.SQL)
	return ctx
}
func (b *beginnings) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}
func (b *beginnings) TraceBatchStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceBatchStartData) context.Context {
	return ctx
}
func (b *beginnings) TraceBatchQuery(_ context.Context, _ *pgx.Conn, data pgx.TraceBatchQueryData) {
	b.see(data.SQL)
}
func (b *beginnings) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData) {}

func (b *bundle) counted(beginning string) (*pgxpool.Pool, *beginnings) {
	b.Helper()
	c, err := pgxpool.ParseConfig(b.db.DSN)
	if err != nil {
		b.Fatal(err)
	}
	tracer := &beginnings{of: beginning}
	c.ConnConfig.Tracer = tracer
	pool, err := pgxpool.NewWithConfig(b.Context(), c)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(pool.Close)
	return pool, tracer
}

// Brokers that have just started may end a group's session every few seconds, before it could commit. What it reads again
// then must not take longer than that.
func TestRecognise_WhatIsReadAgainCostsNoTransactionEach(t *testing.T) {
	const n, edited, missing = 2000, 700, 1300
	for name, unclean := range map[string]string{
		"below the position":                             "update holdfast.consumer_position set clean = true",
		"after an unclean end, as if nothing were saved": "update holdfast.consumer_position set clean = false, position = 0",
	} {
		t.Run(name, func(t *testing.T) {
			b := setup(t)
			events := make([]holdfast.Event, n)
			for i := range events {
				events[i] = event(fmt.Sprint(i), "hot")
			}
			first := b.inbox(func(c *Config) { c.BatchSize = 100 })
			first.HandleBatch("order.placed", func(context.Context, pgx.Tx, []holdfast.Event) error { return nil })
			stop := b.consumeFake(first, newFakeGeneration(logOf(events...)))
			b.awaitSettled(n)
			stop()
			pgtest.Exec(t, b.db, unclean)
			pgtest.Exec(t, b.db, "delete from holdfast.inbox where event_id = $1", fmt.Sprint(missing))
			events[edited].Payload = []byte("another payload")

			pool, transactions := b.counted("begin")
			again := b.inboxOn(pool)
			again.Handle("order.placed", effectOf)
			g := newFakeGeneration(logOf(append(events, event("new", "hot"))...))
			g.from = 0
			b.consumeFake(again, g)
			b.awaitOutcome("new", Handled)
			b.awaitSettled(n + 1)
			want := map[Outcome]int{Duplicate: n - 2, Conflict: 1, Stale: 1}
			if b.count("select count(*) from effect") == 2 { // Above the position what is missing was never handled.
				want = map[Outcome]int{Duplicate: n - 2, Conflict: 1, Handled: 1}
			}
			if (want[Handled] == 1) != (name != "below the position") {
				t.Errorf("%d effects", b.count("select count(*) from effect"))
			}
			b.observed.mu.Lock()
			defer b.observed.mu.Unlock()
			got := map[Outcome]int{}
			for i := range n {
				outcomes := b.observed.outcomes[fmt.Sprint(i)]
				got[outcomes[len(outcomes)-1]]++
			}
			if fmt.Sprint(got) != fmt.Sprint(want) {
				t.Errorf("outcomes are %v, want %v", got, want)
			}
			if made := transactions.seen(); made > 20 {
				t.Errorf("%d transactions for %d events, %d of which are known as they are", made, n+1, n-2)
			}
		})
	}
}

// Nothing is known of an event while the database does not answer: it is asked until it does.
func TestRecognise_WhatIsReadAgainWaitsForADatabaseThatDoesNotAnswer(t *testing.T) {
	skip.InShort(t, "it takes 1 s beside the others")
	b := setup(t)
	log := logOf(event("1", "k"))
	in := b.inbox()
	in.Handle("order.placed", effectOf)
	stop := b.consumeFake(in, newFakeGeneration(log))
	b.awaitSettled(1)
	stop()
	pgtest.Exec(t, b.db, "alter table holdfast.inbox rename to gone")
	pgtest.Exec(t, b.db, "create function away() returns boolean language plpgsql as $$ begin raise exception 'away' using errcode = '57P03'; end $$")
	pgtest.Exec(t, b.db, "create view holdfast.inbox as select ctid, * from holdfast.gone where away()") // ctid: rows may be removed meanwhile
	g := newFakeGeneration(log)
	g.from = 0
	again := b.inbox()
	again.Handle("order.placed", effectOf)
	b.consumeFake(again, g)
	b.await("a complaint", func(o *observations) bool { return len(o.errs) > 1 })
	pgtest.Exec(t, b.db, "drop view holdfast.inbox; alter table holdfast.gone rename to inbox")
	b.awaitOutcome("1", Duplicate)
	if n := b.effects("1"); n != 1 {
		t.Errorf("%d effects", n)
	}
}
