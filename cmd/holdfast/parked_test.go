package main

import (
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/internal/test/migrated"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
)

// A topic was retired, and another one was misspelt.
func TestParkedEventsOfTopicsThatDoNotComeBack(t *testing.T) {
	db := migrated.New(t)
	t.Setenv("DATABASE_URL", db.DSN)
	wantStatus(t, 0, "TOPIC", "parked", "list")
	wantStatus(t, 1, `nothing is parked of the topic "orders.v1"`, "parked", "give-up", "--topic", "orders.v1", "--reason", "r")
	pgtest.Exec(t, db, `insert into holdfast.parked (lane, topic, key, place, why, next_at, errors, id, source, type, time, payload)
		select n % 8, case when n <= 20 then 'orders.v1' else 'ordres' end, 'k' || n % 3, nextval('holdfast.parked_place'), 'topic', 'infinity', E'{"gone \x1b[2J for ever"}', n, 's', 't', now(), 'the secret'
		  from generate_series(1, 30) n`)
	pgtest.Exec(t, db, "update holdfast.parked set partition = n.place % 2, why = 'partition', next_at = now() + interval '1 day' from (select place from holdfast.parked where topic = 'ordres') n where parked.place = n.place")
	wantStatus(t, 0, "5 parked events would be due now", "parked", "retry", "--topic", "ordres", "--partition", "1", "--dry-run")
	wantStatus(t, 1, "nothing is parked for partition 7", "parked", "retry", "--topic", "ordres", "--partition", "7", "--reason", "r")
	wantStatus(t, 0, "5 parked events are due now", "parked", "retry", "--topic", "ordres", "--partition", "0", "--reason", "r")
	pgtest.Exec(t, db, "update holdfast.parked set partition = null, why = 'topic', next_at = 'infinity' where topic = 'ordres'")
	out := wantStatus(t, 0, "orders.v1", "parked", "list")
	if !strings.Contains(out, "ordres") || strings.Contains(out, "secret") || strings.Contains(out, "\x1b") {
		t.Errorf("the list is\n%s", out)
	}
	if out := wantStatus(t, 0, `{"topic":"orders.v1","why":"topic","events":20,"keys":3,"bytes":200,"oldest_at":`, "parked", "list", "--json"); strings.Count(out, "\n") != 2 {
		t.Errorf("as JSON it is\n%s", out)
	}
	wantStatus(t, 2, "--topic", "parked", "give-up", "--reason", "r")
	wantStatus(t, 2, "missing flags: --reason", "parked", "give-up", "--topic", "orders.v1")
	wantStatus(t, 2, "--to", "parked", "redirect", "--topic", "ordres", "--reason", "r")
	wantStatus(t, 1, `to is "ordres": it must be another topic`, "parked", "redirect", "--topic", "ordres", "--to", "ordres", "--reason", "r")
	wantStatus(t, 1, "it must be a Kafka topic's name", "parked", "redirect", "--topic", "ordres", "--to", "or ders", "--reason", "r")
	wantStatus(t, 0, "20 parked events would be dead letters now", "parked", "give-up", "--topic", "orders.v1", "--dry-run")
	wantStatus(t, 0, "10 parked events would be redirected to orders", "parked", "redirect", "--topic", "ordres", "--to", "orders", "--dry-run")

	wantStatus(t, 0, "7 parked events are discarded", "parked", "give-up", "--topic", "orders.v1", "--key", "k1", "--discard", "--reason", "test orders", "--by", "ann")
	wantStatus(t, 0, "13 parked events are dead letters now", "parked", "give-up", "--topic", "orders.v1", "--reason", "v1 is retired", "--by", "ann")
	if out := wantStatus(t, 0, "ann gave up what is parked of its topic: v1 is retired", "dlq", "list", "--topic", "orders.v1"); strings.Count(out, "\n") != 14 {
		t.Errorf("the dead letters are\n%s", out)
	}
	pgtest.Exec(t, db, `insert into holdfast.letter (origin, reason, event_id, source, type, topic, key, time, hash, lane, holds)
		select 'relay', 'r', 'bad', 's', 't', 'ordres', 'k2', now(), '', n, true from generate_series(0, 7) n`)
	wantStatus(t, 1, "3 events of the topic ordres were left: dead letters hold their keys: replay or discard those first", "parked", "redirect", "--topic", "ordres", "--to", "orders", "--reason", "misspelt", "--by", "ann")
	if n := pgtest.Count(t, db, "select count(*) from holdfast.parked where topic = 'orders'"); n != 7 {
		t.Errorf("%d are redirected", n)
	}
	wantStatus(t, 0, "8 dead letters are discarded", "dlq", "discard", "--topic", "ordres", "--reason", "r")
	wantStatus(t, 0, "3 parked events are redirected to orders", "parked", "redirect", "--topic", "ordres", "--to", "orders", "--reason", "misspelt", "--by", "ann")
}
