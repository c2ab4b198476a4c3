package holdfasttest

// written reads the events that this transaction has written. In the log they carry its id. A scheduled event has no id
// but xmin, which is the id of the savepoint if it was written under one. It is ours if we see it although its
// transaction has not ended. xmin holds the low 32 bits of an id; the high bits are those of the current ids.
const written = `-- holdfasttest.written
select e.seq, e.id, e.source, e.type, e.topic, e.key, e.time, null::timestamptz as not_before, e.headers::text as headers, e.payload
  from holdfast.event e
 where e.xid = pg_current_xact_id_if_assigned()
union all
select s.seq, s.id, s.source, s.type, s.topic, s.key, s.time, s.due_at, s.headers::text, s.payload
  from holdfast.scheduled s,
       lateral (select pg_snapshot_xmax(pg_current_snapshot())::text::bigint) as now (xid),
       lateral (select (now.xid - s.xmin::text::bigint + 2147483648) & 4294967295) as wrapped (ago)
 where wrapped.ago > 2146483648
   and pg_xact_status((now.xid - wrapped.ago + 2147483648)::text::xid8) = 'in progress'
 order by seq`

// writtenSince reads the events with a number above $1.
const writtenSince = `-- holdfasttest.written_since
select e.seq, e.id, e.source, e.type, e.topic, e.key, e.time, null::timestamptz as not_before, e.headers::text as headers, e.payload
  from holdfast.event e
 where e.seq > $1::bigint
union all
select s.seq, s.id, s.source, s.type, s.topic, s.key, s.time, s.due_at, s.headers::text, s.payload
  from holdfast.scheduled s
 where s.seq > $1::bigint
 order by seq`

const mark = `-- holdfasttest.mark
select case when s.is_called then s.last_value else s.last_value - 1 end from holdfast.event_seq s`

// pending lists what is not finished. It is one statement with one snapshot, so an event that moves from one place to
// the next is seen in one of them. $1 consumers, or none for all; $2 topics; $3 seconds ahead; $4 whether the
// producer's side counts.
//
// Of the parked events of a key the first one counts, or the first replay before it, unless a dead letter holds it. The
// later ones do not move before it does. An event that a worker is handling stays due. An event of a topic in $2 must
// be settled or parked in every consumer's inbox. There are three exceptions. It never left: the relay has it parked,
// or as a dead letter. It is a dead letter of the consumer. Or the consumer declares the types it handles, and this is
// none of them.
const pending = `-- holdfasttest.pending
select 'lane ' || l.lane as who, count(*) as events, 'unread in the log' as what, min(e.topic) as example, null::float8 as due,
       case when l.owner is null or l.lease_until < now() then 'no relay has the lane' else '' end as why
  from holdfast.lane l
  join holdfast.event e on e.lane = l.lane and e.xid >= pg_snapshot_xmin(l.done) and not pg_visible_in_snapshot(e.xid, l.done)
   and not (l.upto is not null and pg_visible_in_snapshot(e.xid, l.upto) and e.seq <= l.pos)
 where $4::boolean
 group by l.lane, l.owner, l.lease_until
union all
select 'lane ' || s.lane, count(*), 'scheduled', min(s.topic), extract(epoch from min(s.due_at) - now()), ''
  from holdfast.scheduled s
 where $4::boolean and s.due_at <= now() + make_interval(secs => $3::float8)
 group by s.lane
union all
select 'lane ' || p.lane, count(*), 'parked (heads of their keys)', min(p.topic),
       extract(epoch from min(p.next_at) - now()), coalesce(max(p.errors[cardinality(p.errors)]), '')
  from holdfast.waiting_in_relays p
 where $4::boolean and p.head
   and (p.next_at <= now() + make_interval(secs => $3::float8)
        or p.next_at is null and not exists (
             select from holdfast.lane_hold l where l.lane = p.lane and l.topic = p.topic and l.key = p.key))
 group by p.lane
union all
select 'consumer ' || s.consumer, count(*), 'stored (heads of their keys)', min(s.type),
       extract(epoch from min(s.next_at) - now()), coalesce(max(s.errors[cardinality(s.errors)]), '')
  from holdfast.waiting_in_consumers s
 where s.head and (cardinality($1::text[]) = 0 or s.consumer = any($1::text[]))
   and (s.next_at <= now() + make_interval(secs => $3::float8) or s.next_at is null)
   and (s.letter is not null or not exists (
             select from holdfast.consumer_hold l
              where l.consumer = s.consumer and l.topic = s.topic and l.key = s.key and l.after < s.place))
 group by s.consumer
union all
select 'consumer ' || c.name, count(*), 'not taken in', min(e.type), null, ''
  from unnest($1::text[]) as c (name), holdfast.event e
 where e.topic = any($2::text[])
   and not exists (select from holdfast.inbox i where i.consumer = c.name and i.source = e.source and i.event_id = e.id)
   and not exists (select from holdfast.letter l where l.source = e.source and l.event_id = e.id and (l.origin = 'relay' or l.consumer = c.name))
   and not exists (select from holdfast.parked p where p.lane = e.lane and p.source = e.source and p.id = e.id)
   and (not exists (select from holdfast.consumer_type t where t.consumer = c.name)
        or exists (select from holdfast.consumer_type t where t.consumer = c.name and t.type = e.type))
 group by c.name
 order by 1, 3`
