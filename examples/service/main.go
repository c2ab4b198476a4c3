// Command service is a small shop in one process: an idempotent route, a webhook, three types of event, a relay and a consumer, traced.
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
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"golang.org/x/sync/errgroup"

	"github.com/holdfast-go/holdfast"
	holdfastotel "github.com/holdfast-go/holdfast/contrib/otel"
	"github.com/holdfast-go/holdfast/idempotency"
	"github.com/holdfast-go/holdfast/inbox"
	"github.com/holdfast-go/holdfast/kafkago"
	"github.com/holdfast-go/holdfast/outbox"
	"github.com/holdfast-go/holdfast/relay"
	"github.com/holdfast-go/holdfast/webhook"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	check(err)
	defer pool.Close()
	check(holdfast.Migrate(ctx, pool, holdfast.SchemaConfig{}))
	_, err = pool.Exec(ctx, tables)
	check(err)
	tracer := sdktrace.NewTracerProvider().Tracer("shop") // give it the exporter of your choice
	kafka := kafkago.Connection{Brokers: strings.Split(os.Getenv("KAFKA_BROKERS"), ",")}

	publisher, err := kafkago.NewPublisher(kafka, kafkago.PublisherConfig{})
	check(err)
	defer publisher.Close()
	r, err := relay.New(pool, publisher, relay.Config{Observer: holdfastotel.RelaySpans(tracer, relay.Observer{})})
	check(err)

	box, err := outbox.New(outbox.Config{Source: "shop", Observer: holdfastotel.OutboxSpans(tracer, outbox.Observer{})})
	check(err)
	placed.Outbox, sent.Outbox = box, box
	in, err := inbox.New(pool, inbox.Config{Consumer: "shop", Observer: holdfastotel.InboxSpans(tracer, inbox.Observer{})})
	check(err)
	inbox.On(in, "order.placed", pick)
	inbox.On(in, "payment_intent.succeeded", send)
	inbox.On(in, "parcel.sent", closeOrder)
	source, err := kafkago.NewGroup(kafka, kafkago.GroupConfig{GroupID: "shop", Topics: []string{"shop"}})
	check(err)

	guard, err := idempotency.New(pool, idempotency.Config{Principal: customer, Observer: holdfastotel.IdempotencySpans(tracer, idempotency.Observer{})})
	check(err)
	stripe, err := webhook.Stripe(os.Getenv("STRIPE_SECRET"))
	check(err)
	paid, err := webhook.New(in, "stripe", stripe, webhook.Config{Observer: holdfastotel.WebhookSpans(tracer, webhook.Observer{})})
	check(err)
	routes := chi.NewMux()
	routes.With(guard.Middleware).Post("/orders", order)
	routes.Handle("/webhooks/stripe", paid)
	server := &http.Server{Addr: os.Getenv("LISTEN"), Handler: routes, ReadHeaderTimeout: 5 * time.Second}

	// If one part fails, or a signal comes, all stop: requests first, so that the relay sees their events.
	g, ctx := errgroup.WithContext(ctx)
	background, stopBackground := context.WithCancel(context.WithoutCancel(ctx))
	g.Go(func() error { return r.Run(background) })
	g.Go(func() error { return in.Consume(background, source) })
	g.Go(func() error { return guard.Run(background) })
	g.Go(func() error {
		if err := server.ListenAndServe(); err != http.ErrServerClosed {
			return err
		}
		return nil
	})
	g.Go(func() error {
		defer stopBackground()
		<-ctx.Done()
		limit, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		return server.Shutdown(limit)
	})
	check(g.Wait())
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
