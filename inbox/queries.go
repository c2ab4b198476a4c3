package inbox

import "github.com/holdfast-go/holdfast/internal/waitroom"

// The statements of the package, except those on letters, which have a file of their own. They are
// written for the schema "holdfast"; newStatements puts in the configured one, once. Parameters are cast everywhere, because in
// the modes exec and simple_protocol nobody asks Postgres for their types.

// beginSQL opens a transaction, in one round trip. A client that dies or hangs inside cannot hold its locks forever. READ
// COMMITTED is explicit because the fence and the queue of a key need a new snapshot for each statement.
const beginSQL = `begin isolation level read committed;
set local idle_in_transaction_session_timeout = %d;
set local lock_timeout = %d`

// The same for the extended protocol, where the beginning of a transaction travels with its first statements. A transaction must
// not wait for locks, nor sit idle after its client died, for longer than its handler may run.
const openSQL = `-- inbox.open
select set_config('idle_in_transaction_session_timeout', $1::text, true), set_config('lock_timeout', $2::text, true)`

// The same with the fence. In this order the wait for the fence is bounded too.
const openFencedSQL = `-- inbox.open_fenced
select set_config('idle_in_transaction_session_timeout', $1::text, true), set_config('lock_timeout', $2::text, true),
       pg_advisory_xact_lock_shared($3::int, $4::int)`

// The same for a group of events, with the fences of their partitions. $4 is sorted, so that no two groups wait for each other.
const openGroupSQL = `-- inbox.open_group
select set_config('idle_in_transaction_session_timeout', $1::text, true), set_config('lock_timeout', $2::text, true),
       (select count(pg_advisory_xact_lock_shared($3::int, f.number)::text) from unnest($4::int[]) f (number))`

// Says whether a backend waits for its client: it has no statement to carry out. Behind a pooler no backend has the number.
const awaitsClientSQL = `-- inbox.awaits_client
select coalesce((select a.wait_event_type = 'Client' from pg_stat_activity a where a.pid = $1::int), false)`

const lockSQL = `-- inbox.lock
select pg_advisory_xact_lock($1::int, $2::int)`

// For callers that must not wait. It returns false when another transaction has the lock.
const tryLockSQL = `-- inbox.try_lock
select pg_try_advisory_xact_lock($1::int, $2::int)`

// Records events that are taken in: with the result $10, or if that is null as handled, or as stored if earlier events of their keys wait,
// or a dead letter or a pause holds the key. It returns the results of those that are new. The primary key makes a second transaction with
// the same event wait for the first, and then find the event known. $11 is null, or the epoch under which events of the partition $13 of
// the topic $12 are taken in: if the partition has another one by now, none is recorded. The ids are sorted, so that two transactions
// with the same events cannot deadlock. $9 attempts.
//
// What is before an event is looked for in the order of places, up to the first. Without an order Postgres would read the table instead of
// the key's queue, if one key has most of it: it would expect to meet a row at once, also of a key that has none. Without "offset 0"
// Postgres looks for it once for each use of the answer. In subqueries $10 and $14 change no plan: else Postgres would plan each time anew.
const recordSQL = `-- inbox.record
` + recordBegins + recordOne + behind + ` or ` + pausedKey + recordEnds

// The same while no key of the consumer is paused (paused.go): it does not look into the table of pauses.
const recordUnpausedSQL = `-- inbox.record_unpaused
` + recordBegins + recordOne + behind + recordEnds

// The same for many events, one array a column. $14 says whether a key may be paused.
const recordManySQL = `-- inbox.record_many
` + recordBegins + recordSeveral + behind + ` or (select $14::boolean) and ` + pausedKey + recordEnds

