package main

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/segmentio/kafka-go/sasl/plain"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/kafkago"
)

// What nobody asks for is not shown: payloads, header values, passwords.
func TestCanary_NoCommandShowsAPayloadUnasked(t *testing.T) {
	skip.InShort(t, "it takes 7 s beside the others")
	db := installed(t)
	pgtest.Exec(t, db.Pool, `insert into holdfast.parked (lane, topic, key, place, why, next_at, id, source, type, time, headers, payload) values (0, 'orders', 'k', 1, 'topic', now(), 'p', 's', 't', now(), '{"h": "CANARY-header"}', 'CANARY-payload')`)
	pgtest.Exec(t, db.Pool, `insert into holdfast.stored (consumer, topic, key, place, source, event_id, type, time, headers, payload, hash) values ('billing', 'orders', 'k', 1, 's', 'e', 't', now() - interval '1 day', '{"h": "CANARY-header"}', 'CANARY-payload', '')`)
	pgtest.Exec(t, db.Pool, `insert into holdfast.letter (origin, consumer, reason, fingerprint, event_id, source, type, topic, key, time, headers, payload, hash) values
		('inbox', 'billing', 'r', 'f', 'e1', 's', 't', 'orders', 'k', now(), '{"h": "CANARY-header", "holdfast-encryption": "aes-256-gcm key-7"}', 'CANARY-payload', '')`)
	pgtest.Exec(t, db.Pool, `insert into holdfast.letter_action (letter, action, by, reason, payload, hash, version) values (1, 'edit', 'op', 'typo', 'CANARY-edited', '', 1)`)
	pgtest.Exec(t, db.Pool, `insert into holdfast.inbox_step (consumer, source, event_id, hash, name, key, result) values ('billing', 's', 'e', '', 'charge', '', '"CANARY-result"'), ('billing', 's', 'e1', '', 'charge', '', '"CANARY-result"')`)
	for _, command := range []string{
		"status", "status --json", "check", "dlq list", "dlq list --json", "dlq groups", "dlq groups --json", "dlq show 1", "dlq show 1 --json",
		"dlq replay --dry-run", "dlq discard --dry-run", "waiting groups", "waiting groups --json", "waiting list", "waiting list --json", "waiting show e", "waiting show e --json",
	} {
		status, out, errOut := call(t, strings.Fields(command)...)
		if strings.Contains(out+errOut, "CANARY") {
			t.Errorf("%s says %s%s", command, out, errOut)
		}
		if status == 2 {
			t.Errorf("%s is no command: %s", command, errOut)
		}
	}
	wantStatus(t, 0, "aes-256-gcm key-7", "dlq", "show", "1")
	wantStatus(t, 0, "CANARY-payload", "dlq", "show", "1", "--payload") // so that the search finds what is there
	wantStatus(t, 0, "CANARY-result", "dlq", "show", "1", "--payload")
	wantStatus(t, 0, "CANARY-result", "waiting", "show", "e", "--payload")
}

func TestCanary_NoErrorOfAConnectionShowsAPassword(t *testing.T) {
	t.Setenv("KAFKA_USER", "u")
	t.Setenv("KAFKA_PASSWORD", "CANARY-kafka")
	for _, url := range []string{"postgres://u:CANARY-dsn@127.0.0.1:1/x", "postgres://u:CANARY-dsn@127.0.0.1:port/x", "host=127.0.0.1 port=1 user=u password=CANARY-dsn dbname=x", "host=127.0.0.1 password=CANARY-dsn sslmode=nonsense"} {
		t.Setenv("DATABASE_URL", url)
		for _, command := range []string{"status", "check", "migrate", "dlq list", "adopt --yes", "relay --brokers 127.0.0.1:1 --sasl-mechanism scram-sha-256 --tls", "relay --brokers 127.0.0.1:1 --sasl-mechanism plain"} {
			status, out, errOut := call(t, strings.Fields(command)...)
			if status == 0 || strings.Contains(out+errOut, "CANARY") {
				t.Errorf("%s: status %d, %s%s", command, status, out, errOut)
			}
		}
	}
	c := kafkago.Connection{Brokers: []string{"127.0.0.1:1"}, AllowPlaintextCredentials: true, SASL: plain.Mechanism{Username: "u", Password: "CANARY-kafka"}}
	publisher, err := kafkago.NewPublisher(c, kafkago.PublisherConfig{})
	if err != nil {
		t.Fatal(err)
	}
	defer publisher.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	errs := publisher.Publish(ctx, []holdfast.Event{{ID: "1", Type: "t", Topic: "o", Payload: []byte("CANARY-payload")}})
	if text := fmt.Sprint(errs); len(errs) != 1 || errs[0] == nil || strings.Contains(text, "CANARY") {
		t.Errorf("the publisher says %s", text)
	}
}
