package relay

import "github.com/holdfast-go/holdfast/internal/sqlschema"

// The statements over parked and scheduled events, and over the dead letters that hold keys.

// listQueues lists the queues of a lane ($1) in order, $2 at most, from topic $3 and key $4 on, and whether the first row of each would never
// fall due: it neither has a time nor waits for its topic or partition, whose return makes it due. It hops through parked_pkey from one
// queue to the next, so that long ones cost no more.
const listQueues = `-- relay.list_queues
with recursive q as (
  (select ` + queueHead + ` where p.lane = $1::smallint and (p.topic, p.key) >= ($3::text, $4::text) order by p.topic, p.key, p.place limit 1)
  union all
  select n.* from q, lateral (
    select ` + queueHead + ` where p.lane = $1::smallint and (p.topic, p.key) > (q.topic, q.key) order by p.topic, p.key, p.place limit 1) n)
select l.topic, l.key, l.dormant from (select q.topic, q.key, q.dormant from q limit $2::integer) l order by l.topic, l.key`

const queueHead = `p.topic, p.key, p.next_at = 'infinity' and p.partition is null and p.why <> 'topic' as dormant from holdfast.parked p`

// keylessGone are those of some topics ($2) of which no row without a key is left.
const keylessGone = `-- relay.keyless_gone
select t.topic from unnest($2::text[]) as t (topic)
 where (select p.place from holdfast.parked p where p.lane = $1::smallint and p.topic = t.topic and p.key = '' order by p.place limit 1) is null`

// loadHolds lists the topics (-2) and partitions for which parked events wait. It hops through parked_holds.
const loadHolds = `-- relay.holds
with recursive h as (
  (select p.topic, coalesce(p.partition, -2) as partition from holdfast.parked p
    where p.lane = $1::smallint and (p.partition is not null or p.why = 'topic')
    order by p.topic, coalesce(p.partition, -2) limit 1)
  union all
  select n.topic, n.partition
    from h, lateral (
      select p.topic, coalesce(p.partition, -2) as partition from holdfast.parked p
       where p.lane = $1::smallint and (p.partition is not null or p.why = 'topic')
         and (p.topic, coalesce(p.partition, -2)) > (h.topic, h.partition)
       order by p.topic, coalesce(p.partition, -2) limit 1) n)
select h.topic, h.partition from h`

// loadHeld lists the keys that dead letters hold.
const loadHeld = `-- relay.held
select distinct l.topic, l.key from holdfast.lane_hold l where l.lane = $1::smallint`

// parkEvents adds rows at the end of their queues, in the order of the arrays. A row that heads its queue is due after its delay; one
// behind another, or behind a dead letter that holds its key, waits for that. The statement looks for itself: the lane only knows what may be
// before a row. A row without a delay waits in any case: for its topic, its partition or a letter of the same transaction, or for fixHead. It
// returns the places of the rows in that order. $1 lane; $2... one array a column; $14 delays in seconds; $15 the partitions that are
// waited for.
//
// A replayed event goes to the front: its place is made of its letter's id, far below what nextval gives the others. So
// every letter has a place, in whatever order they are replayed. There are 2^16 places for each letter, because the log can
// hold several replays of one letter, and Adopt has all of them read again.
const parkEvents = `-- relay.park
insert into holdfast.parked (lane, place, topic, key, why, attempts, errors, id, source, type, time, headers, payload, letter, next_at, partition)
select $1::smallint,
       case when u.letter = 0 then nextval('holdfast.parked_place')
            else coalesce((select max(p.place) + 1 from holdfast.parked p
                            where p.lane = $1::smallint and p.topic = u.topic and p.key = u.key
                              and p.place >= (u.letter << 16) - (1::bigint << 62)
                              and p.place < ((u.letter + 1) << 16) - (1::bigint << 62)),
                          (u.letter << 16) - (1::bigint << 62))
                 + row_number() over (partition by u.topic, u.key, u.letter order by u.n) - 1 end,
       u.topic, u.key, u.why, u.attempts,
       case when u.error = '' then '{}' else array[u.error] end,
       u.id, u.source, u.type, u.time, u.headers::jsonb, u.payload, nullif(u.letter, 0),
       case when u.delay is null or u.key <> '' and (
                   row_number() over (partition by u.topic, u.key order by u.n) > 1
                or (select p.place from holdfast.parked p where p.lane = $1::smallint and p.topic = u.topic and p.key = u.key order by p.place limit 1) is not null
                or u.letter = 0 and exists (select from holdfast.lane_hold h where h.lane = $1::smallint and h.topic = u.topic and h.key = u.key offset 0))
            then 'infinity' else now() + make_interval(secs => u.delay) end, u.partition
  from unnest($2::text[], $3::text[], $4::text[], $5::integer[], $6::text[], $7::text[], $8::text[], $9::text[],
              $10::timestamptz[], $11::text[], $12::bytea[], $13::bigint[], $14::float8[], $15::integer[]) with ordinality
       as u (topic, key, why, attempts, error, id, source, type, time, headers, payload, letter, delay, partition, n)
 order by u.n
returning place`

