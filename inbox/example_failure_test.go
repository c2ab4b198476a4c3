package inbox_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/inbox"
	"github.com/holdfast-go/holdfast/retry"
)

// An event that fails is tried again by Run, and becomes a dead letter after the last attempt.
func ExampleInbox_Handle_retry() {
	ctx, stop := context.WithCancel(context.Background())
	in := billing(newPool(), inbox.Observer{OnDead: func(d inbox.DeadLettered) {
		defer stop()
		fmt.Println("dead letter after", d.Attempts, "attempts:", d.Err)
	}})
	in.Handle("order.placed", func(context.Context, pgx.Tx, holdfast.Event) error {
		return errors.New("no tax rate")
	})
	fmt.Println(in.Receive(ctx, placed))
	fmt.Println(in.Run(ctx))
	// Output:
	// retrying <nil>
	// dead letter after 2 attempts: no tax rate
	// <nil>
}

// The handler knows that no further attempt will help.
func ExampleInbox_Handle_permanent() {
	in := billing(newPool(), inbox.Observer{})
	in.Handle("order.placed", func(context.Context, pgx.Tx, holdfast.Event) error {
		return retry.Permanent(errors.New("unknown currency"))
	})
	fmt.Println(in.Receive(context.Background(), placed))
	// Output: dead <nil>
}

// The handler knows when the next attempt may help.
func ExampleInbox_Handle_after() {
	in := billing(newPool(), inbox.Observer{OnRetry: func(r inbox.Retried) {
		fmt.Println("attempt", r.Attempt, "failed:", r.Err, "- next in", r.Delay)
	}})
	in.Handle("order.placed", func(context.Context, pgx.Tx, holdfast.Event) error {
		return retry.After(errors.New("rate limit"), time.Hour)
	})
	fmt.Println(in.Receive(context.Background(), placed))
	// Output:
	// attempt 1 failed: rate limit - next in 1h0m0s
	// retrying <nil>
}

// Later events of a key wait until the earlier one is settled. Other keys go on.
func Example_order() {
	ctx := context.Background()
	in := billing(newPool(), inbox.Observer{})
	in.Handle("order.placed", func(_ context.Context, _ pgx.Tx, e holdfast.Event) error {
		if e.ID == "1" {
			return retry.After(errors.New("rate limit"), time.Hour)
		}
		return nil
	})
	for _, e := range []holdfast.Event{{ID: "1", Key: "alice"}, {ID: "2", Key: "alice"}, {ID: "3", Key: "bob"}} {
		e.Type, e.Topic = "order.placed", "orders"
		outcome, err := in.Receive(ctx, e)
		fmt.Println(e.ID, e.Key, outcome, err)
	}
	// Output:
	// 1 alice retrying <nil>
	// 2 alice stored <nil>
	// 3 bob handled <nil>
}

// The Observer feeds metrics.
func ExampleObserver() {
	count := map[inbox.Outcome]int{}
	in := billing(newPool(), inbox.Observer{OnReceive: func(r inbox.Received) { count[r.Outcome]++ }})
	in.Handle("order.placed", func(context.Context, pgx.Tx, holdfast.Event) error { return nil })
	for range 3 {
		if _, err := in.Receive(context.Background(), placed); err != nil {
			fmt.Println(err)
		}
	}
	fmt.Println("handled:", count[inbox.Handled], "duplicates:", count[inbox.Duplicate])
	// Output: handled: 1 duplicates: 2
}
