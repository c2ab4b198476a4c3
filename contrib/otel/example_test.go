package holdfastotel_test

import (
	"net/http"

	"github.com/jackc/pgx/v5/pgxpool"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	holdfastotel "github.com/holdfast-go/holdfast/contrib/otel"
	"github.com/holdfast-go/holdfast/idempotency"
	"github.com/holdfast-go/holdfast/kafkago"
	"github.com/holdfast-go/holdfast/metrics"
	"github.com/holdfast-go/holdfast/outbox"
	"github.com/holdfast-go/holdfast/service"
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

// Observed makes the observers of a program whose inbox is named consumer, and lets s measure the database, the lag of consumers and the pool.
func Observed(provider metric.MeterProvider, tracer trace.Tracer, s *service.Service, offsets *kafkago.Offsets, consumer string) (metrics.Observers, error) {
	s.Meter = holdfastotel.Meter(provider.Meter("holdfast"))
	s.Database.EndsFunc = offsets.Ends
	observers, err := metrics.All(s.Meter, consumer)
	return holdfastotel.Spans(tracer, observers), err
}

// end snippet
