package quickstart

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/outbox"
)

// snippet: saga

// purchase is where an order stands, and what has happened to it since.
type purchase struct{ state, event string }

// outcome is the order's next state, and the command or event that goes out with it.
type outcome struct{ state, write string }

// purchases is the whole process. What was taken is given back where a later step fails: that is compensation.
var purchases = map[purchase]outcome{
	{"", "order.placed"}:             {"paying", "payment.requested"},
	{"paying", "payment.taken"}:      {"shipping", "shipment.requested"},
	{"paying", "payment.refused"}:    {"cancelled", "order.cancelled"},
	{"shipping", "shipment.sent"}:    {"done", "order.completed"},
	{"shipping", "shipment.refused"}: {"refunding", "refund.requested"},
	{"refunding", "refund.paid"}:     {"cancelled", "order.cancelled"},
}

// Purchase is the handler of all these events. Their key is the order.
func Purchase(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
	if _, err := tx.Exec(ctx, "insert into purchases (id, state) values ($1, '') on conflict do nothing", e.Key); err != nil {
		return err
	}
	now := purchase{event: e.Type}
	if err := tx.QueryRow(ctx, "select state from purchases where id = $1 for update", e.Key).Scan(&now.state); err != nil {
		return err
	}
	next, expected := purchases[now]
	if !expected { // tried again, as events of two topics have no order; a dead letter if it never fits
		return fmt.Errorf("order is %q: %w", now.state, errUnexpected)
	}
	if _, err := tx.Exec(ctx, "update purchases set state = $2 where id = $1", e.Key, next.state); err != nil {
		return err
	}
	return outbox.Write(ctx, tx, holdfast.Event{Topic: "purchases", Key: e.Key, Type: next.write, Payload: e.Payload})
}

var errUnexpected = errors.New("the event does not fit the state")

// end snippet
