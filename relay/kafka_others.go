package relay

import (
	"context"
	"time"

	"github.com/segmentio/kafka-go"
)

// askTimeout bounds the question whether any broker answers. A broker that hangs uses it up whole.
const askTimeout = 2 * time.Second

// otherBrokers tells, when a partition's leader gave no answer, a broker that is away from a cluster that is: it asks, once for
// all who want to know at the same time. What was acknowledged a moment ago does not tell them apart. Where a cluster
// dies, somebody's last acknowledgement is always younger than somebody else's request; and where all lanes wait for
// one hanging leader, nobody sends anything that the others could acknowledge.
type otherBrokers struct {
	ask  func(ctx context.Context) error // whichever broker is reached
	turn chan struct{}                   // holds the one who asks; guards the following

	askedUntil time.Time // when the last question was answered, or given up
	answered   bool
}

// answer says whether a broker answers a question that ends after failed. It is false when ctx ends first.
func (o *otherBrokers) answer(ctx context.Context, failed time.Time) bool {
	select {
	case o.turn <- struct{}{}:
		defer func() { <-o.turn }()
	case <-ctx.Done():
		return false
	}
	if o.askedUntil.After(failed) {
		return o.answered
	}
	asking, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	err := o.ask(asking)
	if ctx.Err() == nil { // else it says nothing to others
		o.askedUntil, o.answered = time.Now(), err == nil
	}
	return err == nil
}

// ask sends the smallest request there is, which needs no rights, to a broker of the client's address: kafka-go keeps such
// connections apart from those to leaders, and takes the addresses in random order.
func (k *Kafka) ask(ctx context.Context) error {
	_, err := k.client.ApiVersions(ctx, &kafka.ApiVersionsRequest{})
	return err
}
