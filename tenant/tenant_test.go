package tenant

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/internal/sqlschema"
	"github.com/holdfast-go/holdfast/internal/test/migrated"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/plantest"
	"github.com/holdfast-go/holdfast/internal/test/roletest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
)

// ofTenant writes something of the tenant TENANT wherever holdfast keeps something: by its keys, and, where there are headers or a
// source, by those with a key that says nothing.
const ofTenant = `
insert into holdfast.event_0 (lane, id, type, topic, key, payload, headers) values (0, 'e1-TENANT', 't', 'orders', 'TENANT/1', 'SAID', '{"who": "SAID"}');
insert into holdfast.event_3 (lane, id, type, topic, key, payload, headers) values (0, 'e2-TENANT', 't', 'orders', 'order-1', 'SAID', '{"tenant": "TENANT"}'), (0, 'e3-TENANT', 't', 'orders', 'gamma/1', 'SAID', '{"tenant": "TENANT"}');
insert into holdfast.event_2 (lane, id, source, type, topic, payload) values (0, 'e4-TENANT', 'TENANT/shop', 't', 'orders', '\xff00');
insert into holdfast.scheduled (lane, due_at, id, type, topic, key, time, payload) values (0, now() + interval '1 day', 'd-TENANT', 't', 'orders', 'TENANT/1', now(), 'SAID');
insert into holdfast.written_once (dedupe_key, topic, type, event_id, source, key, hash, expires_at) values ('SAID', 'orders', 't', 'o-TENANT', 's', 'TENANT/1', 'SAID', now());
insert into holdfast.parked (lane, topic, key, place, why, next_at, id, source, type, time, headers, payload, errors) values (0, 'orders', 'TENANT/1', 1, 'topic', now(), 'p-TENANT', 's', 't', now(), '{"a": "SAID"}', 'SAID', '{"no SAID"}');
insert into holdfast.inbox (consumer, source, event_id, topic, hash, processed_at, result) values ('billing', 's', 'TENANT/m1', 'orders', 'SAID', now(), 'handled'), ('billing', 'TENANT/stripe', 'm2', 'orders', 'SAID', now(), 'handled');
insert into holdfast.inbox (consumer, source, event_id, topic, hash, result) values ('billing', 's', 'TENANT/s1', 'orders', 'SAID', 'stored');
insert into holdfast.stored (consumer, topic, key, place, source, event_id, type, time, headers, payload, hash, errors) values ('billing', 'orders', 'TENANT/1', 1, 's', 'TENANT/s1', 't', now(), '{"a": "SAID"}', 'SAID', '', '{"no SAID"}');
insert into holdfast.stored_action (action, consumer, source, event_id, type, topic, key, by, reason) values ('discard', 'billing', 's', 's-TENANT', 't', 'orders', 'TENANT/1', 'op', 'SAID');
insert into holdfast.start (consumer, source, event_id, starts) values ('billing', 's', 'TENANT/s1', 1);
insert into holdfast.inbox_step (consumer, source, event_id, hash, name, key, result) values ('billing', 's', 'm1-TENANT', '', 'charge', 'TENANT/1', '{"nul": "\u0000", "a": "SAID"}'),
	('billing', 's', 'TENANT/s1', '', 'charge', 'order-1', '"SAID"'), ('billing', 'TENANT/stripe', 'm2', '', 'charge', '', '"SAID"');
insert into holdfast.watermark (consumer, entity, version) values ('billing', 'TENANT/7', 1);
with l as (insert into holdfast.letter (origin, consumer, reason, state, event_id, source, type, topic, key, time, headers, payload, hash, errors)
	values ('inbox', 'billing', 'no SAID', 'replayed', 'l1-TENANT', 's', 't', 'orders', 'TENANT/2', now(), '{"a": "SAID"}', 'SAID', '', '{"no SAID"}'),
	       ('inbox', 'billing', 'no SAID', 'open', 'l2-TENANT', 's', 't', 'orders', 'TENANT/2', now(), null, 'SAID', '', '{"no SAID"}'),
	       ('inbox', 'billing', 'no SAID', 'open', 'l3-TENANT', 's', 't', 'orders', 'TENANT/3', now(), null, 'SAID', '', '{"no SAID"}') returning id)
	insert into holdfast.letter_action (letter, action, by, reason, payload, hash, version) select id, 'edit', 'op', 'SAID', 'SAID', '', 1 from l;
insert into holdfast.letter_replay (name, filter, upto, by, reason, ended_at) values ('for SAID', '{"Key": "TENANT/1"}', 1, 'op', 'SAID', now());
insert into holdfast.pause (consumer, topic, key, by, reason) values ('billing', 'orders', 'TENANT/9', 'op', 'SAID');
insert into holdfast.pause_action (action, consumer, topic, key, by, reason) values ('pause', 'billing', 'orders', 'TENANT/9', 'op', 'SAID');
insert into holdfast.idempotency (scope, operation, key, fingerprint, fingerprint_version, state, status, headers, body, body_hash, owner, expires_at) values
	('principal:TENANT', 'POST /charges', 'k', '', 1, 'complete', 201, '{}', 'SAID', '', gen_random_uuid(), now() + interval '1 day'),
	('principal:TENANT/bob', 'POST /charges', 'k', '', 1, 'complete', 201, '{}', 'SAID', '', gen_random_uuid(), now() + interval '1 day'),
	('tenant:TENANT/principal:bob', 'POST /charges', 'k', '', 1, 'complete', 201, '{}', 'SAID', '', gen_random_uuid(), now() + interval '1 day');
with i as (insert into holdfast.idempotency (scope, operation, key, fingerprint, fingerprint_version, state, owner, fence, run, lease_until, expires_at)
	select 'tenant:TENANT/principal:bob', 'POST /charges', 'k2', '', 1, 'pending', gen_random_uuid(), r, r, now() - interval '1 hour', now() + interval '1 day' from nextval('holdfast.idempotency_fence') r returning run),
	s as (insert into holdfast.idempotency_step (run, name, result) select run, 'charge', '{"nul": "\u0000", "a": "SAID"}' from i)
	insert into holdfast.idempotency_request (run, scope, operation, key, route, principal, method, host, url, path_values, headers, body) select run, 'tenant:TENANT/principal:bob', 'POST /charges', 'k2', 'r', 'bob', 'POST', 'h', '/SAID', '{}', '{}', 'SAID' from i;
insert into holdfast.idempotency_expired (scope, operation, key, fingerprint, result_ref, created_at, expires_at, keep_until) values ('principal:TENANT', 'POST /charges', 'k3', '', 'SAID', now(), now(), now())`

