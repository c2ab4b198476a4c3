package main

import "github.com/holdfast-go/holdfast/internal/waitroom"

// The statements of status. Each is cheap on a live system: it reads a bounded number of rows, however many there are. A count
// stops at its bound, and says so. Those of dlq and waiting are in these packages.

// statusSettings make Postgres walk an index in its order and stop at a bound, for a transaction. By its statistics, which may be
// old, it would sometimes rather read and sort all rows of a key, a lane or a table.
const statusSettings = `-- status.settings
select set_config('enable_seqscan', 'off', true), set_config('enable_bitmapscan', 'off', true), set_config('enable_sort', 'off', true),
       set_config('enable_hashjoin', 'off', true), set_config('jit', 'off', true), set_config('statement_timeout', '30s', true), set_config('lock_timeout', '5s', true)`

const statusHistory = `-- status.history
select c.system_identifier = s.system_identifier and (b.born::text::bigint & 4294967295) = b.xmin::text::bigint
  from holdfast.cluster c, holdfast.birth b, pg_control_system() s`

// statusLanes looks for what a lane publishes next, one event for each transaction that was in flight at its cursor and one after
// it, by the indexes event_N_lane_xid_seq, as a relay's probe does. Of a window that is being read it takes the first event, even
// if that is published: a window is short, and its first event is not younger than what is left of it. $1 bounds the counts.
const statusLanes = `-- status.lanes
select l.lane, coalesce(l.owner, ''), greatest(round(extract(epoch from greatest(l.lease_until, '2000-01-01'::timestamptz) - now())), 0)::bigint,
       l.epoch, round(extract(epoch from now() - l.saved_at))::bigint,
       n.events > 0,
       coalesce(round(extract(epoch from now() - least(n.time, d.due_at)))::bigint, 0),
       (select count(*) from (select from holdfast.parked p where p.lane = l.lane and p.id <> '' order by p.why, p.first_at limit $1::integer) p),
       coalesce((select round(extract(epoch from now() - min(p.first_at)))::bigint
                   from (values ('record'), ('follows'), ('topic'), ('partition')) k (why),
                        lateral (select p.first_at from holdfast.parked p where p.lane = l.lane and p.why = k.why and p.id <> '' order by p.first_at limit 1) p), 0),
       (select count(*) from (select from holdfast.scheduled s where s.lane = l.lane order by s.due_at, s.seq limit $1::integer) s),
       coalesce((select left(r.trouble, 1000) from holdfast.relay r where r.name = l.owner and r.seen_until > now() and l.lease_until > now()), '')
  from holdfast.lane l
  left join lateral (
        select count(*) as events, min(u.time) filter (where isfinite(u.time) and u.time <= now()) as time from (
          (select e.time from holdfast.event e where e.lane = l.lane and e.xid >= pg_snapshot_xmax(l.done) order by e.xid, e.seq limit 20)
          union all
          (select f.time from pg_snapshot_xip(l.done) flying (xid), lateral (
             select e.time from holdfast.event e where e.lane = l.lane and e.xid = flying.xid order by e.seq limit 1) f)) u) n on true
  left join lateral (
        select s.due_at from holdfast.scheduled s where s.lane = l.lane and s.due_at <= now() order by s.due_at limit 1) d on true
 order by l.lane`

const statusRelays = `-- status.relays
select r.name, round(extract(epoch from now() - r.started_at))::bigint, left(r.trouble, 1000) from holdfast.relay r where r.seen_until > now() order by r.name`