const (
	recordBegins = `insert into holdfast.inbox (consumer, source, event_id, topic, partition, "offset", hash, processed_at, result, attempts)
select $1::text, u.source, u.event_id, u.topic, u.partition, u."offset", u.hash, case when r.result = 'stored' then null else now() end, r.result, $9::int
  from `

	recordOne     = `(select $2::text, $3::int, $4::text, $5::text, $6::text, $7::bigint, $8::bytea)` + recordRows
	recordSeveral = `unnest($2::text[], $3::int[], $4::text[], $5::text[], $6::text[], $7::bigint[], $8::bytea[])` + recordRows
	recordRows    = ` as u (topic, partition, source, event_id, key, "offset", hash)
 cross join lateral (select coalesce((select $10::text), case when u.key <> '' and (`

	// Whether something of the key of u is before it, and whether that key is paused.
	behind = `
               (select s.place from holdfast.stored s
                 where s.consumer = $1::text and s.topic = u.topic and s.key = u.key order by s.place limit 1) is not null
            or exists (select from holdfast.letter l
                        where l.holds and l.origin = 'inbox' and l.state in ('open', 'replaying')
                          and l.consumer = $1::text and l.topic = u.topic and l.key = u.key offset 0)`
	pausedKey = `exists (select from holdfast.pause p where p.consumer = $1::text and p.topic = u.topic and p.key = u.key)`

	recordEnds = `) then 'stored' else 'handled' end) as result offset 0) r
 where $11::bigint is null
    or exists (select from holdfast.consumer_position p
                where p.consumer = $1::text and p.topic = $12::text and p.partition = $13::int and p.epoch = $11::bigint)
 order by u.source, u.event_id
on conflict (consumer, source, event_id) do nothing
returning result`
)

// Says which events of a group are new and may be handled now, each by its place among them, from 1 on: none, unless all partitions that $2 to
// $4 name have the epochs under which they are taken in. Their rows are inserted as their handlers run: a handler must not see as handled
// what comes after it. Each is found by the primary key, however few rows Postgres expects. $9 says whether a key may be paused.
const freshSQL = `-- inbox.fresh
select coalesce(array_agg(u.n::int), '{}')
  from unnest($5::text[], $6::text[], $7::text[], $8::text[]) with ordinality u (topic, source, event_id, key, n)
 where (select i.result from holdfast.inbox i
         where i.consumer = $1::text and i.source = u.source and i.event_id = u.event_id limit 1) is null
   and (select count(*) from unnest($2::text[], $3::int[], $4::bigint[]) f (topic, partition, epoch)
         where exists (select from holdfast.consumer_position p
                        where p.consumer = $1::text and p.topic = f.topic and p.partition = f.partition and p.epoch = f.epoch)) = cardinality($2::text[])
   and (u.key = '' or not (` + behind + ` or (select $9::boolean) and ` + pausedKey + `))`

const knownSQL = `-- inbox.known
select i.hash, i.result from holdfast.inbox i
 where i.consumer = $1::text and i.source = $2::text and i.event_id = $3::text`

// The same for many events, each by its place among them, from 1 on. Each is found by the primary key, however few rows Postgres
// expects.
const knownManySQL = `-- inbox.known_many
select u.n::int, i.hash
  from unnest($2::text[], $3::text[]) with ordinality u (source, event_id, n)
 cross join lateral (select i.hash from holdfast.inbox i
                      where i.consumer = $1::text and i.source = u.source and i.event_id = u.event_id limit 1) i`

// Puts an event at the end of its key's queue. It is due after $15 microseconds, or dormant if something is before it, and the
// statement returns which; if $18, nothing is added unless something is. It looks only if $17 says that the key's lock is held. If $19 is not
// null, the statement returns the length of the queue, counted up to $19, and adds nothing if the $20 events would make it longer. $13
// attempts, $14 errors, $16 how long ago the event's handler failed first; null if it has not failed.
const storeSQL = `-- inbox.store
` + stores + `(select $4::text, $5::text, $6::text, $7::timestamptz, $8::text, $9::bytea, $10::bytea, $11::bigint, 1)` + stored