// fixHead makes the first row of a queue due, unless it has a time of its own, and the others wait.
const fixHead = `-- relay.fix_head
update holdfast.parked p
   set next_at = case when p.place = head.place then now() else 'infinity' end
  from (select min(h.place) as place from holdfast.parked h where h.lane = $1::smallint and h.topic = $2::text and h.key = $3::text) head
 where p.lane = $1::smallint and p.topic = $2::text and p.key = $3::text
   and (p.place = head.place) = (p.next_at = 'infinity')`

// leaseParked says that the lane has rows in memory: queues, whose place is 0, or rows without a key. $2 topics, $3 keys, $4 places.
const leaseParked = `-- relay.lease
insert into holdfast.parked_lease (lane, topic, key, place)
select $1::smallint, u.topic, u.key, u.place from unnest($2::text[], $3::text[], $4::bigint[]) as u (topic, key, place)
    on conflict do nothing`

// unflushed has a transaction that writes nothing but leases not wait for the disk: a crash empties their table.
const unflushed = `-- relay.unflushed
set local synchronous_commit = off`

// endLeases ends them. It finds each by parked_lease_pkey, as the statements below find rows.
const endLeases = `-- relay.end_leases
delete from holdfast.parked_lease p
 where p.ctid = any (array(
  select f.row from unnest($2::text[], $3::text[], $4::bigint[]) as u (topic, key, place), lateral (
    select h.ctid as row from holdfast.parked_lease h
     where h.lane = $1::smallint and h.topic = u.topic and h.key = u.key and h.place = u.place limit 1) f))`

// closeLetters ends the replays that were acknowledged.
const closeLetters = `-- relay.close_letters
update holdfast.letter set state = 'replayed', last_at = now() where id = any ($1::bigint[]) and state = 'replaying'`

// sizedParked and sizedParkedEnd enclose rows of parked events, and keep back what is too large, as sizedRows does for the log.
// Topic and key are whole: they name the row, and an index has them.
const (
	sizedParked = `
select r.place, r.topic, r.key, r.why, greatest(r.attempts, 0), case when r.texts <= ` + sqlschema.MaxTexts + ` then r.id else left(r.id, 100) end,
       case when r.texts <= ` + sqlschema.MaxTexts + ` then r.source else left(r.source, 100) end, case when r.texts <= ` + sqlschema.MaxTexts + ` then r.type else left(r.type, 100) end, r.time,
       case when octet_length(r.json) <= ` + sqlschema.MaxHeaders + ` then r.json end, case when r.malformed is null then r.payload end, coalesce(r.letter, 0),
       case when octet_length(r.json) > ` + sqlschema.MaxHeaders + ` then format('headers have %s bytes of JSON: at most ` + sqlschema.MaxHeaders + `', octet_length(r.json)) else r.malformed end
  from (select w.*, case when w.malformed is null then w.headers::text end as json
  from (select v.*, case
          when v.texts > ` + sqlschema.MaxTexts + ` then format('id, source and type have %s bytes together: at most ` + sqlschema.MaxTexts + `', v.texts)
          when octet_length(v.payload) > ` + sqlschema.MaxPayload + ` then format('payload has %s bytes: at most ` + sqlschema.MaxPayload + `', octet_length(v.payload))
          when pg_column_size(v.headers) > ` + sqlschema.MaxStoredHeaders + ` then format('headers have %s bytes as they are stored: at most ` + sqlschema.MaxStoredHeaders + `', pg_column_size(v.headers)) end as malformed
  from (select n.*, octet_length(n.id) + octet_length(n.source) + octet_length(n.type) as texts from (`
	sizedParkedEnd = `) n offset 0) v offset 0) w offset 0) r`
)

