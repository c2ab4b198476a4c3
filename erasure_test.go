package holdfast_test

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/internal/test/migrated"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
)

// onePerson writes about a person ($1 the key and principal, $2 what is said) wherever holdfast keeps something.
const onePerson = `
insert into holdfast.event_1 (lane, id, type, topic, key, payload, headers) values (0, 'e-KEY', 't', 'orders', 'KEY', convert_to('{"mail":"SAID"}', 'UTF8'), '{"mail": "SAID"}'), (0, 'f-KEY', 't', 'orders', '', convert_to('{"mail":"SAID"}', 'UTF8'), null);
insert into holdfast.scheduled (lane, due_at, id, type, topic, key, time, payload) values (0, now() + interval '1 day', 'd-KEY', 't', 'orders', 'KEY', now(), 'SAID');
insert into holdfast.parked (lane, topic, key, place, why, next_at, id, source, type, time, headers, payload, errors) values (0, 'orders', 'KEY', 1, 'topic', now(), 'p-KEY', 's', 't', now(), '{"mail": "SAID"}', 'SAID', '{"no SAID"}');
insert into holdfast.stored (consumer, topic, key, place, source, event_id, type, time, headers, payload, hash, errors) values ('billing', 'orders', 'KEY', 1, 's', 's-KEY', 't', now(), '{"mail": "SAID"}', 'SAID', '', '{"no SAID"}');
with l as (insert into holdfast.letter (origin, consumer, reason, fingerprint, state, event_id, source, type, topic, key, time, headers, payload, hash, errors)
	values ('inbox', 'billing', 'no SAID', 't SAID', 'discarded', 'l-KEY', 's', 't', 'orders', 'KEY', now(), '{"mail": "SAID"}', 'SAID', '', '{"no SAID"}') returning id)
	insert into holdfast.letter_action (letter, action, by, reason, payload, hash, version) select id, 'edit', 'op', 'as SAID asked', 'SAID', '', 1 from l;
insert into holdfast.stored_action (action, consumer, source, event_id, type, topic, key, by, reason) values ('discard', 'billing', 's', 's-KEY', 't', 'orders', 'KEY', 'op', 'as SAID asked');
insert into holdfast.pause (consumer, topic, key, by, reason) values ('billing', 'orders', 'KEY', 'op', 'as SAID asked'), ('of-KEY', '', '', 'op', 'as SAID asked');
insert into holdfast.pause_action (action, consumer, topic, key, by, reason) values ('pause', 'billing', 'orders', 'KEY', 'op', 'as SAID asked'), ('pause', 'of-KEY', '', '', 'op', 'as SAID asked');
insert into holdfast.letter_replay (name, filter, upto, by, reason, ended_at) values ('for SAID', '{"Key": "KEY"}', 1, 'op', 'as SAID asked', now());
insert into holdfast.watermark (consumer, entity, version) values ('billing', 'KEY', 1);
insert into holdfast.written_once (dedupe_key, topic, type, event_id, source, key, expires_at) values ('mail SAID', 'orders', 't', 'o-KEY', 's', 'KEY', now());
insert into holdfast.inbox (consumer, source, event_id, topic, hash, processed_at, result) values ('billing', 's', 'm-SAID', 'orders', '', now(), 'handled');
insert into holdfast.inbox_step (consumer, source, event_id, hash, name, key, result) values ('billing', 's', 'k-KEY', '', 'charge', 'KEY', '1'), ('billing', 's', 'r-KEY', '', 'charge', '', '{"mail": "SAID"}'), ('billing', 's', 'm-SAID', '', 'charge', '', '1');
insert into holdfast.idempotency (scope, operation, key, fingerprint, fingerprint_version, state, status, headers, body, body_hash, owner, expires_at) values ('principal:KEY', 'POST /charges', 'k', '', 1, 'complete', 201, '{}', 'SAID', '', gen_random_uuid(), now() + interval '1 day');
with i as (insert into holdfast.idempotency (scope, operation, key, fingerprint, fingerprint_version, state, owner, fence, run, lease_until, expires_at)
	select 'principal:KEY', 'POST /charges', 'k2', '', 1, 'pending', gen_random_uuid(), r, r, now() - interval '1 hour', now() + interval '1 day' from nextval('holdfast.idempotency_fence') r returning run),
	s as (insert into holdfast.idempotency_step (run, name, result) select run, 'charge', '{"mail": "SAID"}' from i)
	insert into holdfast.idempotency_request (run, scope, operation, key, route, principal, method, host, url, path_values, headers, body) select run, 'principal:KEY', 'POST /charges', 'k2', 'r', 'KEY', 'POST', 'h', '/SAID', '{}', '{"Mail": ["SAID"]}', 'SAID' from i;
insert into holdfast.idempotency_expired (scope, operation, key, fingerprint, result_ref, created_at, expires_at, keep_until) values ('principal:KEY', 'POST /charges', 'k3', '', 'SAID', now(), now(), now() + interval '1 day')`

