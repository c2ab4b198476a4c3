package waiting

import "github.com/holdfast-go/holdfast/internal/waitroom"

// This file holds every statement of the package, written for the schema "holdfast". All parameters are cast, because in the modes exec
// and simple_protocol pgx does not ask Postgres for their types.

// columns are those of an Event, of a row w of the view of its place.
const columns = `w.consumer, w.lane, w.place, w.topic, w.key, w.source, w.event_id, w.type, w.time, w.why, w.head, w.running, coalesce(w.partition, -1), w.attempts,
       coalesce(w.errors[cardinality(w.errors)], ''), w.since, w.next_at, coalesce(w.letter, 0)`

// conditions are those of a Filter on rows w of a view. $1 consumer, $2 topic, $3 key, $4 type, $5 source, $6 event id, where empty
// matches any; $7 for what it waits, $8 only heads, $9 the partition, -1 for any. Each statement that reads is planned for the values that
// it has (manual.Look), so what an empty value says is no condition.
const conditions = `
 where ($1::text = '' or w.consumer = $1::text)
   and ($2::text = '' or w.topic = $2::text)
   and ($3::text = '' or w.key = $3::text)
   and ($4::text = '' or w.type = $4::text)
   and ($5::text = '' or w.source = $5::text)
   and ($6::text = '' or w.event_id = $6::text)
   and ($7::text = '' or w.why = $7::text)
   and (not $8::boolean or w.head)
   and ($9::integer < 0 or w.partition = $9::integer)`

// Of each place: its view, and the table c that has headers and payloads, which the views have not.
const (
	relayWaits    = ` from holdfast.waiting_in_relays w`
	consumerWaits = ` from holdfast.waiting_in_consumers w`
	scheduleWaits = ` from holdfast.waiting_in_schedule w`

	relayWhole    = relayWaits + ` join holdfast.parked c on c.lane = w.lane and c.topic = w.topic and c.key = w.key and c.place = w.place`
	consumerWhole = consumerWaits + ` join holdfast.stored c on c.consumer = w.consumer and c.topic = w.topic and c.key = w.key and c.place = w.place`
	scheduleWhole = scheduleWaits + ` join holdfast.scheduled c on c.lane = w.lane and c.due_at = w.next_at and c.seq = w.place`
)

// listRelay reads a page in the order of the primary key. $10 how many, $11 to $14 the row after which to continue.
const listRelay = `-- waiting.list_relay
select ` + columns + relayWaits + conditions + `
   and (w.lane, w.topic, w.key, w.place) > ($11::smallint, $12::text, $13::text, $14::bigint)
 order by w.lane, w.topic, w.key, w.place
 limit $10::integer`

// listConsumer reads a page in the order of the primary key. $10 how many, $11 to $14 the row after which to continue.
const listConsumer = `-- waiting.list_consumer
select ` + columns + consumerWaits + conditions + `
   and (w.consumer, w.topic, w.key, w.place) > ($11::text, $12::text, $13::text, $14::bigint)
 order by w.consumer, w.topic, w.key, w.place
 limit $10::integer`

// listSchedule reads a page, those first that are due first. Of each lane it reads as many as the page has, by the primary key. $10 how
// many, $11 and $12 the row after which to continue.
const listSchedule = `-- waiting.list_schedule
select f.* from holdfast.lane l, lateral (select ` + columns + scheduleWaits + conditions + `
   and w.lane = l.lane and (w.next_at, w.place) > (coalesce($11::timestamptz, '-infinity'), $12::bigint)
 order by w.next_at, w.place limit $10::integer) f
 order by f.next_at, f.place
 limit $10::integer`

// group and grouped sum up rows w, by their type too where no node handles that. The error is that of the event with one that began to wait
// last. The offset keeps the reason, which takes long to find, from being asked for twice.
const (
	group = `select w.consumer, w.topic, w.why, case w.why when 'no-handler' then w.type else '' end, count(*), count(distinct w.key) filter (where w.key <> ''),
       coalesce(sum(w.size), 0)::bigint, min(w.since), min(w.next_at),
       coalesce((max(array[to_char(w.since at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US'), w.errors[cardinality(w.errors)]])
         filter (where cardinality(w.errors) > 0))[2], '')
  from (select w.consumer, w.topic, w.key, w.type, w.why, w.since, w.next_at, w.errors,
               coalesce(octet_length(c.payload), 0) + coalesce(octet_length(c.headers::text), 0) as size`
	grouped = ` offset 0) w
 group by 1, 2, 3, 4
 order by 1, 2, 3, 4`
)