// dueHead are the heads that are due, and since when: one of each queue. It finds them by parked_due, without what is in memory already. $1 lane,
// $2 topics that are held (left out), $3 how many, $4 to $6 topics, keys and places in memory: a key stands for its queue, a place for an
// event without a key. They are hashed, as subqueries of their own.
const dueHead = `
with due as (
  select p.topic, p.key, p.place, p.next_at from holdfast.parked p
   where p.lane = $1::smallint and p.next_at <= now() and p.next_at < 'infinity' and p.topic <> all ($2::text[])
     and (p.topic, p.key) not in (
       select m.topic, m.key from unnest($4::text[], $5::text[]) as m (topic, key) where m.key <> '')
     and (p.key <> '' or (p.topic, p.place) not in (
       select m.topic, m.place from unnest($4::text[], $5::text[], $6::bigint[]) as m (topic, key, place) where m.key = ''))
   order by p.next_at limit $3::integer
), head as (
  select d.topic, d.key, min(d.place) as place, min(d.next_at) as since from due d group by d.topic, d.key, case when d.key = '' then d.place end)`

// drained, ofBytes and drainedEnd enclose how many rows are read at most, and after how many bytes no more. Every queue has the same share of
// the rows: a few queues drain in few rounds, however long they are, and of many not much is read that there is no room for. The heads come
// first, in the order in which they fell due, then the second row of each queue, and so on: a queue with a long backlog keeps no other out of
// a statement or a call. Within a queue that is the order of place.
const (
	drained = sizedParked + `
    select d.* from (
      select q.*, sum(coalesce(octet_length(q.payload), 0)
                      + coalesce(case when pg_column_compression(q.headers) is null or pg_column_size(q.headers) > ` + sqlschema.MaxStoredHeaders + ` then pg_column_size(q.headers) else octet_length(q.headers::text) end, 0)
                      + octet_length(q.id) + octet_length(q.source) + octet_length(q.type) + octet_length(q.topic) + octet_length(q.key))
                 over (order by q.nth, q.since, q.place rows between unbounded preceding and 1 preceding) as before
        from head, lateral (
          select p.*, row_number() over (order by p.place) as nth, head.since from holdfast.parked p
           where p.lane = $1::smallint and p.topic = head.topic and p.key = head.key and p.place >= head.place
             and p.place <= case when head.key = '' then head.place else 9223372036854775807 end
           order by p.place
           limit case when head.key = '' then 1 else greatest(`
	ofBytes = `::integer / (select count(*) from head)::integer, 1) end) q) d
     where coalesce(d.before, 0) < `
	drainedEnd = `::bigint` + sizedParkedEnd + `
 order by r.nth, r.since, r.place`
)

// readDue reads the heads that are due, and after each the rows of its queue, so that a queue drains in few rounds. It stops
// after $8 bytes of payloads, headers and texts, but reads one row at least. Only headers that are compressed are read for
// that. $1 to $6 are dueHead's, $7 rows, which the queues share: one of each at least.
const readDue = `-- relay.due` + dueHead + drained + `$7` + ofBytes + `$8` + drainedEnd

// listDue lists the heads that readDue reads, without their events: for when it fails. $1 to $6 are dueHead's.
const listDue = `-- relay.list_due` + dueHead + `
select head.topic, head.key, head.place from head order by head.since, head.place`

// readHeads is readDue of given heads, as if they had fallen due in the order in which they are given. $1 lane, $2 topics, $3 keys, $4 places,
// $5 rows, $6 bytes.
const readHeads = `-- relay.due_of
with head as (
  select u.topic, u.key, u.place, u.since from unnest($2::text[], $3::text[], $4::bigint[]) with ordinality as u (topic, key, place, since))` + drained + `$5` + ofBytes + `$6` + drainedEnd

