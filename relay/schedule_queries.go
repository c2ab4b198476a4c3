package relay

import "github.com/holdfast-go/holdfast/internal/sqlschema"

// The statements that move scheduled events into the log.

// scheduledBytes is what a scheduled event s takes.
const scheduledBytes = `coalesce(octet_length(s.payload), 0) + coalesce(octet_length(s.headers::text), 0)
         + octet_length(s.id) + octet_length(s.source) + octet_length(s.type) + octet_length(s.topic) + octet_length(s.key)`

// moveScheduled appends events of a lane that are due to the log, by due time and then in the order they were written. It
// moves $2 at most, and stops after $3 bytes of payloads, headers and texts: Postgres holds all of them in memory, and an array of 1 GiB is an
// error. It always moves the first, unless $4 is the seq of another. It returns how many it moved, and how many bytes. The database decides what is due. It
// runs after fenceLane in one transaction.
const moveScheduled = `-- relay.move_scheduled
with due as (
  delete from holdfast.scheduled s
   where (s.lane, s.due_at, s.seq) in (
     select f.lane, f.due_at, f.seq
       from (select d.lane, d.due_at, d.seq, coalesce(sum(d.size) over
                      (order by d.due_at, d.seq rows between unbounded preceding and 1 preceding), 0) as before
               from (select s.lane, s.due_at, s.seq,
                            ` + scheduledBytes + ` as size
                       from holdfast.scheduled s
                      where s.lane = $1::smallint and s.due_at <= now()
                      order by s.due_at, s.seq limit $2::integer) d) f
      where f.before < $3::bigint and ($4::bigint is null or f.seq = $4::bigint))
  returning s.*
), batch as (
  select count(*) as events,
         coalesce(sum(` + scheduledBytes + `), 0)::bigint as bytes,
         array_agg(s.id order by s.due_at, s.seq) as ids, array_agg(s.source order by s.due_at, s.seq) as sources,
         array_agg(s.type order by s.due_at, s.seq) as types, array_agg(s.topic order by s.due_at, s.seq) as topics,
         array_agg(s.key order by s.due_at, s.seq) as keys, array_agg(s.time order by s.due_at, s.seq) as times,
         array_agg(s.headers::text order by s.due_at, s.seq) as headers, array_agg(s.payload order by s.due_at, s.seq) as payloads
    from due s
)
select b.events, b.bytes from batch b,
       lateral (select case when b.events > 0 then holdfast.append_unchecked(b.ids, b.sources, b.types, b.topics, b.keys, b.times, b.headers, b.payloads, null, null)::text end as appended) a
 where a.appended is null or a.appended = ''`

// nameScheduled names the event of a lane that is due first.
const nameScheduled = `-- relay.name_scheduled
select s.seq from holdfast.scheduled s where s.lane = $1::smallint and s.due_at <= now() order by s.due_at, s.seq limit 1`

// deadLetterScheduled makes a dead letter of the event of a lane that is due first, if $4 is its seq; where $4 is null, of the first that is
// too large to be published, among the first 1,000. $1 lane, $2 reason, $3 fingerprint.
const deadLetterScheduled = `-- relay.dead_letter_scheduled
with gone as (
  delete from holdfast.scheduled s
   where (s.lane, s.due_at, s.seq) in (
     select d.lane, d.due_at, d.seq
       from (select f.* from holdfast.scheduled f where f.lane = $1::smallint and f.due_at <= now() order by f.due_at, f.seq
              limit case when $4::bigint is null then 1000 else 1 end) d
      where d.seq = $4::bigint or $4::bigint is null and (octet_length(d.payload) > ` + sqlschema.MaxPayload + ` or pg_column_size(d.headers) > ` + sqlschema.MaxStoredHeaders + `)
      order by d.due_at, d.seq limit 1)
  returning s.*
), buried as (
  insert into holdfast.letter (origin, reason, fingerprint, event_id, source, type, topic, key, time, headers, payload, hash, lane, errors)
  select 'relay', $2::text, $3::text, g.id, g.source, g.type, g.topic, g.key, g.time, g.headers, g.payload,
         sha256(coalesce(g.payload, '')), g.lane, array[format('scheduled for %s, seq %s: %s', g.due_at, g.seq, $2::text)]
    from gone g
  returning id)
select b.id, g.seq, g.topic, g.id, g.type, g.key from buried b, gone g`
