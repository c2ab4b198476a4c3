package relay_test

import (
	"context"
	"fmt"
	"log"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/relay"
)

// printer is a Publisher that prints events: a broker that never refuses one.
type printer struct{}

func (printer) Publish(_ context.Context, events []holdfast.Event) []error {
	for _, e := range events {
		fmt.Println(e.Topic, e.Key, e.Type)
	}
	return make([]error, len(events)) // nil for each: acknowledged
}

// Whatever can acknowledge events can be a Publisher.
func ExamplePublisher() {
	ctx, stop := context.WithCancel(context.Background())
	pool := ordersOf(ctx, "order.placed", "order.paid")

	r, err := relay.New(pool, printer{}, relay.Config{Observer: relay.Observer{
		OnPublished: func(int, []holdfast.Event) { stop() },
	}})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(r.Run(ctx))
	// Output:
	// orders o-1 order.placed
	// orders o-1 order.paid
	// <nil>
}
