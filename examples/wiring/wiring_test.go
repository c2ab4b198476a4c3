package wiring_test

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"os"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/fx"
	"go.uber.org/fx/fxtest"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/examples/wiring"
	"github.com/holdfast-go/holdfast/holdfasttest"
	"github.com/holdfast-go/holdfast/idempotency"
	"github.com/holdfast-go/holdfast/inbox"
	"github.com/holdfast-go/holdfast/internal/test/migrated"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/outbox"
	"github.com/holdfast-go/holdfast/relay"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

var quiet = slog.New(slog.DiscardHandler)

// parts are what an application provides.
type parts struct {
	pool   *pgxpool.Pool
	kafka  *holdfasttest.Kafka
	relay  relay.Config
	guard  idempotency.Config
	shop   *inbox.Inbox
	source inbox.Source
}

func setup(t *testing.T, pool *pgxpool.Pool) parts {
	t.Helper()
	p := parts{
		pool: pool, kafka: &holdfasttest.Kafka{},
		relay: relay.Config{Logger: quiet, PollMax: 20 * time.Millisecond},
		guard: idempotency.Config{Logger: quiet, Principal: func(*http.Request) (string, error) { return "alice", nil }},
	}
	p.kafka.CreateTopic("orders", 2)
	p.source = p.kafka.Source("shop", "orders")
	shop, err := inbox.New(pool, inbox.Config{Consumer: "shop", Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	shop.Handle("order.placed", func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
		return outbox.Write(ctx, tx, holdfast.Event{Topic: "orders", Type: "order.seen", Key: e.Key})
	})
	p.shop = shop
	return p
}

// passes writes an event and waits until the relay has published it and the consumer has handled it.
func (p parts) passes(t *testing.T) {
	t.Helper()
	start := holdfasttest.Now(t, p.pool)
	if err := pgx.BeginFunc(t.Context(), p.pool, func(tx pgx.Tx) error {
		return outbox.Write(t.Context(), tx, holdfast.Event{Topic: "orders", Type: "order.placed", Key: "k"})
	}); err != nil {
		t.Fatal(err)
	}
	if err := holdfasttest.WaitIdle(t.Context(), p.pool, holdfasttest.Idle{Consumers: []string{"shop"}, Topics: []string{"orders"}, Within: time.Minute}); err != nil {
		t.Fatal(err)
	}
	holdfasttest.RequireEvents(t, holdfasttest.WrittenSince(t, p.pool, start), holdfast.Event{Type: "order.seen", Key: "k"})
}

func TestWiring_AnErrgroupEndsWithItsContextOrAPart(t *testing.T) {
	t.Parallel()
	p := setup(t, migrated.New(t).Pool)
	r, err := relay.New(p.pool, p.kafka, p.relay)
	if err != nil {
		t.Fatal(err)
	}
	guard, err := idempotency.New(p.pool, p.guard)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- wiring.RunAll(ctx, r, p.shop, p.source, guard) }()
	p.passes(t)
	stop()
	if err := <-ended; err != nil {
		t.Errorf("after its context it ends with %v", err)
	}

	empty := setup(t, pgtest.New(t).Pool)
	if r, err = relay.New(empty.pool, empty.kafka, empty.relay); err != nil {
		t.Fatal(err)
	}
	if guard, err = idempotency.New(empty.pool, empty.guard); err != nil {
		t.Fatal(err)
	}
	if err := wiring.RunAll(t.Context(), r, empty.shop, empty.source, guard); !errors.Is(err, holdfast.ErrSchemaMissing) {
		t.Errorf("without a schema it ends with %v", err)
	}
}

// options are an application of Fx.
func (p parts) options() fx.Option {
	return fx.Options(
		fx.Supply(p.pool, p.relay, p.guard, p.shop),
		fx.Provide(func() relay.Publisher { return p.kafka }, func() inbox.Source { return p.source }),
		wiring.Module, fx.NopLogger,
	)
}

func TestWiring_AnApplicationOfFxStartsAndStopsTheParts(t *testing.T) {
	t.Parallel()
	p := setup(t, migrated.New(t).Pool)
	app := fxtest.New(t, p.options())
	app.RequireStart()
	p.passes(t)
	app.RequireStop()
	if n := pgtest.Count(t, p.pool, "select count(*) from holdfast.lane where owner is not null"); n != 0 {
		t.Errorf("%d lanes were not handed back", n)
	}
}

func TestWiring_APartThatFailsStopsTheApplication(t *testing.T) {
	t.Parallel()
	app := fx.New(setup(t, pgtest.New(t).Pool).options())
	if err := app.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if s := <-app.Wait(); s.ExitCode != 1 {
		t.Errorf("it ends with exit code %d, want 1", s.ExitCode)
	}
	if err := app.Stop(t.Context()); !errors.Is(err, holdfast.ErrSchemaMissing) {
		t.Errorf("it stops with %v", err)
	}
}
