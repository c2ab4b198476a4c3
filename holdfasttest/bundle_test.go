package holdfasttest_test

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/holdfasttest"
	"github.com/holdfast-go/holdfast/inbox"
	"github.com/holdfast-go/holdfast/internal/test/ending"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/outbox"
	"github.com/holdfast-go/holdfast/retry"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

// wantFailure runs f as a test that must fail, and say all of want.
func wantFailure(t *testing.T, f func(testing.TB), want ...string) {
	t.Helper()
	v := ending.Of(t, f)
	if v.Failed == "" {
		t.Errorf("the test does not fail, want it to say %q", want)
		return
	}
	t.Log(v.Failed)
	for _, w := range want {
		if !strings.Contains(v.Failed, w) {
			t.Errorf("the failure does not say %q", w)
		}
	}
}

// setup makes a database with the schema, and a table for effects.
func setup(t *testing.T) *pgxpool.Pool {
	t.Helper()
	t.Parallel()
	pool := holdfasttest.Database(t, pgtest.New(t).DSN)
	pgtest.Exec(t, pool, "create table invoices (customer text not null, cents bigint not null)")
	return pool
}

func write(t *testing.T, tx pgx.Tx, events ...holdfast.Event) {
	t.Helper()
	if err := outbox.Write(t.Context(), tx, events...); err != nil {
		t.Fatal(err)
	}
}

var errNoCustomer = errors.New("nobody to send it to")

// newBilling is a consumer as a service has one.
func newBilling(t *testing.T, pool *pgxpool.Pool, change ...func(*inbox.Config)) *inbox.Inbox {
	t.Helper()
	c := inbox.Config{
		Consumer:         "billing",
		Retry:            retry.Policy{Attempts: 3, Base: time.Millisecond, Cap: 5 * time.Millisecond},
		ImmediateRetries: -1, PollMin: 2 * time.Millisecond, PollMax: 20 * time.Millisecond,
		Logger: slog.New(slog.DiscardHandler),
	}
	for _, f := range change {
		f(&c)
	}
	in, err := inbox.New(pool, c)
	if err != nil {
		t.Fatal(err)
	}
	in.Handle("order.placed", func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
		var o struct{ Cents int64 }
		if err := json.Unmarshal(e.Payload, &o); err != nil {
			return retry.Permanent(err)
		}
		if _, err := tx.Exec(ctx, "insert into invoices (customer, cents) values ($1, $2)", e.Key, o.Cents); err != nil {
			return err
		}
		if e.Key == "" {
			return errNoCustomer
		}
		return outbox.Write(ctx, tx, holdfast.Event{Topic: "invoices", Type: "invoice.sent", Key: e.Key, Payload: e.Payload})
	})
	return in
}

func placed(key, payload string) holdfast.Event {
	return holdfast.Event{Type: "order.placed", Topic: "orders", Key: key, Payload: []byte(payload)}
}
