package state

// The statements. Each is cheap on a live system: it reads a bounded number of rows, however many events there are, and besides a row for each lane,
// relay, consumer or position. A count stops at its bound.

// settings make Postgres walk an index in its order and stop at a bound, for a transaction. By its statistics, which may be
// old, it would sometimes rather read and sort all rows of a key, a lane or a table. To compile a statement takes longer than to carry it
// out: to count 100,000 of 1,000,000 stored events took 0.3 s, and to compile that 0.7.
const settings = `-- state.settings
select set_config('enable_seqscan', 'off', true), set_config('enable_bitmapscan', 'off', true), set_config('enable_sort', 'off', true),
       set_config('enable_hashjoin', 'off', true), set_config('jit', 'off', true), set_config('statement_timeout', '30s', true), set_config('lock_timeout', '5s', true)`

const readHistory = `-- state.history
select c.system_identifier = s.system_identifier and (b.born::text::bigint & 4294967295) = b.xmin::text::bigint
  from holdfast.cluster c, holdfast.birth b, pg_control_system() s`

// readLanes is a row for each lane. $1 bounds the counts.
const readLanes = `-- state.lanes
select b.lane, coalesce(b.owner, ''), greatest(round(extract(epoch from greatest(l.lease_until, '2000-01-01'::timestamptz) - now())), 0)::bigint,
       l.epoch, round(extract(epoch from now() - l.saved_at))::bigint, b.unread,
       coalesce(greatest(round(extract(epoch from now() - least(b.oldest_at, case when b.scheduled_for <= now() then b.scheduled_for end))), 0), 0)::bigint,
       (select count(*) from (select from holdfast.parked p where p.lane = b.lane and p.id <> '' order by p.why, p.first_at limit $1::integer) p),
       coalesce(greatest(round(extract(epoch from now() - b.waiting_since)), 0), 0)::bigint,
       (select count(*) from (select from holdfast.scheduled s where s.lane = b.lane order by s.due_at, s.seq limit $1::integer) s),
       coalesce((select left(r.trouble, 1000) from holdfast.relay r where r.name = b.owner and r.seen_until > now()), '')
  from holdfast.backlog b join holdfast.lane l on l.lane = b.lane
 order by b.lane`

const readOwners = `-- state.owners
select l.lane, case when l.lease_until > now() then coalesce(l.owner, '') else '' end, l.epoch from holdfast.lane l order by l.lane`

const readRelays = `-- state.relays
select r.name, round(extract(epoch from now() - r.started_at))::bigint, left(r.trouble, 1000) from holdfast.relay r where r.seen_until > now() order by r.name`

