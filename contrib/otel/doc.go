// Package holdfastotel reports to OpenTelemetry what holdfast does. Each function makes the Observer of one part, with
// instruments of a Meter. It is a module of its own, so that holdfast itself does not link OpenTelemetry.
//
//	observer, err := holdfastotel.Idempotency(provider.Meter("holdfast"))
//	if err != nil {
//		return err
//	}
//	guard, err := idempotency.New(pool, idempotency.Config{Principal: account, Observer: observer})
//
// Labels never contain keys, ids or paths: the program bounds their values, not its clients. docs/reference/metrics.md
// lists names and labels; renaming one is a breaking change.
package holdfastotel