// statusHeld lists the topics and partitions that take nothing, and in which lanes: it steps from one to the next by the index
// parked_holds. A topic that was found missing, or may not be written to, has the partition -2. $1 bounds the counts, $2 how many
// are listed of a lane.
const statusHeld = `-- status.held
with recursive spot as (
    select l.lane, f.topic, f.partition, 1 as n from holdfast.lane l, lateral (
           select p.topic, coalesce(p.partition, -2) as partition from holdfast.parked p
            where p.lane = l.lane and (p.partition is not null or p.why = 'topic')
            order by p.topic, coalesce(p.partition, -2) limit 1) f
    union all
    select t.lane, f.topic, f.partition, t.n + 1 from spot t, lateral (
           select p.topic, coalesce(p.partition, -2) as partition from holdfast.parked p
            where p.lane = t.lane and (p.partition is not null or p.why = 'topic') and (p.topic, coalesce(p.partition, -2)) > (t.topic, t.partition)
            order by p.topic, coalesce(p.partition, -2) limit 1) f
     where t.n < $2::integer
)
select t.lane, t.topic, t.partition,
       (select count(*) from (select from holdfast.parked p
                               where p.lane = t.lane and p.topic = t.topic and coalesce(p.partition, -2) = t.partition and (p.partition is not null or p.why = 'topic')
                               order by p.place limit $1::integer) p)
  from spot t order by t.topic, t.partition, t.lane`

// statusLongParked counts what has been parked for longer than $1 seconds, by the index parked_age. What waits for its topic is
// statusHeld's. $2 bounds the counts.
const statusLongParked = `-- status.long_parked
select l.lane, sum(k.events)::bigint from holdfast.lane l, lateral (
       select count(*) as events from (values ('record'), ('follows'), ('partition')) w (why), lateral (
              select from holdfast.parked p where p.lane = l.lane and p.why = w.why and p.id <> '' and p.first_at < now() - $1::bigint * interval '1 second'
               order by p.first_at limit $2::integer) p) k
 where k.events > 0 group by l.lane order by l.lane`

// statusSegments lists the segments with their sizes, including large payloads. A segment without events counts as 0,
// although Postgres keeps some pages.
const statusSegments = `-- status.segments
select n, n = (select s.current from holdfast.segments s), case when pg_relation_size(c.oid) = 0 then 0 else pg_table_size(c.oid) end
  from generate_series(0, 3) n join pg_class c on c.oid = to_regclass('holdfast.event_' || n) order by n`

// statusLetters counts the open dead letters of each lane and consumer, among the first $1 that are open, by the index letter_open.
const statusLetters = `-- status.letters
select coalesce(d.lane, -1), d.consumer, count(*), (select count(*) from (select from holdfast.letter a where a.state in ('open', 'replaying') limit $1::integer) a)
  from (select f.lane, f.consumer, f.state from holdfast.letter f where f.state in ('open', 'replaying') order by f.id limit $1::integer) d
 where d.state = 'open' group by d.lane, d.consumer order by d.consumer, d.lane`

