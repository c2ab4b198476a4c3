package metrics

import (
	"errors"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/idempotency"
	"github.com/holdfast-go/holdfast/inbox"
	"github.com/holdfast-go/holdfast/outbox"
	"github.com/holdfast-go/holdfast/relay"
	"github.com/holdfast-go/holdfast/retry"
	"github.com/holdfast-go/holdfast/webhook"
)

// Observers are those of a program: each belongs into the Config of its part. The zero Observers observe nothing.
type Observers struct {
	Outbox      outbox.Observer
	Relay       relay.Observer
	Inbox       inbox.Observer
	Idempotency idempotency.Observer
	Webhook     webhook.Observer
	Retry       retry.Observer
	Wait        holdfast.WaitObserver
}

// All makes the Observers of a program whose inbox has the name consumer; a second inbox needs one of its own, from Inbox. Leave out those
// of parts that the program has not. An error says of each part why its Observer could not be made.
func All(meter Meter, consumer string) (o Observers, err error) {
	var problems [7]error
	o.Outbox, problems[0] = Outbox(meter)
	o.Relay, problems[1] = Relay(meter)
	o.Inbox, problems[2] = Inbox(meter, consumer)
	o.Idempotency, problems[3] = Idempotency(meter)
	o.Webhook, problems[4] = Webhook(meter)
	o.Retry, problems[5] = Retry(meter)
	o.Wait, problems[6] = Wait(meter)
	return o, errors.Join(problems[:]...)
}
