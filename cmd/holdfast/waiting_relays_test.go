package main

import (
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/operate"
	"github.com/holdfast-go/holdfast/internal/test/migrated"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
)

// A topic was retired, and another one was misspelt.
func TestWaitingRelays_EventsOfTopicsThatDoNotComeBack(t *testing.T) {
	db := migrated.New(t)
	t.Setenv("DATABASE_URL", db.DSN)
	wantStatus(t, 0, "TOPIC", "waiting", "groups")
	wantStatus(t, 1, `nothing like that waits of the topic "orders.v1"`, "waiting", "give-up", "--origin", "relay", "--topic", "orders.v1", "--reason", "r")
	pgtest.Exec(t, db, `insert into holdfast.parked (lane, topic, key, place, why, next_at, errors, id, source, type, time, payload)
		select n % 8, case when n <= 20 then 'orders.v1' else 'ordres' end, 'k' || n % 3, nextval('holdfast.parked_place'), 'topic', 'infinity', E'{"gone \x1b[2J for ever"}', n, 's', 't', now(), 'the secret'
		  from generate_series(1, 30) n`)
	wantStatus(t, 2, "partition is 1: changes do not go by it", "waiting", "retry", "--origin", "relay", "--topic", "ordres", "--partition", "1", "--reason", "r")
	out := wantStatus(t, 0, "orders.v1", "waiting", "groups")
	if !strings.Contains(out, "ordres") || strings.Contains(out, "secret") || strings.Contains(out, "\x1b") {
		t.Errorf("the list is\n%s", out)
	}
	if out := wantStatus(t, 0, `{"origin":"relay","topic":"orders.v1","why":"topic","events":20,"keys":3,"bytes":200,"oldest_at":`, "waiting", "groups", "--json"); strings.Count(out, "\n") != 2 {
		t.Errorf("as JSON it is\n%s", out)
	}
	wantStatus(t, 2, "missing flags: --topic", "waiting", "give-up", "--origin", "relay", "--key", "k1", "--reason", "r")
	wantStatus(t, 2, "no event can wait so", "waiting", "list", "--consumer", "billing", "--why", "topic")
	wantStatus(t, 2, "where? give --consumer NAME", "waiting", "give-up", "--topic", "orders.v1", "--reason", "r")
	wantStatus(t, 2, "type is set: in relays changes go by topic and key only", "waiting", "give-up", "--origin", "relay", "--topic", "orders.v1", "--type", "t", "--reason", "r")
	wantStatus(t, 2, "missing flags: --reason", "waiting", "give-up", "--origin", "relay", "--topic", "orders.v1")
	wantStatus(t, 2, "--to", "waiting", "redirect", "--topic", "ordres", "--reason", "r")
	wantStatus(t, 2, `to is "ordres": it must be another topic`, "waiting", "redirect", "--topic", "ordres", "--to", "ordres", "--reason", "r")
	wantStatus(t, 2, "it must be a Kafka topic's name", "waiting", "redirect", "--topic", "ordres", "--to", "or ders", "--reason", "r")
	wantStatus(t, 0, "20 waiting events would be dead letters now", "waiting", "give-up", "--origin", "relay", "--topic", "orders.v1", "--dry-run")
	wantStatus(t, 0, "10 waiting events would be redirected to orders", "waiting", "redirect", "--topic", "ordres", "--to", "orders", "--dry-run")

	wantStatus(t, 0, "7 waiting events are discarded", "waiting", "discard", "--origin", "relay", "--topic", "orders.v1", "--key", "k1", "--reason", "test orders", "--by", "ann")
	wantStatus(t, 0, "13 waiting events are dead letters now", "waiting", "give-up", "--origin", "relay", "--topic", "orders.v1", "--reason", "v1 is retired", "--by", "ann")
	if out := wantStatus(t, 0, "ann gave up what waits for its topic: v1 is retired", "dlq", "list", "--topic", "orders.v1"); strings.Count(out, "\n") != 14 {
		t.Errorf("the dead letters are\n%s", out)
	}
	pgtest.Exec(t, db, `insert into holdfast.letter (origin, reason, event_id, source, type, topic, key, time, hash, lane, holds)
		select 'relay', 'r', 'bad', 's', 't', 'ordres', 'k2', now(), '', n, true from generate_series(0, 7) n`)
	wantStatus(t, 1, "3 events of the topic ordres were left: dead letters hold their keys: replay or discard those first", "waiting", "redirect", "--topic", "ordres", "--to", "orders", "--reason", "misspelt", "--by", "ann")
	if n := pgtest.Count(t, db, "select count(*) from holdfast.event where topic = 'orders'"); n != 7 {
		t.Errorf("%d are redirected", n)
	}
	wantStatus(t, 0, "8 dead letters are discarded", "dlq", "discard", "--topic", "ordres", "--reason", "r")
	wantStatus(t, 0, "3 waiting events are redirected to orders", "waiting", "redirect", "--topic", "ordres", "--to", "orders", "--reason", "misspelt", "--by", "ann")
}

// A person, or a script, that knows an earlier build's name of a command is told today's.
func TestWaitingRelays_ACommandOfAnEarlierBuildSaysWhatItIsCalledNow(t *testing.T) {
	for says, args := range map[string][]string{
		"holdfast parked list has a new name: holdfast waiting groups --origin relay":         {"parked", "list", "--json"},
		"holdfast parked give-up has a new name: holdfast waiting give-up --origin relay, or": {"parked", "give-up", "--topic", "orders", "--discard", "--reason", "r"},
		"holdfast stored skip has a new name: holdfast waiting discard --consumer NAME":       {"stored", "skip", "--consumer", "billing", "--all"},
		"holdfast scheduled cancel has a new name: holdfast waiting cancel":                   {"scheduled", "cancel", "e1", "--reason", "r"},
		"holdfast stored has a new name: holdfast waiting, whose":                             {"stored"},
		"holdfast parked has a new name: holdfast waiting, whose":                             {"parked", "drop"},
	} {
		wantStatus(t, 2, says, args...)
	}
	for name := range operate.Moved {
		group, command, _ := strings.Cut(name, " ")
		wantStatus(t, 2, "holdfast waiting", group, command)
	}
	if out := wantStatus(t, 0, "waiting groups", "--help"); strings.Contains(out, "parked") || strings.Contains(out, "scheduled list") {
		t.Errorf("the old names are listed:\n%s", out)
	}
}
