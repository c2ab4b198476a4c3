package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/operate"
	"github.com/holdfast-go/holdfast/internal/test/migrated"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/outbox"
)

func TestFind_FindAndStatusAgreeOnATypeThatNobodyHandles(t *testing.T) {
	db := installed(t)
	pgtest.Exec(t, db.Pool, `insert into holdfast.stored (consumer, topic, key, place, source, event_id, type, time, hash, next_at)
		values ('billing', 'orders', 'k', 1, 's', 'e1', 'order.placed', now(), '', now())`)
	for _, c := range []struct {
		node, find, status string
		exit               int
	}{
		{"now() + interval '2 minutes'", "its turn has come", "its turn has come", 0}, // The last node has ended, or its event is due this moment.
		{"now() - interval '1 second'", "no node handles its type", "no-handler for order.placed", 1},
	} {
		pgtest.Exec(t, db.Pool, "insert into holdfast.consumer_type (consumer, type, node, seen_until) values ('billing', 'order.placed', 'n', "+c.node+") on conflict (consumer, type, node) do update set seen_until = excluded.seen_until")
		if out := wantStatus(t, c.exit, c.status, "status"); strings.Contains(out, "no-handler") != strings.Contains(c.status, "no-handler") {
			t.Errorf("status says\n%s", out)
		}
		if out := wantStatus(t, 0, c.find, "find", "e1", "--json"); strings.Contains(out, "no node handles its type") != strings.Contains(c.find, "no node") {
			t.Errorf("find says\n%s", out)
		}
	}
}

func TestFind_AnEventIsFoundByItsID(t *testing.T) {
	db := migrated.New(t)
	t.Setenv("DATABASE_URL", db.DSN)
	if err := pgx.BeginFunc(t.Context(), db.Pool, func(tx pgx.Tx) error {
		return outbox.Write(t.Context(), tx, holdfast.Event{ID: "e1", Source: "shop", Type: "placed", Topic: "orders", Key: "k\x1b[2J", Payload: []byte("the secret")})
	}); err != nil {
		t.Fatal(err)
	}
	pgtest.Exec(t, db.Pool, `insert into holdfast.inbox (consumer, source, event_id, topic, partition, "offset", hash, processed_at, result)
		values ('billing', 'shop', 'e1', 'orders', 3, 77, '', now(), 'handled')`)
	out := wantStatus(t, 0, "no relay has its lane", "find", "e1", "--within", "1m")
	if !strings.Contains(out, "consumer billing has handled it") || !strings.Contains(out, "partition 3, offset 77") || strings.Contains(out, "secret") || strings.Contains(out, "\x1b") {
		t.Errorf("it is found as\n%s", out)
	}
	var found operate.JSONFound
	out = wantStatus(t, 0, "", "find", "e1", "--within", "1m", "--json", "--key", "k\x1b[2J")
	if err := json.Unmarshal([]byte(out), &found); err != nil || len(found.Sightings) != 2 || found.Sightings[1].Offset != 77 || found.Sightings[0].State != "unowned" || len(found.Unsearched) != 0 {
		t.Errorf("%v: as JSON it is found as\n%s", err, out)
	}
	wantStatus(t, 1, "no node handled its type and it was skipped", "find", "e2", "--within", "1m")
	wantStatus(t, 1, `"sightings":[]`, "find", "e2", "--within", "1m", "--json")
	wantStatus(t, 2, "<id>", "find")
	wantStatus(t, 1, "must be at least 1ms", "find", "e1", "--within", "1us")
	tx, err := db.Pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(t.Context()) }()
	pgtest.Exec(t, tx, "lock table holdfast.letter in access exclusive mode")
	wantStatus(t, 1, "not searched to its end: letter", "find", "e2", "--within", "200ms")
}

func TestFind_AnIdempotencyKeyIsFound(t *testing.T) {
	db := migrated.New(t)
	t.Setenv("DATABASE_URL", db.DSN)
	pgtest.Exec(t, db.Pool, `insert into holdfast.idempotency (scope, operation, key, fingerprint, fingerprint_version, state, status, headers, body, body_hash, result_ref, owner, expires_at)
		values ('principal:ann', 'POST /payments', 'k1', '', 1, 'complete', 201, '{}', 'the secret', '', E'payment\x1b[2J 7', gen_random_uuid(), now() + interval '1 day')`)
	out := wantStatus(t, 0, "Idempotency-Key: a request of principal:ann for POST /payments", "find", "k1", "--within", "1m")
	if !strings.Contains(out, "was answered with 201") || strings.Contains(out, "secret") || strings.Contains(out, "\x1b") || strings.Contains(out, "does not know it") {
		t.Errorf("it is found as\n%s", out)
	}
	var found operate.JSONFound
	out = wantStatus(t, 0, "", "find", "k1", "--within", "1m", "--json")
	if err := json.Unmarshal([]byte(out), &found); err != nil || len(found.Sightings) != 0 || len(found.Requests) != 1 || found.Requests[0].State != "answered" || found.Requests[0].Status != 201 {
		t.Errorf("%v: as JSON it is found as\n%s", err, out)
	}
	wantStatus(t, 1, "this database does not know it", "find", "k1", "--within", "1m", "--topic", "orders")
}
