package outbox_test

import (
	"context"
	"fmt"
	"log"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast/internal/test/exampledb"
)

// shop is the database of the service in the examples, after holdfast.Migrate.
func shop() *pgxpool.Pool {
	return exampledb.NewWith("create table orders (id text primary key, cents bigint not null)")
}

// printLog prints the events that wait for a relay, in the order in which they were written.
func printLog(ctx context.Context, pool *pgxpool.Pool) {
	rows, err := pool.Query(ctx, "select type, key, coalesce(convert_from(payload, 'utf8'), 'tombstone') from holdfast.event order by seq")
	if err != nil {
		log.Fatal(err)
	}
	var eventType, key, payload string
	if _, err := pgx.ForEachRow(rows, []any{&eventType, &key, &payload}, func() error {
		fmt.Println(eventType, key, payload)
		return nil
	}); err != nil {
		log.Fatal(err)
	}
}