// named is what a row of parked events is, as far as that can be read without payload and headers.
const named = `
select n.place, n.topic, n.key, greatest(n.attempts, 0), case when octet_length(n.id) <= 255 then n.id else '' end,
       case when octet_length(n.type) <= 255 then n.type else '' end, coalesce(n.letter, 0)
  from holdfast.parked n`

// nameHead names the first row of a queue from a place on. $1 lane, $2 topic, $3 key, $4 place.
const nameHead = `-- relay.name_head` + named + `
 where n.lane = $1::smallint and n.topic = $2::text and n.key = $3::text and n.place >= $4::bigint
 order by n.place limit 1`

// nameWaiting names the first row that waits for a topic or a partition, or with $5 the first that readProbe reads. $3 partition,
// -2 for the topic; $4 a place, or null: those up to it are left out.
const nameWaiting = `-- relay.name_waiting` + named + `
 where n.lane = $1::smallint and n.topic = $2::text and coalesce(n.partition, -2) = $3::integer and (n.partition is not null or n.why = 'topic')
   and ($4::bigint is null or n.place > $4::bigint)
   and (not $5::boolean
     or (n.key = '' or not exists (
          select from holdfast.parked b where b.lane = n.lane and b.topic = n.topic and b.key = n.key and b.place < n.place))
        and (n.letter is not null or not exists (
          select from holdfast.lane_hold h where h.lane = $1::smallint and h.topic = n.topic and h.key = n.key)))
 order by n.place limit 1`

// readProbe reads the one event with which a held topic or partition is tried: the first after a place that waits for it, heads a
// queue and is not held by a dead letter. No letter holds back a replay. $3 partition, -2 for the topic; $4 place.
const readProbe = `-- relay.probe_held` + sizedParked + `
    select p.*
      from holdfast.parked p
     where p.lane = $1::smallint and p.topic = $2::text and coalesce(p.partition, -2) = $3::integer and (p.partition is not null or p.why = 'topic')
       and p.place > $4::bigint
       and (p.key = '' or not exists (
         select from holdfast.parked b where b.lane = p.lane and b.topic = p.topic and b.key = p.key and b.place < p.place))
       and (p.letter is not null or not exists (
         select from holdfast.lane_hold h where h.lane = $1::smallint and h.topic = p.topic and h.key = p.key))
     order by p.place limit 1` + sizedParkedEnd + `
 order by r.place`

// The statements that change rows of the lane find each by parked_pkey, and then again by its place in the file, which no command
// changes meanwhile: fenceLane has its lock. In a table that nobody has analyzed the planner would rather read all rows of the lane, or all
// of a long queue again for each of its rows.

// holdParked makes rows wait until their topic or partition takes events again. $2 topics, $3 keys, $4 places, $5 partitions,
// null for the whole topic.
const holdParked = `-- relay.hold
with found as materialized (
  select f.row, u.partition from unnest($2::text[], $3::text[], $4::bigint[], $5::integer[]) as u (topic, key, place, partition), lateral (
    select h.ctid as row from holdfast.parked h
     where h.lane = $1::smallint and h.topic = u.topic and h.key = u.key and h.place = u.place limit 1) f)
update holdfast.parked p
   set next_at = 'infinity', partition = u.partition, why = case when u.partition is null then 'topic' else p.why end
  from found u where p.ctid = u.row`

// deleteParked removes rows that were acknowledged. $2 topics, $3 keys, $4 places.
const deleteParked = `-- relay.unpark
delete from holdfast.parked p
 where p.ctid = any (array(
  select f.row from unnest($2::text[], $3::text[], $4::bigint[]) as u (topic, key, place), lateral (
    select h.ctid as row from holdfast.parked h
     where h.lane = $1::smallint and h.topic = u.topic and h.key = u.key and h.place = u.place limit 1) f))`

