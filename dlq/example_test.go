package dlq_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/holdfast-go/holdfast/dlq"
)

// The zero Filter is every open letter.
func ExampleDLQ_List() {
	ctx := context.Background()
	_, d := givenUp("12 XYZ", "5 XYZ")
	letters, err := d.List(ctx, dlq.Filter{})
	for _, l := range letters {
		fmt.Printf("%s: %s %s: %v\n", l.Consumer, l.Event.Type, l.Event.Payload, l.Errors)
	}
	fmt.Println(err)
	// Output:
	// billing: order.placed 12 XYZ: [unknown currency]
	// billing: order.placed 5 XYZ: [unknown currency]
	// <nil>
}

// What to look at first when there are many.
func ExampleDLQ_Groups() {
	ctx := context.Background()
	_, d := givenUp("12 XYZ", "5 XYZ", "7 XYZ")
	groups, err := d.Groups(ctx, dlq.Filter{Consumer: "billing"})
	for _, g := range groups {
		fmt.Println(g.Letters, "letters of", g.Type, "in", g.Topic)
	}
	fmt.Println(err)
	// Output:
	// 3 letters of order.placed in orders
	// <nil>
}

// A letter holds the whole event, and the errors of its attempts.
func ExampleDLQ_Get() {
	ctx := context.Background()
	_, d := givenUp("12 XYZ")
	l, err := d.Get(ctx, 1)
	fmt.Println(l.State, l.Event.Source, l.Event.Topic, l.Event.Key, "attempts:", l.Attempts, err)
	fmt.Println(l.Errors)

	_, err = d.Get(ctx, 99)
	fmt.Println("99 is not there:", errors.Is(err, dlq.ErrNotFound))
	// Output:
	// open shop orders o-1 attempts: 1 <nil>
	// [unknown currency]
	// 99 is not there: true
}

// Fix the payload, then replay: the event goes to its handler again, under its old id and in its old place.
func ExampleDLQ_Edit() {
	ctx, stop := context.WithCancel(context.Background())
	pool, d := givenUp("12 XYZ")
	fmt.Println(d.Edit(ctx, 1, []byte("12 EUR"), "kim", "wrong currency"))
	fmt.Println(d.Replay(ctx, dlq.Filter{IDs: []int64{1}}, dlq.ReplayOptions{By: "kim"}))

	in := billing(pool, func(payload string) error {
		fmt.Println("handled:", payload)
		return nil
	}, stop)
	fmt.Println(in.Run(ctx))

	l, err := d.Get(context.Background(), 1)
	fmt.Println(l.State, "version", l.Version, err)
	// Output:
	// <nil>
	// 1 <nil>
	// handled: 12 EUR
	// <nil>
	// replayed version 2 <nil>
}

// Look first at what a replay would move.
func ExampleDLQ_Replay() {
	ctx := context.Background()
	_, d := givenUp("12 XYZ", "5 XYZ")
	euros := dlq.Filter{Consumer: "billing", Type: "order.placed"}
	fmt.Println(d.Replay(ctx, euros, dlq.ReplayOptions{DryRun: true}))
	fmt.Println(d.Replay(ctx, euros, dlq.ReplayOptions{By: "kim", Reason: "currency added", Rate: 100}))
	fmt.Println(d.Replay(ctx, euros, dlq.ReplayOptions{DryRun: true})) // they are on their way
	// Output:
	// 2 <nil>
	// 2 <nil>
	// 0 <nil>
}

// A letter that nobody needs is given up for good. Who did it and why is kept.
func ExampleDLQ_Discard() {
	ctx := context.Background()
	_, d := givenUp("12 XYZ")
	fmt.Println(d.Discard(ctx, 1, "kim", "test order"))

	l, err := d.Get(ctx, 1)
	fmt.Println(l.State, err)
	actions, err := d.Actions(ctx, 1)
	for _, a := range actions {
		fmt.Println(a.Action, "by", a.By+":", a.Reason)
	}
	fmt.Println(err)
	// Output:
	// <nil>
	// discarded <nil>
	// discard by kim: test order
	// <nil>
}

// A letter can be discarded or edited only while it is open.
func ExampleDLQ_Edit_notOpen() {
	ctx := context.Background()
	_, d := givenUp("12 XYZ")
	fmt.Println(d.Discard(ctx, 1, "kim", "test order"))
	err := d.Edit(ctx, 1, []byte("12 EUR"), "kim", "wrong currency")
	fmt.Println("refused:", errors.Is(err, dlq.ErrNotOpen))
	// Output:
	// <nil>
	// refused: true
}
