package idempotency

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/internal/test/skip"
)

// A handler that begins and commits a transaction of its own makes as many round trips.
func TestRoundTrip_TheMiddlewareAddsNoRoundTripToANewRequest(t *testing.T) {
	skip.InShort(t, "it takes 1 s beside the others")
	b := setup(t)
	trips := &tripCounter{}
	g := b.guard()
	g.pool = b.traced(trips)
	h := b.service(g, func(w http.ResponseWriter, r *http.Request) {
		if _, err := Tx(r.Context()).Exec(r.Context(), "select 1"); err != nil {
			t.Error(err)
		}
		w.WriteHeader(http.StatusCreated)
	})
	look, handler := []string{"idempotency.lookup"}, []string{"select 1"}
	begin, end := []string{"begin", "idempotency.open", "idempotency.lookup", "savepoint"}, []string{"idempotency.store", "commit"}
	for _, row := range []struct {
		what, key string
		want      [][]string
	}{
		{"a new key", "a", [][]string{begin, handler, end}},
		{"another", "b", [][]string{begin, handler, end}},
		{"the first repeat", "a", [][]string{begin, {"rollback"}}},
		{"a repeat soon after", "b", [][]string{look}},
		{"a new key soon after", "c", [][]string{look, begin, handler, end}},
	} {
		trips.made = nil
		b.is(b.send(h, sent{key: row.key}), 201, "")
		if !slices.EqualFunc(trips.made, row.want, slices.Equal) {
			t.Errorf("%s: the round trips were %q, want %q", row.what, trips.made, row.want)
		}
	}
	for range lookFirst {
		b.is(b.send(h, sent{key: NewKey()}), 201, "")
	}
	trips.made = nil
	b.is(b.send(h, sent{key: "d"}), 201, "")
	if want := [][]string{begin, handler, end}; !slices.EqualFunc(trips.made, want, slices.Equal) {
		t.Errorf("a new key long after: the round trips were %q, want %q", trips.made, want)
	}
}

// tripCounter notes the statements of each round trip, by their name or first words. For one connection at a time.
type tripCounter struct{ made [][]string }

func (c *tripCounter) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	c.made = append(c.made, []string{nameOf(data.SQL)})
	return ctx
}

func (c *tripCounter) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

func (c *tripCounter) TraceBatchStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceBatchStartData) context.Context {
	trip := []string{}
	for _, q := range data.Batch.QueuedQueries {
		trip = append(trip, nameOf(q.SQL))
	}
	c.made = append(c.made, trip)
	return ctx
}

func (c *tripCounter) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) {}
func (c *tripCounter) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData)     {}

func nameOf(sql string) string {
	if name, found := strings.CutPrefix(sql, "-- "); found {
		name, _, _ = strings.Cut(name, "\n")
		return name
	}
	if sql == "select 1" {
		return sql
	}
	word, _, _ := strings.Cut(sql, " ")
	return word
}
