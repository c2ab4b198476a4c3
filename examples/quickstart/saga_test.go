package quickstart

import (
	"errors"
	"slices"
	"testing"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/holdfasttest"
	"github.com/holdfast-go/holdfast/inbox"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
)

func TestSaga_APurchaseEndsDoneOrGivesBackWhatItTook(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	if err := holdfast.Migrate(t.Context(), db.Pool, holdfast.SchemaConfig{}); err != nil {
		t.Fatal(err)
	}
	pgtest.Exec(t, db.Pool, "create table purchases (id text primary key, state text not null)")
	in, err := inbox.New(db.Pool, inbox.Config{Consumer: "purchases"})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"order.placed", "payment.taken", "payment.refused", "shipment.sent", "shipment.refused", "refund.paid"} {
		in.Handle(name, Purchase)
	}
	for name, c := range map[string]struct {
		events, written []string
		state           string
	}{
		"all goes well":       {[]string{"order.placed", "payment.taken", "shipment.sent"}, []string{"payment.requested", "shipment.requested", "order.completed"}, "done"},
		"no money":            {[]string{"order.placed", "payment.refused"}, []string{"payment.requested", "order.cancelled"}, "cancelled"},
		"nothing to be sent":  {[]string{"order.placed", "payment.taken", "shipment.refused", "refund.paid"}, []string{"payment.requested", "shipment.requested", "refund.requested", "order.cancelled"}, "cancelled"},
		"paid before ordered": {[]string{"payment.taken"}, nil, ""},
		"sent before paid":    {[]string{"order.placed", "shipment.sent"}, []string{"payment.requested"}, "paying"},
	} {
		t.Run(name, func(t *testing.T) {
			tx := holdfasttest.Begin(t, db.Pool)
			for i, event := range c.events {
				_, err := holdfasttest.Handle(t, tx, in, holdfast.Event{Type: event, Key: "17", Payload: []byte("{}")})
				if unexpected := i >= len(c.written); errors.Is(err, errUnexpected) != unexpected || err != nil && !unexpected {
					t.Errorf("%s: %v", event, err)
				}
			}
			var written []string
			for _, e := range holdfasttest.Written(t, tx) {
				written = append(written, e.Type)
			}
			var state string
			err := tx.QueryRow(t.Context(), "select coalesce((select state from purchases where id = '17'), '')").Scan(&state)
			if err != nil || state != c.state || !slices.Equal(written, c.written) {
				t.Errorf("it is %q and has written %q, want %q and %q, %v", state, written, c.state, c.written, err)
			}
		})
	}
}

// What sarama chooses; rig/bench/peers asks sarama itself.
func TestSaga_SaramaHashPutsKeysWhereSaramaDid(t *testing.T) {
	t.Parallel()
	for key, want := range map[string][3]int{"customer-17": {2, 8, 26}, "a": {0, 0, 26}, "order/4711": {2, 11, 5}, "ключ": {2, 11, 33}} {
		for i, partitions := range []int{3, 12, 50} {
			if got := SaramaHash(holdfast.Event{Key: key}, partitions); got != want[i] {
				t.Errorf("%q is on %d of %d partitions, want %d", key, got, partitions, want[i])
			}
		}
	}
}
