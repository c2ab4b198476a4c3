package main

import (
	"context"
	"encoding/json"
	"errors"
	"sync"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/retry"
)

const tables = `
create table orders (id text primary key, customer text not null, cents bigint not null);
create table accounts (customer text primary key, orders bigint not null, cents bigint not null)`

// accounts is the consumer. It keeps an account of each customer.
type accounts struct {
	mu   sync.Mutex
	wait chan struct{} // closed when handlers may go on; nil: at once
}

// handle adds an order to its customer's account.
func (a *accounts) handle(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
	a.mu.Lock()
	wait := a.wait
	a.mu.Unlock()
	if wait != nil {
		select {
		case <-wait:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	var o order
	if err := json.Unmarshal(e.Payload, &o); err != nil {
		return retry.Permanent(err)
	}
	if o.Cents < 0 {
		return retry.Permanent(errors.New("an order of less than nothing"))
	}
	_, err := tx.Exec(ctx, `insert into accounts values ($1, 1, $2)
		on conflict (customer) do update set orders = accounts.orders + 1, cents = accounts.cents + excluded.cents`, o.Customer, o.Cents)
	return err
}

// slow makes the handler wait until the returned function is called.
func (a *accounts) slow() (goOn func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	wait := make(chan struct{})
	a.wait = wait
	return sync.OnceFunc(func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.wait = nil
		close(wait)
	})
}
