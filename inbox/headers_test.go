package inbox

import (
	"bytes"
	"context"
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/inbox/source"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
)

// Spring for Apache Kafka writes a counter of four bytes, deliveryAttempt. It must not cost the event its handler, nor its key.
func TestHeaders_ABinaryHeaderOfSomeoneElseIsKept(t *testing.T) {
	b := setup(t)
	in := b.inbox(func(c *Config) { c.HoldKey = true })
	attempt, name := []byte{0, 0, 0, 2}, "b\xffn"
	seen := map[string]map[string]string{}
	fails := true
	in.Handle("order.placed", func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
		b.observed.record(func() { seen[e.ID] = e.Headers })
		if e.ID == "stored" && fails { // What is stored has the same headers afterwards.
			fails = false
			return errors.New("not yet")
		}
		return effectOf(ctx, tx, e)
	})
	log := logOf(event("now", "k"), event("stored", "k"), event("next", "k"))
	for i := range 2 {
		log[i].Headers = append(log[i].Headers, source.Header{Key: "deliveryAttempt", Value: attempt}, source.Header{Key: "text", Value: []byte("é, data:;base64,")}, source.Header{Key: name, Value: []byte("v")})
	}
	stop := b.consumeFake(in, newFakeGeneration(log))
	for _, id := range []string{"now", "stored", "next"} {
		b.awaitOutcome(id, Handled)
	}
	stop()
	for _, id := range []string{"now", "stored"} {
		h := seen[id]
		if h["deliveryAttempt"] != "data:;base64,AAAAAg==" || !bytes.Equal(HeaderBytes(h["deliveryAttempt"]), attempt) {
			t.Errorf("%s has the header %q", id, h["deliveryAttempt"])
		}
		if h["text"] != "é, data:;base64," || string(HeaderBytes(h["text"])) != h["text"] || h["data:;base64,Yv9u"] != "v" || len(h) != 3 {
			t.Errorf("%s has the headers %q", id, h)
		}
	}
	if n := pgtest.Count(t, b.db, "select count(*) from holdfast.letter"); n != 0 {
		t.Errorf("%d letters", n)
	}
}

func TestHeaders_AHeaderThatOnlyLooksEncodedIsReturnedAsItIs(t *testing.T) {
	for value, want := range map[string]string{
		"":                            "",
		"plain":                       "plain",
		"data:;base64,no base64!":     "data:;base64,no base64!",
		"data:text/plain;base64,AA==": "data:text/plain;base64,AA==",
		"data:;base64,aGk=":           "hi",
	} {
		if got := string(HeaderBytes(value)); got != want {
			t.Errorf("%q is %q, want %q", value, got, want)
		}
	}
}
