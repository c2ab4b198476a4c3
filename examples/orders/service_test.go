package main

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/examples/internal/exampletest"
	"github.com/holdfast-go/holdfast/examples/internal/servers"
	"github.com/holdfast-go/holdfast/holdfasttest"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
)

// These are tests as the shop would have them, beside the story's.

func startShop(t *testing.T) (*servers.Servers, *shop) {
	t.Helper()
	t.Parallel()
	on, err := servers.Start(t.Context(), servers.Config{DatabaseURL: pgtest.New(t).DSN, Brokers: strings.Join(exampletest.Cluster(t).Brokers, ","),
		Name: servers.NewName("orders")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := on.Stop(); err != nil {
			t.Error(err)
		}
	})
	if err := holdfast.Migrate(t.Context(), on.Pool, holdfast.SchemaConfig{Schema: on.Schema}); err != nil {
		t.Fatal(err)
	}
	if _, err := on.Pool.Exec(t.Context(), tables); err != nil {
		t.Fatal(err)
	}
	s, err := newShop(on.Pool, on.Schema, on.Topic)
	if err != nil {
		t.Fatal(err)
	}
	return on, s
}

func TestService_AnOrderIsWrittenWithItsEventAndOneThatIsDeclinedWithNone(t *testing.T) {
	on, shop := startShop(t)
	log := holdfasttest.Log{Schema: on.Schema}
	start := log.Now(t, on.Pool)
	o := order{Customer: "alice", Country: "DE", Cents: 12_00}
	if err := shop.place(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	o.ID = 1
	payload, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	holdfasttest.RequireEvents(t, log.WrittenSince(t, on.Pool, start),
		holdfast.Event{Source: "shop", Type: "order.placed", Topic: on.Topic, Key: "alice", Payload: payload})

	start = log.Now(t, on.Pool)
	if err := shop.place(t.Context(), order{Customer: "bob", Country: "DE", Cents: 5000_00}); !errors.Is(err, errDeclined) {
		t.Fatalf("got %v", err)
	}
	if events := log.WrittenSince(t, on.Pool, start); len(events) != 0 {
		t.Errorf("an order that was declined is published: %v", events)
	}
}

func TestService_EveryOrderHasItsInvoiceByTheTimeAllIsIdle(t *testing.T) {
	on, shop := startShop(t)
	ctx, stop := context.WithCancel(t.Context())
	quiet := slog.New(slog.DiscardHandler)
	stopped := make(chan error, 2)
	go func() { stopped <- runRelay(ctx, on.Pool, on.Brokers, on.Schema, quiet, &published{}) }()
	go func() {
		stopped <- runBilling(ctx, on.Pool, on.Brokers, on.Schema, on.Topic, on.Group, quiet, &outcomes{})
	}()
	const orders = 30
	for i := range orders {
		if err := shop.place(ctx, order{Customer: customers[i%len(customers)], Country: "DE", Cents: 1}); err != nil {
			t.Fatal(err)
		}
	}
	idle := holdfasttest.Idle{Schema: on.Schema, Consumers: []string{"billing"}, Topics: []string{on.Topic}, Within: waitTimeout}
	if err := holdfasttest.WaitIdle(ctx, on.Pool, idle); err != nil {
		t.Fatal(err)
	}
	if n := pgtest.Count(t, on.Pool, "select count(*) from invoices"); n != orders {
		t.Errorf("%d invoices, want %d", n, orders)
	}
	stop()
	for range cap(stopped) {
		if err := <-stopped; err != nil {
			t.Error(err)
		}
	}
}
