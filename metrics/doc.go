// Package metrics says what holdfast measures, and makes the Observers that measure it, for any library of metrics.
//
// contrib/otel and contrib/prometheus each are a Meter, so both have the same names, units, labels and buckets:
// docs/reference/metrics.md lists them. To use another library, write a Meter for it: two methods. Many goroutines may use what the
// functions of this package return at once.
//
// Label values are bounded: topics, operations and consumers beyond a number are "other". Keys, ids and paths are never labels.
// Whatever a name of OpenTelemetry's semantic conventions exists for has that name. Others begin with "holdfast." or "idempotent.".
//
// What only the database knows, such as the age of the oldest event that nobody has published, ObserveDatabase samples: a few bounded queries, at
// most once in an interval.
package metrics
