// Package retry decides what is worth another attempt, when, and for how long.
//
// It has three parts, which you can also use separately:
//
//   - A [Policy] turns the number of an attempt and a random number into a delay. It keeps no state. So the relay and
//     the inbox can write the time of the next attempt into Postgres, and a crash loses nothing.
//   - [Classify] turns an error into one of eight [Class] values by one table. [Permanent], [After] and errors with a
//     method RetryClass() Class override it.
//   - [Do] and [Transport] apply both in memory, to a function and to HTTP requests. [Client] is an http.Client that
//     does so.
//
// The package imports cenkalti/backoff/v4, google/uuid, pgx's pgconn and the standard library. Packages that import a
// Kafka client classify its errors themselves: they wrap them in a type with RetryClass.
package retry
