// Package retry says what is worth another attempt, when, and for how long.
//
// Three things stand apart, so that each can be used alone:
//
//   - A [Policy] turns an attempt's number and a random number into a delay. It keeps no state, so the relay and the
//     inbox can write the moment of the next attempt into Postgres and a crash loses nothing.
//   - [Classify] turns an error into one of eight [Class] values by one table. [Permanent], [After] and errors with a
//     method RetryClass() Class have their say in it.
//   - [Do] and [Transport] put both to work in memory: for a function, and for HTTP requests. [Client] is an http.Client
//     that does so by itself.
//
// The package imports cenkalti/backoff/v4, google/uuid, pgx's pgconn and the standard library. Kafka's errors are classified by
// those who import a Kafka client: they wrap them in a type with RetryClass.
package retry
