package relay_test

import (
	"testing"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/wait"
	"github.com/holdfast-go/holdfast/internal/wire"
	"github.com/holdfast-go/holdfast/relay"
)

func TestPublishLetter_ARelaysDeadLetterIsPublishedWithoutPayloadAndOnce(t *testing.T) {
	t.Parallel()
	pool, b := setup(t, 1), newBroker()
	refuse := forGood("bad")
	b.set(func(e holdfast.Event) error {
		if e.Topic == "orders.dlq" && e.Key == "k2" { // Kafka does not even take the word of it.
			return forGood("")(e)
		}
		return refuse(e)
	})
	write(t, pool, event("k1", "bad"), event("k2", "bad"), event("k1", "good"))
	run(t, pool, b, relay.Config{DeadLetterTopic: "*.dlq"})
	arrives(t, b, "good")
	wait.Until(t, "the word of the first letter arrives, that of the second becomes a letter", func() bool {
		return len(b.events()) == 2 && letters(t, pool) == 3
	})
	var word holdfast.Event
	for _, e := range b.events() {
		if e.Topic == "orders.dlq" {
			word = e
		}
	}
	id := pgtest.Count(t, pool, "select id from holdfast.letter where key = 'k1'")
	original := ""
	if err := pool.QueryRow(t.Context(), "select event_id from holdfast.letter where id = $1", id).Scan(&original); err != nil {
		t.Fatal(err)
	}
	h := word.Headers
	if word.Key != "k1" || word.Type != "order.placed" || word.Payload != nil || word.ID == original || h[wire.HeaderEventID] != original ||
		h[wire.HeaderPayloadLeftOut] != "3" || h[wire.HeaderOrigin] != "relay" || h[wire.HeaderTopic] != "orders" || h[wire.HeaderError] == "" {
		t.Errorf("letter %d of event %s is published as %+v", id, original, word)
	}
	// What was given up last is of the topic of letters: nothing is said of it.
	write(t, pool, event("k3", "after"))
	arrives(t, b, "after")
	if n := pgtest.Count(t, pool, "select count(*) from holdfast.event where topic = 'orders.dlq'"); n != 2 {
		t.Errorf("%d letters were published, want those of the two orders", n)
	}
	// A replay that fails again is published again.
	replay(t, pool, id)
	wait.Until(t, "it is published again", func() bool {
		return pgtest.Count(t, pool, "select count(*) from holdfast.event where topic = 'orders.dlq' and headers->>'hf_letter' = $1::bigint::text", id) == 2
	})
}
