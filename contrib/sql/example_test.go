package sqloutbox_test

import (
	"context"
	"database/sql"
	"fmt"
	"log"
	"os"
	"testing"

	"github.com/jackc/pgx/v5/stdlib"

	"github.com/holdfast-go/holdfast"
	sqloutbox "github.com/holdfast-go/holdfast/contrib/sql"
	"github.com/holdfast-go/holdfast/contrib/sql/sqltx"
	"github.com/holdfast-go/holdfast/inbox"
	"github.com/holdfast-go/holdfast/internal/test/exampledb"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

// The change and its event commit together.
func Example() {
	ctx := context.Background()
	pool := exampledb.NewWith("create table orders (id text primary key)")
	db := stdlib.OpenDBFromPool(pool)
	defer db.Close()

	placeOrder := func(id string) error {
		// snippet: write
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer tx.Rollback()
		if _, err := tx.ExecContext(ctx, "insert into orders (id) values ($1)", id); err != nil {
			return err
		}
		event := holdfast.Event{Topic: "orders", Type: "order.placed", Key: id, Payload: []byte(`{"cents": 1200}`)}
		if err := sqloutbox.Write(ctx, tx, event); err != nil {
			return err
		}
		return tx.Commit()
		// end snippet
	}
	fmt.Println(placeOrder("17"))
	var events int
	if err := db.QueryRow("select count(*) from holdfast.event").Scan(&events); err != nil {
		log.Fatal(err)
	}
	fmt.Println(events)
	// Output:
	// <nil>
	// 1
}

// A handler for database/sql, with the inbox's transaction.
func Example_handler() {
	ctx := context.Background()
	pool := exampledb.NewWith("create table invoices (customer text)")
	billing, err := inbox.New(pool, inbox.Config{Consumer: "billing"})
	if err != nil {
		log.Fatal(err)
	}
	// snippet: handler
	billing.Handle("order.placed", sqltx.Handler(func(ctx context.Context, tx *sql.Tx, e holdfast.Event) error {
		if _, err := tx.ExecContext(ctx, "insert into invoices (customer) values ($1)", e.Key); err != nil {
			return err
		}
		return sqloutbox.Write(ctx, tx, holdfast.Event{Topic: "invoices", Type: "invoice.sent", Key: e.Key})
	}))
	// end snippet
	fmt.Println(billing.Receive(ctx, holdfast.Event{ID: "1", Topic: "orders", Type: "order.placed", Key: "alice"}))
	// Output: handled <nil>
}
