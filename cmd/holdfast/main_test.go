package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
)

func TestMain(m *testing.M) {
	code := pgtest.Main(m)
	if binaryDir != "" {
		os.RemoveAll(binaryDir)
	}
	os.Exit(code)
}

// call runs the command line and returns its exit status and what it printed.
func call(t *testing.T, args ...string) (status int, out, errOut string) {
	t.Helper()
	var o, e bytes.Buffer
	status = run(args, &o, &e)
	return status, o.String(), e.String()
}

func wantStatus(t *testing.T, want int, says string, args ...string) string {
	t.Helper()
	status, out, errOut := call(t, args...)
	if status != want || !strings.Contains(out+errOut, says) {
		t.Errorf("holdfast %s: status %d, want %d and %q\n%s%s", strings.Join(args, " "), status, want, says, out, errOut)
	}
	return out
}

func TestCommand_AnOperatorsDay(t *testing.T) {
	skip.InShort(t, "it takes 4 s beside the others")
	db := pgtest.New(t)
	t.Setenv("DATABASE_URL", db.DSN)
	t.Setenv("HOLDFAST_SCHEMA", "events")
	wantStatus(t, 1, "run holdfast migrate", "check")
	wantStatus(t, 1, "run holdfast migrate", "status")
	wantStatus(t, 0, "schema events is at version 2", "migrate", "--lanes", "4")
	wantStatus(t, 0, "schema events is at version 2", "migrate")
	wantStatus(t, 1, "fixed for life", "migrate", "--lanes", "5")
	wantStatus(t, 0, "schema events is complete", "check")
	wantStatus(t, 0, "nothing needs a person", "status")
	pgtest.Exec(t, db.Pool, "select events.write('orders', 'k', 'order.placed', '{}')")
	wantStatus(t, 1, " has events and no owner: start a relay", "status")
	pgtest.Exec(t, db.Pool, `insert into events.letter (origin, consumer, reason, event_id, source, type, topic, key, time, payload, hash, errors)
		values ('inbox', 'billing', 'no such customer', 'e1', 's', 'order.placed', 'orders', 'k', now(), 'the secret', '', '{first,second}'),
		       ('inbox', 'billing', 'no such customer', 'e2', 's', 'order.placed', 'orders', 'k', now(), 'the secret', '', '{}')`)
	wantStatus(t, 1, "consumer billing has 2 open dead letters: holdfast dlq list --consumer billing", "status")
	if out := wantStatus(t, 0, "no such customer", "dlq", "list", "--consumer", "billing"); strings.Contains(out, "secret") {
		t.Error("a list shows payloads")
	}
	if out := wantStatus(t, 0, `"event_id":"e1"`, "dlq", "list", "--json"); strings.Contains(out, "secret") {
		t.Error("a JSON list shows payloads")
	}
	if out := wantStatus(t, 0, "error 2: second", "dlq", "show", "1"); strings.Contains(out, "secret") {
		t.Error("show shows the payload unasked")
	}
	wantStatus(t, 0, "the secret", "dlq", "show", "1", "--payload")
	wantStatus(t, 0, "2 dead letters would be replayed", "dlq", "replay", "--dry-run")
	wantStatus(t, 2, "missing flags: --reason", "dlq", "replay", "--by", "ann", "--all")
	fixed := filepath.Join(t.TempDir(), "fixed.json")
	if err := os.WriteFile(fixed, []byte(`{"fixed": true}`), 0o600); err != nil {
		t.Fatal(err)
	}
	wantStatus(t, 0, "dead letter 1 has a new payload", "dlq", "edit", "1", fixed, "--reason", "typo", "--by", "ann")
	wantStatus(t, 0, "edit by ann: typo", "dlq", "show", "1")
	wantStatus(t, 0, `"payload":"eyJmaXhlZCI6IHRydWV9"`, "dlq", "show", "1", "--json", "--payload")
	wantStatus(t, 0, "1 dead letter is being re-delivered", "dlq", "replay", "--all", "--limit", "1", "--reason", "fixed", "--by", "ann")
	wantStatus(t, 0, "dead letter 2 is discarded", "dlq", "discard", "2", "--reason", "a test", "--by", "ann")
	pgtest.Exec(t, db.Pool, `insert into events.letter (origin, reason, event_id, source, type, topic, key, time, payload, hash) values ('relay', E'it is \x1b[2J too large', 'e3', 's', 't', 'orders', 'k', now(), '', '')`)
	if out := wantStatus(t, 0, `it is \x1b[2J too large`, "dlq", "list", "--origin", "relay"); strings.Contains(out, "\x1b") {
		t.Error("what others wrote moves the cursor of the terminal")
	}
	wantStatus(t, 0, "dead letter 3 has a new payload", "dlq", "edit", "3", "--tombstone", "--reason", "gone", "--by", "ann")
	wantStatus(t, 0, "a tombstone", "dlq", "show", "3", "--payload")
	wantStatus(t, 2, "one of them", "dlq", "edit", "3", fixed, "--tombstone", "--reason", "gone")
	wantStatus(t, 1, "not open", "dlq", "discard", "2", "--reason", "again")
	wantStatus(t, 1, "no such letter", "dlq", "show", "77")
	wantStatus(t, 1, "add --yes", "adopt")
	wantStatus(t, 0, "nothing to adopt", "adopt", "--yes")
}