// ofNobody are rows that do not say whose they are.
const ofNobody = `
insert into holdfast.event_1 (lane, id, type, topic, key, payload) values (0, 'n1', 't', 'orders', 'order-9', 'NOBODY'), (0, 'n2', 't', 'orders', 'acmes', 'NOBODY'), (0, 'n3', 't', 'orders', 'acme', 'NOBODY');
insert into holdfast.event_1 (lane, id, type, topic, key, payload, headers) values (0, 'n4', 't', 'orders', 'order-9', 'NOBODY', '["tenant"]');
insert into holdfast.inbox (consumer, source, event_id, topic, hash, processed_at, result) values ('billing', 'shop', 'm1', 'orders', 'NOBODY', now(), 'handled');
insert into holdfast.inbox_step (consumer, source, event_id, hash, name, key, result) values ('billing', 'shop', 'm1', '', 'charge', 'order-9', '"NOBODY"');
insert into holdfast.idempotency (scope, operation, key, fingerprint, fingerprint_version, state, status, headers, body, body_hash, owner, expires_at) values
	('global', 'POST /charges', 'k', '', 1, 'complete', 201, '{}', 'NOBODY', '', gen_random_uuid(), now() + interval '1 day')`

// want are the rows of ofTenant.
var want = map[string]int64{"event": 4, "scheduled": 1, "written_once": 1, "parked": 1, "inbox": 3, "inbox_step": 3, "stored": 1, "stored_action": 1, "start": 1, "watermark": 1,
	"letter_action": 3, "letter": 3, "letter_replay": 1, "pause": 1, "pause_action": 1, "idempotency_step": 1, "idempotency_request": 1,
	"idempotency": 4, "idempotency_expired": 1}

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

