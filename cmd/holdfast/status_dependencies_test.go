package main

import (
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/internal/test/migrated"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
)

func TestStatusDependencies_StatusDoctorAndFindNameWhatIsAway(t *testing.T) {
	skip.InShort(t, "it takes 8 s beside the others")
	db := migrated.New(t)
	t.Setenv("DATABASE_URL", db.DSN)
	pgtest.Exec(t, db, `insert into holdfast.consumer_type (consumer, type, node, seen_until, needs) values ('billing', 'charge', 'n', now() + interval '2 minutes', '{bank,stripe}'), ('billing', 'mail', 'n', now() + interval '2 minutes', '{}')`)
	pgtest.Exec(t, db, `insert into holdfast.stored (consumer, topic, key, place, source, event_id, type, time, hash, next_at) values ('billing', 'orders', 'k', 1, 's', 'e1', 'charge', now(), '', now()), ('billing', 'orders', 'k', 2, 's', 'e2', 'charge', now(), '', 'infinity'),
		('billing', 'orders', 'm', 1, 's', 'm1', 'mail', now(), '', now() + interval '1 hour')`)
	pgtest.Exec(t, db, `insert into holdfast.dependency (consumer, name, away, until, tries, error, node) values ('billing', 'stripe', true, now() + interval '10 minutes', 3, E'no \\x1banswer\nat all', 'n')`)
	for _, c := range []struct {
		name, set string
		exit      int
		line      string
		says      string
	}{
		{"it has just gone", "since = now() - interval '4 minutes'", 0, "1 charge away; the next try is in", "nothing needs a person"},
		{"it has been away", "since = now() - interval '1 hour'", 1, "1 charge away; the next try is in", `s (last error: no \x1banswer): find out why; events of type charge wait until it is back: holdfast waiting groups --consumer billing --why dependency`},
		{"nothing tries it", "until = now() - interval '6 minutes'", 0, "1 charge was away; nothing has tried it for 6m", "nothing needs a person"},
		{"it is back", "away = false", 0, "0 charge there no \\x1banswer", "nothing needs a person"},
	} {
		pgtest.Exec(t, db, "update holdfast.dependency set "+c.set)
		out := wantStatus(t, c.exit, c.says, "status", "--pause", "0s")
		if !strings.Contains(strings.Join(strings.Fields(out), " "), c.line) {
			t.Errorf("%s: %q is not in\n%s", c.name, c.line, out)
		}
	}
	pgtest.Exec(t, db, "update holdfast.dependency set away = true, until = now() + interval '10 minutes'; insert into holdfast.dependency (consumer, name, away, since) values ('billing', 'bank', true, '2026-11-30 12:00:00Z')")
	wantStatus(t, 1, `"dependency":"stripe","away":true`, "status", "--json")
	wantStatus(t, 1, "dependency: bank, stripe", "status")
	wantStatus(t, 1, "dependency stripe of consumer billing has been away for", "doctor", "--pause", "0s")
	wantStatus(t, 0, "it waits for bank, which is away since 2026-11-30T12:00:00Z, and for stripe, which is away since", "find", "e1")
	wantStatus(t, 0, `; last error: no \x1banswer`, "find", "e1")
	wantStatus(t, 0, `"state":"dependency"`, "find", "e1", "--json")
	wantStatus(t, 0, "an earlier event of its key has to go first", "find", "e2")
	if out := wantStatus(t, 0, "e1", "waiting", "list", "--consumer", "billing", "--why", "dependency"); strings.Contains(out, "e2") || strings.Contains(out, "m1") {
		t.Errorf("what waits for a dependency is\n%s", out)
	}
	wantStatus(t, 0, "dependency", "waiting", "groups", "--why", "dependency")
	wantStatus(t, 0, "dependency: something that its handler needs is away", "waiting", "show", "e1")
}