// The same for many events of the key, one array a column, in the order of the arrays.
const storeManySQL = `-- inbox.store_many
` + stores + `unnest($4::text[], $5::text[], $6::text[], $7::timestamptz[], $8::text[], $9::bytea[], $10::bytea[], $11::bigint[]) with ordinality` + stored

const (
	stores = `with queue as (
  select $17::boolean and (
             (select s.place from holdfast.stored s
               where s.consumer = $1::text and s.topic = $2::text and s.key = $3::text order by s.place limit 1) is not null
          or exists (select from holdfast.consumer_hold l
                      where l.consumer = $1::text and l.topic = $2::text and l.key = $3::text)) as behind,
         case when $19::int is not null then (
             select count(*) from (select from holdfast.stored s
                                    where s.consumer = $1::text and s.topic = $2::text and s.key = $3::text order by s.place limit $19::int) l) end as length
), stored as (
  insert into holdfast.stored (consumer, topic, key, place, source, event_id, type, time, headers, payload, hash,
         partition, "offset", attempts, next_at, errors, failed_at, losses)
  select $1::text, $2::text, $3::text, nextval('holdfast.stored_place'), u.source, u.event_id, u.type,
         coalesce(u.time, now()), u.headers::jsonb, u.payload, u.hash, $12::int, u."offset", $13::int,
         case when q.behind then 'infinity' else clock_timestamp() + $15::bigint * interval '1 microsecond' end, $14::text[],
         now() - $16::bigint * interval '1 microsecond', $21::int
    from queue q, (
      select * from `
	stored = ` as u (source, event_id, type, time, headers, payload, hash, "offset", n)
       order by u.n) u
   where (q.behind or not $18::boolean) and (q.length is null or q.length + $20::int <= $19::int)
  on conflict (consumer, source, event_id) do nothing)
select q.behind, q.length from queue q`
)

// Removes the row that record has just inserted in the same transaction.
const unrecordSQL = `-- inbox.unrecord
delete from holdfast.inbox i where i.consumer = $1::text and i.source = $2::text and i.event_id = $3::text`

// Counts the stored events of the consumer, up to $2.
const storedCountSQL = `-- inbox.stored_count
select count(*) from (select from holdfast.stored s where s.consumer = $1::text limit $2::int) q`

// Keeps Postgres from compiling the statements of a transaction. Where much is due it expects a claim to read all of it, and compiled
// each one: 113 ms in place of 2.7 beside 78,000 heads that are due.
const interpretSQL = `-- inbox.interpret
select set_config('jit', 'off', true)`