func write(t *testing.T, db *pgtest.DB, statements string) {
	t.Helper()
	if _, err := db.Exec(t.Context(), statements, pgx.QueryExecModeSimpleProtocol); err != nil {
		t.Fatal(err)
	}
}

func setup(t *testing.T) (*pgtest.DB, *Tenants) {
	t.Helper()
	db := migrated.New(t)
	for _, name := range []string{"acme", "acme2", "beta"} {
		write(t, db, strings.NewReplacer("TENANT", name, "SAID", name+"-secret").Replace(ofTenant))
	}
	write(t, db, ofNobody)
	tenants, err := New(db.Pool, Config{})
	if err != nil {
		t.Fatal(err)
	}
	return db, tenants
}

// exported is all that a tenant has, sorted: one JSON text for each row.
func exported(t *testing.T, tenants *Tenants, name string) (lines []string, report Report) {
	t.Helper()
	report, err := tenants.Export(t.Context(), name, func(r Record) error {
		line, err := json.Marshal(r)
		lines = append(lines, string(line))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(lines)
	return lines, report
}

func found(r Report) map[string]int64 {
	rows := map[string]int64{}
	for _, p := range r.Places {
		rows[p.Name] = p.Found
	}
	return rows
}

func remaining(r Report) map[string]int64 {
	rows := map[string]int64{}
	for _, p := range r.Places {
		if p.Remains > 0 {
			rows[p.Name] = p.Remains
		}
	}
	return rows
}

// everywhere counts the rows of the schema whose text has said in it, by table.
func everywhere(t *testing.T, db *pgtest.DB, said string) map[string]int64 {
	t.Helper()
	rows := map[string]int64{}
	for _, table := range tables(t, db) {
		n := pgtest.Count(t, db, "select count(*) from only holdfast."+table+" r where strpos(r::text, $1) > 0 or strpos(r::text, encode($1::bytea, 'hex')) > 0", said)
		if n > 0 {
			rows[table] = int64(n)
		}
	}
	return rows
}

func tables(t *testing.T, db *pgtest.DB) []string {
	t.Helper()
	rows, err := db.Query(t.Context(), "select c.relname::text from pg_class c where c.relnamespace = 'holdfast'::regnamespace and c.relkind = 'r' order by 1")
	if err != nil {
		t.Fatal(err)
	}
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	return names
}

// A new table must be in one of the two lists before this test passes.
func TestTenant_EveryTableIsOfTenantsOrOfNobody(t *testing.T) {
	t.Parallel()
	db := migrated.New(t)
	var known []string
	for _, p := range places {
		known = append(known, p.name)
		if want[p.name] == 0 {
			t.Errorf("the tests write nothing into %s", p.name)
		}
	}
	known = append(known, slices.Collect(maps.Keys(nobodys))...)
	slices.Sort(known)
	if diff := cmp.Diff(known, tables(t, db)); diff != "" {
		t.Errorf("places and nobodys, and the tables of the schema: %s", diff)
	}
}

func TestTenant_ExportHasAllOfATenantAndNothingElse(t *testing.T) {
	t.Parallel()
	_, tenants := setup(t)
	lines, report := exported(t, tenants, "acme")
	if diff := cmp.Diff(want, found(report)); diff != "" {
		t.Error(diff)
	}
	all := strings.Join(lines, "\n")
	for _, other := range []string{"acme2", "beta", "NOBODY"} {
		if strings.Contains(all, other) {
			t.Errorf("%s is in it", other)
		}
	}
	for _, some := range []string{`"body":"acme-secret"`, `"body_base64":"/wA="`, `{"nul":"\u0000","a":"acme-secret"}`, `"errors":["no acme-secret"]`} {
		if !strings.Contains(all, some) {
			t.Errorf("%s is missing", some)
		}
	}
	for _, p := range report.Places {
		if n := map[string]int64{"event": 4, "inbox": 1, "inbox_step": 1, "idempotency": 1}[p.Name]; p.Unattributed != n {
			t.Errorf("%d rows of %s are nobody's, want %d", p.Unattributed, p.Name, n)
		}
	}
}

func TestTenant_AnExportStopsAtTheFirstErrorOfItsReader(t *testing.T) {
	t.Parallel()
	_, tenants := setup(t)
	full, read := errors.New("the disk is full"), 0
	_, err := tenants.Export(t.Context(), "acme", func(Record) error { read++; return full })
	if !errors.Is(err, full) || read != 1 {
		t.Errorf("after %d records: %v", read, err)
	}
}

func TestTenant_EraseTakesAllOfATenantAndNothingElse(t *testing.T) {
	skip.InShort(t, "it takes 3 s beside the others")
	t.Parallel()
	db, tenants := setup(t)
	before := map[string][]string{}
	for _, other := range []string{"acme2", "beta"} {
		before[other], _ = exported(t, tenants, other)
	}
	nobodys := everywhere(t, db, "NOBODY")
	dry, err := tenants.Erase(t.Context(), "acme", EraseOptions{DryRun: true})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, found(dry)); diff != "" || everywhere(t, db, "acme-secret")["event_0"] != 1 {
		t.Errorf("the dry run found or changed something else: %s", diff)
	}
	if diff := cmp.Diff(map[string]int64{"inbox": 3, "start": 1}, remaining(dry)); diff != "" {
		t.Errorf("the dry run says that these would remain: %s", diff)
	}

	report, err := tenants.Erase(t.Context(), "acme", EraseOptions{By: "ann", Reason: "the contract ended", Inbox: true})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]int64{"inbox": 1, "start": 1}, remaining(report)); diff != "" {
		t.Errorf("these remain: %s", diff)
	}
	for _, p := range report.Places {
		if p.Erased != p.Found-p.Remains || (p.Remains > 0) != (p.Why != "") {
			t.Errorf("%+v does not add up", p)
		}
	}
	if left := everywhere(t, db, "acme-secret"); !cmp.Equal(left, map[string]int64{"inbox": 1}) { // of the event that is stored
		t.Errorf("what acme said is still in %v", left)
	}
	for other, lines := range before {
		after, _ := exported(t, tenants, other)
		if diff := cmp.Diff(lines, after); diff != "" {
			t.Errorf("%s is not as it was: %s", other, diff)
		}
	}
	if after := everywhere(t, db, "NOBODY"); !cmp.Equal(after, nobodys) {
		t.Errorf("what is nobody's was in %v and is in %v", nobodys, after)
	}
	if n := pgtest.Count(t, db, "select count(*) from holdfast.event where payload is null and headers is null"); n != 4 {
		t.Errorf("%d events are tombstones, want 4", n)
	}
	if n := pgtest.Count(t, db, "select count(*) from holdfast.letter_action where letter = 0 and by = 'ann' and reason = 'tenant acme erased: the contract ended' and login is not null"); n != 1 {
		t.Errorf("%d signed records of the erasure, want 1", n)
	}
	again, err := tenants.Erase(t.Context(), "acme", EraseOptions{By: "ann", Reason: "once more", Inbox: true})
	if err != nil || again.Remains() != report.Remains() {
		t.Errorf("once more: %v, %v", remaining(again), err)
	}
}

