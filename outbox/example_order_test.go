package outbox_test

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/outbox"
)

// Transactions that insert rows do not wait for each other. Lock makes those of one key do so, and with that gives their
// events an order.
func ExampleLock() {
	ctx, pool := context.Background(), shop()
	for _, change := range []string{"order.placed", "order.paid"} {
		err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			if err := outbox.Lock(ctx, tx, "o-1"); err != nil { // before the first read or write
				return err
			}
			return outbox.Write(ctx, tx, holdfast.Event{Topic: "orders", Type: change, Key: "o-1", Payload: []byte("{}")})
		})
		fmt.Println(err)
	}
	printLog(ctx, pool)
	// Output:
	// <nil>
	// <nil>
	// order.placed o-1 {}
	// order.paid o-1 {}
}

// The change and its event reach Postgres in one round trip.
func ExampleQueue() {
	ctx, pool := context.Background(), shop()
	batch := &pgx.Batch{}
	batch.Queue("insert into orders values ('o-1', 1200)")
	if err := outbox.Queue(batch, holdfast.Event{Topic: "orders", Type: "order.placed", Key: "o-1", Payload: []byte("1200")}); err != nil {
		fmt.Println(err) // outside the limits: nothing was queued
		return
	}
	fmt.Println(pool.SendBatch(ctx, batch).Close()) // a transaction of its own
	printLog(ctx, pool)
	// Output:
	// <nil>
	// order.placed o-1 1200
}

// Services in other languages, and triggers, write events by a function of the schema.
func Example_sql() {
	ctx, pool := context.Background(), shop()
	var id string
	err := pool.QueryRow(ctx, `select holdfast.write(topic => 'orders', key => 'o-1', type => 'order.placed',
		payload => convert_to('{"cents": 1200}', 'utf8'))`).Scan(&id)
	fmt.Println("a UUID:", len(id) == 36, err)
	printLog(ctx, pool)
	// Output:
	// a UUID: true <nil>
	// order.placed o-1 {"cents": 1200}
}
