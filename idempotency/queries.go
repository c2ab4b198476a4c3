package idempotency

import "github.com/holdfast-go/holdfast/internal/sqlschema"

// Every statement of the package, written for the schema "holdfast"; newQueries puts the configured one in, once. What is
// expired is decided by clock_timestamp(): now() stands still in a transaction.

// A key's row. Reads only, so that a storm of repeats locks and writes nothing.
const lookupSQL = `-- idempotency.lookup
select k.fingerprint, k.fingerprint_version, k.state, k.status, k.headers::text, k.body, k.body_hash, k.owner, k.created_at, k.expires_at,
       k.expires_at <= clock_timestamp()
  from holdfast.idempotency k
 where k.scope = $1::text and k.operation = $2::text and k.key = $3::text`

// Begins the transaction of a key: false when another has it. It never waits, so repeats hold no connection while one
// of them runs.
const openSQL = `-- idempotency.open
select set_config('idle_in_transaction_session_timeout', $1::text, true), set_config('lock_timeout', $2::text, true),
       pg_try_advisory_xact_lock($3::bigint)`

// The same without a key.
const openKeylessSQL = `-- idempotency.open_keyless
select set_config('idle_in_transaction_session_timeout', $1::text, true), set_config('lock_timeout', $2::text, true), true`

// What the handler wrote can be undone without losing the lock.
const savepointSQL = `savepoint holdfast_handler`
const undoSQL = `rollback to savepoint holdfast_handler`
const commitSQL = `commit`

// Stores an answer. The primary key is the last guard: a second answer is an error, and with it the transaction ends.
const storeSQL = `-- idempotency.store
insert into holdfast.idempotency (scope, operation, key, fingerprint, fingerprint_version, state, status, headers, body, body_hash, result_ref, owner, expires_at)
values ($1::text, $2::text, $3::text, $4::bytea, $5::smallint, $6::text, $7::smallint, $8::text::jsonb, $9::bytea, $10::bytea, nullif($11::text, ''), $12::uuid,
        clock_timestamp() + $13::bigint * interval '1 microsecond')
returning expires_at`

// Takes an expired row away, under the lock of its key, before its successor is stored. $4 keeps it for audits.
const expireSQL = `-- idempotency.expire
with gone as (
  delete from holdfast.idempotency k
   where k.scope = $1::text and k.operation = $2::text and k.key = $3::text and k.expires_at <= clock_timestamp()
  returning k.*
)
insert into holdfast.idempotency_expired (scope, operation, key, fingerprint, status, result_ref, created_at, expires_at, keep_until)
select g.scope, g.operation, g.key, g.fingerprint, g.status, g.result_ref, g.created_at, g.expires_at,
       clock_timestamp() + $4::bigint * interval '1 microsecond'
  from gone g
 where $4::bigint > 0`

// Removes expired rows, oldest first, by idempotency_expiry. Rows that another node, or a request, has in hand are left.
const cleanSQL = `-- idempotency.clean
with gone as (
  delete from holdfast.idempotency k
   where k.ctid = any (array(select e.ctid from holdfast.idempotency e
                              where e.expires_at <= clock_timestamp()
                              order by e.expires_at limit $1::int for update skip locked))
     and k.expires_at <= clock_timestamp()
  returning k.*
), kept as (
  insert into holdfast.idempotency_expired (scope, operation, key, fingerprint, status, result_ref, created_at, expires_at, keep_until)
  select g.scope, g.operation, g.key, g.fingerprint, g.status, g.result_ref, g.created_at, g.expires_at,
         clock_timestamp() + $2::bigint * interval '1 microsecond'
    from gone g
   where $2::bigint > 0
)
select count(*) from gone`

const cleanExpiredSQL = `-- idempotency.clean_expired
with gone as (
  delete from holdfast.idempotency_expired k
   where k.ctid = any (array(select e.ctid from holdfast.idempotency_expired e
                              where e.keep_until <= clock_timestamp()
                              order by e.keep_until limit $1::int for update skip locked))
  returning 1
)
select count(*) from gone`

type queries struct {
	lookup, open, openKeyless, store, expire, clean, cleanExpired string
}

func newQueries(schema string) queries {
	in := func(sql string) string { return sqlschema.In(schema, sql) }
	return queries{
		lookup: in(lookupSQL), open: in(openSQL), openKeyless: in(openKeylessSQL), store: in(storeSQL), expire: in(expireSQL),
		clean: in(cleanSQL), cleanExpired: in(cleanExpiredSQL),
	}
}