func TestTenant_RowsThatRecogniseRepeatsStayUnlessAsked(t *testing.T) {
	t.Parallel()
	_, tenants := setup(t)
	report, err := tenants.Erase(t.Context(), "acme", EraseOptions{By: "ann", Reason: "the contract ended"})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]int64{"inbox": 3, "start": 1}, remaining(report)); diff != "" {
		t.Error(diff)
	}
}

// Each call is cut off at its first transaction that erased something, and the next one goes on.
func TestTenant_AnErasureThatIsInterruptedGoesOn(t *testing.T) {
	skip.InShort(t, "it takes 2 s beside the others")
	t.Parallel()
	db, tenants := setup(t)
	interrupted := 0
	for range 2 * len(places) {
		ctx, cancel := context.WithCancel(t.Context())
		before := int64(0)
		report, err := tenants.Erase(ctx, "acme", EraseOptions{By: "ann", Reason: "the contract ended", Inbox: true, ProgressFunc: func(_ string, erased int64) {
			if erased > before {
				cancel()
			}
		}})
		cancel()
		if err == nil {
			if diff := cmp.Diff(map[string]int64{"inbox": 1, "start": 1}, remaining(report)); diff != "" {
				t.Error(diff)
			}
			break
		}
		if !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
		interrupted++
	}
	if interrupted < 8 {
		t.Errorf("it was interrupted %d times, want at least 8", interrupted)
	}
	if left := everywhere(t, db, "acme-secret"); !cmp.Equal(left, map[string]int64{"inbox": 1}) {
		t.Errorf("what acme said is still in %v", left)
	}
}

