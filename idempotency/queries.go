package idempotency

import "github.com/holdfast-go/holdfast/internal/sqlschema"

// This file holds every statement of the package, written for the schema "holdfast". newStatements replaces it once
// with the configured schema. clock_timestamp() decides what has expired, because now() stands still in a transaction.
// An index cannot be searched by it. So statements that look for due rows, each in a transaction of its own, use
// statement_timestamp().

// Reads a key's row. Moments are numbers here, because the settings of a user's session may have pgx get texts that it cannot
// read. It only reads, so many repeats at once lock and write nothing.
const lookupSQL = `-- idempotency.lookup
select k.fingerprint, k.fingerprint_version, k.state, coalesce(k.status, 0::smallint), coalesce(k.headers::text, '{}'), k.body, k.body_hash,
       coalesce(k.result_ref, ''), k.owner, coalesce(k.fence, 0), k.attempt, coalesce(k.lease_until > clock_timestamp(), false),
       (extract(epoch from k.created_at) * 1000000)::bigint, (extract(epoch from k.expires_at) * 1000000)::bigint, k.expires_at <= clock_timestamp()
  from holdfast.idempotency k
 where k.scope = $1::text and k.operation = $2::text and k.key = $3::text`

// Counts the keys of a scope, up to $2. The primary key begins with it.
const countKeysSQL = `-- idempotency.count_keys
select count(*) from (select from holdfast.idempotency k where k.scope = $1::text limit $2::int) c`

// Begins the transaction of a key; false if another request has it. It never waits, so repeats hold no connection while
// one of them runs.
const openSQL = `-- idempotency.open
select set_config('idle_in_transaction_session_timeout', $1::text, true), set_config('lock_timeout', $2::text, true),
       pg_try_advisory_xact_lock($3::bigint)`

// Reports whether no request has a key. Its own lock ends with it, and lets others ask at the same time.
const peekSQL = `-- idempotency.peek
select pg_try_advisory_xact_lock_shared($1::bigint)`

// The same as idempotency.open for a request without a key.
const openKeylessSQL = `-- idempotency.open_keyless
select set_config('idle_in_transaction_session_timeout', $1::text, true), set_config('lock_timeout', $2::text, true), true`

// Lets us undo what the handler wrote without losing the lock.
const savepointSQL = `savepoint holdfast_handler`
const undoSQL = `rollback to savepoint holdfast_handler`
const commitSQL = `commit`

// Stores an answer. The primary key is the last guard: a second answer is an error and ends the transaction.
const storeSQL = `-- idempotency.store
insert into holdfast.idempotency (scope, operation, key, fingerprint, fingerprint_version, state, status, headers, body, body_hash, result_ref, owner, expires_at)
values ($1::text, $2::text, $3::text, $4::bytea, $5::smallint, $6::text, $7::smallint, $8::text::jsonb, $9::bytea, $10::bytea, nullif($11::text, ''), $12::uuid,
        clock_timestamp() + $13::bigint * interval '1 microsecond')
returning (extract(epoch from expires_at) * 1000000)::bigint`

// Removes an expired row with its steps and request, under the lock of its key, before the new answer is stored. $4
// keeps a copy for audits.
const expireSQL = `-- idempotency.expire
with gone as (
  delete from holdfast.idempotency k
   where k.scope = $1::text and k.operation = $2::text and k.key = $3::text and k.expires_at <= clock_timestamp()
  returning k.*
), steps as (
  delete from holdfast.idempotency_step s using gone g where g.state = 'pending' and s.run = g.run
), requests as (
  delete from holdfast.idempotency_request r using gone g where g.state = 'pending' and r.run = g.run
)
insert into holdfast.idempotency_expired (scope, operation, key, fingerprint, status, result_ref, created_at, expires_at, keep_until)
select g.scope, g.operation, g.key, g.fingerprint, g.status, g.result_ref, g.created_at, g.expires_at,
       clock_timestamp() + $4::bigint * interval '1 microsecond'
  from gone g
 where $4::bigint > 0`

