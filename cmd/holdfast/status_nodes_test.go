package main

import (
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/internal/test/migrated"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
)

// A consumer that nobody runs takes no events, and nothing else in the database says so.
func TestStatusNodes_StatusAndDoctorMissTheNodesOfAConsumer(t *testing.T) {
	db := migrated.New(t)
	t.Setenv("DATABASE_URL", db.DSN)
	announced := func(consumer, heard string) {
		t.Helper()
		pgtest.Exec(t, db, `insert into holdfast.consumer_type (consumer, type, node, seen_until) values ($1, 'a', 'n', now() + interval '2 minutes' - $2::text::interval), ($1, 'b', 'n', now() + interval '2 minutes' - $2::text::interval)
			on conflict (consumer, type, node) do update set seen_until = excluded.seen_until`, consumer, heard)
	}
	announced("hooks", "5 seconds") // Its events come by HTTP: it has no position.
	for _, c := range []struct {
		name, heard, change string
		exit                int
		line, says          string
	}{
		{"it runs", "10 seconds", "", 0, "hooks 0 0 0s 0 1 ", "nothing needs a person"},
		{"two announcements are late", "55 seconds", "", 0, "o'ledger 0 0 0s 0 1 ", "nothing needs a person"},
		{"its only node is gone", "90 seconds", "", 1, "o'ledger 0 0 0s 0 0 ", "consumer o'ledger: no node has been heard of for 1m"},
		{"another node lives", "90 seconds", "insert into holdfast.consumer_type values ('o''ledger', 'a', 'other', now() + interval '110 seconds')", 0, "o'ledger 0 0 0s 0 1 ", "nothing needs a person"},
		{"its backfill was the last that it did", "90 seconds", "delete from holdfast.consumer_type where node = 'other'; insert into holdfast.consumer_backfill (consumer, node, began_at, partitions, partitions_left, done, remaining, per_second, ended_at) values ('o''ledger', 'n', now() - interval '1 hour', 1, 0, 1, 0, 0, now() - interval '90 seconds')", 0, "o'ledger 0 0 0s 0 0 ", "nothing needs a person"},
		{"it ran on after its backfill", "90 seconds", "update holdfast.consumer_backfill set ended_at = now() - interval '1 day'", 1, "o'ledger 0 0 0s 0 0 ", "no node has been heard of"},
	} {
		for _, statement := range strings.Split(c.change, "; ") {
			if statement != "" {
				pgtest.Exec(t, db, statement)
			}
		}
		announced("o'ledger", c.heard)
		announced("hooks", "5 seconds")
		out := wantStatus(t, c.exit, c.says, "status")
		if !strings.Contains(strings.Join(strings.Fields(out), " "), c.line) {
			t.Errorf("%s: %q is not in\n%s", c.name, c.line, out)
		}
		_, said, _ := call(t, "doctor", "--pause", "1ms")
		if gone := strings.Contains(said, "consumer o'ledger: no node has been heard of for 1m"); gone != (c.exit == 1) || strings.Contains(said, "each has a node that lives") == gone {
			t.Errorf("%s: doctor says\n%s", c.name, said)
		}
	}
	wantStatus(t, 1, `"nodes":0`, "status", "--json")
	const forget = "start one; if it is retired, https://github.com/holdfast-go/holdfast/blob/main/docs/operations/consumers.md#retention-of-the-inbox says how to forget it"
	wantStatus(t, 1, forget+": holdfast status --brokers HOST:PORT\n", "status")
	if _, said, _ := call(t, "doctor", "--pause", "1ms"); !strings.Contains(said, forget+"\n") {
		t.Errorf("doctor says\n%s", said)
	}
	pgtest.Exec(t, db, "delete from holdfast.consumer_type where consumer = 'o''ledger'") // as that page says
	pgtest.Exec(t, db, `insert into holdfast.letter (origin, consumer, reason, event_id, source, type, topic, key, time, hash) values ('inbox', 'mail', 'r', '1', 's', 't', 'o', 'k', now(), '')`)
	if out := wantStatus(t, 1, "consumer mail has 1 open dead letter", "status"); !strings.Contains(strings.Join(strings.Fields(out), " "), "mail 0 0 0s 1 0 - ") {
		t.Errorf("a consumer that has nothing but a dead letter is not in the table:\n%s", out)
	}
}
