package dlq

// The statements over what relays have parked. Those that change it run in a transaction that has taken the lane.

// listParked sums up what is parked, or of the topic $1 only. It reads all of that.
const listParked = `-- dlq.list_parked
select p.topic, p.why, count(*), count(distinct p.key) filter (where p.key <> ''),
       coalesce(sum(coalesce(octet_length(p.payload), 0) + coalesce(octet_length(p.headers::text), 0)), 0)::bigint, min(p.first_at),
       coalesce((max(array[to_char(p.first_at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US'), p.errors[cardinality(p.errors)]])
         filter (where cardinality(p.errors) > 0))[2], '')
  from holdfast.parked p
 where $1::text = '' or p.topic = $1::text
 group by p.topic, p.why
 order by p.topic, p.why`

// countParked counts the events of a topic ($1), or of one key of it ($2), by lane, in order of the lanes. $3 the one
// partition for which they wait, -1 for any.
const countParked = `-- dlq.count_parked
select p.lane, count(*) from holdfast.lane l join holdfast.parked p on p.lane = l.lane
 where p.topic = $1::text and ($2::text = '' or p.key = $2::text) and ($3::integer < 0 or p.partition = $3::integer)
 group by p.lane order by p.lane`

// boundParked is a place after everything that is parked now.
const boundParked = `-- dlq.bound_parked
select nextval('holdfast.parked_place')`

// askForLane makes the lane's owner hand it over, until the transaction ends. Relays look at the locks. It is false while
// another session asks for the lane.
const askForLane = `-- dlq.ask_for_lane
select pg_try_advisory_xact_lock($1::integer, $2::integer)`

// takeLane makes a lane nobody's that nobody owns now, and keeps its row until the transaction ends: a claim passes over it. The
// new epoch makes every statement fail of an owner whose lease has run out. In a transaction that waits, now() stands still.
const takeLane = `-- dlq.take_lane
update holdfast.lane l set owner = null, epoch = l.epoch + 1, lease_until = '-infinity'
 where l.lane = (select f.lane from holdfast.lane f
                  where f.lane = $1::smallint and (f.owner is null or f.lease_until < clock_timestamp())
                    for no key update skip locked)`

const readOwner = `-- dlq.lane_owner
select coalesce(l.owner, '') from holdfast.lane l where l.lane = $1::smallint`

// parkedBatch chooses the next rows of a topic in a lane, in order of key and place, by parked_pkey. $1 lane, $2 topic, $3 the one
// key, ” for all, $4 and $5 the key and the place after which to go on, $6 the place before which rows were parked when the
// command began, $7 rows at most, $8 bytes at most, but one row at least. The rows are found again by their place in the file: nobody
// else changes them.
const parkedBatch = `
with looked as materialized (
  select p.ctid as row, p.key, p.place, p.letter,
         coalesce(octet_length(p.payload), 0) + coalesce(octet_length(p.headers::text), 0) + pg_column_size(p.errors) as size
    from holdfast.parked p
   where p.lane = $1::smallint and p.topic = $2::text and ($3::text = '' or p.key = $3::text)
     and (p.key, p.place) > ($4::text, $5::bigint) and p.place < $6::bigint
   order by p.key, p.place limit $7::integer
), batch as materialized (
  select f.* from (
    select l.*, sum(l.size) over (order by l.key, l.place rows between unbounded preceding and 1 preceding) as before from looked l) f
   where f.before is null or f.before + f.size <= $8::bigint)`

// parkedDone says what became of a batch: how many rows there were, how many of them were changed, whether there may be more, the
// keys that were changed, and where to go on.
const parkedDone = `
select b.rows, c.rows, b.rows < (select count(*) from looked) or b.rows = $7::integer, coalesce(c.keys, '{}'),
       coalesce(last.key, $4::text), coalesce(last.place, $5::bigint)
  from (select count(*)::integer as rows from batch) b,
       (select count(*)::integer as rows, array_agg(distinct key) filter (where key <> '') as keys from changed) c
  left join (select key, place from batch order by key desc, place desc limit 1) last on true`

// giveUpParked makes a batch dead letters in the state $9, in order, or closes the letters whose replays they are in that state.
// $10 is the reason. If they are discarded, $11 and $12 say who does that, and why.
const giveUpParked = `-- dlq.give_up_parked` + parkedBatch + `, changed as (
  delete from holdfast.parked p where p.ctid = any (array(select b.row from batch b)) returning p.*
), again as (
  update holdfast.letter l
     set state = $9::text, reason = $10::text, last_at = now(), attempts = l.attempts + g.attempts, errors = holdfast.last_errors(l.errors || g.errors)
    from changed g where l.id = g.letter
  returning l.id
), new as (
  insert into holdfast.letter (origin, reason, fingerprint, state, event_id, source, type, topic, key, time, headers, payload, hash, lane, attempts, errors, first_at)
  select 'relay', $10::text, g.type || ' of a topic given up by a person', $9::text, g.id, g.source, g.type, g.topic, g.key, g.time, g.headers, g.payload,
         sha256(coalesce(g.payload, '')), g.lane, g.attempts, holdfast.last_errors(g.errors), g.first_at
    from changed g where g.letter is null or g.letter not in (select a.id from again a)
   order by g.key, g.place
  returning id
), signed as (
  insert into holdfast.letter_action (letter, action, by, reason)
  select l.id, 'discard', $11::text, $12::text from (select id from again union all select id from new) l where $9::text = 'discarded')` + parkedDone

// redirectParked makes a batch events of the topic $9, after all that is parked of that, in order. $10 is a note for their errors.
// A replay takes its letter along. A key stays that a dead letter holds, unless the letter's replay is in the batch.
const redirectParked = `-- dlq.redirect_parked` + parkedBatch + `, held as materialized (
  select distinct h.key from holdfast.lane_hold h
   where h.lane = $1::smallint and h.topic = $2::text and h.key = any (array(select b.key from batch b where b.key <> ''))
     and not exists (select from batch r where r.key = h.key and r.letter = h.letter)
), moves as (
  select m.*, nextval('holdfast.parked_place') as place
    from (select b.row, b.key, row_number() over (partition by b.key order by b.place) as n
            from batch b where b.key not in (select h.key from held h)
           order by b.key, b.place offset 0) m
), changed as (
  update holdfast.parked p
     set topic = $9::text, place = m.place, why = 'follows', partition = null, attempts = 0, errors = holdfast.last_errors(p.errors || $10::text),
         next_at = case when m.key = '' or m.n = 1
                         and not exists (select from holdfast.parked u where u.lane = $1::smallint and u.topic = $9::text and u.key = m.key)
                         and (p.letter is not null or not exists (
                           select from holdfast.lane_hold h where h.lane = $1::smallint and h.topic = $9::text and h.key = m.key))
                        then now() else 'infinity' end
    from moves m where p.ctid = m.row
  returning p.key, p.letter
), letters as (
  update holdfast.letter l set topic = $9::text, errors = holdfast.last_errors(l.errors || $10::text)
    from changed c where l.id = c.letter and l.state = 'replaying')` + parkedDone

// resumeParked makes the first row of queues due, unless it waits for its topic or partition, or a dead letter holds it. $2 topic,
// $3 keys, $4 and $5 the last key and place of the batch: nothing is left before it, so what was there need not be read again. The
// rows are found again by their place in the file: else the planner, which knows nothing of a new table, looks for the first row
// of a queue once for each of its rows.
const resumeParked = `-- dlq.resume_parked
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
