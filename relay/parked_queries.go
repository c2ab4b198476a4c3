package relay

// The statements over parked and scheduled events, and over the dead letters that hold keys.

// loadWaiting lists the queues of a lane: how many rows, whether they wait for their topic, and whether all are dormant.
const loadWaiting = `-- relay.waiting
select p.topic, p.key, count(*), bool_or(p.why = 'topic'), bool_and(p.next_at = 'infinity')
  from holdfast.parked p where p.lane = $1::smallint group by p.topic, p.key`

// loadHeld lists the keys that dead letters hold, and whether such a letter is being replayed by an event that is still in
// the log. A replay that has been parked is found by the primary key.
const loadHeld = `-- relay.held
select l.topic, l.key,
       bool_or(l.state = 'replaying' and not exists (
         select from holdfast.parked p
          where p.lane = l.lane and p.topic = l.topic and p.key = l.key and p.letter = l.letter))
  from holdfast.lane_hold l
 where l.lane = $1::smallint
 group by l.topic, l.key`

// parkEvents adds rows at the end of their queues, in the order of the arrays. A null delay means that the row waits for
// the one before it. $1 lane; $2... one array a column; $14 delays in seconds.
//
// A replayed event goes to the front: its place is made of its letter's id, far below what nextval gives the others. So
// every letter has a place, in whatever order they are replayed. There are 2^16 places for each letter, because the log can
// hold several replays of one letter, and Adopt has all of them read again.
const parkEvents = `-- relay.park
insert into holdfast.parked (lane, place, topic, key, why, attempts, errors, id, source, type, time, headers, payload, letter, next_at)
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
       case when u.delay is null then 'infinity' else now() + make_interval(secs => u.delay) end
  from unnest($2::text[], $3::text[], $4::text[], $5::integer[], $6::text[], $7::text[], $8::text[], $9::text[],
              $10::timestamptz[], $11::text[], $12::bytea[], $13::bigint[], $14::float8[]) with ordinality
       as u (topic, key, why, attempts, error, id, source, type, time, headers, payload, letter, delay, n)
 order by u.n`

// fixHead makes the first row of a queue due, unless it has a time of its own, and the others wait.
const fixHead = `-- relay.fix_head
update holdfast.parked p
   set next_at = case when p.place > head.place then 'infinity' when p.next_at = 'infinity' then now() else p.next_at end
  from (select min(h.place) as place from holdfast.parked h where h.lane = $1::smallint and h.topic = $2::text and h.key = $3::text) head
 where p.lane = $1::smallint and p.topic = $2::text and p.key = $3::text
   and (p.place = head.place or p.next_at < 'infinity')`

// closeLetters ends the replays that were acknowledged.
const closeLetters = `-- relay.close_letters
update holdfast.letter set state = 'replayed', last_at = now() where id = any ($1::bigint[]) and state = 'replaying'`

// readDue reads the heads that are due, found by parked_due, and after each the rows of its queue, so that a queue drains
// in few rounds.
// $1 lane, $2 topics that are held (left out), $3 rows of one queue, $4 queues.
const readDue = `-- relay.due
with head as (
  select p.topic, p.key, p.place from holdfast.parked p
   where p.lane = $1::smallint and p.next_at <= now() and p.next_at < 'infinity' and p.topic <> all ($2::text[])
   order by p.next_at limit $4::integer)
select q.place, q.topic, q.key, q.why, q.attempts, q.id, q.source, q.type, q.time, q.headers::text, q.payload, coalesce(q.letter, 0)
  from head, lateral (
    select p.* from holdfast.parked p
     where p.lane = $1::smallint and p.topic = head.topic and p.key = head.key and p.place >= head.place
     order by p.place
     limit case when head.key = '' then 1 else $3::integer end) q
 order by q.place`

// readProbe reads the one event with which a held topic is tried: the first of its oldest queue that no dead letter holds.
const readProbe = `-- relay.topic_probe
select p.place, p.topic, p.key, p.why, p.attempts, p.id, p.source, p.type, p.time, p.headers::text, p.payload, coalesce(p.letter, 0)
  from holdfast.parked p
 where p.lane = $1::smallint and p.topic = $2::text
   and (p.next_at < 'infinity' or not exists (
     select from holdfast.lane_hold h where h.lane = $1::smallint and h.topic = p.topic and h.key = p.key))
 order by p.place limit 1`

// deleteParked removes rows that were acknowledged. $2 topics, $3 keys, $4 places.
const deleteParked = `-- relay.unpark
delete from holdfast.parked p
 using unnest($2::text[], $3::text[], $4::bigint[]) as u (topic, key, place)
 where p.lane = $1::smallint and p.topic = u.topic and p.key = u.key and p.place = u.place`

// delayParked delays rows that were tried, with an attempt spent or not. $5 attempts to add, $6 errors, $7 seconds.
const delayParked = `-- relay.delay
update holdfast.parked p
   set attempts = p.attempts + u.attempts, next_at = now() + make_interval(secs => u.delay),
       why = case when u.attempts > 0 then 'record' else p.why end,
       errors = case when u.attempts = 0 and p.errors[cardinality(p.errors)] = u.error then p.errors
                     else holdfast.last_errors(p.errors || u.error) end
  from unnest($2::text[], $3::text[], $4::bigint[], $5::integer[], $6::text[], $7::float8[]) as u (topic, key, place, attempts, error, delay)
 where p.lane = $1::smallint and p.topic = u.topic and p.key = u.key and p.place = u.place`

