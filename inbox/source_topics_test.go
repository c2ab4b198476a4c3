package inbox

import (
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast"
)

// Whoever may write to one topic cannot use up the ids of a source whose events come from another.
func TestSourceTopics_AnEventUnderASourceOfAnotherTopicLeavesTheRealOneAlone(t *testing.T) {
	b := setup(t)
	in := b.inbox(func(c *Config) {
		c.HoldKey = true
		c.SourceTopics = map[string][]string{"shop": {"orders", "orders.2"}}
	})
	in.Handle("order.placed", effectOf)
	forged := event("1", "k")
	other := event("partner's", "k")
	other.Source = "partner" // which is not named, and may use any topic
	partner := newFakeGeneration(logOf(forged, other))
	partner.tp.Topic = "partner"
	stop := b.consumeFake(in, partner)
	b.awaitOutcome(kafkaID("partner", 0, 0), Dead)
	b.awaitOutcome("partner's", Handled)
	stop()
	b.consumeFake(in, newFakeGeneration(logOf(event("1", "k"), event("2", "k"))))
	b.awaitOutcome("1", Handled)
	b.awaitOutcome("2", Handled)
	if n := b.count("select count(*) from holdfast.letter where event_id = 'kafka:partner/0/0' and source = 'shop' and not holds and reason like $1",
		`invalid record: source is "shop": its events come from the topics ["orders" "orders.2"] only, and this one, with the id "1", came from "partner"%`); n != 1 {
		t.Errorf("%d letters say why", n)
	}
	if n := b.count("select count(*) from holdfast.letter"); n != 1 {
		t.Errorf("%d letters", n)
	}
}

func TestSourceTopics_AnEventUnderASourceOfAnotherTopicIsRefusedByEveryDoor(t *testing.T) {
	b := setup(t)
	in := b.inbox(func(c *Config) { c.SourceTopics = map[string][]string{"shop": {"orders"}} })
	in.Handle("order.placed", effectOf)
	e := event("1", "")
	e.Topic = "partner"
	tx, err := b.db.Pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(t.Context()) }()
	for name, door := range map[string]func(holdfast.Event) (Outcome, error){
		"Receive":    func(e holdfast.Event) (Outcome, error) { return in.Receive(t.Context(), e) },
		"Store":      func(e holdfast.Event) (Outcome, error) { return in.Store(t.Context(), e) },
		"ReceiveTx":  func(e holdfast.Event) (Outcome, error) { return in.ReceiveTx(t.Context(), tx, e) },
		"StoreTx":    func(e holdfast.Event) (Outcome, error) { return in.StoreTx(t.Context(), tx, e) },
		"TryReceive": func(e holdfast.Event) (Outcome, error) { return in.Hooks().TryReceive(t.Context(), e, nil) },
		"TryStore":   func(e holdfast.Event) (Outcome, error) { return in.Hooks().TryStore(t.Context(), e, nil) },
		"Handle": func(e holdfast.Event) (Outcome, error) {
			out, _, err := in.Hooks().Handle(t.Context(), tx, e)
			return out, err
		},
	} {
		if out, err := door(e); out != "" || err == nil || !strings.Contains(err.Error(), `source is "shop": its events come from the topics ["orders"] only`) {
			t.Errorf("%s: %q, %v", name, out, err)
		}
	}
	b.receive(in, event("1", ""), Handled)
}

func TestSourceTopics_TheTopicsOfASourceAreChecked(t *testing.T) {
	b := setup(t)
	c := b.config()
	c.SourceTopics = map[string][]string{"shop": {}, "bank": {"a topic"}, "\xff": {"t"}}
	_, err := New(b.db.Pool, c)
	for _, want := range []string{`source topics of "shop" is empty`, `source topics of "bank": topic is "a topic"`, `source topics: source is "\xff"`} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not say %s", err, want)
		}
	}
}
