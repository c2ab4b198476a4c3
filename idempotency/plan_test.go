package idempotency

import (
	"testing"

	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/plantest"
	"github.com/holdfast-go/holdfast/internal/test/roletest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
)

// Every statement of a guard finds its rows by an index, on tables that are large: 50,000 answered keys, 20,000 pending
// ones with a step and a request each, 20,000 expired ones that are kept. idempotency.store is not here: it inserts, and
// EXPLAIN names no index of an insert without ON CONFLICT.
func TestPlan_TheHotStatementsUseTheirIndexes(t *testing.T) {
	skip.InShort(t, "it takes 6 s beside the others")
	b := setup(t)
	for _, sql := range []string{
		`insert into holdfast.idempotency (scope, operation, key, fingerprint, fingerprint_version, state, status, headers, body, body_hash, owner, expires_at)
			select 'principal:' || n % 100, 'POST /charges', 'k' || n, '', 1, 'complete', 201, '{}', '', '', gen_random_uuid(), clock_timestamp() + n * interval '1 second' from generate_series(1, 50000) n`,
		`insert into holdfast.idempotency (scope, operation, key, fingerprint, fingerprint_version, state, owner, fence, run, lease_until, expires_at)
			select 'principal:' || n % 100, 'POST /charges', 'p' || n, '', 1, 'pending', gen_random_uuid(), n, n, clock_timestamp() - n * interval '1 second', clock_timestamp() + interval '1 day' from generate_series(1, 20000) n`,
		`insert into holdfast.idempotency_step (run, name, result) select n, 'one', '1' from generate_series(1, 20000) n`,
		`insert into holdfast.idempotency_request (run, scope, operation, key, route, principal, method, host, url, path_values, headers, body, due_at)
			select n, 'principal:' || n % 100, 'POST /charges', 'p' || n, 'sell', '', 'POST', 'h', '/', '{}', '{}', '', clock_timestamp() + (n - 50) * interval '1 second' from generate_series(1, 20000) n`,
		`insert into holdfast.idempotency_expired (scope, operation, key, fingerprint, status, created_at, expires_at, keep_until)
			select 'principal:' || n % 100, 'POST /charges', 'k' || n, '', 201, clock_timestamp(), clock_timestamp(), clock_timestamp() + (n - 50) * interval '1 second' from generate_series(1, 20000) n`,
	} {
		pgtest.Exec(t, b.db, sql)
	}
	tables := []string{"idempotency", "idempotency_step", "idempotency_request", "idempotency_expired"}
	for _, table := range tables {
		pgtest.Exec(t, b.db, "vacuum analyze holdfast."+table)
	}
	var asked []string
	role := roletest.Make(t, b.db) + "_web"
	const key, owner = "'principal:7', 'POST /charges', 'p7'", "'00000000-0000-0000-0000-000000000000'"
	const request = "'sell', '', 'POST', 'h', '/', '', '{}', '{}', '', 1"
	for _, c := range []struct {
		statement, literals string
		indexes             []string
	}{
		{lookupSQL, key, []string{"idempotency_pkey"}},
		{countKeysSQL, "'principal:7', 1000", []string{"idempotency_pkey"}},
		{expireSQL, key + ", 1", []string{"idempotency_pkey", "idempotency_step_pkey", "idempotency_request_pkey"}},
		{cleanSQL, "1000, 0", []string{"idempotency_expiry", "idempotency_step_pkey", "idempotency_request_pkey"}},
		{cleanExpiredSQL, "1000", []string{"idempotency_expired_keep"}},
		{claimSQL, key + ", 1, '', 1, " + owner + ", 1, 1, 0, " + request, []string{"idempotency_pkey", "idempotency_step_pkey", "idempotency_request_pkey"}},
		{renewSQL, key + ", 7, 1", []string{"idempotency_pkey"}},
		{finishSQL, key + ", 7, 'complete', 201, '{}', '', '', '', 1", []string{"idempotency_pkey", "idempotency_step_pkey", "idempotency_request_pkey"}},
		{releaseLockSQL, key + ", 7", []string{"idempotency_pkey"}},
		{releaseSQL, key + ", 7, true, 1", []string{"idempotency_pkey", "idempotency_step_pkey", "idempotency_request_pkey"}},
		{stepLockSQL, key + ", 7", []string{"idempotency_pkey"}},
		{stepLookSQL, key + ", 'one'", []string{"idempotency_pkey", "idempotency_step_pkey"}},
		{stepDoneSQL, key + ", 7, 'two', 1, 1, '1'", []string{"idempotency_pkey"}},
		{dueSQL, "'{sell}', 4", []string{"idempotency_request_due", "idempotency_pkey"}},
		{resumeSQL, "7, " + owner + ", 1, 1, 1", []string{"idempotency_request_pkey", "idempotency_pkey"}},
		{postponeSQL, "7, 1", []string{"idempotency_request_pkey"}},
		{abandonSQL, "'{sell}', 3", []string{"idempotency_request_due", "idempotency_pkey", "idempotency_step_pkey"}},
	} {
		asked = append(asked, c.statement)
		plantest.Allowed(t, b.db.Pool, role, c.statement, c.literals)
		for _, plan := range plantest.Of(t, b.db.Pool, c.statement, c.literals) {
			plan.Uses(c.indexes...)
			plan.NeverReadsAllOf(tables...)
		}
	}
	plantest.EveryStatement(t, asked, map[string]string{
		"idempotency.peek": "it reads no table", "idempotency.open": "it reads no table", "idempotency.open_keyless": "it reads no table", "idempotency.step_open": "it reads no table",
		"idempotency.store": "it inserts a row, and finds none",
	})
}