// Removes expired rows with their steps and requests, oldest first, by idempotency_expiry. It skips rows that another
// node or a request has locked. A pending row expires after its lease, and Config.KeepUnfinished after its last step,
// so any pending row here was given up long ago.
const cleanSQL = `-- idempotency.clean
with gone as (
  delete from holdfast.idempotency k
   where k.ctid = any (array(select e.ctid from holdfast.idempotency e
                              where e.expires_at <= statement_timestamp()
                              order by e.expires_at limit $1::int for update skip locked))
     and k.expires_at <= clock_timestamp()
  returning k.*
), kept as (
  insert into holdfast.idempotency_expired (scope, operation, key, fingerprint, status, result_ref, created_at, expires_at, keep_until)
  select g.scope, g.operation, g.key, g.fingerprint, g.status, g.result_ref, g.created_at, g.expires_at,
         clock_timestamp() + $2::bigint * interval '1 microsecond'
    from gone g
   where $2::bigint > 0
), steps as (
  delete from holdfast.idempotency_step s using gone g where g.state = 'pending' and s.run = g.run
  returning s.run
), requests as (
  delete from holdfast.idempotency_request r using gone g where g.state = 'pending' and r.run = g.run
)
select (select count(*) from gone), (select count(distinct s.run) from steps s)`

const cleanExpiredSQL = `-- idempotency.clean_expired
with gone as (
  delete from holdfast.idempotency_expired k
   where k.ctid = any (array(select e.ctid from holdfast.idempotency_expired e
                              where e.keep_until <= statement_timestamp()
                              order by e.keep_until limit $1::int for update skip locked))
  returning 1
)
select count(*), 0 from gone`

// Claims a key: a new row, an expired one, or one with the same fingerprint whose lease has run out. It is one
// statement that commits by itself and waits for nothing: a row locked by a step or another claim is in use. A request
// in transaction mode holds the advisory lock of the first line, so a claim never runs at the same time as one. No row
// means that the key cannot be claimed. If $11 is not null, the request is stored too, for idempotency.due.
const claimSQL = `-- idempotency.claim
with lock as materialized (
  select pg_try_advisory_xact_lock($4::bigint) as free
), fence as materialized (
  select nextval('holdfast.idempotency_fence') as n
), old as materialized (
  select k.*, k.expires_at <= clock_timestamp() as expired
    from lock l, holdfast.idempotency k
   where l.free and k.scope = $1::text and k.operation = $2::text and k.key = $3::text
     and (k.expires_at <= clock_timestamp()
          or k.state = 'pending' and k.lease_until <= clock_timestamp() and substring(k.fingerprint for 32) = substring($5::bytea for 32) and k.fingerprint_version = $6::smallint)
     for no key update of k skip locked
), taken as (
  update holdfast.idempotency k
     set fingerprint = $5::bytea, fingerprint_version = $6::smallint, state = 'pending', status = null, headers = null, body = null,
         body_hash = null, result_ref = null, owner = $7::uuid, fence = f.n, lease_until = clock_timestamp() + $8::bigint * interval '1 microsecond',
         run = case when o.expired then f.n else o.run end,
         attempt = case when o.expired then 1 else o.attempt + 1 end,
         created_at = case when o.expired then clock_timestamp() else o.created_at end,
         expires_at = greatest(case when not o.expired then o.expires_at end, clock_timestamp() + greatest($8::bigint, $9::bigint) * interval '1 microsecond')
    from old o, fence f
   where k.scope = $1::text and k.operation = $2::text and k.key = $3::text
  returning k.fence, k.run, k.attempt, o.expired
), added as (
  insert into holdfast.idempotency (scope, operation, key, fingerprint, fingerprint_version, state, owner, fence, run, lease_until, expires_at)
  select $1::text, $2::text, $3::text, $5::bytea, $6::smallint, 'pending', $7::uuid, f.n, f.n, clock_timestamp() + $8::bigint * interval '1 microsecond',
         clock_timestamp() + greatest($8::bigint, $9::bigint) * interval '1 microsecond'
    from lock l, fence f
   where l.free and not exists (select 1 from old)
  on conflict do nothing
  returning fence, run, attempt
), mine as (
  select t.fence, t.run, t.attempt, t.expired from taken t
  union all
  select a.fence, a.run, a.attempt, false from added a
), kept as (
  insert into holdfast.idempotency_expired (scope, operation, key, fingerprint, status, result_ref, created_at, expires_at, keep_until)
  select o.scope, o.operation, o.key, o.fingerprint, o.status, o.result_ref, o.created_at, o.expires_at,
         clock_timestamp() + $10::bigint * interval '1 microsecond'
    from old o
   where o.expired and $10::bigint > 0
), steps as (
  delete from holdfast.idempotency_step s using old o where o.expired and s.run = o.run
), requests as (
  delete from holdfast.idempotency_request r using old o where o.expired and r.run = o.run
), asked as (
  insert into holdfast.idempotency_request as r (run, scope, operation, key, route, principal, method, host, url, pattern, path_values, headers, body, due_at)
  select m.run, $1::text, $2::text, $3::text, $11::text, $12::text, $13::text, $14::text, $15::text, $16::text, $17::text::jsonb, $18::text::jsonb, $19::bytea,
         clock_timestamp() + $20::bigint * interval '1 microsecond'
    from mine m
   where $11::text is not null
  on conflict (run) do update set due_at = case when r.due_at is not null then excluded.due_at end
)
select m.fence, m.attempt, m.expired from mine m`