// A row that somebody works on is passed over, and said.
func TestTenant_AnErasurePassesOverWhatIsLocked(t *testing.T) {
	skip.InShort(t, "it takes 4 s beside the others")
	t.Parallel()
	db, tenants := setup(t)
	tx, err := db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	for _, table := range []string{"scheduled", "written_once", "parked", "stored", "watermark", "inbox", "inbox_step", "idempotency", "idempotency_expired", "letter where state = 'replayed'"} {
		if _, err := tx.Exec(t.Context(), "select from holdfast."+table+" for update"); err != nil {
			t.Fatal(err)
		}
	}
	report, err := tenants.Erase(t.Context(), "acme", EraseOptions{By: "ann", Reason: "the contract ended", Inbox: true})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]int64{"scheduled": 1, "written_once": 1, "parked": 1, "stored": 1, "start": 1, "watermark": 1, "inbox": 3, "inbox_step": 3, "letter": 1, "letter_action": 1,
		"idempotency": 4, "idempotency_step": 1, "idempotency_request": 1, "idempotency_expired": 1}, remaining(report)); diff != "" {
		t.Error(diff)
	}
}

func TestTenant_WhoMayNotSeeAllIsToldSo(t *testing.T) {
	skip.InShort(t, "it takes 4 s beside the others")
	t.Parallel()
	db, _ := setup(t)
	pool, _ := roletest.Login(t, db, "", roletest.Make(t, db)+"_operator")
	tenants, err := New(pool, Config{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = tenants.Export(t.Context(), "acme", func(Record) error { return errors.New("a record") })
	if !errors.Is(err, sqlschema.ErrNoRights) || !strings.Contains(err.Error(), "select on event") || !strings.Contains(err.Error(), "owner") {
		t.Error(err)
	}
	_, err = tenants.Erase(t.Context(), "acme", EraseOptions{By: "ann", Reason: "r"})
	if !errors.Is(err, sqlschema.ErrNoRights) || !strings.Contains(err.Error(), "update on event") {
		t.Error(err)
	}
}

func TestTenant_WhatIsWrongIsSaidAtOnce(t *testing.T) {
	skip.InShort(t, "it takes 3 s beside the others")
	t.Parallel()
	db := migrated.New(t)
	_, err := New(nil, Config{Schema: "No", Header: "a\x00", Separator: strings.Repeat("/", 17)})
	for _, problem := range []string{"pool is nil", `schema is "No"`, "header is", "separator has 17 bytes"} {
		if err == nil || !strings.Contains(err.Error(), problem) {
			t.Errorf("%v does not say %s", err, problem)
		}
	}
	tenants, err := New(db.Pool, Config{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = tenants.Erase(t.Context(), "acme/eu", EraseOptions{})
	for _, problem := range []string{`must not contain the separator "/"`, "by is empty", "reason is empty"} {
		if err == nil || !strings.Contains(err.Error(), problem) {
			t.Errorf("%v does not say %s", err, problem)
		}
	}
	if _, err := tenants.Export(t.Context(), "", nil); err == nil || !strings.Contains(err.Error(), "tenant has 0 bytes") {
		t.Error(err)
	}
}

func TestTenant_PartsCoverATable(t *testing.T) {
	t.Parallel()
	for blocks, want := range map[int64][]part{
		0: nil, 1: {{"(0,0)", "(4294967295,0)"}}, partBlocks: {{"(0,0)", "(4294967295,0)"}},
		partBlocks + 1: {{"(0,0)", "(128,0)"}, {"(128,0)", "(4294967295,0)"}},
	} {
		if got := parts(blocks); !slices.Equal(got, want) {
			t.Errorf("%d blocks are %v, want %v", blocks, got, want)
		}
	}
}

// Each part is found by a range of places, and a row that is to be erased by its place: no statement reads a large table for a part.
func TestTenant_EachStatementReadsOnePartOfItsTable(t *testing.T) {
	skip.InShort(t, "it takes 18 s beside the others")
	t.Parallel()
	db := migrated.New(t)
	write(t, db, `
insert into holdfast.event_0 (lane, id, type, topic, key, payload) select n % 8, n::text, 't', 'orders', 'acme/' || n, repeat('x', 100)::bytea from generate_series(1, 30000) n;
insert into holdfast.parked (lane, topic, key, place, why, next_at, id, source, type, time) select 0, 'orders', 'acme/' || n, n, 'topic', now(), n::text, 's', 't', now() from generate_series(1, 30000) n;
insert into holdfast.stored (consumer, topic, key, place, source, event_id, type, time, hash) select 'billing', 'orders', 'acme/' || n, n, 's', n::text, 't', now(), '' from generate_series(1, 30000) n;
insert into holdfast.scheduled (lane, due_at, id, type, topic, key, time) select n % 8, now() + interval '1 hour', n::text, 't', 'orders', 'acme/' || n, now() from generate_series(1, 30000) n;
insert into holdfast.inbox (consumer, source, event_id, topic, hash, processed_at, result) select 'billing', 's', 'acme/' || n, 'orders', '', now(), 'handled' from generate_series(1, 30000) n;
insert into holdfast.inbox_step (consumer, source, event_id, hash, name, key, result) select 'billing', 's', n::text, '', 'charge', 'acme/' || n, '{}' from generate_series(1, 30000) n;
insert into holdfast.watermark (consumer, entity, version) select 'billing', 'acme/' || n, 1 from generate_series(1, 30000) n;
insert into holdfast.written_once (dedupe_key, topic, type, event_id, source, key, expires_at) select n::text, 'orders', 't', n::text, 's', 'acme/' || n, now() from generate_series(1, 30000) n;
insert into holdfast.letter (origin, consumer, reason, event_id, source, type, topic, key, time, hash, state) select 'inbox', 'billing', 'r', n::text, 's', 't', 'orders', 'acme/' || n, now(), '', 'replayed' from generate_series(1, 30000) n;
insert into holdfast.letter_action (letter, action, by, reason) select n, 'replay', 'ann', '' from generate_series(1, 30000) n;
insert into holdfast.idempotency (scope, operation, key, fingerprint, fingerprint_version, state, status, headers, body_hash, owner, expires_at)
	select 'principal:acme', 'pay', n::text, '', 1, 'complete', 201, '{}', '', gen_random_uuid(), now() from generate_series(1, 30000) n;
insert into holdfast.idempotency_step (run, name, result) select n, 's', '{}' from generate_series(1, 30000) n;
insert into holdfast.idempotency_request (run, scope, operation, key, route, principal, method, host, url, path_values, headers, body) select n, 'principal:acme', 'pay', n::text, 'r', 'p', 'POST', 'h', '/', '{}', '{}', '' from generate_series(1, 30000) n;
insert into holdfast.idempotency_expired (scope, operation, key, fingerprint, created_at, expires_at, keep_until) select 'principal:acme', 'pay', n::text, '', now(), now(), now() from generate_series(1, 30000) n`)
	large := []string{"event_0", "parked", "stored", "scheduled", "inbox", "inbox_step", "watermark", "written_once", "letter", "letter_action", "idempotency", "idempotency_step", "idempotency_request", "idempotency_expired"}
	for _, table := range large {
		pgtest.Exec(t, db.Pool, "analyze holdfast."+table)
	}
	asked := []string{openLetters}
	for _, p := range places {
		asked = append(asked, p.count, p.read)
		if p.erase != "" {
			asked = append(asked, p.erase)
		}
	}
	for _, statement := range asked {
		for _, plan := range plantest.Of(t, db.Pool, statement, `'acme', '/', 'tenant', 'tenant:acme/', '(0,0)', '(128,0)'`) {
			if strings.Contains(statement, "holdfast.inbox_step") {
				plan.Uses("stored_consumer_source_event_id_key", "letter_event")
			}
			for _, table := range large {
				if strings.Contains(statement, "idempotency_step s join") && table == "idempotency" {
					continue // steps are few: they are of requests that run
				}
				plan.NeverReadsAllOf(table)
			}
		}
	}
	plantest.EveryStatement(t, asked, map[string]string{"tenant.blocks": "it reads the catalog", "tenant.sign_erasure": "it inserts one row"})
}

// Claims go on from the last one (inbox/claim_mark.go). They would overlook a head that fell due while its key was paused.
func TestTenant_AKeyWhosePauseIsErasedGoesOn(t *testing.T) {
	t.Parallel()
	db, tenants := setup(t)
	write(t, db, `insert into holdfast.stored (consumer, topic, key, place, source, event_id, type, time, hash, next_at) values
		('billing', 'orders', 'acme/9', 1, 's', 'acme/head', 't', now(), '', now() - interval '1 hour'),
		('billing', 'orders', 'acme/9', 2, 's', 'acme/follower', 't', now(), '', now() - interval '1 hour'),
		('billing', 'orders', 'acme/8', 2, 's', 'acme/held', 't', now(), '', 'infinity')`)
	// A dead letter of somebody else's holds one of its keys.
	write(t, db, `insert into holdfast.pause (consumer, topic, key, by, reason) values ('billing', 'orders', 'acme/8', 'op', 'r');
		insert into holdfast.letter (origin, consumer, reason, state, holds, event_id, source, type, topic, key, time, headers, payload, hash, place)
		values ('inbox', 'billing', 'r', 'open', true, 'other', 's', 't', 'orders', 'acme/8', now(), '{"tenant": "beta"}', '', '', 1)`)
	report, err := tenants.Erase(t.Context(), "acme", EraseOptions{By: "ann", Reason: "the contract ended"})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range report.Places {
		if p.Name == "pause" && (p.Erased != 2 || p.Remains != 0) {
			t.Errorf("%+v, want two pauses erased", p)
		}
	}
	if n := pgtest.Count(t, db, "select count(*) from holdfast.stored where key = 'acme/9' and (next_at > now() - interval '30 minutes') = (event_id = 'acme/head')"); n != 2 {
		t.Error("the head is not due again, or a follower is")
	}
	if n := pgtest.Count(t, db, "select count(*) from holdfast.stored where event_id = 'acme/held' and next_at = 'infinity'"); n != 1 {
		t.Error("the event behind a dead letter is due")
	}
}

// A part larger than one transaction is read to its end.
func TestTenant_ALargeLogIsErasedInParts(t *testing.T) {
	skip.InShort(t, "it takes 4 s beside the others")
	t.Parallel()
	db, tenants := setup(t)
	write(t, db, `insert into holdfast.event_0 (lane, id, type, topic, key, payload) select 0, n::text, 't', 'orders', case n % 2 when 0 then 'acme/' else 'beta/' end || n, convert_to(repeat('x', 800), 'UTF8') from generate_series(1, 4000) n`)
	transactions := 0
	report, err := tenants.Erase(t.Context(), "acme", EraseOptions{By: "ann", Reason: "r", ProgressFunc: func(place string, _ int64) {
		if place == "event" {
			transactions++
		}
	}})
	if err != nil {
		t.Fatal(err)
	}
	if e := report.Places[0]; e.Found != 2004 || e.Erased != 2004 || e.Remains != 0 || transactions < 3 {
		t.Errorf("%+v in %d transactions", e, transactions)
	}
	if n := pgtest.Count(t, db, "select count(*) from holdfast.event where key like 'beta/%' and payload is not null"); n != 2001 {
		t.Errorf("%d events of beta, want 2001", n)
	}
}

func TestTenant_ARecordSaysItsBytesAsTextIfItCan(t *testing.T) {
	t.Parallel()
	for want, r := range map[string]Record{
		`{"place":"p","row":{"a":1}}`:                 {Place: "p", Row: json.RawMessage(`{"a":1}`)},
		`{"place":"p","row":{},"body":""}`:            {Place: "p", Row: json.RawMessage(`{}`), Body: []byte{}},
		`{"place":"p","row":{},"body":"ä"}`:           {Place: "p", Row: json.RawMessage(`{}`), Body: []byte("ä")},
		`{"place":"p","row":{},"body_base64":"/w=="}`: {Place: "p", Row: json.RawMessage(`{}`), Body: []byte{255}},
	} {
		if got, err := json.Marshal(r); err != nil || !bytes.Equal(got, []byte(want)) {
			t.Errorf("%s, %v, want %s", got, err, want)
		}
	}
}
