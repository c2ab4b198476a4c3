package inbox_test

import (
	"context"
	"fmt"
	"log"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/inbox"
)

type invoice struct {
	Order string `json:"order"`
	Lines []struct {
		Qty int `json:"qty"`
	} `json:"lines"`
}

// A handler gets the payload as a value. One that does not fit is a dead letter at once, and its reason names the field.
func ExampleOn() {
	ctx, pool := context.Background(), newPool()
	in := billing(pool, inbox.Observer{OnDead: func(d inbox.DeadLettered) { fmt.Println(d.Reason) }})
	inbox.On(in, "order.placed", func(ctx context.Context, tx pgx.Tx, v invoice, e holdfast.Event) error {
		fmt.Println("invoice for", v.Order)
		return nil
	}, inbox.WithConcurrency(2))
	fits, not := placed, placed
	fits.Payload = []byte(`{"order":"o-1","lines":[{"qty":2}]}`)
	not.ID, not.Payload = "2", []byte(`{"order":"o-2","lines":[{"qty":1},{"qty":"two"}]}`)
	for _, e := range []holdfast.Event{fits, not} {
		outcome, err := in.Receive(ctx, e)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(outcome)
	}
	// Output:
	// invoice for o-1
	// handled
	// payload: field "lines[1].qty": a string where an int is wanted
	// dead
}

// The first middleware is outermost. Each runs in the handler's transaction, and its error is the handler's.
func ExampleInbox_Use() {
	in := billing(newPool(), inbox.Observer{})
	in.Use(func(next inbox.Handler) inbox.Handler {
		return func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
			fmt.Println("attempt", inbox.AttemptFrom(ctx), "of", e.Type)
			return next(ctx, tx, e)
		}
	})
	in.Handle("order.placed", func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
		fmt.Println("invoice for", e.Key)
		return nil
	})
	fmt.Println(in.Receive(context.Background(), placed))
	// Output:
	// attempt 1 of order.placed
	// invoice for o-1
	// handled <nil>
}