const groupRelay = `-- waiting.group_relay
` + group + relayWhole + conditions + grouped

const groupConsumer = `-- waiting.group_consumer
` + group + consumerWhole + conditions + grouped

const groupSchedule = `-- waiting.group_schedule
` + group + scheduleWhole + conditions + grouped

// show has what Detail has more, with payloads if $10. What waits in consumers is found by the unique constraint that begins with the id; of
// relays and the schedule all rows are read: no index of theirs begins with it. The last column, in consumers only, is the event's hash.
const (
	show = columns + `, array(select t from unnest(w.errors) t where t is not null), w.failed_at, coalesce(w.record_partition, -1), coalesce(w.record_offset, -1),
       c.headers::text, case when $10::boolean then c.payload end, coalesce(octet_length(c.payload), -1)`
	shown = `
 order by w.source, w.consumer
 limit 100`
)

const showRelay = `-- waiting.show_relay
select ` + show + `, null::bytea` + relayWhole + conditions + shown

const showConsumer = `-- waiting.show_consumer
select ` + show + `, c.hash` + consumerWhole + conditions + shown

const showSchedule = `-- waiting.show_schedule
select ` + show + `, null::bytea` + scheduleWhole + conditions + shown

// The statements that change what relays keep run in a transaction that has locked what is parked in the lane, as the lane's owner does in each of its own.

// countRelay counts the events of a topic ($1), or of one key of it ($2), by lane, in order of the lanes.
const countRelay = `-- waiting.count_relay
select p.lane, count(*) from holdfast.lane l join holdfast.parked p on p.lane = l.lane
 where p.topic = $1::text and ($2::text = '' or p.key = $2::text)
 group by p.lane order by p.lane`

// boundRelay is a place after everything that is parked now.
const boundRelay = `-- waiting.bound_relay
select nextval('holdfast.parked_place')`

// lockLane waits until nobody else changes what is parked in a lane.
const lockLane = `-- waiting.lock_lane
select ` + waitroom.LockLane + ` from holdfast.lane l where l.lane = $1::smallint`

// readOwner says who owns a lane, "" for nobody; whether its lease runs, and whether it tells what it has leased. In a transaction that waits,
// now() stands still.
const readOwner = `-- waiting.lane_owner
select coalesce(l.owner, ''), l.lease_until > clock_timestamp(),
       exists (select from holdfast.parked_lease o where o.lane = l.lane and o.topic = '' and o.key = '' and o.place = l.epoch)
  from holdfast.lane l where l.lane = $1::smallint`

// disownLane takes a lane from an owner whose lease has run out, so that whatever that one still does fails. It does nothing if the owner has renewed
// its lease meanwhile.
const disownLane = `-- waiting.disown_lane
update holdfast.lane l set owner = null where l.lane = $1::smallint and l.lease_until <= clock_timestamp()`

// countLeft counts those events of a filter that are left of those that were parked before the place $4.
const countLeft = `-- waiting.count_left
select count(*) from holdfast.parked p
 where p.lane = $1::smallint and p.topic = $2::text and ($3::text = '' or p.key = $3::text) and p.place < $4::bigint`

// relayBatch looks at the next rows of a topic in a lane, in order of key and place, by parked_pkey. $1 lane, $2 topic, $3 the one
// key, ” for all, $4 and $5 the key and the place after which to go on, $6 the place before which rows were parked when the
// command began, $7 rows at most, $8 bytes at most, but one row at least. free are those that the lane's owner has not leased, if $9 says that it
// leases; with a limit the planner looks for a lease by parked_lease_pkey, else it reads all. The rows are found again by their place in the file:
// nobody else changes them.
const relayBatch = `with looked as materialized (
  select p.ctid as row, p.key, p.place, p.letter,
         coalesce(octet_length(p.payload), 0) + coalesce(octet_length(p.headers::text), 0) + pg_column_size(p.errors) as size,
         $9::boolean and (
           select o.place from holdfast.parked_lease o
            where o.lane = p.lane and o.topic = p.topic and o.key = p.key and o.place = case when p.key = '' then p.place else 0 end limit 1) is not null as leased
    from holdfast.parked p
   where p.lane = $1::smallint and p.topic = $2::text and ($3::text = '' or p.key = $3::text)
     and (p.key, p.place) > ($4::text, $5::bigint) and p.place < $6::bigint
   order by p.key, p.place limit $7::integer
), batch as materialized (
  select f.* from (
    select l.*, sum(l.size) over (order by l.key, l.place rows between unbounded preceding and 1 preceding) as before from looked l) f
   where f.before is null or f.before + f.size <= $8::bigint
), free as materialized (
  select b.row, b.key, b.place, b.letter from batch b where not b.leased)`

