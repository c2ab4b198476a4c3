package metrics

// The statements of Database. Each has a bound: lanes and tables are few, and of what waits at most $1 rows are counted.

// interpretSample keeps Postgres from compiling the statements of the transaction: to count 100,000 of 1,000,000 stored events took
// 0.3 s, and to compile that 0.7.
const interpretSample = `-- metrics.interpret
select set_config('jit', 'off', true)`

// sampleLog looks for what each lane reads next, by the indexes event_N_lane_xid_seq. Of the window that is being read, what lies up
// to pos is published.
const sampleLog = `-- metrics.log
select count(n.time), coalesce(greatest(extract(epoch from now() - min(n.time) filter (where isfinite(n.time))), 0), 0)::float8,
       count(*) filter (where exists (select from holdfast.scheduled s where s.lane = l.lane and s.due_at <= now()))
  from holdfast.lane l left join lateral (
    select min(u.time) as time from (
      (select e.time from holdfast.event e
        where e.lane = l.lane and e.xid >= pg_snapshot_xmax(l.done)
          and (l.upto is null or e.seq > l.pos or not pg_visible_in_snapshot(e.xid, l.upto))
        order by e.xid, e.seq limit 1)
      union all
      (select f.time from pg_snapshot_xip(l.done) flying (xid), lateral (
         select e.time from holdfast.event e
          where e.lane = l.lane and e.xid = flying.xid
            and (l.upto is null or e.seq > l.pos or not pg_visible_in_snapshot(e.xid, l.upto))
          order by e.seq limit 1) f)) u) n on true`

// sampleRelays counts what nobody owns and who runs. Lanes, relays and segments are few.
const sampleRelays = `-- metrics.relays
select (select count(*) from holdfast.lane l where l.lease_until <= now()),
       (select count(*) from holdfast.relay r where r.seen_until > now()),
       (select count(*) from holdfast.relay r where r.seen_until > now() and r.trouble <> ''),
       (select count(*) from generate_series(0, 3) n where pg_relation_size(to_regclass('holdfast.event_' || n)) = 0)`

// sampleParked counts parked events, and among these the topics and partitions for which they wait. The oldest is found by the index
// parked_age: it may not be among those that are counted.
const sampleParked = `-- metrics.parked
select count(*),
       coalesce((select greatest(extract(epoch from now() - min(k.first_at)), 0)
                   from holdfast.lane l, (values ('record'), ('follows'), ('topic'), ('partition')) w (why), lateral (
                        select p.first_at from holdfast.parked p where p.lane = l.lane and p.why = w.why and p.id <> '' order by p.first_at limit 1) k), 0)::float8,
       count(distinct p.topic) filter (where p.why = 'topic'),
       count(distinct (p.topic, p.partition)) filter (where p.partition is not null)
  from (select topic, why, partition from holdfast.parked limit $1::int) p`

// sampleStored counts what waits for each consumer. It goes from one consumer to the next by the index stored_age, where the oldest of
// each is the first. The consumers with the most come first.
const sampleStored = `-- metrics.stored
with recursive storing as (
    (select s.consumer, s.first_at from holdfast.stored s where s.event_id <> '' order by s.consumer, s.first_at limit 1)
    union all
    select n.consumer, n.first_at from storing c, lateral (
           select s.consumer, s.first_at from holdfast.stored s where s.consumer > c.consumer and s.event_id <> '' order by s.consumer, s.first_at limit 1) n
)
select c.consumer, n.events, n.keys, greatest(extract(epoch from now() - c.first_at), 0)::float8, n.undeclared
  from storing c, lateral (
       with waiting as materialized (
           select x.topic, x.key, x.type from holdfast.stored x
            where x.consumer = c.consumer and x.event_id <> '' order by x.first_at limit $1::int)
       select (select count(*) from waiting) as events,
              (select count(*) from (select distinct w.topic, w.key from waiting w where w.key <> '') k) as keys,
              (select coalesce(sum(u.n), 0) from (select w.type, count(*) as n from waiting w group by w.type) u
                where not exists (select from holdfast.consumer_type t
                                   where t.consumer = c.consumer and t.type = u.type and t.seen_until > now()))::bigint as undeclared) n
 order by 2 desc, 1
 limit $2::int`

// sampleLetters counts open dead letters by the index letter_open.
const sampleLetters = `-- metrics.letters
select l.origin, l.consumer, count(*)
  from (select origin, consumer from holdfast.letter where state in ('open', 'replaying') limit $1::int) l
 group by l.origin, l.consumer
 order by 3 desc, 1, 2
 limit $2::int`

// samplePositions counts the partitions of each consumer. Those with the most that are held come first.
const samplePositions = `-- metrics.positions
select p.consumer, count(*), count(*) filter (where p.held is not null)
  from holdfast.consumer_position p
 group by p.consumer
 order by 3 desc, 1
 limit $1::int`

// lagPositions reads where each consumer stands in each partition.
const lagPositions = `-- metrics.lag
select p.consumer, p.topic, p.partition, p.position
  from holdfast.consumer_position p
 order by p.consumer, p.topic, p.partition
 limit $1::int`

// sampleSizes reads the sizes of tables with their indexes and large values from the file system. The segments of the log are one.
const sampleSizes = `-- metrics.sizes
select case when t.name like 'event\_%' then 'event' else t.name end, sum(pg_total_relation_size(c.oid))::float8
  from unnest($1::text[]) t (name)
  join pg_catalog.pg_class c on c.relnamespace = to_regnamespace($2::text) and c.relname = t.name and c.relkind = 'r'
 group by 1
 order by 1`

// sized are the tables whose size is sampled.
var sized = []string{"event_0", "event_1", "event_2", "event_3", "scheduled", "parked", "inbox", "stored", "letter", "idempotency", "watermark", "lane", "consumer_position"}