// Extends a lease, also one that ran out, while nobody else has claimed the key. It never extends a released lease,
// however late the renewal arrives.
const renewSQL = `-- idempotency.renew
update holdfast.idempotency k
   set lease_until = clock_timestamp() + $5::bigint * interval '1 microsecond',
       expires_at = greatest(k.expires_at, clock_timestamp() + $5::bigint * interval '1 microsecond')
 where k.scope = $1::text and k.operation = $2::text and k.key = $3::text and k.fence = $4::bigint and k.state = 'pending' and k.lease_until > '-infinity'`

// Stores the answer of a pending row, and removes its steps and its request.
const finishSQL = `-- idempotency.finish
with done as (
  update holdfast.idempotency k
     set state = $5::text, status = $6::smallint, headers = $7::text::jsonb, body = $8::bytea, body_hash = $9::bytea, result_ref = nullif($10::text, ''),
         lease_until = null, expires_at = clock_timestamp() + $11::bigint * interval '1 microsecond'
   where k.scope = $1::text and k.operation = $2::text and k.key = $3::text and k.fence = $4::bigint and k.state = 'pending'
  returning k.run, k.expires_at
), steps as (
  delete from holdfast.idempotency_step s using done d where s.run = d.run
), requests as (
  delete from holdfast.idempotency_request r using done d where r.run = d.run
)
select (select (extract(epoch from d.expires_at) * 1000000)::bigint from done d)`

// Locks the row of a fence in the transaction that releases it. So it waits for a step that is committing, and release
// sees that step with a newer snapshot.
const releaseLockSQL = `-- idempotency.release_lock
select 1 from holdfast.idempotency k
 where k.scope = $1::text and k.operation = $2::text and k.key = $3::text and k.fence = $4::bigint and k.state = 'pending'
   for update`

// Ends a lease without an answer. $5 removes the row unless it has steps. $6 is when holdfast may run the request
// again.
const releaseSQL = `-- idempotency.release
with freed as (
  delete from holdfast.idempotency k
   where k.scope = $1::text and k.operation = $2::text and k.key = $3::text and k.fence = $4::bigint and k.state = 'pending'
     and $5::boolean and not exists (select 1 from holdfast.idempotency_step s where s.run = k.run)
  returning k.run
), ended as (
  update holdfast.idempotency k
     set lease_until = '-infinity'
   where k.scope = $1::text and k.operation = $2::text and k.key = $3::text and k.fence = $4::bigint and k.state = 'pending'
     and not exists (select 1 from freed)
  returning k.run
), requests as (
  delete from holdfast.idempotency_request r using freed f where r.run = f.run
)
update holdfast.idempotency_request r
   set due_at = clock_timestamp() + $6::bigint * interval '1 microsecond'
  from ended e
 where r.run = e.run and r.due_at is not null`

// Begins a step; $1 and $2 are timeouts. The next statements lock the row of the fence. Then, with a snapshot newer
// than the lock, they check whether the step is done.
const stepOpenSQL = `-- idempotency.step_open
select set_config('idle_in_transaction_session_timeout', $1::text, true), set_config('lock_timeout', $2::text, true)`

const stepLockSQL = `-- idempotency.step_lock
select k.run
  from holdfast.idempotency k
 where k.scope = $1::text and k.operation = $2::text and k.key = $3::text and k.fence = $4::bigint and k.state = 'pending'
   for no key update`

const stepLookSQL = `-- idempotency.step_look
select s.result::text
  from holdfast.idempotency_step s
  join holdfast.idempotency k on k.run = s.run
 where k.scope = $1::text and k.operation = $2::text and k.key = $3::text and s.name = $4::text`

// Stores a step's result in its transaction. Without the row of the fence it is an error. From now on the row is kept
// for at least $7, because part of the effect is committed.
const stepDoneSQL = `-- idempotency.step_done
with mine as (
  update holdfast.idempotency k
     set lease_until = clock_timestamp() + $6::bigint * interval '1 microsecond',
         expires_at = greatest(k.expires_at, clock_timestamp() + $7::bigint * interval '1 microsecond')
   where k.scope = $1::text and k.operation = $2::text and k.key = $3::text and k.fence = $4::bigint and k.state = 'pending'
  returning k.run
)
insert into holdfast.idempotency_step (run, name, result)
values ((select m.run from mine m), $5::text, $8::text::json)`