// relayDone says what became of a batch: how many rows were free, how many of them were changed, whether there may be more, the
// keys that were changed, and where to go on. Of a leased key that is after its last row, however many it has.
const relayDone = `
select f.rows, c.rows, b.rows < (select count(*) from looked) or b.rows = $7::integer, coalesce(c.keys, '{}'),
       coalesce(last.key, $4::text), coalesce(case when last.leased and last.key <> '' then 9223372036854775807 else last.place end, $5::bigint)
  from (select count(*)::integer as rows from batch) b,
       (select count(*)::integer as rows from free) f,
       (select count(*)::integer as rows, array_agg(distinct key) filter (where key <> '') as keys from changed) c
  left join (select key, place, leased from batch order by key desc, place desc limit 1) last on true`

// giveUpRelay makes a batch dead letters in the state $10, in order, or closes the letters whose replays they are in that state.
// $11 is the reason. If they are discarded, $12 and $13 say who does that, and why.
const giveUpRelay = `-- waiting.give_up_relay
` + relayBatch + `, changed as (
  delete from holdfast.parked p where p.ctid = any (array(select f.row from free f)) returning p.*
), again as (
  update holdfast.letter l
     set state = $10::text, reason = $11::text, last_at = now(), attempts = l.attempts + g.attempts, errors = holdfast.last_errors(l.errors || g.errors)
    from changed g where l.id = g.letter
  returning l.id
), new as (
  insert into holdfast.letter (origin, reason, fingerprint, state, event_id, source, type, topic, key, time, headers, payload, hash, lane, attempts, errors, first_at)
  select 'relay', $11::text, g.type || ' of a topic given up by a person', $10::text, g.id, g.source, g.type, g.topic, g.key, g.time, g.headers, g.payload,
         sha256(coalesce(g.payload, '')), g.lane, g.attempts, holdfast.last_errors(g.errors), g.first_at
    from changed g where g.letter is null or g.letter not in (select a.id from again a)
   order by g.key, g.place
  returning id
), signed as (
  insert into holdfast.letter_action (letter, action, by, reason)
  select l.id, 'discard', $12::text, $13::text from (select id from again union all select id from new) l where $10::text = 'discarded')` + relayDone

// redirectRelay makes a batch events of the topic $10, which enter the log in their order. $11 is a note for the letters of replays among them,
// which go along. A key stays that a dead letter holds, unless the letter's replay is in the batch.
const redirectRelay = `-- waiting.redirect_relay
` + relayBatch + `, held as materialized (
  select distinct h.key from holdfast.lane_hold h
   where h.lane = $1::smallint and h.topic = $2::text and h.key = any (array(select f.key from free f where f.key <> ''))
     and not exists (select from free r where r.key = h.key and r.letter = h.letter)
), changed as materialized (
  select f.key, f.place from free f where f.key not in (select h.key from held h)
), moved as materialized (
  select holdfast.redirect_parked($1::smallint, $2::text, array_agg(c.key), array_agg(c.place), $10::text, $11::text) from changed c)` + relayDone + `
 where (select count(*) from moved) = 1`

// resumeRelay makes the first row of queues due, unless it waits for its topic or partition, or a dead letter holds it. $2 topic,
// $3 keys, $4 and $5 the last key and place of the batch: nothing is left before it, so what was there need not be read again. The
// rows are found again by their place in the file: else the planner, which knows nothing of a new table, looks for the first row
// of a queue once for each of its rows.
const resumeRelay = `-- waiting.resume_relay
with first as materialized (
  select f.* from unnest($3::text[]) as k (key), lateral (
    select h.ctid as row, h.* from holdfast.parked h
     where h.lane = $1::smallint and h.topic = $2::text and h.key = k.key
       and h.place > case when k.key = $4::text then $5::bigint else '-9223372036854775808' end
     order by h.place limit 1) f)
update holdfast.parked p set next_at = now()
 where p.ctid = any (array(
   select f.row from first f
    where f.next_at = 'infinity' and f.partition is null and f.why <> 'topic'
      and (f.letter is not null or not exists (
        select from holdfast.lane_hold h where h.lane = $1::smallint and h.topic = $2::text and h.key = f.key))))`

