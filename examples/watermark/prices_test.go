package main

import (
	"context"
	"log/slog"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/holdfasttest"
	"github.com/holdfast-go/holdfast/inbox"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
)

// setup is what a service's own tests would begin with; pgtest finds the server.
func setup(t *testing.T) (*pgxpool.Pool, *inbox.Inbox) {
	t.Helper()
	t.Parallel()
	db := holdfasttest.Database(t, pgtest.New(t).DSN)
	if _, err := db.Exec(t.Context(), tables); err != nil {
		t.Fatal(err)
	}
	shop, err := newShop(db, "", "shop", false, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return db, shop
}

func TestPrices_APriceIsShownAndPublishedOnceAndAnOlderOneIsNot(t *testing.T) {
	skip.InShort(t, "it takes 4 s beside the others")
	db, shop := setup(t)
	// snippet: test
	tx := holdfasttest.Begin(t, db) // rolled back when the test ends

	newer := holdfast.Event{Type: "price.changed", Payload: []byte(`{"sku": "teapot", "version": 2, "cents": 2400}`)}
	if outcome, err := holdfasttest.Handle(t, tx, shop, newer); outcome != inbox.Handled || err != nil {
		t.Fatal(outcome, err)
	}
	holdfasttest.RequireWritten(t, tx, holdfast.Event{Type: "price.shown", Key: "teapot", Payload: newer.Payload})

	older := holdfast.Event{Type: "price.changed", Payload: []byte(`{"sku": "teapot", "version": 1, "cents": 1900}`)}
	if outcome, err := holdfasttest.Handle(t, tx, shop, older); outcome != inbox.Handled || err != nil {
		t.Fatal(outcome, err)
	}
	if events := holdfasttest.Written(t, tx); len(events) != 1 {
		t.Errorf("an older price is published: %v", events)
	}
	// end snippet
	if n := pgtest.Count(t, tx, "select version from prices where shop = 'shop' and sku = 'teapot'"); n != 2 {
		t.Errorf("the price is that of version %d, want 2", n)
	}
}

func TestPrices_APriceThatCannotBeIsALetterAtOnceAndLeavesNothing(t *testing.T) {
	db, shop := setup(t)
	for _, payload := range []string{`{"sku": "teapot", "version": 1, "cents": -1}`, `not JSON`} {
		tx := holdfasttest.Begin(t, db)
		if outcome, err := holdfasttest.Handle(t, tx, shop, holdfast.Event{Type: "price.changed", Payload: []byte(payload)}); outcome != inbox.Dead || err == nil {
			t.Errorf("%s: got %q, %v", payload, outcome, err)
		}
		if n := len(holdfasttest.Written(t, tx)) + int(pgtest.Count(t, tx, "select count(*) from holdfast.watermark")); n != 0 {
			t.Errorf("%s: %d traces are left", payload, n)
		}
	}
}

func TestPrices_PricesThatAreStoredAreShownByTheTimeTheConsumerIsIdle(t *testing.T) {
	db, shop := setup(t)
	ctx, stop := context.WithCancel(t.Context())
	stopped := make(chan error, 1)
	go func() { stopped <- shop.Run(ctx) }()

	start := holdfasttest.Now(t, db)
	for v := range int64(20) {
		err := pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
			_, err := shop.StoreTx(ctx, tx, changed("catalogue", price{SKU: "teapot", Version: 20 - v, Cents: 1}))
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := holdfasttest.WaitIdle(ctx, db, holdfasttest.Idle{Consumers: []string{"shop"}, NoRelay: true}); err != nil {
		t.Fatal(err)
	}
	if n := pgtest.Count(t, db, "select version from prices"); n != 20 {
		t.Errorf("the price is that of version %d, want 20", n)
	}
	written := holdfasttest.WrittenSince(t, db, start)
	holdfasttest.RequireEvents(t, written[len(written)-1:], holdfast.Event{Type: "price.shown", Payload: []byte(`{"sku": "teapot", "version": 20, "cents": 1}`)})
	stop()
	if err := <-stopped; err != nil {
		t.Error(err)
	}
}
