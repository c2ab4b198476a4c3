package main

import (
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/internal/test/migrated"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
)

// A deploy brought the type order.split and was rolled back, while a partner's service was down.
func TestWaitingConsumers_EventsAfterADeployThatWasRolledBack(t *testing.T) {
	db := migrated.New(t)
	t.Setenv("DATABASE_URL", db.DSN)
	for _, sql := range []string{
		`insert into holdfast.inbox (consumer, source, event_id, topic, hash, result)
			select 'billing', 'shop', id, 'orders', sha256(''), 'stored' from unnest('{split,placed,paid}'::text[]) id`,
		`insert into holdfast.stored (consumer, topic, key, place, source, event_id, type, time, payload, hash, next_at, errors)
			values ('billing', 'orders', 'k1', 1, 'shop', 'split', 'order.split', now(), 'the secret', sha256(''), now(), '{}'),
			       ('billing', 'orders', 'k1', 2, 'shop', 'placed', 'order.placed', now(), 'the secret', sha256(''), 'infinity', '{}'),
			       ('billing', 'orders', 'k2', 3, 'shop', 'paid', 'order.paid', now(), 'the secret', sha256(''), now() + interval '1 hour', E'{"partner \x1b[2J is down"}')`,
		`insert into holdfast.consumer_type (consumer, type, node, seen_until)
			select 'billing', t, 'n', now() + interval '1 hour' from unnest('{order.placed,order.paid}'::text[]) t`,
	} {
		pgtest.Exec(t, db, sql)
	}
	groups := wantStatus(t, 0, "TYPE", "waiting", "groups")
	for _, row := range []string{"no-handler order.split 1 1", "behind-event - 1 1", "failed - 1 1"} {
		if !strings.Contains(strings.Join(strings.Fields(groups), " "), row) {
			t.Errorf("no row says %q: the groups are\n%s", row, groups)
		}
	}
	if out := wantStatus(t, 0, `"why":"no-handler","type":"order.split","events":1`, "waiting", "groups", "--json"); strings.Count(out, `"type"`) != 1 {
		t.Errorf("as JSON the groups are\n%s", out)
	}
	out := wantStatus(t, 0, "no-handler", "waiting", "list", "--consumer", "billing")
	if !strings.Contains(out, "failed") || strings.Contains(out, "secret") || strings.Contains(out, "\x1b") {
		t.Errorf("the list is\n%s", out)
	}
	if out := wantStatus(t, 0, "split", "waiting", "list", "--consumer", "billing", "--why", "no-handler", "--heads"); strings.Contains(out, "placed") {
		t.Errorf("those of no node's types are\n%s", out)
	}
	if out := wantStatus(t, 0, `"event_id":"paid"`, "waiting", "list", "--consumer", "billing", "--key", "k2", "--json"); !strings.Contains(out, `"why":"failed"`) {
		t.Errorf("as JSON it is\n%s", out)
	}
	wantStatus(t, 2, "which waiting events?", "waiting", "discard", "--consumer", "billing", "--reason", "r")
	wantStatus(t, 2, "exclude each other", "waiting", "discard", "--consumer", "billing", "--reason", "r", "--all", "--type", "t")
	wantStatus(t, 2, "missing flags: --reason", "waiting", "discard", "--consumer", "billing", "--type", "order.split")
	wantStatus(t, 2, "where? give --consumer NAME", "waiting", "discard", "--type", "order.split")
	wantStatus(t, 0, "1 waiting event would be discarded", "waiting", "discard", "--consumer", "billing", "--type", "order.split", "--dry-run")
	wantStatus(t, 0, "1 waiting event is discarded", "waiting", "discard", "--consumer", "billing", "--type", "order.split", "--reason", "rolled back", "--by", "ann")
	if n := pgtest.Count(t, db, "select count(*) from holdfast.stored where event_id = 'placed' and next_at <= now()"); n != 1 {
		t.Error("the key does not go on")
	}
	wantStatus(t, 0, "a person gave it up: rolled back", "dlq", "list", "--state", "discarded")
	wantStatus(t, 0, "1 waiting event is due now", "waiting", "retry", "--consumer", "billing", "--event-id", "paid", "--reason", "the partner is back", "--by", "ann")
	wantStatus(t, 0, "2 waiting events are dead letters now", "waiting", "give-up", "--consumer", "billing", "--all", "--reason", "later", "--by", "ann")
	wantStatus(t, 0, "0 waiting events are due now", "waiting", "retry", "--consumer", "billing", "--all", "--reason", "none is left", "--by", "ann")
	wantStatus(t, 1, "nothing like that waits in the consumer", "waiting", "retry", "--consumer", "billing", "--key", "k1", "--reason", "none is left", "--by", "ann")
	if n := pgtest.Count(t, db, "select count(*) from holdfast.stored_action where by = 'ann' and reason <> ''"); n != 4 {
		t.Errorf("%d actions are kept, want 4", n)
	}
}

// The topic of what a source of your own delivers may have any characters.
func TestWaitingConsumers_NoNameOfAnEventMovesTheCursor(t *testing.T) {
	db := migrated.New(t)
	t.Setenv("DATABASE_URL", db.DSN)
	const hostile = "\x1b[2J\u202e"
	pgtest.Exec(t, db, "insert into holdfast.inbox (consumer, source, event_id, topic, hash, result) values ($1, $1, $1, $1, sha256(''), 'stored')", hostile)
	pgtest.Exec(t, db, `insert into holdfast.stored (consumer, topic, key, place, source, event_id, type, time, payload, hash, next_at, errors)
		values ($1, $1, $1, 1, $1, $1, $1, now(), 'p', sha256(''), now(), array[$1])`, hostile)
	for _, command := range [][]string{{"waiting", "list"}, {"waiting", "groups"}, {"waiting", "show", hostile}} {
		if out := wantStatus(t, 0, `\x1b[2J\u202e`, command...); strings.ContainsAny(out, "\x1b\u202e") {
			t.Errorf("of %q a terminal obeys %q", command, out)
		}
	}
}

func TestWaitingConsumers_StatusShowsHeldPartitionsAndSkippedTypes(t *testing.T) {
	db := migrated.New(t)
	t.Setenv("DATABASE_URL", db.DSN)
	pgtest.Exec(t, db, "insert into holdfast.consumer_skip (consumer, topic, type, events) values ('billing', 'orders', 'order.payed', 50), ('billing', '', '', 7)")
	out := wantStatus(t, 0, "nothing needs a person", "status")
	if !strings.Contains(out, "SKIPPED TYPE") || !strings.Contains(out, "order.payed") || !strings.Contains(out, "(others)") {
		t.Errorf("status shows\n%s", out)
	}
	pgtest.Exec(t, db, "insert into holdfast.consumer_position (consumer, topic, partition, position, held) values ('billing', 'orders', 3, 9, 'its position is 9, but the log ends at 3')")
	wantStatus(t, 1, "consumer billing holds partition 3 of topic orders: its position is 9, but the log ends at 3", "status")
	wantStatus(t, 1, `"held":"its position is 9`, "status", "--json")
}
