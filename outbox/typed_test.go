package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/test/migrated"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/outbox"
)

type order struct {
	ID    string `json:"id"`
	Cents int    `json:"cents"`
}

var placed = outbox.Typed[order]{Topic: "orders", Type: "order.placed", KeyFunc: func(o order) string { return o.ID }}

// A type of event is declared once, with the type of its payload.
func ExampleTyped() {
	ctx, pool := context.Background(), shop()
	err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "insert into orders values ('o-1', 1200)"); err != nil {
			return err
		}
		return placed.Write(ctx, tx, order{ID: "o-1", Cents: 1200})
	})
	if err != nil {
		log.Fatal(err)
	}
	printLog(ctx, pool)
	// Output:
	// order.placed o-1 {"id":"o-1","cents":1200}
}

func TestTyped_TypedValuesAreWrittenInTheirOrder(t *testing.T) {
	t.Parallel()
	db := migrated.New(t)
	o, err := outbox.New(outbox.Config{Source: "shop"})
	if err != nil {
		t.Fatal(err)
	}
	typed := placed
	typed.Outbox = o
	err = pgx.BeginFunc(t.Context(), db, func(tx pgx.Tx) error {
		return typed.Write(t.Context(), tx, order{"b", 1}, order{"a", 2}, order{"b", 3})
	})
	if err != nil {
		t.Fatal(err)
	}
	var got string
	err = db.QueryRow(t.Context(), `select string_agg(concat_ws(' ', source, topic, type, key, convert_from(payload, 'utf8'), headers->>'content-type'), E'\n' order by seq) from holdfast.event`).Scan(&got)
	want := `shop orders order.placed b {"id":"b","cents":1} application/json
shop orders order.placed a {"id":"a","cents":2} application/json
shop orders order.placed b {"id":"b","cents":3} application/json`
	if err != nil || got != want {
		t.Errorf("the log holds\n%s\n%v, want\n%s", got, err, want)
	}
}

// refusing is a codec that refuses orders without cents.
type refusing struct{ holdfast.JSON }

var errNoCents = errors.New("no cents")

func (r refusing) Encode(ctx context.Context, e holdfast.Event, v any) (holdfast.Event, error) {
	if v.(order).Cents == 0 {
		return e, errNoCents
	}
	return r.JSON.Encode(ctx, e, v)
}

func TestTyped_AValueThatItsCodecRefusesWritesNothing(t *testing.T) {
	t.Parallel()
	db := migrated.New(t)
	typed := placed
	typed.Codec = refusing{}
	err := pgx.BeginFunc(t.Context(), db, func(tx pgx.Tx) error {
		if err := typed.Write(t.Context(), tx, order{"a", 1}, order{"b", 0}); !errors.Is(err, errNoCents) {
			return fmt.Errorf("Write returned %w", err)
		}
		return typed.Write(t.Context(), tx, order{"c", 1}) // tx is still usable.
	})
	if err != nil {
		t.Fatal(err)
	}
	if n := pgtest.Count(t, db, "select count(*) from holdfast.event"); n != 1 {
		t.Errorf("%d events, want 1", n)
	}
}

func TestTyped_ANilValueIsNoTombstone(t *testing.T) {
	typed := outbox.Typed[*order]{Topic: "orders", Type: "order.placed", KeyFunc: func(o *order) string { return o.ID }}
	if e, err := typed.Event(t.Context(), nil); err == nil {
		t.Errorf("it became %+v", e)
	}
}
