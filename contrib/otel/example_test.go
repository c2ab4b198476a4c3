package holdfastotel_test

import (
	"net/http"

	"github.com/jackc/pgx/v5/pgxpool"
	"go.opentelemetry.io/otel/metric"

	holdfastotel "github.com/holdfast-go/holdfast/contrib/otel"
	"github.com/holdfast-go/holdfast/idempotency"
)

func Example() {
	_ = func(provider metric.MeterProvider, pool *pgxpool.Pool, account func(*http.Request) (string, error)) (*idempotency.Guard, error) {
		// snippet: idempotency
		observer, err := holdfastotel.Idempotency(provider.Meter("holdfast"))
		if err != nil {
			return nil, err
		}
		return idempotency.New(pool, idempotency.Config{Principal: account, Observer: observer})
		// end snippet
	}
}