// delayParked delays rows that were tried, with an attempt spent or not. Errors are made a list of texts: an array of Postgres
// may also have two dimensions, or nulls. A row that a replay has passed while it was tried waits for that one, which fixHead has
// made due. $5 attempts to add, $6 errors, $7 seconds.
const delayParked = `-- relay.delay
with found as materialized (
  select f.row, u.attempts, u.error, u.delay
    from unnest($2::text[], $3::text[], $4::bigint[], $5::integer[], $6::text[], $7::float8[]) as u (topic, key, place, attempts, error, delay), lateral (
    select h.ctid as row from holdfast.parked h
     where h.lane = $1::smallint and h.topic = u.topic and h.key = u.key and h.place = u.place limit 1) f)
update holdfast.parked p
   set attempts = least(greatest(p.attempts, 0)::bigint + u.attempts, 2147483647)::integer,
       next_at = case when p.key <> '' and exists (
         select from holdfast.parked b where b.lane = p.lane and b.topic = p.topic and b.key = p.key and b.place < p.place and b.letter is not null)
         then 'infinity' else now() + make_interval(secs => u.delay) end,
       why = case when u.attempts > 0 then 'record' else p.why end,
       errors = case when u.attempts = 0 and p.errors[cardinality(p.errors)] = u.error then p.errors
                     else holdfast.last_errors(array(select t from unnest(p.errors) t where t is not null) || u.error) end
  from found u where p.ctid = u.row`

// deadLetterParked turns a parked row into a dead letter, or reopens the letter whose replay it was, in one statement: that holds its key if it
// did before. It returns the letter, or nothing if there is no such row.
// $1 lane, $2 topic, $3 key, $4 place, $5 attempts to add, $6 error, $7 reason, $8 fingerprint, $9 holds.
const deadLetterParked = `-- relay.dead_letter
with gone as (
  delete from holdfast.parked p
   where p.lane = $1::smallint and p.topic = $2::text and p.key = $3::text and p.place = $4::bigint
  returning p.*
), reopened as (
  update holdfast.letter l
     set state = 'open', reason = $7::text, fingerprint = $8::text, last_at = now(),
         attempts = least(l.attempts::bigint + greatest(gone.attempts, 0) + $5::integer, 2147483647)::integer,
         errors = holdfast.last_errors(array(select t from unnest(l.errors) t where t is not null) || array(select t from unnest(gone.errors) t where t is not null) || $6::text)
    from gone where l.id = gone.letter
  returning l.id
), new as (
  insert into holdfast.letter (origin, reason, fingerprint, holds, event_id, source, type, topic, key, time, headers, payload, hash, lane, attempts, errors, first_at)
  select 'relay', $7::text, $8::text, $9::boolean, g.id, g.source, g.type, g.topic, g.key, g.time, g.headers, g.payload,
         sha256(coalesce(g.payload, '')), g.lane, least(greatest(g.attempts, 0)::bigint + $5::integer, 2147483647)::integer,
         holdfast.last_errors(array(select t from unnest(g.errors) t where t is not null) || $6::text), g.first_at
    from gone g
   where not exists (select from reopened)
  returning id)
select id from reopened union all select id from new`

