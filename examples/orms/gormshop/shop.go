// Package gormshop is a shop on GORM.
package gormshop

import (
	"context"

	"gorm.io/gorm"

	"github.com/holdfast-go/holdfast"
	sqloutbox "github.com/holdfast-go/holdfast/contrib/sql"
)

// Order is a row of the table orders.
type Order struct {
	ID    string `gorm:"primaryKey"`
	Cents int64
}

// PlaceOrder inserts an order and writes its event, in one transaction.
func PlaceOrder(ctx context.Context, db *gorm.DB, order Order, event holdfast.Event) error {
	// snippet: gorm
	return db.WithContext(ctx).Transaction(func(tx *gorm.DB) error {
		if err := tx.Create(&order).Error; err != nil {
			return err
		}
		in, err := sqloutbox.From(tx.Statement.ConnPool)
		if err != nil {
			return err
		}
		return sqloutbox.Write(ctx, in, event)
	})
	// end snippet
}
