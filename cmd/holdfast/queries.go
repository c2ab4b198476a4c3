package main

// The statements of status. Each is cheap on a live system: none counts the log. The statements of dlq are in package
// dlq.

const statusHistory = `-- status.history
select c.system_identifier = s.system_identifier and (b.born::text::bigint & 4294967295) = b.xmin::text::bigint
  from holdfast.cluster c, holdfast.birth b, pg_control_system() s`

// statusLanes looks for unread events by the indexes event_N_lane_xid_seq, as a relay's probe does.
const statusLanes = `-- status.lanes
select l.lane, coalesce(l.owner, ''), greatest(round(extract(epoch from greatest(l.lease_until, '2000-01-01'::timestamptz) - now())), 0)::bigint,
       l.epoch, round(extract(epoch from now() - l.saved_at))::bigint,
       exists (select from holdfast.event e where e.lane = l.lane and e.xid >= pg_snapshot_xmax(l.done))
         or exists (select from holdfast.event e where e.lane = l.lane and e.xid = any (array(select pg_snapshot_xip(l.done)))),
       (select count(*) from holdfast.parked p where p.lane = l.lane),
       (select count(*) from holdfast.scheduled s where s.lane = l.lane),
       (select count(*) from holdfast.letter d where d.origin = 'relay' and d.lane = l.lane and d.state = 'open')
  from holdfast.lane l order by l.lane`

const statusRelays = `-- status.relays
select r.name, round(extract(epoch from now() - r.started_at))::bigint from holdfast.relay r where r.seen_until > now() order by r.name`

// statusHeldTopics lists the topics that a relay found missing, or may not write to.
const statusHeldTopics = `-- status.held_topics
select p.topic, count(*) from holdfast.parked p where p.why = 'topic' group by p.topic order by p.topic`

const statusLongParked = `-- status.long_parked
select p.lane, count(*) from holdfast.parked p
 where p.why <> 'topic' and p.first_at < now() - interval '10 minutes' group by p.lane order by p.lane`

// statusSegments lists the segments with their sizes, including large payloads. A segment without events counts as 0,
// although Postgres keeps some pages.
const statusSegments = `-- status.segments
select n, n = (select s.current from holdfast.segments s), case when pg_relation_size(c.oid) = 0 then 0 else pg_table_size(c.oid) end
  from generate_series(0, 3) n join pg_class c on c.oid = to_regclass('holdfast.event_' || n) order by n`

// statusConsumers reports for each consumer what waits, and for how long heads have been due that no node takes.
const statusConsumers = `-- status.consumers
select c.consumer, coalesce(s.waiting, 0), coalesce(s.keys, 0), coalesce(s.oldest, 0), coalesce(l.letters, 0),
       coalesce((select round(extract(epoch from now() - min(d.next_at)))::bigint from holdfast.stored d
                  where d.consumer = c.consumer and d.next_at < now() - interval '5 minutes' and d.lease_until <= now()
                    and (d.key = '' or (
                           not exists (select from holdfast.stored h
                                        where h.consumer = d.consumer and h.topic = d.topic and h.key = d.key and h.place < d.place)
                       and (d.letter is not null
                            or not exists (select from holdfast.consumer_hold k
                                            where k.consumer = d.consumer and k.topic = d.topic and k.key = d.key and k.after < d.place))))), 0)
  from (select consumer from holdfast.consumer_position union select consumer from holdfast.stored union
        select consumer from holdfast.letter where consumer <> '' and state = 'open') c
  left join (select consumer, count(*) as waiting, count(distinct (topic, key)) as keys, round(extract(epoch from now() - min(first_at)))::bigint as oldest
               from holdfast.stored group by consumer) s using (consumer)
  left join (select consumer, count(*) as letters from holdfast.letter where state = 'open' group by consumer) l using (consumer)
 order by c.consumer`

