package schemaregistry_test

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/contrib/schemaregistry"
	"github.com/holdfast-go/holdfast/inbox"
	"github.com/holdfast-go/holdfast/outbox"
)

// snippet: avro

// Order is the payload of "order.placed". Its schema is in the registry under the subject "orders-value".
type Order struct {
	ID    string `avro:"id"`
	Cents int64  `avro:"cents"`
}

const orderSchema = `{"type":"record","name":"Order","fields":[
	{"name":"id","type":"string"}, {"name":"cents","type":"long","default":0}]}`

// placed is both sides of the event.
func placed(in *inbox.Inbox, registry string) (outbox.Typed[Order], error) {
	r, err := schemaregistry.New(schemaregistry.Config{URLs: []string{registry}})
	if err != nil {
		return outbox.Typed[Order]{}, err
	}
	avro, err := r.Avro(schemaregistry.AvroConfig{Schema: orderSchema})
	if err != nil {
		return outbox.Typed[Order]{}, err
	}
	inbox.On(in, "order.placed", func(ctx context.Context, tx pgx.Tx, o Order, e holdfast.Event) error {
		_, err := tx.Exec(ctx, "insert into invoice values ($1, $2)", o.ID, o.Cents)
		return err
	}, inbox.WithCodec(avro))
	return outbox.Typed[Order]{
		Topic: "orders", Type: "order.placed", Codec: avro,
		KeyFunc: func(o Order) string { return o.ID },
	}, nil
}

// end snippet

// Both sides of an event whose payload is Avro.
func ExampleRegistry_Avro() {
	var in *inbox.Inbox // of inbox.New
	if in == nil {
		return
	}
	_, _ = placed(in, "https://registry:8081")
}