// Leases queue heads that are due. It counts the attempt before it is made, so that one that ends the process counts. Index
// stored_due finds what is due of each type that this node handles, so that heads that wait for another node cost nothing. A few
// more heads are looked for than leased, because other nodes lease some at the same moment. The primary key shows whether an event is
// a head. stored_active shows whether a worker has a later event of the key: an event was due when it was claimed, so it is not
// dormant. letter_holds_inbox shows whether a letter holds the key. Without "offset 0" Postgres reads every open letter into a hash first, because it plans for all due events and not for
// $3. Without the inner "limit 1" it reads the table, where one key has most of it. As a subquery $2 has the same length in every plan:
// else Postgres would plan each claim anew, which takes longer than to make it. A lease that ends later than twice its length from now was given by a clock that was wrong. $6 are the tokens of claims
// of this node that got no answer: no attempt was made on what they leased. $7 is how many bytes the events may have together; if $8,
// the first one may have more. $9 and $10 are the next_at and the place from which on it looks; null: at everything (claim_mark.go). $11
// says whether it may take a suspect, and then one.
const claimSQL = `-- inbox.claim
with head as materialized (
    select h.topic, h.key, h.place, h.next_at
      from unnest((select $2::text[])) t (type) cross join lateral (
    select s.topic, s.key, s.place, s.next_at
      from holdfast.stored s
     where s.consumer = $1::text and s.type = t.type and s.type <> '' and s.next_at < 'infinity' and s.next_at <= now()
       and (s.next_at, s.place) >= (coalesce($9::timestamptz, '-infinity'), $10::bigint)
       and (s.lease_until <= now() or s.lease_until > now() + 2 * $5::bigint * interval '1 microsecond'
            or s.lease_token = any($6::text[]::uuid[]))
       and ((select $11::boolean) or not (` + claimSuspect + `))
       and (s.key = '' or (
               not exists (select from (select h.place from holdfast.stored h
                                         where h.consumer = s.consumer and h.topic = s.topic and h.key = s.key and h.place < s.place
                                         order by h.place limit 1) before)
           and not exists (select from holdfast.stored h
                            where h.consumer = s.consumer and h.topic = s.topic and h.key = s.key and h.place > s.place
                              and h.next_at < 'infinity' and h.lease_until > now() and h.lease_until <= now() + 2 * $5::bigint * interval '1 microsecond'
                              and h.lease_token <> all($6::text[]::uuid[]))
           and (s.letter is not null
                or not exists (select from holdfast.consumer_hold l
                                where l.consumer = s.consumer and l.topic = s.topic and l.key = s.key and l.after < s.place
                               offset 0))))
     order by s.next_at, s.place
     limit 4 * $3::int) h
     order by h.next_at, h.place
     limit 4 * $3::int
), due as (
    select s.consumer, s.topic, s.key, s.place, h.next_at, coalesce(octet_length(s.payload), 0) + coalesce(pg_column_size(s.headers), 0) as bytes,
           ` + claimSuspect + ` as suspect
      from head h join holdfast.stored s on s.consumer = $1::text and s.topic = h.topic and s.key = h.key and s.place = h.place
     where s.next_at <= now()
       and (s.lease_until <= now() or s.lease_until > now() + 2 * $5::bigint * interval '1 microsecond'
            or s.lease_token = any($6::text[]::uuid[]))
     order by h.next_at, h.place
     limit $3::int
       for update of s skip locked
)
update holdfast.stored s
   set lease_token = $4::text::uuid, lease_until = now() + $5::bigint * interval '1 microsecond',
       attempts = s.attempts + case when s.lease_token = any($6::text[]::uuid[]) and s.lease_until > now() then 0 else 1 end
  from (select d.consumer, d.topic, d.key, d.place, d.bytes, sum(d.bytes) over w as total, d.suspect, count(*) filter (where d.suspect) over w as suspects
          from due d window w as (order by d.next_at, d.place, d.topic, d.key)) d
 where s.consumer = d.consumer and s.topic = d.topic and s.key = d.key and s.place = d.place
   and (d.total <= $7::bigint or $8::boolean and d.total = d.bytes) and (not d.suspect or d.suspects = 1)
returning ` + claimedColumns

// Whether an attempt of a stored event ended without a word (claimed.suspect). A claim of this node that got no answer counted one that was
// not made.
const (
	suspectIs    = ` > cardinality(s.errors) and cardinality(s.errors) < ` + keptErrors
	suspect      = `s.attempts` + suspectIs
	claimSuspect = `s.attempts - case when s.lease_token = any($6::text[]::uuid[]) and s.lease_until > now() then 1 else 0 end` + suspectIs
	keptErrors   = "20" // failure.MaxErrors
)

// The columns that scanClaimed reads. Moments are numbers, because inbox.next is in the transaction of a handler, whose settings may
// have pgx get texts that it cannot read.
const claimedColumns = `s.topic, s.key, s.place, s.source, s.event_id, s.type, (extract(epoch from s.time) * 1000000)::bigint, s.headers::text, s.payload, s.hash, s.partition,
       s."offset", s.attempts, s.losses, s.errors, s.letter, coalesce((extract(epoch from now() - s.failed_at) * 1000000)::bigint, 0), (extract(epoch from s.next_at) * 1000000)::bigint,
       (extract(epoch from now() - s.next_at) * 1000000)::bigint`

