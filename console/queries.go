package console

// This file holds every statement of the package, written for the schema "holdfast".

// readLanes is a row for each lane. What is parked is counted up to 10,001 by the primary key; the oldest
// of it is found by parked_age.
const readLanes = `-- console.lanes
select l.lane, coalesce(l.owner, ''), l.lease_until > now(), l.saved_at,
       (select count(*) from (select from holdfast.parked p where p.lane = l.lane limit 10001) c),
       (select count(*) from (select from holdfast.scheduled s where s.lane = l.lane limit 10001) c),
       (select min(k.first_at) from (values ('record'), ('follows'), ('topic'), ('partition')) w (why), lateral (
          select p.first_at from holdfast.parked p where p.lane = l.lane and p.why = w.why and p.id <> '' order by p.first_at limit 1) k)
  from holdfast.lane l
 order by l.lane`

// readWritten reads what Postgres counts of the tables. Positions say more, but the log has none, and webhooks none either.
const readWritten = `-- console.written
select extract(epoch from clock_timestamp())::float8,
       coalesce(sum(s.n_tup_ins) filter (where s.relname like 'event\_%'), 0)::bigint,
       coalesce(sum(s.n_tup_ins) filter (where s.relname = 'inbox'), 0)::bigint,
       coalesce(sum(s.n_tup_ins) filter (where s.relname = 'letter'), 0)::bigint
  from unnest(array['event_0', 'event_1', 'event_2', 'event_3', 'inbox', 'letter']) t (name)
  join pg_stat_user_tables s on s.relid = to_regclass('holdfast.' || t.name)`

// readPositions is a row for each consumer: a position grows by what the consumer is done with.
const readPositions = `-- console.positions
select p.consumer, sum(p.position)::bigint from holdfast.consumer_position p group by p.consumer order by p.consumer limit 1000`
