// Package holdfastotel reports to OpenTelemetry what holdfast does. Package metrics makes Observers with its Meter. The functions that end
// in Spans add spans to an Observer; IdempotencyAttributes and RetryEvents say more on a span that a request has already. Traced gives
// events the trace of a context. It is a module of its own, so that holdfast itself does not link OpenTelemetry.
//
//	observer, err := metrics.Idempotency(holdfastotel.Meter(provider.Meter("holdfast")))
//	if err != nil {
//		return err
//	}
//	guard, err := idempotency.New(pool, idempotency.Config{Principal: account, Observer: observer})
//
// Labels never contain keys, ids or paths: the program bounds their values, not its clients. docs/reference/metrics.md
// lists names and labels; renaming one is a breaking change.
package holdfastotel
