package holdfastotel_test

import (
	"net/http"

	"github.com/jackc/pgx/v5/pgxpool"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	holdfastotel "github.com/holdfast-go/holdfast/contrib/otel"
	"github.com/holdfast-go/holdfast/idempotency"
	"github.com/holdfast-go/holdfast/metrics"
	"github.com/holdfast-go/holdfast/outbox"
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
