package schemaregistry

import (
	"context"
	"log/slog"
	"os"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/inbox"
	"github.com/holdfast-go/holdfast/internal/test/migrated"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/internal/test/wait"
	"github.com/holdfast-go/holdfast/retry"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

func TestInbox_AnOutageOfTheRegistryCostsNoEvent(t *testing.T) {
	skip.InShort(t, "it takes 6 s beside the others")
	db, im := migrated.New(t), imitate(t)
	id := im.add("orders-value", registered{Schema: orderV2})
	in, err := inbox.New(db.Pool, inbox.Config{Consumer: "billing", ImmediateRetries: -1, Logger: slog.New(slog.DiscardHandler),
		Retry: retry.Policy{Attempts: -1, Base: time.Millisecond, Cap: 10 * time.Millisecond}, PollMin: time.Millisecond, PollMax: 10 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	handled := make(chan order, 1)
	inbox.On(in, "order.placed", func(_ context.Context, _ pgx.Tx, o order, _ holdfast.Event) error { handled <- o; return nil },
		inbox.WithCodec(must(registryOf(t, im).Avro(AvroConfig{}))))
	event := holdfast.Event{ID: "1", Source: "shop", Topic: "orders", Type: "order.placed", Payload: must(framed(id, nil, []byte{2, 'a', 2}))}
	im.answers(503)
	if out, err := in.Receive(t.Context(), event); out != inbox.Retrying || err != nil {
		t.Fatalf("during the outage: %q, %v", out, err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- in.Run(ctx) }()
	if !wait.For(wait.Limit(), func() bool { return pgtest.Count(t, db, "select attempts from holdfast.stored") > 2 }) {
		t.Fatal("it is not tried again")
	}
	im.answers(0)
	if o := <-handled; o != (order{"a", 1}) {
		t.Errorf("it came as %+v", o)
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	event.ID, event.Payload = "2", must(framed(77, nil, nil))
	if out, err := in.Receive(t.Context(), event); out != inbox.Dead || err != nil {
		t.Errorf("an unknown id: %q, %v", out, err)
	}
	if n := pgtest.Count(t, db, "select count(*) from holdfast.letter where reason = 'payload: the registry knows no schema with the id 77'"); n != 1 {
		t.Error("no letter says so")
	}
}
