package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"strconv"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/inbox"
	"github.com/holdfast-go/holdfast/outbox"
	"github.com/holdfast-go/holdfast/retry"
)

// tables are the shop's own: the prices that hold, and those that ever held.
const tables = `
create table prices (
    shop    text not null,
    sku     text not null,
    version bigint not null,
    cents   bigint not null,
    primary key (shop, sku)
);
create table history (
    n       bigint generated always as identity primary key,
    shop    text not null,
    sku     text not null,
    version bigint not null
);
`

// price is the payload of price.changed. The catalogue counts Version up with each change.
type price struct {
	SKU     string `json:"sku"`
	Version int64  `json:"version"`
	Cents   int64  `json:"cents"`
}

// changed is the event by which the catalogue publishes a price. Prices come from more than one
// place, under ids of their own.
func changed(from string, p price) holdfast.Event {
	payload, err := json.Marshal(p)
	if err != nil {
		panic(err) // Numbers and a string always can be.
	}
	return holdfast.Event{ID: p.SKU + "/" + strconv.FormatInt(p.Version, 10), Source: from, Type: "price.changed",
		Topic: "catalogue", Payload: payload}
}

// newShop is a consumer that keeps prices and says so to others. A careless one does not ask
// whether a price is newer than the one it has.
func newShop(pool *pgxpool.Pool, schema, name string, careless bool, log *slog.Logger) (*inbox.Inbox, error) {
	out, err := outbox.New(outbox.Config{Schema: schema, Source: name})
	if err != nil {
		return nil, err
	}
	in, err := inbox.New(pool, inbox.Config{Schema: schema, Consumer: name, Logger: log})
	if err != nil {
		return nil, err
	}
	in.Handle("price.changed", func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
		var p price
		if err := json.Unmarshal(e.Payload, &p); err != nil {
			return retry.Permanent(err)
		}
		if p.Cents <= 0 {
			return retry.Permanent(fmt.Errorf("a price of %d cents cannot be", p.Cents))
		}
		if !careless {
			fresh, err := in.Watermark(ctx, tx, "price/"+p.SKU, p.Version)
			if err != nil || !fresh {
				return err // stale: a newer price is in the table, and this event is done
			}
		}
		if err := setPrice(ctx, tx, name, p); err != nil {
			return err
		}
		// Handled, written and published: one commit.
		return out.Write(ctx, tx, holdfast.Event{Topic: "shop", Key: p.SKU, Type: "price.shown", Payload: e.Payload})
	})
	return in, nil
}

func setPrice(ctx context.Context, tx pgx.Tx, shop string, p price) error {
	_, err := tx.Exec(ctx, `insert into prices (shop, sku, version, cents) values ($1, $2, $3, $4)
		on conflict (shop, sku) do update set version = excluded.version, cents = excluded.cents`, shop, p.SKU, p.Version, p.Cents)
	if err != nil {
		return err
	}
	_, err = tx.Exec(ctx, "insert into history (shop, sku, version) values ($1, $2, $3)", shop, p.SKU, p.Version)
	return err
}
