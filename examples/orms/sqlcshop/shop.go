// Package sqlcshop is a shop on sqlc.
package sqlcshop

//go:generate go run github.com/sqlc-dev/sqlc/cmd/sqlc@v1.31.1 generate

import (
	"context"
	"database/sql"

	"github.com/holdfast-go/holdfast"
	sqloutbox "github.com/holdfast-go/holdfast/contrib/sql"
	"github.com/holdfast-go/holdfast/examples/orms/sqlcshop/orders"
)

// PlaceOrder inserts an order and writes its event, in one transaction.
func PlaceOrder(ctx context.Context, db *sql.DB, order orders.InsertOrderParams, event holdfast.Event) error {
	// snippet: sqlc
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	if err := orders.New(tx).InsertOrder(ctx, order); err != nil {
		return err
	}
	if err := sqloutbox.Write(ctx, tx, event); err != nil {
		return err
	}
	return tx.Commit()
	// end snippet
}

// Repository is code that is handed the DBTX of sqlc, and does not know whether it is a transaction.
type Repository struct{ DB orders.DBTX }

// Place inserts an order and writes its event, in the transaction that DB is. It is an error if DB is none.
func (r Repository) Place(ctx context.Context, order orders.InsertOrderParams, event holdfast.Event) error {
	// snippet: from
	tx, err := sqloutbox.From(r.DB)
	if err != nil {
		return err
	}
	if err := orders.New(r.DB).InsertOrder(ctx, order); err != nil {
		return err
	}
	return sqloutbox.Write(ctx, tx, event)
	// end snippet
}