func TestCommand_ThePrintedMigrationMakesAWholeSchema(t *testing.T) {
	db := pgtest.New(t)
	script := wantStatus(t, 0, "create table", "migrate", "--print", "--schema", "printed")
	conn, err := db.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	if err := conn.Conn().PgConn().Exec(t.Context(), script).Close(); err != nil {
		t.Fatal(err)
	}
	t.Setenv("DATABASE_URL", db.DSN)
	wantStatus(t, 0, "complete", "check", "--schema", "printed")
}

func TestCommand_AWrongCommandLineSaysWhatToDo(t *testing.T) {
	t.Setenv("DATABASE_URL", "")
	wantStatus(t, 2, "unknown flag --nonsense", "status", "--nonsense")
	wantStatus(t, 1, "set DATABASE_URL, PGHOST or PGSERVICE, or pass --database-url-file or --database-url", "status")
	wantStatus(t, 2, "--brokers is empty: it must have the address, host:port, of at least one broker: set it, KAFKA_BROKERS, or brokers in the file of --config\n", "relay")
	wantStatus(t, 2, "missing flags: --reason", "dlq", "discard", "1")
	wantStatus(t, 0, "schema version 2", "version")
	wantStatus(t, 0, "Usage: holdfast", "--help")
	if _, out, errOut := call(t, "status", "--databse-url=postgres://u:hunter2@h/x"); strings.Contains(out+errOut, "hunter2") {
		t.Errorf("the password of a mistyped flag is shown: %s%s", out, errOut)
	}
}