// deadLetterParked turns a parked row into a dead letter, or reopens the letter whose replay it was, in one statement.
// $1 lane, $2 topic, $3 key, $4 place, $5 attempts to add, $6 error, $7 reason, $8 fingerprint, $9 holds.
const deadLetterParked = `-- relay.dead_letter
with gone as (
  delete from holdfast.parked p
   where p.lane = $1::smallint and p.topic = $2::text and p.key = $3::text and p.place = $4::bigint
  returning p.*
), reopened as (
  update holdfast.letter l
     set state = 'open', holds = $9::boolean, reason = $7::text, fingerprint = $8::text, last_at = now(),
         attempts = l.attempts + gone.attempts + $5::integer,
         errors = holdfast.last_errors(l.errors || gone.errors || $6::text)
    from gone where l.id = gone.letter
  returning l.id
)
insert into holdfast.letter (origin, reason, fingerprint, holds, event_id, source, type, topic, key, time, headers, payload, hash, lane, attempts, errors, first_at)
select 'relay', $7::text, $8::text, $9::boolean, g.id, g.source, g.type, g.topic, g.key, g.time, g.headers, g.payload,
       sha256(coalesce(g.payload, '')), g.lane, g.attempts + $5::integer,
       holdfast.last_errors(g.errors || $6::text), g.first_at
  from gone g
 where not exists (select from reopened)
returning id`

// publishLetter publishes a dead letter without its payload.
const publishLetter = `-- relay.publish_letter
select holdfast.publish_letter($1::bigint, $2::text, -1)`

// resumeQueues makes the first row of queues due, unless a dead letter holds them. $2 topics, $3 keys. It finds the holding
// letters by letter_holds.
const resumeQueues = `-- relay.resume_queues
update holdfast.parked p set next_at = now()
  from (select q.topic, q.key, f.place
          from unnest($2::text[], $3::text[]) as q (topic, key),
               lateral (select h.place from holdfast.parked h
                         where h.lane = $1::smallint and h.topic = q.topic and h.key = q.key order by h.place limit 1) f) first
 where p.lane = $1::smallint and p.topic = first.topic and p.key = first.key and p.place = first.place and p.next_at = 'infinity'
   and not exists (select from holdfast.lane_hold h where h.lane = $1::smallint and h.topic = p.topic and h.key = p.key)`

// resumeTopic makes the first row of each queue of a topic due, and every row without a key, unless a dead letter holds it.
const resumeTopic = `-- relay.resume_topic
update holdfast.parked p set next_at = now()
 where p.lane = $1::smallint and p.topic = $2::text and p.next_at = 'infinity'
   and (p.key = '' or p.place = (select min(h.place) from holdfast.parked h where h.lane = p.lane and h.topic = p.topic and h.key = p.key))
   and not exists (select from holdfast.lane_hold h where h.lane = $1::smallint and h.topic = p.topic and h.key = p.key)`

// moveScheduled appends events of a lane that are due to the log, by due time and then in the order they were written. It
// moves $2 at most, and stops after $3 bytes of payload: Postgres holds all of them in memory, and an array of 1 GiB is an
// error. It always moves the first. It returns how many it moved, and how many bytes. The database decides what is due. It
// runs after fenceLane in one transaction.
const moveScheduled = `-- relay.move_scheduled
with due as (
  delete from holdfast.scheduled s
   where (s.lane, s.due_at, s.seq) in (
     select f.lane, f.due_at, f.seq
       from (select d.lane, d.due_at, d.seq, coalesce(sum(octet_length(d.payload)) over
                      (order by d.due_at, d.seq rows between unbounded preceding and 1 preceding), 0) as before
               from (select s.* from holdfast.scheduled s
                      where s.lane = $1::smallint and s.due_at <= now()
                      order by s.due_at, s.seq limit $2::integer) d) f
      where f.before < $3::bigint)
  returning s.*
), batch as (
  select count(*) as events, coalesce(sum(octet_length(d.payload)), 0)::bigint as bytes, array_agg(d.id order by d.due_at, d.seq) as ids, array_agg(d.source order by d.due_at, d.seq) as sources,
         array_agg(d.type order by d.due_at, d.seq) as types, array_agg(d.topic order by d.due_at, d.seq) as topics,
         array_agg(d.key order by d.due_at, d.seq) as keys, array_agg(d.time order by d.due_at, d.seq) as times,
         array_agg(d.headers::text order by d.due_at, d.seq) as headers, array_agg(d.payload order by d.due_at, d.seq) as payloads
    from due d
)
select b.events, b.bytes from batch b,
       lateral (select case when b.events > 0 then holdfast.append(b.ids, b.sources, b.types, b.topics, b.keys, b.times, b.headers, b.payloads, null, null)::text end as appended) a
 where a.appended is null or a.appended = ''`