// statusConsumers reports for each consumer, those of $4 included, what waits: how many, of how many keys, since when, and for how long heads have been
// due that no node takes. It steps from one consumer, key and type to the next. The order of each part is that of an index, so that
// Postgres never reads a whole table to find a few rows. $1 bounds the count of events, $2 that of keys and types, $3 the heads of a
// type that are looked at, those first that have been due longest.
const statusConsumers = `-- status.consumers
with recursive storing as (
    (select s.consumer from holdfast.stored s where s.event_id <> '' order by s.consumer, s.first_at limit 1)
    union all
    select n.consumer from storing c, lateral (
           select s.consumer from holdfast.stored s where s.consumer > c.consumer and s.event_id <> '' order by s.consumer, s.first_at limit 1) n
), types as (
    select c.consumer, n.type, 1 as n from storing c, lateral (
           select s.type from holdfast.stored s where s.consumer = c.consumer and s.next_at < 'infinity' and s.type <> '' order by s.type, s.next_at limit 1) n
    union all
    select t.consumer, n.type, t.n + 1 from types t, lateral (
           select s.type from holdfast.stored s where s.consumer = t.consumer and s.next_at < 'infinity' and s.type <> '' and s.type > t.type order by s.type, s.next_at limit 1) n
     where t.n < $2::integer
), keys as (
    select c.consumer, n.topic, n.key, 1 as n from storing c, lateral (
           select s.topic, s.key from holdfast.stored s where s.consumer = c.consumer order by s.topic, s.key, s.place limit 1) n
    union all
    select k.consumer, n.topic, n.key, k.n + 1 from keys k, lateral (
           select s.topic, s.key from holdfast.stored s where s.consumer = k.consumer and (s.topic, s.key) > (k.topic, k.key) order by s.topic, s.key, s.place limit 1) n
     where k.n < $2::integer
), due as (
    select t.consumer, min(d.next_at) as next_at from types t, lateral (
           select s.consumer, s.topic, s.key, s.place, s.next_at, s.lease_until, s.letter from holdfast.stored s
            where s.consumer = t.consumer and s.type = t.type and s.type <> '' and s.next_at < 'infinity' and s.next_at < now() - interval '5 minutes'
            order by s.next_at limit $3::integer) d
     where d.lease_until <= now()
       and (d.key = '' or (
              not exists (select from holdfast.stored h
                           where h.consumer = d.consumer and h.topic = d.topic and h.key = d.key and h.place < d.place)
          and (d.letter is not null
               or not exists (select from holdfast.consumer_hold k
                               where k.consumer = d.consumer and k.topic = d.topic and k.key = d.key and k.after < d.place))))
     group by t.consumer
)
select c.consumer,
       (select count(*) from (select from holdfast.stored s where s.consumer = c.consumer and s.event_id <> '' order by s.first_at limit $1::integer) s),
       (select count(*) from keys k where k.consumer = c.consumer),
       coalesce((select round(extract(epoch from now() - s.first_at))::bigint from holdfast.stored s where s.consumer = c.consumer and s.event_id <> '' order by s.first_at limit 1), 0),
       coalesce((select round(extract(epoch from now() - d.next_at))::bigint from due d where d.consumer = c.consumer), 0)
  from (select consumer from holdfast.consumer_position union select consumer from storing union select unnest($4::text[])) c
 order by c.consumer`

// statusBlocked lists the ten keys of each consumer that have waited longest, with the event that each waits for: the keys of the
// $2 events that were stored first, by the index stored_age. $1 bounds the count of a key's events.
const statusBlocked = `-- status.blocked
with recursive storing as (
    (select s.consumer from holdfast.stored s where s.event_id <> '' order by s.consumer, s.first_at limit 1)
    union all
    select n.consumer from storing c, lateral (
           select s.consumer from holdfast.stored s where s.consumer > c.consumer and s.event_id <> '' order by s.consumer, s.first_at limit 1) n
), oldest as (
    select c.consumer, f.topic, f.key, min(f.first_at) as first_at, row_number() over (partition by c.consumer order by min(f.first_at), f.topic, f.key) as rank
      from storing c, lateral (
           select s.topic, s.key, s.first_at from holdfast.stored s where s.consumer = c.consumer and s.event_id <> '' order by s.first_at limit $2::integer) f
     where f.key <> ''
     group by c.consumer, f.topic, f.key
)
select r.consumer, r.topic, r.key,
       (select count(*) from (select from holdfast.stored s where s.consumer = r.consumer and s.topic = r.topic and s.key = r.key order by s.place limit $1::integer) s),
       round(extract(epoch from now() - h.first_at))::bigint, h.event_id, h.type, h.attempts,
       case when h.next_at = 'infinity' then -1 else greatest(round(extract(epoch from h.next_at - now())), 0) end::bigint,
       coalesce((select min(l.letter) from holdfast.consumer_hold l
                  where l.consumer = r.consumer and l.topic = r.topic and l.key = r.key and l.after < h.place), 0),
       coalesce(h.errors[cardinality(h.errors)], ''), h.why, h.running
  from oldest r, lateral (
       select w.place, w.event_id, w.type, w.attempts, w.errors, w.next_at, w.first_at, y.why, e.running
         from holdfast.stored w` + waitroom.InConsumer + `
        where w.consumer = r.consumer and w.topic = r.topic and w.key = r.key order by w.place limit 1) h
 where r.rank <= 10
 order by r.consumer, h.first_at, r.topic, r.key`