// retryRelay makes the heads of a topic ($2), or of one key of it ($3), due that wait for their next attempt, in a lane. By parked_due.
const retryRelay = `-- waiting.retry_relay
update holdfast.parked p set next_at = now()
 where p.lane = $1::smallint and p.topic = $2::text and ($3::text = '' or p.key = $3::text) and p.next_at > now() and p.next_at < 'infinity'`

// countRetry counts what retryRelay would make due.
const countRetry = `-- waiting.count_retry
select count(*) from holdfast.parked p
 where p.lane = $1::smallint and p.topic = $2::text and ($3::text = '' or p.key = $3::text) and p.next_at > now() and p.next_at < 'infinity'`

// topicIsPaused says whether relays would not try what is parked of a topic.
const topicIsPaused = `-- waiting.topic_is_paused
select exists (select from holdfast.pause p where p.consumer = '' and p.topic = $1::text)`

// An event of a consumer is found by its queue and its place: a place is given once, and stays its event's, also as a letter's.

// retriable are the conditions under which an event can be made due: it is a head, no worker has it, and no letter or pause holds its key.
const retriable = `
 where s.consumer = $1::text and s.topic = $2::text and s.key = $3::text and s.place = $4::bigint and s.lease_until <= clock_timestamp()
   and (s.key = '' or (
          not exists (select from holdfast.stored h
                       where h.consumer = s.consumer and h.topic = s.topic and h.key = s.key and h.place < s.place)
      and (s.letter is not null
           or not exists (select from holdfast.consumer_hold o
                           where o.consumer = s.consumer and o.topic = s.topic and o.key = s.key and o.after < s.place))))`

// retryConsumer makes a head due, under the lock of the key.
const retryConsumer = `-- waiting.retry_consumer
update holdfast.stored s set next_at = clock_timestamp()` + retriable

// wouldRetry says whether retryConsumer would.
const wouldRetry = `-- waiting.would_retry
select exists (select from holdfast.stored s` + retriable + `)`

// stillWaits says whether an event waits as a filter wants it, under the lock of the key: for $5, if that is not empty, and as a head if $6.
const stillWaits = `-- waiting.still_waits
select exists (
select from holdfast.waiting_in_consumers w
 where w.consumer = $1::text and w.topic = $2::text and w.key = $3::text and w.place = $4::bigint
   and ($5::text = '' or w.why = $5::text) and (not $6::boolean or w.head))`

// giveUpConsumer takes an event out of its queue, under the lock of the key, unless a worker has it, and makes it a letter in the state $6: a new
// one, or the one that it is a replay of. $5 is the reason, $7 the result of its inbox row.
const giveUpConsumer = `-- waiting.give_up_consumer
with gone as (
  delete from holdfast.stored s
   where s.consumer = $1::text and s.topic = $2::text and s.key = $3::text and s.place = $4::bigint
     and s.lease_until <= now()
  returning s.*
), settled as (
  update holdfast.inbox i set result = $7::text, processed_at = now(), attempts = g.attempts
    from gone g
   where i.consumer = g.consumer and i.source = g.source and i.event_id = g.event_id and i.result = 'stored'
), again as (
  update holdfast.letter l set state = $6::text, reason = $5::text, last_at = now(), attempts = l.attempts + g.attempts, errors = holdfast.last_errors(l.errors || g.errors)
    from gone g where l.id = g.letter
  returning l.id
), new as (
  insert into holdfast.letter as l (origin, consumer, reason, fingerprint, state, event_id, source, type, topic, key, time,
         headers, payload, hash, partition, "offset", attempts, errors, first_at, place)
  select 'inbox', g.consumer, $5::text, g.type || ' given up by a person', $6::text, g.event_id, g.source, g.type, g.topic, g.key, g.time,
         g.headers, g.payload, g.hash, g.partition, g."offset", g.attempts, g.errors, coalesce(g.failed_at, now()), g.place
    from gone g where g.letter is null or g.letter not in (select a.id from again a)
  on conflict (consumer, source, event_id, hash) where origin = 'inbox' do update
     set state = excluded.state, reason = excluded.reason, fingerprint = excluded.fingerprint, holds = false, place = excluded.place, last_at = now(),
         attempts = l.attempts + excluded.attempts, errors = holdfast.last_errors(l.errors || excluded.errors)
  returning l.id)
select id from again union all select id from new`

const recordStored = `-- waiting.record_stored
insert into holdfast.stored_action (action, consumer, source, event_id, type, topic, key, letter, by, reason)
values ($1::text, $2::text, $3::text, $4::text, $5::text, $6::text, $7::text, $8::bigint, $9::text, $10::text)`