// deadLetterEvents makes dead letters of events of a window that cannot be published, or reopens the letters that they replay, which hold
// their keys if they did before. It
// returns of each its seq, the letter, and where it is. It reads no more of the row than Postgres needs to copy it. $1 lane, $2
// done, $3 upto, $4 seqs, $5 reasons, $6 fingerprints, $7 holds.
const deadLetterEvents = `-- relay.dead_letter_events
with gone as materialized (
  select e.*, e.tableoid::regclass::text as segment, b.reason, b.fingerprint, b.holds, row_number() over (order by e.seq) as n
    from unnest($4::bigint[], $5::text[], $6::text[], $7::boolean[]) as b (of, reason, fingerprint, holds), holdfast.event e
   where e.lane = $1::smallint and e.seq = b.of
     and e.xid >= pg_snapshot_xmin($2::text::pg_snapshot)
     and e.xid < pg_snapshot_xmax($3::text::pg_snapshot)
     and pg_visible_in_snapshot(e.xid, $3::text::pg_snapshot) and not pg_visible_in_snapshot(e.xid, $2::text::pg_snapshot)
), reopened as (
  update holdfast.letter l
     set state = 'open', reason = g.reason, fingerprint = g.fingerprint, last_at = now(), errors = holdfast.last_errors(l.errors || g.reason)
    from gone g
   where l.id = g.letter and l.origin = 'relay' and l.state = 'replaying' and l.event_id = g.id and l.topic = g.topic
  returning l.id
), given as (
  select g.*, r.id as reopened, count(*) filter (where r.id is null) over (order by g.n) as k
    from gone g left join reopened r on r.id = g.letter
), buried as (
  insert into holdfast.letter (origin, reason, fingerprint, holds, event_id, source, type, topic, key, time, headers, payload, hash, lane, errors)
  select 'relay', g.reason, g.fingerprint, g.holds, g.id, g.source, g.type, g.topic, g.key, g.time, g.headers, g.payload,
         sha256(coalesce(g.payload, '')), g.lane, array[format('%s, xid %s, seq %s: %s', g.segment, g.xid, g.seq, g.reason)]
    from given g where g.reopened is null
   order by g.n
  returning id)
select g.seq, coalesce(g.reopened, i.id), g.segment, g.xid::text
  from given g left join (select b.id, row_number() over (order by b.id) as k from buried b) i on i.k = g.k
 order by g.n`

// publishLetter publishes a dead letter without its payload. Headers that are no object, or are very large, cannot go with it.
const publishLetter = `-- relay.publish_letter
select case when jsonb_typeof(l.headers) <> 'object' then format('its headers are a JSON %s', jsonb_typeof(l.headers))
            when pg_column_size(l.headers) > ` + sqlschema.MaxStoredHeaders + ` then format('its headers have %s bytes', pg_column_size(l.headers))
            else holdfast.publish_letter(l.id, $2::text, -1) end
  from holdfast.letter l where l.id = $1::bigint`

// resumeQueues makes the first row of queues due, unless a dead letter holds them, and returns the queues that have no row. No letter holds
// back a replay. $2 topics, $3 keys. It finds the holding letters by letter_holds.
const resumeQueues = `-- relay.resume_queues
with first as materialized (
  select q.topic, q.key, f.* from unnest($2::text[], $3::text[]) as q (topic, key) left join lateral (
    select h.ctid as row, h.next_at, h.letter from holdfast.parked h
     where h.lane = $1::smallint and h.topic = q.topic and h.key = q.key order by h.place limit 1) f on true
), resumed as (
  update holdfast.parked p set next_at = now()
   where p.ctid = any (array(
     select f.row from first f
      where f.next_at = 'infinity'
        and (f.letter is not null or not exists (
          select from holdfast.lane_hold h where h.lane = $1::smallint and h.topic = f.topic and h.key = f.key)))))
select f.topic, f.key from first f where f.row is null`

// resumeHeld ends the wait of events for their topic or partition, in the order in which they were parked, $4 at most, and
// returns of how many. Those that head a queue are due then, unless a dead letter holds it. $3 partition, -2 for the topic; $5 a
// place, or null: those up to it are left out. The rows are found again by their place in the file: whatever the planner
// believes of the table, that is a lookup each.
const resumeHeld = `-- relay.resume_held
with waits as materialized (
  select w.ctid as row, w.key = '' or w.place = first.place as heads,
         w.letter is null and exists (
           select from holdfast.lane_hold h where h.lane = $1::smallint and h.topic = w.topic and h.key = w.key) as held
    from holdfast.parked w, lateral (
      select f.place from holdfast.parked f where f.lane = w.lane and f.topic = w.topic and f.key = w.key order by f.place limit 1) first
   where w.lane = $1::smallint and w.topic = $2::text and coalesce(w.partition, -2) = $3::integer and (w.partition is not null or w.why = 'topic')
     and ($5::bigint is null or w.place > $5::bigint)
   order by w.place limit $4::integer
), resumed as (
  update holdfast.parked p
     set partition = null, why = case when p.why in ('topic', 'partition') then 'follows' else p.why end,
         next_at = case when p.next_at = 'infinity' and waits.heads and not waits.held then now() else p.next_at end
    from waits
   where p.ctid = waits.row)
select count(*) from waits`
