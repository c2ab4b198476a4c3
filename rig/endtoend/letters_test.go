package endtoend

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/inbox"
	"github.com/holdfast-go/holdfast/internal/test/kafkatest"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/wait"
	"github.com/holdfast-go/holdfast/internal/wire"
	"github.com/holdfast-go/holdfast/relay"
	"github.com/holdfast-go/holdfast/retry"
)

// A consumer's letters reach their topic through the relay of its database, each key's in their order; one that the
// topic does not take becomes the relay's letter, holds back nothing but its own key, and is published to nobody.
func TestLetters_LettersOfAConsumerReachTheirTopicInTheOrderOfTheirKeys(t *testing.T) {
	t.Parallel()
	p := setupPath(t, pgtest.New(t), kafkatest.InProcess(t), 1)
	dead := p.Cluster.Topic(t, 2, "max.message.bytes", "20000")
	in, err := inbox.New(p.Pool(4), inbox.Config{Consumer: "billing", DeadLetterTopic: dead, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	in.Handle("order.placed", func(context.Context, pgx.Tx, holdfast.Event) error { return retry.Permanent(errors.New("broken")) })
	p.Relay(func(c *relay.Config) {
		c.DeadLetterTopic, c.Retry = dead, retry.Policy{Attempts: 2, Base: time.Millisecond, Cap: time.Millisecond}
	})
	receive := func(id, key string, payload []byte) {
		t.Helper()
		e := holdfast.Event{ID: id, Source: "shop", Type: "order.placed", Topic: "orders", Key: key, Payload: payload, Headers: map[string]string{"traceparent": "00-" + id}}
		if out, err := in.Receive(t.Context(), e); out != inbox.Dead || err != nil {
			t.Fatal(out, err)
		}
	}
	receive("1", "k", []byte("one"))
	large := make([]byte, 30_000)
	_, _ = rand.Read(large)      // which no compression makes smaller
	receive("2", "large", large) // below LetterPayload, above what the topic takes
	receive("3", "k", []byte("three"))
	receive("4", "large", []byte("four"))
	var got map[string][]string
	for deadline := time.Now().Add(wait.Limit()); len(got["k"])+len(got["large"]) < 3 || pgtest.Count(t, p.Db, "select count(*) from holdfast.letter where origin = 'relay'") < 1; {
		if time.Now().After(deadline) {
			t.Fatalf("the letters that arrived are %v", got)
		}
		got = map[string][]string{}
		for _, r := range p.Cluster.ReadAll(t, dead) {
			id, _ := r.Header(wire.HeaderEventID)
			if own, _ := r.Header(wire.HeaderID); own == id {
				t.Errorf("the letter of %s has its event's id", id)
			}
			if trace, _ := r.Header("traceparent"); trace != "00-"+id {
				t.Errorf("the letter of %s has the traceparent %q", id, trace)
			}
			got[string(r.Key)] = append(got[string(r.Key)], fmt.Sprintf("%s %.10s", id, r.Value))
		}
	}
	if k := got["k"]; len(k) != 2 || k[0] != "1 one" || k[1] != "3 three" {
		t.Errorf("the letters of k are %q", k)
	}
	if l := got["large"]; len(l) != 1 || l[0] != "4 four" {
		t.Errorf("the letters after the one that is too large are %q", l)
	}
	if n := pgtest.Count(t, p.Db, "select count(*) from holdfast.letter"); n != 5 {
		t.Errorf("%d letters, want the four of the consumer and one of the relay", n)
	}
	if n := pgtest.Count(t, p.Db, "select count(*) from holdfast.event"); n != 4 {
		t.Errorf("%d events are in the log, want one for each letter of the consumer: nothing is said of the relay's", n)
	}
}