// The ten keys of each consumer that have waited longest, with the event that each waits for.
const statusBlocked = `-- status.blocked
with head as (
    select distinct on (s.consumer, s.topic, s.key) s.consumer, s.topic, s.key, s.place, s.event_id, s.type, s.attempts, s.errors, s.next_at, s.first_at,
           count(*) over (partition by s.consumer, s.topic, s.key) as events
      from holdfast.stored s
     where s.key <> ''
     order by s.consumer, s.topic, s.key, s.place
), ranked as (
    select h.*, row_number() over (partition by h.consumer order by h.first_at, h.topic, h.key) as rank from head h
)
select r.consumer, r.topic, r.key, r.events, round(extract(epoch from now() - r.first_at))::bigint, r.event_id, r.type, r.attempts,
       case when r.next_at = 'infinity' then -1 else greatest(round(extract(epoch from r.next_at - now())), 0) end::bigint,
       coalesce((select min(l.letter) from holdfast.consumer_hold l
                  where l.consumer = r.consumer and l.topic = r.topic and l.key = r.key and l.after < r.place), 0),
       coalesce(r.errors[cardinality(r.errors)], '')
  from ranked r
 where r.rank <= 10
 order by r.consumer, r.rank`

// statusSkipped lists the types whose events consumers have skipped within the last month.
const statusSkipped = `-- status.skipped
select k.consumer, k.topic, k.type, k.events, round(extract(epoch from now() - k.last_at))::bigint
  from holdfast.consumer_skip k order by k.consumer, k.topic, k.type`

const statusPositions = `-- status.positions
select p.consumer, p.topic, p.partition, p.position, coalesce(p.owner, ''), round(extract(epoch from now() - p.updated_at))::bigint, coalesce(p.held, '')
  from holdfast.consumer_position p order by p.consumer, p.topic, p.partition`

const statusLetters = `-- status.letters
select count(*) from holdfast.letter where state = 'open' and origin = 'relay'`

// statusHolders lists what keeps segments of the log from being emptied. A relay empties a segment under a lock that
// conflicts with every transaction that has written or read it. A prepared transaction has no process; its locks are
// found by the lock on its own id. The age is -1 if this role may not see it.
const statusHolders = `-- status.holders
select coalesce(h.pid, 0), coalesce(p.gid, ''), coalesce(a.application_name, ''),
       coalesce(round(extract(epoch from now() - coalesce(a.xact_start, p.prepared)))::bigint, -1)
  from (select distinct l.pid, l.virtualtransaction from pg_locks l
         where l.locktype = 'relation' and l.granted and l.pid is distinct from pg_backend_pid()
           and l.database = (select d.oid from pg_database d where d.datname = current_database())
           and l.relation in (to_regclass('holdfast.event_0'), to_regclass('holdfast.event_1'), to_regclass('holdfast.event_2'), to_regclass('holdfast.event_3'))) h
  left join pg_stat_activity a on a.pid = h.pid
  left join pg_locks x on h.pid is null and x.pid is null and x.locktype = 'transactionid' and x.virtualtransaction = h.virtualtransaction
  left join pg_prepared_xacts p on p.transaction = x.transactionid
 order by 4 desc, 1, 2`

// statusBehind lists the lanes that have not read all of the older segments. Before they have, holdfast.reclaim empties
// none. It uses the indexes event_N_lane_xid_seq.
const statusBehind = `-- status.behind
select distinct u.lane
  from holdfast.segments s, (
        select 0 as n, l.lane from holdfast.lane l
         where exists (select from only holdfast.event_0 e where e.lane = l.lane and e.xid >= pg_snapshot_xmax(l.done))
            or exists (select from only holdfast.event_0 e where e.lane = l.lane and e.xid = any (array(select pg_snapshot_xip(l.done))))
        union all
        select 1 as n, l.lane from holdfast.lane l
         where exists (select from only holdfast.event_1 e where e.lane = l.lane and e.xid >= pg_snapshot_xmax(l.done))
            or exists (select from only holdfast.event_1 e where e.lane = l.lane and e.xid = any (array(select pg_snapshot_xip(l.done))))
        union all
        select 2 as n, l.lane from holdfast.lane l
         where exists (select from only holdfast.event_2 e where e.lane = l.lane and e.xid >= pg_snapshot_xmax(l.done))
            or exists (select from only holdfast.event_2 e where e.lane = l.lane and e.xid = any (array(select pg_snapshot_xip(l.done))))
        union all
        select 3 as n, l.lane from holdfast.lane l
         where exists (select from only holdfast.event_3 e where e.lane = l.lane and e.xid >= pg_snapshot_xmax(l.done))
            or exists (select from only holdfast.event_3 e where e.lane = l.lane and e.xid = any (array(select pg_snapshot_xip(l.done))))) u
 where u.n <> s.current
 order by u.lane`