// Removes a stored event in the transaction of its handler. No row comes back if the lease was lost, or if a replay has entered
// the queue before the event.
const takeSQL = `-- inbox.take
delete from holdfast.stored s
 where s.consumer = $1::text and s.topic = $2::text and s.key = $3::text and s.place = $4::bigint
   and s.lease_token = $5::text::uuid
   and (s.key = '' or (select h.place from holdfast.stored h
                        where h.consumer = s.consumer and h.topic = s.topic and h.key = s.key and h.place < s.place order by h.place limit 1) is null)`

// Says whether a claimed event is the head of its key. A claim sees what was committed when it began. A replay may have entered
// since, and another worker may have it.
const isHeadSQL = `-- inbox.is_head
select (select h.place from holdfast.stored h
         where h.consumer = $1::text and h.topic = $2::text and h.key = $3::text and h.place < $4::bigint order by h.place limit 1) is null`

// The same for an event that is given up. Nothing else can prevent that.
const dropSQL = `-- inbox.drop
delete from holdfast.stored s
 where s.consumer = $1::text and s.topic = $2::text and s.key = $3::text and s.place = $4::bigint
   and s.lease_token = $5::text::uuid`

const settleSQL = `-- inbox.settle
insert into holdfast.inbox (consumer, source, event_id, topic, partition, "offset", hash, processed_at, result, attempts)
values ($1::text, $2::text, $3::text, $4::text, $5::int, $6::bigint, $7::bytea, now(), $8::text, $9::int)
on conflict (consumer, source, event_id) do update
   set processed_at = excluded.processed_at, result = excluded.result, attempts = excluded.attempts`

// Claims the head of a queue, in the transaction that has removed the one before it, under the key's lock. The head must be due or
// dormant, fit for a claim, and no suspect. All times are compared with the clock: now() is when the transaction began, before a handler ran.
const nextSQL = `-- inbox.next
update holdfast.stored s
   set next_at = clock_timestamp(), lease_token = $5::text::uuid, lease_until = clock_timestamp() + $6::bigint * interval '1 microsecond', attempts = s.attempts + 1
 where s.consumer = $1::text and s.topic = $2::text and s.key = $3::text
   and s.place = (select min(h.place) from holdfast.stored h
                   where h.consumer = $1::text and h.topic = $2::text and h.key = $3::text)
   and s.type = any($4::text[])
   and coalesce(octet_length(s.payload), 0) + coalesce(pg_column_size(s.headers), 0) <= $7::bigint
   and not (` + suspect + `)
   and (s.next_at = 'infinity' or s.next_at <= clock_timestamp())
   and (s.lease_until <= clock_timestamp() or s.lease_until > clock_timestamp() + 2 * $6::bigint * interval '1 microsecond')
   and not exists (select from holdfast.stored h
                    where h.consumer = $1::text and h.topic = $2::text and h.key = $3::text and h.place > s.place
                      and h.next_at < 'infinity' and h.lease_until > clock_timestamp() and h.lease_until <= clock_timestamp() + 2 * $6::bigint * interval '1 microsecond')
   and (s.letter is not null
        or not exists (select from holdfast.consumer_hold l
                        where l.consumer = $1::text and l.topic = $2::text and l.key = $3::text and l.after < s.place))
returning ` + claimedColumns

// Wakes the head of a queue after the head before it has gone, or a worker has let go of an event after it.
const resumeSQL = `-- inbox.resume
update holdfast.stored s set next_at = clock_timestamp()
  from (select $1::text as consumer, $2::text as topic, $3::text as key) q
 where ` + waitroom.Woken

// Makes followers of a key dormant that are active. Store adds such: it must not wait for the key's lock, and so does not know what
// is before them. Each is resumed once it is the head. Every claim would look at all of them if they stayed active. The
// transaction holds the key's lock, for which others wait: so it changes at most deferMost at a time.
const deferSQL = `-- inbox.defer
update holdfast.stored s set next_at = 'infinity'
 where s.consumer = $1::text and s.topic = $2::text and s.key = $3::text
   and s.place = any(array(
         select f.place from holdfast.stored f
          where f.consumer = $1::text and f.topic = $2::text and f.key = $3::text and f.next_at < 'infinity'
            and f.place > (select min(h.place) from holdfast.stored h
                            where h.consumer = $1::text and h.topic = $2::text and h.key = $3::text)
            and f.attempts = 0 and f.letter is null and f.lease_until <= now()
          order by f.place limit ` + deferMost + `))
   and s.next_at < 'infinity' and s.attempts = 0 and s.letter is null and s.lease_until <= now()`

