package holdfasttest_test

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/holdfasttest"
	"github.com/holdfast-go/holdfast/inbox"
	"github.com/holdfast-go/holdfast/outbox"
)

// A handler runs on one event, in a transaction that is rolled back after the test.
func ExampleHandle() {
	t, db := inTest()
	tx := holdfasttest.Begin(t, db)
	order := holdfast.Event{ID: "1", Type: "order.placed", Key: "alice", Payload: []byte("1200")}

	fmt.Println(holdfasttest.Handle(t, tx, billingService(db), order))
	for _, e := range holdfasttest.Written(t, tx) {
		fmt.Printf("%s %s %s\n", e.Type, e.Key, e.Payload)
	}
	fmt.Println(holdfasttest.Handle(t, tx, billingService(db), order))
	// Output:
	// handled <nil>
	// invoice.sent alice 1200
	// duplicate <nil>
}

// Only the fields that are set are compared, and other events may stand between.
func ExampleRequireWritten() {
	ctx := context.Background()
	t, db := inTest()
	tx := holdfasttest.Begin(t, db)
	err := outbox.Write(ctx, tx,
		holdfast.Event{Topic: "orders", Type: "order.placed", Key: "alice", Payload: []byte(`{"cents": 1200, "vat": 228}`)},
		holdfast.Event{Topic: "mail", Type: "mail.queued", Key: "alice"},
		holdfast.Event{Topic: "orders", Type: "order.paid", Key: "alice"},
	)
	fmt.Println(err)
	holdfasttest.RequireWritten(t, tx,
		holdfast.Event{Type: "order.placed", Payload: []byte(`{"vat":228,"cents":1200}`)},
		holdfast.Event{Type: "order.paid", Key: "alice"},
	)
	// Output: <nil>
}

// What other services get is a file that is read in review. Write it with go test -update, and see a change as lines.
func ExampleRequireGolden() {
	ctx := context.Background()
	t, db := inTest()
	tx := holdfasttest.Begin(t, db)
	for _, sku := range []string{"tea", "cup"} {
		e := holdfast.Event{Topic: "orders", Type: "order.placed", Key: "alice", Payload: []byte(`{"sku":"` + sku + `","cents":1200}`)}
		fmt.Println(outbox.Write(ctx, tx, e))
	}
	holdfasttest.RequireGolden(t, "testdata/order_placed.golden.json", holdfasttest.Written(t, tx))
	// Output:
	// <nil>
	// <nil>
}

// Code that commits by itself is looked at from outside.
func ExampleWrittenSince() {
	ctx := context.Background()
	t, db := inTest()
	start := holdfasttest.Now(t, db)
	order := holdfast.Event{ID: "1", Type: "order.placed", Topic: "orders", Key: "alice"}
	fmt.Println(billingService(db).Receive(ctx, order))
	for _, e := range holdfasttest.WrittenSince(t, db, start) {
		fmt.Println(e.Topic, e.Type, e.Key)
	}
	// Output:
	// handled <nil>
	// invoices invoice.sent alice
}

// The parts run as they do in production, and the test waits until nothing is left to do.
func ExampleWaitIdle() {
	ctx, stop := context.WithCancel(context.Background())
	t, db := inTest()
	billing, stopped := billingService(db), make(chan error)
	go func() { stopped <- billing.Run(ctx) }()

	start := holdfasttest.Now(t, db)
	err := pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
		outcome, err := billing.StoreTx(ctx, tx, holdfast.Event{ID: "1", Type: "order.placed", Topic: "orders", Key: "alice"})
		fmt.Println(outcome == inbox.Stored)
		return err
	})
	fmt.Println(err)
	fmt.Println(holdfasttest.WaitIdle(ctx, db, holdfasttest.Idle{Within: time.Minute, NoRelay: true}))
	holdfasttest.RequireEvents(t, holdfasttest.WrittenSince(t, db, start), holdfast.Event{Type: "invoice.sent", Key: "alice"})
	stop()
	fmt.Println(<-stopped)
	// Output:
	// true
	// <nil>
	// <nil>
	// <nil>
}
