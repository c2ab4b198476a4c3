package wiring_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast/examples/wiring"
	"github.com/holdfast-go/holdfast/holdfasttest"
	"github.com/holdfast-go/holdfast/idempotency"
	"github.com/holdfast-go/holdfast/inbox"
	"github.com/holdfast-go/holdfast/relay"
)

// No constructor asks the database for anything.
func TestByHand_PartsMadeByHandSayAllThatIsWrong(t *testing.T) {
	t.Parallel()
	pool, err := pgxpool.New(t.Context(), "postgres://nobody@127.0.0.1:1/nowhere")
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	_, err = wiring.NewParts(pool, &holdfasttest.Kafka{}, wiring.Settings{Relay: relay.Config{Lease: -time.Second}})
	for _, want := range []string{"lease is -1s", "consumer is ", "principal is "} {
		if err == nil || !strings.Contains(strings.ToLower(err.Error()), want) {
			t.Errorf("it does not say %q: %v", want, err)
		}
	}
	parts, err := wiring.NewParts(pool, &holdfasttest.Kafka{}, wiring.Settings{Inbox: inbox.Config{Consumer: "shop"},
		Guard: idempotency.Config{Principal: func(*http.Request) (string, error) { return "alice", nil }}})
	if err != nil || parts.Relay == nil || parts.Inbox == nil || parts.Guard == nil {
		t.Errorf("%+v, %v", parts, err)
	}
}
