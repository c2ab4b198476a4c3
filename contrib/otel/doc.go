// Package holdfastotel tells OpenTelemetry what holdfast does: each function makes the Observer of one moving part, with
// instruments of a Meter. It has a module of its own, so that holdfast itself does not link OpenTelemetry.
//
//	observer, err := holdfastotel.Idempotency(provider.Meter("holdfast"))
//	if err != nil {
//		return err
//	}
//	guard, err := idempotency.New(pool, idempotency.Config{Principal: account, Observer: observer})
//
// Labels never carry keys, ids or paths: what they can be is bounded by the program, not by its clients. Names and
// labels are listed in docs/reference/metrics.md; a change of one is a breaking change.
package holdfastotel
