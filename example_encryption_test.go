package holdfast_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/inbox"
	"github.com/holdfast-go/holdfast/outbox"
)

// customerKeys keeps a key for each customer, here in a table:
//
//	create table customer_key (id uuid primary key default gen_random_uuid(), customer text unique, key bytea);
//
// To erase a customer: update customer_key set key = null, customer = null where customer = $1. The row stays, so that its id
// never gets a key again. Wrap the keys with your key management service, or whoever has a backup of the table has them.
type customerKeys struct{ pool *pgxpool.Pool }

func (k customerKeys) KeyOf(ctx context.Context, e holdfast.Event) (id string, key []byte, err error) {
	customer := e.Headers["customer"]
	if customer == "" {
		return "", nil, nil // about nobody
	}
	fresh := make([]byte, 32)
	if _, err := rand.Read(fresh); err != nil {
		return "", nil, err
	}
	err = k.pool.QueryRow(ctx, `insert into customer_key as k (customer, key) values ($1, $2)
		on conflict (customer) do update set customer = k.customer returning id::text, key`, customer, fresh).Scan(&id, &key)
	return id, key, err
}

func (k customerKeys) Key(ctx context.Context, id string) (key []byte, err error) {
	err = k.pool.QueryRow(ctx, "select key from customer_key where id::text = $1", id).Scan(&key)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, fmt.Errorf("key %s is not known", id) // perhaps not yet, on a replica
	}
	if err == nil && key == nil {
		return nil, holdfast.ErrKeyErased
	}
	return key, err
}

// Each customer has a key. Deleting it makes what was written about the customer unreadable, wherever it went.
func ExampleNewAESGCM() {
	var pool *pgxpool.Pool // of the service, and of the consumer
	sealing := holdfast.NewAESGCM(customerKeys{pool})

	producer, err := outbox.New(outbox.Config{Source: "shop", Encryptor: sealing})
	if err != nil {
		panic(err)
	}
	consumer, err := inbox.New(pool, inbox.Config{Consumer: "billing", Decryptor: sealing, ErasedKey: inbox.ErasedSkip})
	if err != nil {
		panic(err)
	}
	_, _ = producer, consumer
}