const deferMost = "1000"

// Lists keys with more than one event active, if one of these may be deferred.
const activeSQL = `-- inbox.active
select s.topic, s.key from holdfast.stored s
 where s.consumer = $1::text and s.next_at < 'infinity' and s.key <> ''
 group by s.topic, s.key
having count(*) > 1 and bool_or(s.attempts = 0 and s.letter is null and s.lease_until <= now())
 limit 100`

// Wakes every head that is dormant though nothing holds its key. It goes from key to key by the primary key and reads one row of
// each. However many followers there are, it compares none of them.
const sweepSQL = `-- inbox.sweep
with recursive head as (
  (select s.topic, s.key, s.place, s.next_at from holdfast.stored s
    where s.consumer = $1::text
    order by s.topic, s.key, s.place limit 1)
  union all
  select n.topic, n.key, n.place, n.next_at
    from head h, lateral (
      select s.topic, s.key, s.place, s.next_at from holdfast.stored s
       where s.consumer = $1::text and (s.topic, s.key) > (h.topic, h.key)
       order by s.topic, s.key, s.place limit 1) n
), dormant as (
  select h.topic, h.key, h.place from head h
   where h.key <> '' and h.next_at = 'infinity'
     and not exists (select from holdfast.consumer_hold l
                      where l.consumer = $1::text and l.topic = h.topic and l.key = h.key and l.after < h.place)
  union all
  select s.topic, s.key, s.place from head h, holdfast.stored s -- each event without a key is a head
   where h.key = '' and s.consumer = $1::text and s.topic = h.topic and s.key = '' and s.next_at = 'infinity'
), resumed as (
  select s.topic, s.key, s.place from dormant a join holdfast.stored s
      on s.consumer = $1::text and s.topic = a.topic and s.key = a.key and s.place = a.place
   where s.next_at = 'infinity'
     for update of s skip locked
)
update holdfast.stored s set next_at = clock_timestamp()
  from resumed w
 where s.consumer = $1::text and s.topic = w.topic and s.key = w.key and s.place = w.place`

// Returns an event to its queue after an attempt, due again after $6 microseconds. If nothing failed, $7 gives back the attempt
// that the claim counted. $9 is what is kept of tries in a row that spent no attempt (failure.History.Row).
const retrySQL = `-- inbox.retry
update holdfast.stored s
   set lease_token = null, lease_until = '-infinity', next_at = clock_timestamp() + $6::bigint * interval '1 microsecond',
       attempts = s.attempts - $7::int, losses = $9::int,
       failed_at = coalesce(s.failed_at, case when $7::int = 0 then now() end),
       errors = holdfast.last_errors(s.errors || $8::text[])
 where s.consumer = $1::text and s.topic = $2::text and s.key = $3::text and s.place = $4::bigint
   and s.lease_token = $5::text::uuid`

// Waits for a transaction that may still hold the row, and says whether the row is there.
const stillStoredSQL = `-- inbox.still_stored
select 1 from holdfast.stored s
 where s.consumer = $1::text and s.topic = $2::text and s.key = $3::text and s.place = $4::bigint
   and s.lease_token = $5::text::uuid
   for update`

// Declares the types that this node handles. Other nodes then leave them to it.
const declareSQL = `-- inbox.declare
insert into holdfast.consumer_type (consumer, type, node, seen_until, needs)
select $1::text, u.type, $3::text, now() + $4::bigint * interval '1 microsecond', u.needs::text[] from unnest($2::text[], $5::text[]) u (type, needs)
on conflict (consumer, type, node) do update set seen_until = excluded.seen_until, stopped = false, needs = excluded.needs`