// Finds unfinished requests of routes that this node has, by idempotency_request_due. It locks nothing:
// idempotency.resume decides who runs one.
const dueSQL = `-- idempotency.due
select r.run, r.tries, r.scope, r.operation, r.key, r.route, r.principal, r.method, r.host, r.url, r.pattern, r.path_values::text, r.headers::text, r.body,
       k.fingerprint, k.attempt
  from holdfast.idempotency_request r
  join holdfast.idempotency k on k.scope = r.scope and k.operation = r.operation and k.key = r.key and k.run = r.run
 where r.due_at <= statement_timestamp() and r.route = any ($1::text[])
   and k.state = 'pending' and k.lease_until <= clock_timestamp() and k.expires_at > clock_timestamp()
 order by r.due_at limit $2::int`

// Claims such a request. No row means that another node or the client has it, or finished it.
const resumeSQL = `-- idempotency.resume
with due as materialized (
  select k.scope, k.operation, k.key, r.run
    from holdfast.idempotency_request r
    join holdfast.idempotency k on k.scope = r.scope and k.operation = r.operation and k.key = r.key and k.run = r.run
   where r.run = $1::bigint and r.due_at <= clock_timestamp() and k.state = 'pending' and k.lease_until <= clock_timestamp()
     for no key update of r, k skip locked
), taken as (
  update holdfast.idempotency k
     set owner = $2::uuid, fence = nextval('holdfast.idempotency_fence'), attempt = k.attempt + 1,
         lease_until = clock_timestamp() + $3::bigint * interval '1 microsecond',
         expires_at = greatest(k.expires_at, clock_timestamp() + greatest($3::bigint, $4::bigint) * interval '1 microsecond')
    from due d
   where k.scope = d.scope and k.operation = d.operation and k.key = d.key
  returning k.run, k.fence, k.attempt
)
update holdfast.idempotency_request r
   set tries = r.tries + 1, due_at = clock_timestamp() + $5::bigint * interval '1 microsecond'
  from taken t
 where r.run = t.run
returning t.fence, t.attempt, r.tries`

// Postpones a request that its route leaves to the client.
const postponeSQL = `-- idempotency.postpone
update holdfast.idempotency_request r
   set due_at = clock_timestamp() + $2::bigint * interval '1 microsecond'
 where r.run = $1::bigint and r.due_at <= clock_timestamp()`

// Gives up requests after $2 attempts. Each stays stored for a person to look at, and is returned once.
const abandonSQL = `-- idempotency.abandon
update holdfast.idempotency_request r
   set due_at = null
  from holdfast.idempotency k
 where k.scope = r.scope and k.operation = r.operation and k.key = r.key and k.run = r.run
   and r.due_at <= statement_timestamp() and r.route = any ($1::text[]) and r.tries >= $2::int
   and k.state = 'pending' and k.lease_until <= clock_timestamp()
returning r.scope, r.operation, r.key, r.route, k.attempt, (extract(epoch from k.created_at) * 1000000)::bigint,
          (select count(*) from holdfast.idempotency_step s where s.run = r.run)`

// statements holds the statements above for the configured schema.
type statements struct {
	lookup, peek, open, openKeyless, store, expire, clean, cleanExpired, countKeys string
	claim, renew, finish, releaseLock, release                                     string // for leases
	stepOpen, stepLock, stepLook, stepDone                                         string
	due, resume, postpone, abandon                                                 string // for the completer
}

func newStatements(schema string) statements {
	in := func(sql string) string { return sqlschema.In(schema, sql) }
	return statements{
		lookup:       in(lookupSQL),
		peek:         in(peekSQL),
		countKeys:    in(countKeysSQL),
		open:         in(openSQL),
		openKeyless:  in(openKeylessSQL),
		store:        in(storeSQL),
		expire:       in(expireSQL),
		clean:        in(cleanSQL),
		cleanExpired: in(cleanExpiredSQL),
		claim:        in(claimSQL),
		renew:        in(renewSQL),
		finish:       in(finishSQL),
		releaseLock:  in(releaseLockSQL),
		release:      in(releaseSQL),
		stepOpen:     in(stepOpenSQL),
		stepLock:     in(stepLockSQL),
		stepLook:     in(stepLookSQL),
		stepDone:     in(stepDoneSQL),
		due:          in(dueSQL),
		resume:       in(resumeSQL),
		postpone:     in(postponeSQL),
		abandon:      in(abandonSQL),
	}
}
