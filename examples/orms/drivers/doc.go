// Package drivers has tests only: they hold contrib/sql to what outbox.Write promises, on each driver of Postgres for database/sql.
package drivers