// Says that this node stops. Its types are believed for as long as those of a node that died, since it may be about to start again.
const stopSQL = `-- inbox.stop
update holdfast.consumer_type t set stopped = true where t.consumer = $1::text and t.node = $2::text`

// Says whether people have paused the consumer, and whether some key of it; and which dependencies are away, and in how many microseconds
// an event tries each.
const pausedSQL = `-- inbox.paused
select exists (select from holdfast.pause p where p.consumer = $1::text and p.topic = ''),
       exists (select from holdfast.pause p where p.consumer = $1::text and p.key <> ''),
       d.names, d.until
  from (select coalesce(array_agg(d.name order by d.name), '{}')::text[], coalesce(array_agg((extract(epoch from d.until - now()) * 1000000)::bigint order by d.name), '{}')
          from holdfast.dependency d where d.consumer = $1::text and d.away) d (names, until)`

// Says what is known of a dependency, under the lock of its row, which it makes if there is none.
const dependencySQL = `-- inbox.dependency
insert into holdfast.dependency as d (consumer, name) values ($1::text, $2::text)
on conflict (consumer, name) do update set name = excluded.name
returning d.away, (extract(epoch from d.since) * 1000000)::bigint, (extract(epoch from d.until) * 1000000)::bigint, d.tries, (extract(epoch from now()) * 1000000)::bigint`

// Writes that. An error stays until there is another.
const dependencyIsSQL = `-- inbox.dependency_is
update holdfast.dependency d
   set away = $3::boolean, since = now() - $4::bigint * interval '1 microsecond', until = now() + $5::bigint * interval '1 microsecond', tries = $6::int,
       error = coalesce(nullif($7::text, ''), d.error), node = $8::text
 where d.consumer = $1::text and d.name = $2::text`

// Claims the right to try dependencies, for a time. It locks them in the order of their names, as all who change several do.
const dependencyTrySQL = `-- inbox.dependency_try
with due as (
  select d.consumer, d.name from holdfast.dependency d
   where d.consumer = $1::text and d.name = any($2::text[]) and d.away and d.until <= now()
   order by d.name
     for update)
update holdfast.dependency d
   set until = now() + $3::bigint * interval '1 microsecond', node = $4::text
  from due
 where d.consumer = due.consumer and d.name = due.name`

// Says what a step of an event's handler has returned, if it is recorded.
const stepSQL = `-- inbox.step
select s.result::text from holdfast.inbox_step s
 where s.consumer = $1::text and s.source = $2::text and s.event_id = $3::text and s.hash = $4::bytea and s.name = $5::text`

// Records what a step has returned, unless another run was first.
const stepDoneSQL = `-- inbox.step_done
insert into holdfast.inbox_step (consumer, source, event_id, hash, name, key, result, done_at)
values ($1::text, $2::text, $3::text, $4::bytea, $5::text, $6::text, $7::text::json, clock_timestamp())
on conflict (consumer, source, event_id, hash, name) do nothing`

const undeclareSQL = `-- inbox.undeclare
delete from holdfast.consumer_type where consumer = $1::text and seen_until < now() - interval '1 day'`

// Adds to the counts of skipped events, and forgets those that nobody has sent for a month. The rows are sorted, so that two nodes
// cannot deadlock.
const skipSQL = `-- inbox.skip
with forgotten as (
  delete from holdfast.consumer_skip where consumer = $1::text and last_at < now() - interval '30 days')
insert into holdfast.consumer_skip as k (consumer, topic, type, events)
select $1::text, u.topic, u.type, u.events
  from unnest($2::text[], $3::text[], $4::bigint[]) u (topic, type, events)
 order by u.topic, u.type
on conflict (consumer, topic, type) do update set events = k.events + excluded.events, last_at = now()`

