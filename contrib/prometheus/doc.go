// Package holdfastprometheus reports to Prometheus what holdfast does, with Prometheus' own client. It is for programs that do not use
// OpenTelemetry: names, units, labels and buckets are those that contrib/otel has by OpenTelemetry's exporter for Prometheus, so one
// dashboard serves both.
//
//	collector := holdfastprometheus.New()
//	registry.MustRegister(collector)
//	observer, err := metrics.Relay(collector)
//	if err != nil {
//		return err
//	}
//	r, err := relay.New(pool, publisher, relay.Config{Observer: observer})
//
// Labels never contain keys, ids or paths: the program bounds their values, not its clients. docs/reference/metrics.md lists names and
// labels; renaming one is a breaking change.
package holdfastprometheus