// statusSizes reads how much room the tables take that grow, with indexes and large values, and how many rows Postgres believes
// they have: -1 where it has never counted. The log is the sum of its segments.
const statusSizes = `-- status.sizes
select t.name, sum(pg_total_relation_size(c.oid))::bigint, sum(c.reltuples)::bigint
  from (values (1, 'log', 'event_0'), (1, 'log', 'event_1'), (1, 'log', 'event_2'), (1, 'log', 'event_3'), (2, 'parked', 'parked'), (3, 'scheduled', 'scheduled'),
               (4, 'inbox', 'inbox'), (5, 'stored', 'stored'), (6, 'letter', 'letter'), (7, 'idempotency', 'idempotency')) t (place, name, relation)
  join pg_class c on c.oid = to_regclass('holdfast.' || t.relation)
 group by t.place, t.name order by t.place`

// statusSkipped lists the types whose events consumers have skipped within the last month: the last 100 of them.
const statusSkipped = `-- status.skipped
select k.consumer, k.topic, k.type, k.events, round(extract(epoch from now() - k.last_at))::bigint
  from (select a.* from holdfast.consumer_skip a order by a.last_at desc limit 100) k order by k.consumer, k.topic, k.type`

const statusPositions = `-- status.positions
select p.consumer, p.topic, p.partition, p.position, coalesce(p.owner, ''), round(extract(epoch from now() - p.updated_at))::bigint, coalesce(p.held, '')
  from holdfast.consumer_position p order by p.consumer, p.topic, p.partition`

// statusPartitions lists the partitions in which a consumer has a position.
const statusPartitions = `-- status.partitions
select distinct p.topic, p.partition from holdfast.consumer_position p order by p.topic, p.partition`

// statusHolders lists what keeps segments of the log from being emptied. A relay empties a segment under a lock that
// conflicts with every transaction that has written or read it. A prepared transaction has no process; its locks are
// found by the lock on its own id. The age is -1 if this role may not see it.
const statusHolders = `-- status.holders
` + holdersBegin + `l.relation in (to_regclass('holdfast.event_0'), to_regclass('holdfast.event_1'), to_regclass('holdfast.event_2'), to_regclass('holdfast.event_3'))` + holdersEnd

// statusLaneHolders lists the transactions that have locked rows of the table lane, or all of it, the oldest first. Which rows
// these are, Postgres does not say.
const statusLaneHolders = `-- status.lane_holders
` + holdersBegin + `l.relation = to_regclass('holdfast.lane') and l.mode <> 'AccessShareLock'` + holdersEnd

// holdersBegin and holdersEnd stand around the condition for the locks of a transaction.
const (
	holdersBegin = `select coalesce(h.pid, 0), coalesce(p.gid, ''), coalesce(a.application_name, ''),
       coalesce(round(extract(epoch from now() - coalesce(a.xact_start, p.prepared)))::bigint, -1)
  from (select distinct l.pid, l.virtualtransaction from pg_locks l
         where l.locktype = 'relation' and l.granted and l.pid is distinct from pg_backend_pid()
           and l.database = (select d.oid from pg_database d where d.datname = current_database())
           and `
	holdersEnd = `) h
  left join pg_stat_activity a on a.pid = h.pid
  left join pg_locks x on h.pid is null and x.pid is null and x.locktype = 'transactionid' and x.virtualtransaction = h.virtualtransaction
  left join pg_prepared_xacts p on p.transaction = x.transactionid
 order by 4 desc, 1, 2`
)

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
