package holdfastotel_test

import (
	"errors"
	"net/http"

	"github.com/jackc/pgx/v5/pgxpool"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	holdfastotel "github.com/holdfast-go/holdfast/contrib/otel"
	"github.com/holdfast-go/holdfast/idempotency"
	"github.com/holdfast-go/holdfast/inbox"
	"github.com/holdfast-go/holdfast/kafkago"
	"github.com/holdfast-go/holdfast/metrics"
	"github.com/holdfast-go/holdfast/outbox"
	"github.com/holdfast-go/holdfast/relay"
)

func Example() {
	_ = func(provider metric.MeterProvider, pool *pgxpool.Pool, account func(*http.Request) (string, error)) (*idempotency.Guard, error) {
		// snippet: idempotency
		observer, err := metrics.Idempotency(holdfastotel.Meter(provider.Meter("holdfast")))
		if err != nil {
			return nil, err
		}
		return idempotency.New(pool, idempotency.Config{Principal: account, Observer: observer})
		// end snippet
	}
}

func ExampleOutboxSpans() {
	_ = func(tracer trace.Tracer) (*outbox.Outbox, error) {
		// snippet: outbox
		out, err := outbox.New(outbox.Config{Observer: holdfastotel.OutboxSpans(tracer, outbox.Observer{})})
		// end snippet
		return out, err
	}
}

// snippet: service

// Observed measures and traces an outbox, a relay and an inbox: set these observers in their Configs. It also measures the database, the
// lag of consumers and the pool. Call stop before you close the pool, unless err says that something is wrong: then end the program.
func Observed(provider metric.MeterProvider, tracer trace.Tracer, pool *pgxpool.Pool, offsets *kafkago.Offsets, consumer string) (
	out outbox.Observer, to relay.Observer, in inbox.Observer, stop func() error, err error) {
	meter := holdfastotel.Meter(provider.Meter("holdfast"))
	out, outErr := metrics.Outbox(meter)
	to, toErr := metrics.Relay(meter)
	in, inErr := metrics.Inbox(meter, consumer)
	stopPool, poolErr := metrics.ObservePool(meter, "main", pool)
	stopDatabase, databaseErr := metrics.ObserveDatabase(meter, pool, metrics.DatabaseConfig{EndsFunc: offsets.Ends})
	stop = func() error { return errors.Join(stopDatabase(), stopPool()) }
	return holdfastotel.OutboxSpans(tracer, out), holdfastotel.RelaySpans(tracer, to), holdfastotel.InboxSpans(tracer, in),
		stop, errors.Join(outErr, toErr, inErr, poolErr, databaseErr)
}

// end snippet
