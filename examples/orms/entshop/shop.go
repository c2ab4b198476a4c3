// Package entshop is a shop on ent.
package entshop

//go:generate go run entgo.io/ent/cmd/ent generate --feature sql/execquery --target ent ./schema

import (
	"context"

	"github.com/holdfast-go/holdfast"
	sqloutbox "github.com/holdfast-go/holdfast/contrib/sql"
	"github.com/holdfast-go/holdfast/examples/orms/entshop/ent"
)

// PlaceOrder inserts an order and writes its event, in one transaction.
func PlaceOrder(ctx context.Context, client *ent.Client, id string, cents int64, event holdfast.Event) error {
	// snippet: ent
	tx, err := client.Tx(ctx)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	if err := tx.Order.Create().SetID(id).SetCents(cents).Exec(ctx); err != nil {
		return err
	}
	if err := sqloutbox.Write(ctx, tx, event); err != nil {
		return err
	}
	return tx.Commit()
	// end snippet
}
