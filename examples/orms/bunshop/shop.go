// Package bunshop is a shop on Bun.
package bunshop

import (
	"context"

	"github.com/uptrace/bun"

	"github.com/holdfast-go/holdfast"
	sqloutbox "github.com/holdfast-go/holdfast/contrib/sql"
)

// Order is a row of the table orders.
type Order struct {
	ID    string `bun:",pk"`
	Cents int64
}

// PlaceOrder inserts an order and writes its event, in one transaction.
func PlaceOrder(ctx context.Context, db *bun.DB, order Order, event holdfast.Event) error {
	// snippet: bun
	return db.RunInTx(ctx, nil, func(ctx context.Context, tx bun.Tx) error {
		if _, err := tx.NewInsert().Model(&order).Exec(ctx); err != nil {
			return err
		}
		return sqloutbox.Write(ctx, tx.Tx, event) // not tx: Bun puts arguments into the text itself
	})
	// end snippet
}