// The statements of docs/guides/erasure.md, as psql would send them.
func TestErasure_TheGuideFindsAndErasesAPersonEverywhere(t *testing.T) {
	t.Parallel()
	db := migrated.New(t)
	for key, said := range map[string]string{"ann": "ann@example.com", "bob": "bob@example.com"} {
		pgtest.Exec(t, db, "select 1")
		if _, err := db.Exec(t.Context(), strings.NewReplacer("KEY", key, "SAID", said).Replace(onePerson), pgx.QueryExecModeSimpleProtocol); err != nil {
			t.Fatal(err)
		}
	}
	page, err := os.ReadFile("docs/guides/erasure.md")
	if err != nil {
		t.Fatal(err)
	}
	var blocks []string
	for _, block := range regexp.MustCompile("(?s)```sql\n(.*?)```").FindAllStringSubmatch(string(page), -1) {
		blocks = append(blocks, block[1])
	}
	if len(blocks) != 3 {
		t.Fatalf("the page has %d blocks of SQL, want the variables, what finds and what erases", len(blocks))
	}
	variables := regexp.MustCompile(`\\set (\w+) ('[^']*')`).FindAllStringSubmatch(blocks[0], -1)
	if len(variables) != 3 {
		t.Fatalf("%d variables", len(variables))
	}
	for i := range blocks {
		for _, v := range variables {
			blocks[i] = strings.ReplaceAll(blocks[i], ":'"+v[1]+"'", v[2])
		}
	}
	find := func() (places map[string]int, text string) {
		t.Helper()
		places = map[string]int{}
		for _, statement := range strings.SplitAfter(strings.TrimSpace(blocks[1]), ";\n") {
			rows, err := db.Query(t.Context(), statement)
			if err != nil {
				t.Fatalf("%s: %v", statement, err)
			}
			found, err := pgx.CollectRows(rows, pgx.RowToMap)
			if err != nil {
				t.Fatalf("%s: %v", statement, err)
			}
			for _, row := range found {
				if b, has := row["bytes"]; has && b == nil {
					continue // a tombstone
				}
				place, _ := row["place"].(string)
				if row["source"] != nil {
					place = "inbox"
				}
				word, _, _ := strings.Cut(place, " ")
				places[word]++
			}
		}
		return places, ""
	}
	before, _ := find()
	for place, want := range map[string]int{"log": 2, "scheduled": 1, "parked": 2, "stored": 2, "letter": 2, "edit": 1, "action": 2, "pause": 2, "paused": 2, "replay": 1, "watermark": 1, "dedupe": 1, "inbox": 1, "result": 3, "answer": 2, "request": 1, "step": 1, "expired": 1} {
		if before[place] != want {
			t.Errorf("%d of %s are found, want %d", before[place], place, want)
		}
	}
	bob := found(t, db, "bob@example.com")
	if ann := found(t, db, "ann@example.com"); len(ann) != len(bob) || len(ann) < 13 {
		t.Fatalf("ann is in %v, bob in %v", ann, bob)
	}
	if _, err := db.Exec(t.Context(), blocks[2], pgx.QueryExecModeSimpleProtocol); err != nil {
		t.Fatal(err)
	}
	if after, _ := find(); len(after) != 2 || after["inbox"] != 1 || after["paused"] != 1 { // a paused key has its name until it goes on
		t.Errorf("after the erasure these are found: %v", after)
	}
	if ann := found(t, db, "ann@example.com"); len(ann) != 1 || ann["holdfast.inbox"] != 1 {
		t.Errorf("after the erasure ann is in %v, want her event's id in the inbox alone", ann)
	}
	if n := pgtest.Count(t, db, "select count(*) from holdfast.pause where consumer in ('billing', 'of-ann') and reason = 'erased'"); n != 2 {
		t.Errorf("%d of 2 pauses are left without their reason: to delete one resumes it", n)
	}
	if n := pgtest.Count(t, db, "select count(*) from holdfast.inbox_step where key = 'bob' or event_id in ('r-bob', 'm-bob@example.com')"); n != 3 || pgtest.Count(t, db, "select count(*) from holdfast.inbox_step") != 3 {
		t.Errorf("%d steps of bob are left, want his 3 and nobody else's", n)
	}
	if still := found(t, db, "bob@example.com"); len(still) != len(bob) || still["holdfast.letter"] != bob["holdfast.letter"] || still["holdfast.event_1"] != bob["holdfast.event_1"] {
		t.Errorf("bob was in %v, and is in %v", bob, still)
	}
	if n := pgtest.Count(t, db, "select count(*) from holdfast.event where key = 'ann' and payload is null and headers is null"); n != 1 {
		t.Errorf("%d events are tombstones, want 1", n)
	}
}
