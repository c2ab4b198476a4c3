package holdfastprometheus_test

import (
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	holdfastprometheus "github.com/holdfast-go/holdfast/contrib/prometheus"
	"github.com/holdfast-go/holdfast/kafkago"
	"github.com/holdfast-go/holdfast/metrics"
	"github.com/holdfast-go/holdfast/relay"
)

func Example() {
	_ = func(registry *prometheus.Registry, pool *pgxpool.Pool, publisher relay.Publisher) (*relay.Relay, error) {
		// snippet: collector
		collector := holdfastprometheus.New()
		registry.MustRegister(collector)
		observer, err := metrics.Relay(collector)
		if err != nil {
			return nil, err
		}
		return relay.New(pool, publisher, relay.Config{Observer: observer})
		// end snippet
	}
}

func Example_database() {
	_ = func(collector *holdfastprometheus.Collector, pool *pgxpool.Pool, offsets *kafkago.Offsets) (stop func() error, err error) {
		return metrics.ObserveDatabase(collector, pool, metrics.DatabaseConfig{EndsFunc: offsets.Ends})
	}
}
