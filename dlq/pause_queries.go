package dlq

// The statements over what is paused, and over what is done besides to what waits.

// pausePause pauses a topic, a consumer or a key; what is paused stays as it is.
const pausePause = `-- dlq.pause
insert into holdfast.pause (consumer, topic, key, by, reason)
values ($1::text, $2::text, $3::text, $4::text, $5::text)
on conflict do nothing`

const resumePause = `-- dlq.resume
delete from holdfast.pause p where p.consumer = $1::text and p.topic = $2::text and p.key = $3::text`

const listPaused = `-- dlq.paused
select p.consumer, p.topic, p.key, p.by, coalesce(p.login, ''), p.reason, p.at from holdfast.pause p order by p.consumer, p.topic, p.key`

const recordPause = `-- dlq.record_pause
insert into holdfast.pause_action (action, consumer, topic, key, by, reason)
values ($1::text, $2::text, $3::text, $4::text, $5::text, $6::text)`

// retryParked makes the heads of a topic ($2), or of one key of it ($3), due that wait for their next attempt, in a lane that was
// taken. $4 the one partition, -1 for any. By parked_due.
const retryParked = `-- dlq.retry_parked
update holdfast.parked p set next_at = now()
 where p.lane = $1::smallint and p.topic = $2::text and ($3::text = '' or p.key = $3::text) and ($4::integer < 0 or p.partition = $4::integer)
   and p.next_at > now() and p.next_at < 'infinity'`

// countRetry counts what retryParked would make due.
const countRetry = `-- dlq.count_retry
select count(*) from holdfast.parked p
 where p.lane = $1::smallint and p.topic = $2::text and ($3::text = '' or p.key = $3::text) and ($4::integer < 0 or p.partition = $4::integer)
   and p.next_at > now() and p.next_at < 'infinity'`

// listConsumers names the consumers that have recorded or stored an event, or declared a type. It steps from one to the next by the
// primary keys of inbox and consumer_type, and by stored_age.
const listConsumers = `-- dlq.consumers
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

// topicIsPaused says whether relays would not try what is parked of a topic.
const topicIsPaused = `-- dlq.topic_is_paused
select exists (select from holdfast.pause p where p.consumer = '' and p.topic = $1::text)`

// listScheduled reads a page of scheduled events, those first that are due first. Of each lane it reads as many as the page has, by
// the primary key. $1 to $5 the filter, where empty matches any; $6 and $7 the event after which to continue; $8 how many.
const listScheduled = `-- dlq.list_scheduled
select f.* from holdfast.lane l, lateral (
       select s.lane, s.due_at, s.seq, s.id, s.source, s.type, s.topic, s.key, s.time
         from holdfast.scheduled s
        where s.lane = l.lane
          and ($1::text = '' or s.topic = $1::text)
          and ($2::text = '' or s.key = $2::text)
          and ($3::text = '' or s.type = $3::text)
          and ($4::text = '' or s.source = $4::text)
          and ($5::text = '' or s.id = $5::text)
          and (s.due_at, s.seq) > (coalesce($6::timestamptz, '-infinity'), $7::bigint)
        order by s.due_at, s.seq limit $8::integer) f
 order by f.due_at, f.seq
 limit $8::integer`

// cancelScheduled makes scheduled events dead letters that are discarded already, and returns how many. One that a relay is moving
// into the log is passed over: neither waits for the other. $1 lanes, $2 due times, $3 seqs, $4 the reason of the letters; $5 and $6
// say who does it, and why.
const cancelScheduled = `-- dlq.cancel_scheduled
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
const whereIs = `-- dlq.where_is
select case
         when exists (select from holdfast.scheduled s where s.id = $1::text and ($2::text = '' or s.source = $2::text)) then 'moving'
         when exists (select from holdfast.parked p where p.id = $1::text and ($2::text = '' or p.source = $2::text)) then 'parked'
         when exists (select from holdfast.letter l where l.origin = 'relay' and l.event_id = $1::text and ($2::text = '' or l.source = $2::text)) then 'letter'
         when exists (select from holdfast.event e where e.id = $1::text and ($2::text = '' or e.source = $2::text)) then 'log'
         else '' end`

// showStored reads all of a consumer's stored events of an id, and a source unless $3 is empty, by the unique constraint that begins
// with the id. $4 with payloads.
const showStored = `-- dlq.show_stored
select s.consumer, s.topic, s.key, s.place, s.source, s.event_id, s.type, s.time, e.head, s.lease_until > now(), e.handled, e.paused, s.attempts,
       coalesce(s.errors[cardinality(s.errors)], ''), s.first_at, nullif(s.next_at, 'infinity'), coalesce(s.letter, 0),
       array(select t from unnest(s.errors) t where t is not null), s.failed_at, coalesce(s.partition, -1), coalesce(s."offset", -1), s.headers::text,
       case when $4::boolean then s.payload end, coalesce(octet_length(s.payload), -1)
  from holdfast.stored s
 cross join lateral (
       select s.key = '' or not exists (select from holdfast.stored h
                                         where h.consumer = s.consumer and h.topic = s.topic and h.key = s.key and h.place < s.place) as head,
              exists (select from holdfast.consumer_type t
                       where t.consumer = s.consumer and t.type = s.type and t.seen_until > now()) as handled,
              exists (select from holdfast.pause p
                       where p.consumer = s.consumer and (p.topic = '' or p.topic = s.topic and p.key = s.key)) as paused) e
 where s.event_id = $2::text and s.consumer = $1::text and ($3::text = '' or s.source = $3::text)
 order by s.source
 limit 100`