// wakeKey makes the head of a key's queue due if nothing holds it any more, under the lock of the key.
const wakeKey = `-- waiting.wake_key
update holdfast.stored s set next_at = clock_timestamp()
  from (select $1::text as consumer, $2::text as topic, $3::text as key) q
 where ` + waitroom.Woken

// cancelScheduled makes scheduled events dead letters that are discarded already, and returns how many. One that a relay is moving
// into the log is passed over: neither waits for the other. $1 lanes, $2 due times, $3 seqs, $4 the reason of the letters; $5 and $6
// say who does it, and why.
const cancelScheduled = `-- waiting.cancel_scheduled
with free as materialized (
  select f.ctid as row
    from unnest($1::smallint[], $2::timestamptz[], $3::bigint[]) u (lane, due_at, seq)
    join holdfast.scheduled f on f.lane = u.lane and f.due_at = u.due_at and f.seq = u.seq
     for update of f skip locked
), gone as (
  delete from holdfast.scheduled s where s.ctid = any (array(select f.row from free f)) returning s.*
), cancelled as (
  insert into holdfast.letter (origin, reason, fingerprint, state, event_id, source, type, topic, key, time, headers, payload, hash, lane)
  select 'relay', $4::text, g.type || ' cancelled by a person', 'discarded', g.id, g.source, g.type, g.topic, g.key, g.time, g.headers, g.payload,
         sha256(coalesce(g.payload, '')), g.lane
    from gone g
   order by g.due_at, g.seq
  returning id
), signed as (
  insert into holdfast.letter_action (letter, action, by, reason) select c.id, 'discard', $5::text, $6::text from cancelled c)
select count(*) from cancelled`

// whereIs says where an event is that is not scheduled any more. It reads all of the log, of what is parked and of letters.
const whereIs = `-- waiting.where_is
select case
         when exists (select from holdfast.scheduled s where s.id = $1::text and ($2::text = '' or s.source = $2::text) and s.due_at <= clock_timestamp()) then 'moving'
         when exists (select from holdfast.scheduled s where s.id = $1::text and ($2::text = '' or s.source = $2::text)) then 'scheduled'
         when exists (select from holdfast.parked p where p.id = $1::text and ($2::text = '' or p.source = $2::text)) then 'parked'
         when exists (select from holdfast.letter l where l.origin = 'relay' and l.event_id = $1::text and ($2::text = '' or l.source = $2::text)) then 'letter'
         when exists (select from holdfast.event e where e.id = $1::text and ($2::text = '' or e.source = $2::text)) then 'log'
         else '' end`

// pausePause pauses a topic, a consumer or a key; what is paused stays as it is.
const pausePause = `-- waiting.pause
insert into holdfast.pause (consumer, topic, key, by, reason)
values ($1::text, $2::text, $3::text, $4::text, $5::text)
on conflict do nothing`

const resumePause = `-- waiting.resume
delete from holdfast.pause p where p.consumer = $1::text and p.topic = $2::text and p.key = $3::text`

const listPaused = `-- waiting.paused
select p.consumer, p.topic, p.key, p.by, coalesce(p.login, ''), p.reason, p.at from holdfast.pause p order by p.consumer, p.topic, p.key`

const recordPause = `-- waiting.record_pause
insert into holdfast.pause_action (action, consumer, topic, key, by, reason)
values ($1::text, $2::text, $3::text, $4::text, $5::text, $6::text)`

// listConsumers names the consumers that have recorded or stored an event, or declared a type. It steps from one to the next by the
// primary keys of inbox and consumer_type, and by stored_age.
const listConsumers = `-- waiting.consumers
with recursive recorded as (
    (select i.consumer from holdfast.inbox i order by i.consumer limit 1)
    union all
    select n.consumer from recorded r, lateral (select i.consumer from holdfast.inbox i where i.consumer > r.consumer order by i.consumer limit 1) n
), storing as (
    (select s.consumer from holdfast.stored s where s.event_id <> '' order by s.consumer, s.first_at limit 1)
    union all
    select n.consumer from storing r, lateral (
           select s.consumer from holdfast.stored s where s.consumer > r.consumer and s.event_id <> '' order by s.consumer, s.first_at limit 1) n
), declaring as (
    (select t.consumer from holdfast.consumer_type t order by t.consumer limit 1)
    union all
    select n.consumer from declaring r, lateral (select t.consumer from holdfast.consumer_type t where t.consumer > r.consumer order by t.consumer limit 1) n
)
select consumer from recorded union select consumer from storing union select consumer from declaring order by consumer limit 1000`