// readHeld lists the topics and partitions that take nothing, and in which lanes: it steps from one to the next by the index
// parked_holds. A topic that was found missing, or may not be written to, has the partition -2. $1 bounds the counts, $2 how many
// are listed of a lane.
const readHeld = `-- state.held
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

// countHeld counts the topics and the partitions that take nothing in any lane: $1 of both together at most. It steps from one to the next
// as readHeld does, over all lanes at once.
const countHeld = `-- state.count_held
with recursive spot as (
    (select f.topic, f.partition, 1 as n from holdfast.lane l, lateral (
            select p.topic, coalesce(p.partition, -2) as partition from holdfast.parked p
             where p.lane = l.lane and (p.partition is not null or p.why = 'topic')
             order by p.topic, coalesce(p.partition, -2) limit 1) f
      order by f.topic, f.partition limit 1)
    union all
    select s.topic, s.partition, t.n + 1 from spot t, lateral (
           select f.topic, f.partition from holdfast.lane l, lateral (
                  select p.topic, coalesce(p.partition, -2) as partition from holdfast.parked p
                   where p.lane = l.lane and (p.partition is not null or p.why = 'topic') and (p.topic, coalesce(p.partition, -2)) > (t.topic, t.partition)
                   order by p.topic, coalesce(p.partition, -2) limit 1) f
            order by f.topic, f.partition limit 1) s
     where t.n < $1::integer
)
select count(*) filter (where s.partition = -2), count(*) filter (where s.partition >= 0) from spot s`

// readLongWaiting counts what has waited in relays for longer than $1 seconds, by the index parked_age. What waits for its topic is
// readHeld's. $2 bounds the counts.
const readLongWaiting = `-- state.long_waiting
select l.lane, sum(k.events)::bigint from holdfast.lane l, lateral (
       select count(*) as events from (values ('record'), ('follows'), ('partition')) w (why), lateral (
              select from holdfast.parked p where p.lane = l.lane and p.why = w.why and p.id <> '' and p.first_at < now() - $1::bigint * interval '1 second'
               order by p.first_at limit $2::integer) p) k
 where k.events > 0 group by l.lane order by l.lane`

// readSegments lists the segments with their sizes, including large payloads. A segment without events counts as 0,
// although Postgres keeps some pages.
const readSegments = `-- state.segments
select n, n = (select s.current from holdfast.segments s), case when pg_relation_size(c.oid) = 0 then 0 else pg_table_size(c.oid) end
  from generate_series(0, 3) n join pg_class c on c.oid = to_regclass('holdfast.event_' || n) order by n`

// readLetters counts the open dead letters of each lane and consumer, among the first $1 that are open or replayed, by the index letter_open. The
// last column is how many these are.
const readLetters = `-- state.letters
select coalesce(d.lane, -1), d.origin, d.consumer, count(*) filter (where d.state = 'open'), sum(count(*)) over ()::bigint
  from (select f.lane, f.origin, f.consumer, f.state from holdfast.letter f where f.state in ('open', 'replaying') order by f.id limit $1::integer) d
 group by d.lane, d.origin, d.consumer order by d.consumer, d.lane`

// storing steps from one consumer that has stored events to the next by the index stored_age, where the oldest of each is the first.
const storing = `
with recursive storing as (
    (select s.consumer, s.first_at from holdfast.stored s where s.event_id <> '' order by s.consumer, s.first_at limit 1)
    union all
    select n.consumer, n.first_at from storing c, lateral (
           select s.consumer, s.first_at from holdfast.stored s where s.consumer > c.consumer and s.event_id <> '' order by s.consumer, s.first_at limit 1) n
)`

// readStored counts what waits in each consumer, and of how many keys and of which events no node handles the type, among its $1 oldest.
const readStored = `-- state.stored` + storing + `
select c.consumer, n.events, n.keys, greatest(extract(epoch from now() - c.first_at), 0)::float8, n.no_handler
  from storing c, lateral (
       with waiting as materialized (
           select x.topic, x.key, x.type from holdfast.stored x
            where x.consumer = c.consumer and x.event_id <> '' order by x.first_at limit $1::integer)
       select (select count(*) from waiting) as events,
              (select count(*) from (select distinct w.topic, w.key from waiting w where w.key <> '') k) as keys,
              (select coalesce(sum(u.n), 0) from (select w.type, count(*) as n from waiting w group by w.type) u
                where not exists (select from holdfast.consumer_type t
                                   where t.consumer = c.consumer and t.type = u.type and t.seen_until > now()))::bigint as no_handler) n
 order by c.consumer`

// readOverdue says for how long heads of a consumer have been due for more than 5 minutes that no node takes. It steps from one type to the
// next by the index stored_due. $1 bounds the types, $2 the events of a type that are looked at, those first that have been due longest. What waits for
// a dependency that is tried from time to time is not for a node to take.
const readOverdue = `-- state.overdue` + storing + `, types as (
    select c.consumer, n.type, 1 as n from storing c, lateral (
           select s.type from holdfast.stored s where s.consumer = c.consumer and s.next_at < 'infinity' and s.type <> '' order by s.type, s.next_at limit 1) n
    union all
    select t.consumer, n.type, t.n + 1 from types t, lateral (
           select s.type from holdfast.stored s where s.consumer = t.consumer and s.next_at < 'infinity' and s.type <> '' and s.type > t.type order by s.type, s.next_at limit 1) n
     where t.n < $1::integer
)
select t.consumer, round(extract(epoch from now() - min(d.next_at)))::bigint from types t, lateral (
       select s.consumer, s.topic, s.key, s.place, s.next_at from holdfast.stored s
        where s.consumer = t.consumer and s.type = t.type and s.type <> '' and s.next_at < 'infinity' and s.next_at < now() - interval '5 minutes'
        order by s.next_at limit $2::integer) d
  join holdfast.waiting_in_consumers w on w.consumer = d.consumer and w.topic = d.topic and w.key = d.key and w.place = d.place
 where w.head and not w.running
   and (w.key = '' or w.letter is not null
        or not exists (select from holdfast.consumer_hold k where k.consumer = w.consumer and k.topic = w.topic and k.key = w.key and k.after < w.place))
   and not (w.why = 'dependency' and exists (select from holdfast.dependency y where y.consumer = w.consumer and y.away and y.until >= now() - interval '5 minutes'
                                                and exists (select from holdfast.consumer_type h where h.consumer = w.consumer and h.type = w.type and y.name = any(h.needs))))
 group by t.consumer order by t.consumer`

// readBlocked lists the ten keys of each consumer that have waited longest, with the event that each waits for: the keys of the
// $2 events that were stored first, by the index stored_age. $1 bounds the count of a key's events.
const readBlocked = `-- state.blocked` + storing + `, oldest as (
    select c.consumer, f.topic, f.key, min(f.first_at) as first_at, row_number() over (partition by c.consumer order by min(f.first_at), f.topic, f.key) as rank
      from storing c, lateral (
           select s.topic, s.key, s.first_at from holdfast.stored s where s.consumer = c.consumer and s.event_id <> '' order by s.first_at limit $2::integer) f
     where f.key <> ''
     group by c.consumer, f.topic, f.key
)
select r.consumer, r.topic, r.key,
       (select count(*) from (select from holdfast.stored s where s.consumer = r.consumer and s.topic = r.topic and s.key = r.key order by s.place limit $1::integer) s),
       round(extract(epoch from now() - h.since))::bigint, h.event_id, h.type, h.attempts,
       case when h.next_at is null then -1 else greatest(round(extract(epoch from h.next_at - now())), 0) end::bigint,
       coalesce((select min(l.letter) from holdfast.consumer_hold l
                  where l.consumer = r.consumer and l.topic = r.topic and l.key = r.key and l.after < h.place), 0),
       coalesce(h.errors[cardinality(h.errors)], ''), h.why, h.running
  from oldest r, lateral (
       select w.place, w.event_id, w.type, w.attempts, w.errors, w.next_at, w.since, w.why, w.running
         from holdfast.waiting_in_consumers w
        where w.consumer = r.consumer and w.topic = r.topic and w.key = r.key order by w.place limit 1) h
 where r.rank <= 10
 order by r.consumer, h.since, r.topic, r.key`

// readSizes reads how much room the tables take, with indexes and large values, and how many rows Postgres believes
// they have: -1 where it has never counted. The log is the sum of its segments.
const readSizes = `-- state.sizes
select t.name, sum(pg_total_relation_size(c.oid))::bigint, sum(c.reltuples)::bigint
  from (values (1, 'log', 'event_0'), (1, 'log', 'event_1'), (1, 'log', 'event_2'), (1, 'log', 'event_3'), (2, 'parked', 'parked'), (3, 'scheduled', 'scheduled'),
               (4, 'inbox', 'inbox'), (5, 'stored', 'stored'), (6, 'letter', 'letter'), (7, 'idempotency', 'idempotency'), (8, 'watermark', 'watermark'),
               (9, 'lane', 'lane'), (10, 'consumer_position', 'consumer_position')) t (place, name, relation)
  join pg_class c on c.oid = to_regclass('holdfast.' || t.relation)
 group by t.place, t.name order by t.place`

// readSkipped lists the types whose events consumers have skipped within the last month: the last 100 of them.
const readSkipped = `-- state.skipped
select k.consumer, k.topic, k.type, k.events, round(extract(epoch from now() - k.last_at))::bigint
  from (select a.* from holdfast.consumer_skip a order by a.last_at desc limit 100) k order by k.consumer, k.topic, k.type`

// readPositions lists where each consumer stands in each partition: $1 of them at most.
const readPositions = `-- state.positions
select p.consumer, p.topic, p.partition, p.position, coalesce(p.owner, ''), round(extract(epoch from now() - p.updated_at))::bigint, coalesce(p.held, '')
  from holdfast.consumer_position p order by p.consumer, p.topic, p.partition limit $1::bigint`

// readProgress sums up each consumer's partitions: a position grows by what the consumer is done with.
const readProgress = `-- state.progress
select p.consumer, count(*), count(*) filter (where p.held is not null), least(sum(p.position), 9223372036854775807)::bigint
  from holdfast.consumer_position p group by p.consumer order by p.consumer`

// readWritten reads what Postgres counts of the tables, and what relays have counted. Positions say more, but the log has none, and webhooks none either.
const readWritten = `-- state.written
select extract(epoch from clock_timestamp())::float8,
       coalesce(sum(s.n_tup_ins) filter (where s.relname like 'event\_%'), 0)::bigint,
       coalesce(sum(s.n_tup_ins) filter (where s.relname = 'inbox'), 0)::bigint,
       coalesce(sum(s.n_tup_ins) filter (where s.relname = 'letter'), 0)::bigint,
       (select coalesce(sum(l.published), 0)::bigint from holdfast.lane l)
  from unnest(array['event_0', 'event_1', 'event_2', 'event_3', 'inbox', 'letter']) t (name)
  join pg_stat_user_tables s on s.relid = to_regclass('holdfast.' || t.name)`

// readNames lists the topics that consumers have read, and the types that they handle, the first $1 of each. Both tables are small.
const readNames = `-- state.names
select array(select distinct p.topic from holdfast.consumer_position p order by p.topic limit $1::integer),
       array(select distinct t.type from holdfast.consumer_type t order by t.type limit $1::integer)`

// readDependencies lists what handlers have found away, once or more, with the types that need it by nodes that run, and, while it is away, how many
// events wait for it: among the first $1 of each type by the index stored_due, and $1 in all.
const readDependencies = `-- state.dependencies
select d.consumer, d.name, d.away, round(extract(epoch from now() - d.since))::bigint, round(extract(epoch from d.until - now()))::bigint, d.tries,
       left(split_part(d.error, E'\n', 1), 1000), d.node, n.types,
       case when d.away then (
            select count(*) from (
                   select from unnest(n.types) u (type), lateral (
                          select s.topic, s.key, s.place from holdfast.stored s
                           where s.consumer = d.consumer and s.type = u.type and s.type <> '' and s.next_at < 'infinity' order by s.next_at limit $1::integer) f
                     join holdfast.waiting_in_consumers w on w.consumer = d.consumer and w.topic = f.topic and w.key = f.key and w.place = f.place
                    where w.why = 'dependency' limit $1::integer) e) else 0 end
  from holdfast.dependency d, lateral (
       select array(select distinct t.type from holdfast.consumer_type t
                     where t.consumer = d.consumer and d.name = any(t.needs) and t.seen_until > now() order by t.type limit 100) as types) n
 order by d.consumer, d.name limit 1000`

const readPauses = `-- state.pauses
select p.consumer, p.topic, p.key, p.by, p.reason, round(extract(epoch from now() - p.at))::bigint
  from holdfast.pause p order by p.consumer, p.topic, p.key limit 1000`

// readLogHolders lists what keeps segments of the log from being emptied. A relay empties a segment under a lock that
// conflicts with every transaction that has written or read it. A prepared transaction has no process; its locks are
// found by the lock on its own id. The age is -1 if this role may not see it.
const readLogHolders = `-- state.log_holders
` + holdersBegin + `l.relation in (to_regclass('holdfast.event_0'), to_regclass('holdfast.event_1'), to_regclass('holdfast.event_2'), to_regclass('holdfast.event_3'))` + holdersEnd

// readLaneHolders lists the transactions that have locked rows of the table lane, or all of it, the oldest first. Which rows
// these are, Postgres does not say.
const readLaneHolders = `-- state.lane_holders
` + holdersBegin + `l.relation = to_regclass('holdfast.lane') and l.mode <> 'AccessShareLock'` + holdersEnd

// holdersBegin and holdersEnd stand around the condition for the locks of a transaction. SIReadLock says what a serializable transaction has read,
// even one that has committed: it keeps nobody waiting.
const (
	holdersBegin = `select coalesce(h.pid, 0), coalesce(p.gid, ''), coalesce(a.application_name, ''),
       coalesce(round(extract(epoch from now() - coalesce(a.xact_start, p.prepared)))::bigint, -1)
  from (select distinct l.pid, l.virtualtransaction from pg_locks l
         where l.granted and l.mode <> 'SIReadLock' and l.pid is distinct from pg_backend_pid()
           and l.database = (select d.oid from pg_database d where d.datname = current_database())
           and `
	holdersEnd = `) h
  left join pg_stat_activity a on a.pid = h.pid
  left join pg_locks x on h.pid is null and x.locktype = 'transactionid' and x.virtualtransaction = h.virtualtransaction
  left join pg_prepared_xacts p on p.transaction = x.transactionid
 order by 4 desc, 1, 2`
)

// readBehind lists the lanes that have not read all of the older segments. Before they have, holdfast.reclaim empties
// none. It uses the indexes event_N_lane_xid_seq.
const readBehind = `-- state.behind
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
