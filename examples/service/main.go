// Command service is a small shop in one process: an idempotent route, a webhook, three types of event, a relay and a consumer, with
// traces, metrics and probes.
//
//	LISTEN=127.0.0.1:8080 DATABASE_URL='postgres://…?pool_max_conns=40' KAFKA_BROKERS=localhost:9092 STRIPE_SECRET=whsec_… go run ./examples/service
//
// The topic shop must exist. The parts share one pool: docs/operations.md says how many connections each of them needs.
package main

import (
	"context"
	"log"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/holdfast-go/holdfast"
	holdfastotel "github.com/holdfast-go/holdfast/contrib/otel"
	holdfastprometheus "github.com/holdfast-go/holdfast/contrib/prometheus"
	"github.com/holdfast-go/holdfast/idempotency"
	"github.com/holdfast-go/holdfast/inbox"
	"github.com/holdfast-go/holdfast/kafkago"
	"github.com/holdfast-go/holdfast/metrics"
	"github.com/holdfast-go/holdfast/outbox"
	"github.com/holdfast-go/holdfast/relay"
	"github.com/holdfast-go/holdfast/service"
	"github.com/holdfast-go/holdfast/webhook"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	check(err)
	check(holdfast.Migrate(ctx, pool, holdfast.SchemaConfig{}))
	_, err = pool.Exec(ctx, tables)
	check(err)
	tracer := sdktrace.NewTracerProvider().Tracer("shop") // give it the exporter of your choice
	registry := prometheus.NewRegistry()
	collector := holdfastprometheus.New()
	check(registry.Register(collector))
	observers, err := metrics.All(collector, "shop")
	check(err)
	observers = holdfastotel.Spans(tracer, observers)
	kafka := kafkago.Connection{Brokers: strings.Split(os.Getenv("KAFKA_BROKERS"), ",")}

	publisher, err := kafkago.NewPublisher(kafka, kafkago.PublisherConfig{})
	check(err)
	r, err := relay.New(pool, publisher, relay.Config{Observer: observers.Relay})
	check(err)

	box, err := outbox.New(outbox.Config{Source: "shop", Observer: observers.Outbox})
	check(err)
	placed.Outbox, sent.Outbox = box, box
	in, err := inbox.New(pool, inbox.Config{Consumer: "shop", Observer: observers.Inbox})
	check(err)
	inbox.On(in, "order.placed", pick)
	inbox.On(in, "payment_intent.succeeded", send)
	inbox.On(in, "parcel.sent", closeOrder)
	source, err := kafkago.NewGroup(kafka, kafkago.GroupConfig{GroupID: "shop", Topics: []string{"shop"}})
	check(err)

	guard, err := idempotency.New(pool, idempotency.Config{Principal: customer, Observer: observers.Idempotency})
	check(err)
	stripe, err := webhook.Stripe(os.Getenv("STRIPE_SECRET"))
	check(err)
	paid, err := webhook.New(in, "stripe", stripe, webhook.Config{Observer: observers.Webhook})
	check(err)

	shop := &service.Service{
		Pool: pool, Relay: r, Consumers: []service.Consumer{{Inbox: in, Source: source}}, Guard: guard,
		CloseFuncs: []func(){publisher.Close, pool.Close}, Meter: collector,
	}
	routes := chi.NewMux()
	routes.With(guard.Middleware).Post("/orders", order)
	routes.Handle("/webhooks/stripe", paid)
	// snippet: probes
	routes.Handle("/livez", shop.Probes())
	routes.Handle("/readyz", shop.Probes())
	// end snippet
	routes.Handle("/metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	shop.Server = &http.Server{Addr: os.Getenv("LISTEN"), Handler: routes, ReadHeaderTimeout: 5 * time.Second}
	check(shop.Run(ctx))
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
