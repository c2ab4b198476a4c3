package outbox_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/seed"
	"github.com/holdfast-go/holdfast/outbox"
)

// wroteTo is the segment of an event.
func wroteTo(t *testing.T, db *pgtest.DB, id string) (segment string) {
	t.Helper()
	if err := db.QueryRow(t.Context(), "select right(e.tableoid::regclass::text, 1) from holdfast.event e where e.id = $1", id).Scan(&segment); err != nil {
		t.Fatalf("%s: %v", id, err)
	}
	return segment
}

// A connection keeps its plans, in which the current segment is a constant: the first transaction after a rotation has new ones.
func TestSegment_AConnectionFollowsARotationWithItsNextTransaction(t *testing.T) {
	t.Parallel()
	db := setup(t)
	conn, err := db.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	n := 0
	writes := func(tx pgx.Tx, want string) {
		t.Helper()
		for range 8 { // beyond the fifth execution, when Postgres keeps a plan
			n++
			one, two, three := named(fmt.Sprint(n, " a")), named(fmt.Sprint(n, " b")), named(fmt.Sprint(n, " c"))
			if err := outbox.Write(t.Context(), tx, one); err != nil {
				t.Fatal(err)
			}
			if err := outbox.Write(t.Context(), tx, two, three); err != nil {
				t.Fatal(err)
			}
		}
		for i := range 3 {
			id := fmt.Sprintf("%d %c", n, 'a'+i)
			var segment string
			if err := tx.QueryRow(t.Context(), "select right(e.tableoid::regclass::text, 1) from holdfast.event e where e.id = $1", id).Scan(&segment); err != nil || segment != want {
				t.Errorf("%s is in segment %q, want %s: %v", id, segment, want, err)
			}
		}
	}
	for segment := range 4 { // rotated by another connection, as relays do
		pgtest.Exec(t, db.Pool, "update holdfast.segments set current = $1", segment)
		if err := pgx.BeginFunc(t.Context(), conn, func(tx pgx.Tx) error { writes(tx, fmt.Sprint(segment)); return nil }); err != nil {
			t.Fatal(err)
		}
	}
}

func TestSegment_ARotationThatIsRolledBackMovesNobody(t *testing.T) {
	t.Parallel()
	db := setup(t)
	tx, err := db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	pgtest.Exec(t, tx, "update holdfast.segments set current = 2")
	write := func(id string) {
		t.Helper()
		if err := pgx.BeginFunc(t.Context(), db.Pool, func(tx pgx.Tx) error { return outbox.Write(t.Context(), tx, named(id)) }); err != nil {
			t.Fatal(err)
		}
	}
	write("during") // and it does not wait
	if err := tx.Rollback(context.Background()); err != nil {
		t.Fatal(err)
	}
	write("after")
	for _, id := range []string{"during", "after"} {
		if got := wroteTo(t, db, id); got != "0" {
			t.Errorf("the event written %s it is in segment %s", id, got)
		}
	}
}

func TestSegment_EventsOfOneCallHaveTheOrderOfTheCall(t *testing.T) {
	t.Parallel()
	db := setup(t)
	var events []holdfast.Event
	for i := range 2000 {
		e := named(fmt.Sprint(i))
		e.Key = fmt.Sprint("k", i%7)
		events = append(events, e)
	}
	if err := pgx.BeginFunc(t.Context(), db.Pool, func(tx pgx.Tx) error { return outbox.Write(t.Context(), tx, events...) }); err != nil {
		t.Fatal(err)
	}
	if n := pgtest.Count(t, db.Pool, "select count(*) from (select e.id::integer as id, row_number() over (order by e.seq) - 1 as place from holdfast.event e) e where e.id = e.place"); n != 2000 {
		t.Errorf("%d of 2,000 events are in their place", n)
	}
	if n := pgtest.Count(t, db.Pool, "select count(snap) from holdfast.event"); n != 1 {
		t.Errorf("a call of 2,000 events has %d cuts, want 1", n)
	}
}

// within_limits decides for most events, and refusal for the rest. What the first lets in, the second does not refuse.
func TestSegment_WhatIsWithinTheLimitsIsNotRefused(t *testing.T) {
	t.Parallel()
	db := setup(t)
	r := rand.New(rand.NewPCG(seed.New(t), 0))
	texts := []string{"", "a", "orders", ".", "..", "...", "a b", "a\n", "\n", "ä", "ce_id", strings.Repeat("x", 249), strings.Repeat("x", 250), strings.Repeat("x", 255), strings.Repeat("x", 256),
		strings.Repeat("ä", 127), strings.Repeat("ä", 128), strings.Repeat("k", 1024), strings.Repeat("k", 1025)}
	names := []string{"a", "traceparent", "ce_id", "HF_x", "a b", "", "ä", `\u0063e_id`, "x-1", "a\tb"}
	values := []string{`""`, `"b"`, `1`, `null`, `{}`, `"a\"b"`, `"\u0061"`, `"` + strings.Repeat("v", 240) + `"`, `"\\"`, `"{"`}
	times := []string{"2026-01-01 00:00:00+00", "-infinity", "infinity", "0001-01-01 00:00:00+00", "0001-12-31 23:59:59+00 BC", "9999-12-31 23:59:59+00", "10000-01-01 00:00:00+00"}
	often := func(usual string, of []string) string { // most are fine, so that whole events are
		if r.IntN(6) > 0 {
			return usual
		}
		return pick(r, of)
	}
	columns := make([][]*string, 7)
	var sizes []int
	for range 20_000 {
		for i, usual := range []string{"id", "shop", "t", "orders", "k"} {
			v := often(usual, texts)
			columns[i] = append(columns[i], &v)
		}
		var at, headers *string
		if r.IntN(3) == 0 {
			v := often(times[0], times)
			at = &v
		}
		if r.IntN(2) == 0 {
			var pairs []string
			for range 1 + r.IntN(3) {
				pairs = append(pairs, `"`+often("a", names)+`"`+pick(r, []string{":", ": ", " :"})+often(`"b"`, values))
			}
			v := pick(r, []string{"{", "{", "{", "[", " {"}) + strings.Join(pairs, pick(r, []string{",", ", "})) + "}"
			headers = &v
		}
		columns[5], columns[6] = append(columns[5], at), append(columns[6], headers)
		sizes = append(sizes, pick(r, []int{100, 100, 100, defaultMaxPayload, defaultMaxPayload + 1}))
	}
	args := []any{}
	for _, c := range columns {
		args = append(args, c)
	}
	const sql = `
select count(*) filter (where w.within), count(*) filter (where not w.within),
       count(case when w.within then holdfast.refusal(w.id, w.source, w.type, w.topic, w.key, w.at, w.headers, w.size) end)
  from (select u.*, holdfast.within_limits(u.id, u.source, u.type, u.topic, u.key, u.at, u.headers, u.size) as within
          from unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[]::timestamptz[], $7::text[], $8::integer[])
               u (id, source, type, topic, key, at, headers, size) offset 0) w`
	var within, not, wrong int
	if err := db.QueryRow(t.Context(), sql, append(args, sizes)...).Scan(&within, &not, &wrong); err != nil {
		t.Fatal(err)
	}
	if wrong > 0 || within < 1000 || not < 1000 {
		t.Errorf("%d events are within the limits, %d are not; of the first, %d are refused", within, not, wrong)
	}
}

func pick[T any](r *rand.Rand, of []T) T { return of[r.IntN(len(of))] }
