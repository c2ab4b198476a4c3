package inbox

import (
	"context"
	"crypto/sha256"
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/dlq"
	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/retry"
)

func TestEdited_AnEditedEventIsADuplicateOfItsFirstPayload(t *testing.T) {
	skip.InShort(t, "it takes 1 s beside the others")
	b := setup(t)
	in := b.inbox()
	in.Handle("order.placed", func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
		if string(e.Payload) != "fixed" {
			return retry.Permanent(errors.New("it cannot be read"))
		}
		return effectOf(ctx, tx, e)
	})
	b.receive(in, event("1", "k"), Dead)
	d := b.letters()
	for _, payload := range []string{"second", "fixed"} {
		if err := d.Edit(t.Context(), 1, []byte(payload), "ann", "a typo"); err != nil {
			t.Fatal(err)
		}
	}
	b.receive(in, event("1", "k"), Duplicate) // edited, not replayed yet
	if n, err := d.Replay(t.Context(), dlq.Filter{}, dlq.ReplayOptions{By: "ann"}); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	b.run(in.Run)
	b.awaitOutcome("1", Handled)
	for _, c := range []struct {
		payload string
		want    Outcome
	}{{"payload of 1", Duplicate}, {"second", Duplicate}, {"fixed", Duplicate}, {"another", Conflict}} {
		e := event("1", "k")
		e.Payload = []byte(c.payload)
		b.receive(in, e, c.want)
	}
	// What was edited in one event's letter says nothing about another's, nor about another consumer's.
	b.receive(in, event("2", "k"), Dead)
	old := event("2", "k")
	old.Payload = []byte("payload of 1")
	b.receive(in, old, Conflict)
	if n := b.effects("1"); n != 1 {
		t.Errorf("%d effects, want 1", n)
	}
	if n := b.count("select count(*) from holdfast.letter where event_id = '1'"); n != 2 {
		t.Errorf("%d letters of the event, want the fixed one and the conflict", n)
	}
	sum := sha256.Sum256([]byte("fixed"))
	if n := b.count("select count(*) from holdfast.inbox where event_id = '1' and hash = $1 and result = 'handled'", sum[:]); n != 1 {
		t.Error("the inbox row does not speak of the payload that was handled")
	}
}
