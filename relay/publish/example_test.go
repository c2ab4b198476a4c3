package publish_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/relay/publish"
	"github.com/holdfast-go/holdfast/relay/publishertest"
	"github.com/holdfast-go/holdfast/retry"
)

// A middleware that refuses an event: its attempts are counted, and its key waits.
func ExampleWrap() {
	broker := &publishertest.Memory{}
	broker.CreateTopic("orders", 1)
	p := publish.Wrap(broker, func(next publish.Func) publish.Func {
		return func(ctx context.Context, events []holdfast.Event) []error {
			answers := make([]error, len(events))
			for i := range events {
				if events[i].Headers["reviewed"] == "" {
					answers[i] = retry.Permanent(errors.New("nobody has reviewed it"))
					continue
				}
				answers[i] = next(ctx, events[i:i+1])[0]
			}
			return answers
		}
	})
	for _, err := range p.Publish(context.Background(), []holdfast.Event{
		{ID: "1", Topic: "orders", Type: "order.placed", Key: "o-1"},
		{ID: "2", Topic: "orders", Type: "order.placed", Key: "o-2", Headers: map[string]string{"reviewed": "yes"}},
	}) {
		fmt.Printf("%q %v\n", publish.FaultOf(err), err)
	}
	// Output:
	// "record" nobody has reviewed it
	// "" <nil>
}

// What a Publisher's error means for the relay.
func ExampleFaultOf() {
	trouble := errors.New("no route to host")
	fmt.Println(publish.FaultOf(trouble))                  // the lane waits
	fmt.Println(publish.FaultOf(retry.Permanent(trouble))) // the event's attempts count
	fmt.Println(publish.FaultOf(&publish.Error{Fault: publish.FaultPartition, Err: trouble}))
	// Output:
	// broker
	// record
	// partition
}