// Lists the types that some node declares, or declared until $3 microseconds ago. That must be less than undeclare keeps.
const declaredSQL = `-- inbox.declared
select distinct t.type from holdfast.consumer_type t
 where t.consumer = $1::text and t.type = any($2::text[]) and t.seen_until > now() - $3::bigint * interval '1 microsecond'`

// Raises an entity's watermark. It changes no row if the version is not newer. A second transaction waits for the first at the
// primary key, whatever its version, and then compares with the first one's version.
const watermarkSQL = `-- inbox.watermark
insert into holdfast.watermark as w (consumer, entity, version) values ($1::text, $2::text, $3::bigint)
on conflict (consumer, entity) do update set version = excluded.version, updated_at = excluded.updated_at
 where excluded.version > w.version`

const watermarkIsSQL = `-- inbox.watermark_is
select w.version = $3::bigint from holdfast.watermark w where w.consumer = $1::text and w.entity = $2::text`

// Reads how often the handlers of events were started, each by its place among them, from 1 on. Each is found by the primary key.
const startsSQL = `-- inbox.starts
select u.n::int, s.starts
  from unnest($2::text[], $3::text[]) with ordinality u (source, event_id, n)
 cross join lateral (select s.starts from holdfast.start s
                      where s.consumer = $1::text and s.source = u.source and s.event_id = u.event_id limit 1) s`

// Counts starts of handlers before they run, each as the one that $4 says. So each counts once, however often the statement has to
// be repeated. The ids are sorted, so that two transactions with the same events cannot deadlock.
const startSQL = `-- inbox.start
insert into holdfast.start as s (consumer, source, event_id, starts)
select $1::text, u.source, u.event_id, u.starts
  from unnest($2::text[], $3::text[], $4::int[]) u (source, event_id, starts)
 order by u.source, u.event_id
on conflict (consumer, source, event_id) do update set starts = greatest(s.starts, excluded.starts), last_at = now()`

// Takes back the starts that $4 says, except of events that have come to an end. An array of row ids keeps the primary key in use,
// however few rows Postgres expects.
const takeBackStartSQL = `-- inbox.take_back_start
update holdfast.start s set starts = s.starts - 1
 where s.ctid = any(array(
         select f.ctid from unnest($2::text[], $3::text[], $4::int[]) u (source, event_id, starts)
          cross join lateral (select s.ctid, s.starts from holdfast.start s
                               where s.consumer = $1::text and s.source = u.source and s.event_id = u.event_id limit 1) f
          where f.starts = u.starts))`

const forgetStartSQL = `-- inbox.forget_start
delete from holdfast.start s
 where s.ctid = any(array(
         select f.ctid from unnest($2::text[], $3::text[]) u (source, event_id)
          cross join lateral (select s.ctid from holdfast.start s
                               where s.consumer = $1::text and s.source = u.source and s.event_id = u.event_id limit 1) f))`

// Writes how far a backfill has got. Several nodes may run it: the one that began to tell goes on, until it ends, or says nothing for
// 30 s. An end without an error stays until another call begins.
const writeBackfillSQL = `-- inbox.write_backfill
insert into holdfast.consumer_backfill as b (consumer, node, began_at, partitions, partitions_left, done, remaining, per_second, waits, ended_at, error)
values ($1::text, $2::text, now() - $3::bigint * interval '1 microsecond', $4::int, $5::int, $6::bigint, $7::bigint, $8::float8, nullif($9::text, ''),
        case when $10::boolean then now() end, nullif($11::text, ''))
on conflict (consumer) do update
   set node = excluded.node, began_at = excluded.began_at, told_at = excluded.told_at, partitions = excluded.partitions, partitions_left = excluded.partitions_left,
       done = excluded.done, remaining = excluded.remaining, per_second = excluded.per_second, waits = excluded.waits, ended_at = excluded.ended_at, error = excluded.error
 where b.node = excluded.node or b.told_at < now() - interval '30 seconds'
    or b.ended_at is not null and (b.error is not null or excluded.ended_at is null)`