func TestCommand_StatusSaysWhatNeedsAPersonAndWhatToDo(t *testing.T) {
	skip.InShort(t, "it takes 7 s beside the others")
	db := pgtest.New(t)
	t.Setenv("DATABASE_URL", db.DSN)
	wantStatus(t, 0, "version 2", "migrate")
	const parked = `insert into holdfast.parked (lane, topic, key, place, why, next_at, first_at, id, source, type, time) values (3, 'orders', 'k', 1, '%s', now(), now() - interval '%s', 'e', 's', 't', now())`
	// An event in each segment, all read; the current one is segment 0.
	const full = `with a as (insert into holdfast.event_0 (lane, id, type, topic) values (3, 'a', 't', 'o')), b as (insert into holdfast.event_1 (lane, id, type, topic) values (3, 'b', 't', 'o')),
		c as (insert into holdfast.event_2 (lane, id, type, topic) values (3, 'c', 't', 'o')) insert into holdfast.event_3 (lane, id, type, topic) values (3, 'd', 't', 'o')`
	const read = `; update holdfast.lane set done = (select format('%s:%s:', n, n)::pg_snapshot from (select pg_current_xact_id()::text::bigint + 1) xid (n))`
	const stored = `insert into holdfast.stored (consumer, topic, key, place, source, event_id, type, time, hash, next_at, lease_until) values ('billing', 'orders', 'k', 1, 's', 'e', 't', now(), '', now() - interval '%s', %s)`
	const letter = `insert into holdfast.letter (origin, consumer, reason, state, holds, event_id, source, type, topic, key, time, hash, place) values ('inbox', 'billing', 'r', 'replaying', true, 'd', 's', 't', 'orders', 'k', now(), '', %s)`
	for _, c := range []struct {
		name, sql, says string
		status          int
	}{
		{"another cluster", "update holdfast.cluster set system_identifier = 1", "then run holdfast adopt --yes", 1},
		{"a restored copy", "insert into holdfast.birth (born) values ('1')", "then run holdfast adopt --yes", 1},
		{"a missing topic", fmt.Sprintf(parked, "topic", "1 second"), "topic orders is missing, or the relay may not write to it: create it or grant the rights; 1 event waits", 1},
		{"an event that is tried again", fmt.Sprintf(parked, "record", "1 minute"), "nothing needs a person", 0},
		{"an event that waits in a relay for long", fmt.Sprintf(parked, "record", "16 minutes"), "lane 3 has 1 event that has waited for more than 15 minutes: holdfast waiting groups --origin relay", 1},
		{"a stored event that nobody takes", fmt.Sprintf(stored, "6 minutes", "'-infinity'"), "consumer billing has waiting events that were due 6m", 1},
		{"a stored event that a worker is at", fmt.Sprintf(stored, "6 minutes", "now() + interval '1 minute'"), "nothing needs a person", 0},
		{"a stored event before what a letter holds", fmt.Sprintf(stored, "6 minutes", "'-infinity'") + "; " + fmt.Sprintf(letter, "2"), "consumer billing has waiting events that were due 6m", 1},
		{"a stored event that a letter holds", fmt.Sprintf(stored, "6 minutes", "'-infinity'") + "; " + fmt.Sprintf(letter, "0"), "nothing needs a person", 0},
		{"a full log that a lane holds", full, "no segment of the log is empty: events in older segments are unread in lane 3: the log of the lane's relay", 1},
		{"a full log that nobody empties", full + read, "no segment of the log is empty: the older segments are read", 1},
		{"a full log, of which the current segment alone is unread", full + read + "; insert into holdfast.event_0 (xid, lane, id, type, topic) values ('9000000000', 4, 'e', 't', 'o')", "the older segments are read", 1},
		{"a stored event that is due", fmt.Sprintf(stored, "1 minute", "'-infinity'"), "nothing needs a person", 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			pgtest.Exec(t, db.Pool, "delete from holdfast.letter")
			pgtest.Exec(t, db.Pool, "truncate holdfast.parked, holdfast.stored, holdfast.event_0, holdfast.event_1, holdfast.event_2, holdfast.event_3")
			pgtest.Exec(t, db.Pool, "update holdfast.lane set owner = 'r', lease_until = now() + interval '1 minute'")
			pgtest.Exec(t, db.Pool, "update holdfast.cluster set system_identifier = (select system_identifier from pg_control_system())")
			pgtest.Exec(t, db.Pool, "delete from holdfast.birth")
			if c.name != "a restored copy" {
				pgtest.Exec(t, db.Pool, "insert into holdfast.birth default values")
			}
			pgtest.Exec(t, db.Pool, c.sql)
			wantStatus(t, c.status, c.says, "status")
		})
	}
	pgtest.Exec(t, db.Pool, "insert into holdfast.consumer_position (consumer, topic, partition, position, owner) values ('billing', 'orders', 5, 77, 'node 1')")
	pgtest.Exec(t, db.Pool, "insert into holdfast.relay (name, seen_until) values ('the sidecar', now() + interval '1 minute')")
	wantStatus(t, 0, "the sidecar", "status")
	wantStatus(t, 0, "node 1", "status")
}

func TestCommand_StatusListsTheKeysThatWaitLongest(t *testing.T) {
	db := installed(t)
	pgtest.Exec(t, db.Pool, "insert into holdfast.consumer_type (consumer, type, node, seen_until) values ('billing', 'order.placed', 'n', now() + interval '1 hour')")
	pgtest.Exec(t, db.Pool, `insert into holdfast.stored (consumer, topic, key, place, source, event_id, type, time, hash, next_at, first_at, attempts, errors)
		select 'billing', 'orders', 'customer ' || k, n, 's', format('%s/%s', k, n), 'order.placed', now(), '',
		       case when n = 1 then now() + interval '1 hour 30 seconds' else 'infinity' end, now() - k * interval '1 minute', 3, array['no such customer']
		  from generate_series(1, 12) k, generate_series(1, 4) n`)
	pgtest.Exec(t, db.Pool, `insert into holdfast.letter (origin, consumer, reason, holds, event_id, source, type, topic, key, time, hash)
		values ('inbox', 'billing', 'it failed 3 times', true, '0', 's', 'order.placed', 'orders', 'customer 12', now(), '')`)
	_, out, _ := call(t, "status")
	// Time passes between the insert and the answer: the seconds are anybody's guess.
	for _, want := range []string{"BLOCKED KEY", `customer 12 +4 +12m\d+s`, "holdfast dlq show 1", "customer 3 ", `failed, next attempt in 1h0m\d+s`, "behind-letter: holdfast dlq show 1"} {
		if !regexp.MustCompile(want).MatchString(out) {
			t.Errorf("status does not say %q:\n%s", want, out)
		}
	}
	if strings.Contains(out, "customer 2 ") {
		t.Errorf("status lists more than ten keys of a consumer:\n%s", out)
	}
}
