// Package sqloutbox writes events in a transaction of database/sql, as package outbox does in one of pgx: a *sql.Tx through pgx's
// own driver (github.com/jackc/pgx/v5/stdlib) or lib/pq, or the transaction of a library on top of them.
//
//	tx, err := db.BeginTx(ctx, nil)
//	…
//	err = sqloutbox.Write(ctx, tx, holdfast.Event{Topic: "orders", Type: "order.placed", Key: id, Payload: payload})
//	…
//	err = tx.Commit()
//
// Checks, limits, encryption, observers and errors are those of package outbox, because it is that package that makes the
// statement. Only its arguments are written as text here, so that every driver sends the same. In a Write of several events payloads
// are hexadecimal text, twice as large on the way to Postgres. Write large events one by one.
//
// Package sqltx lends the transaction of a handler or of an idempotent route as a *sql.Tx.
package sqloutbox
