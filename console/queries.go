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

// readConsumers is a row for each consumer that has stored events or open letters. It goes from one consumer to the next by the primary
// key of stored, and counts up to 10,001 of each; the oldest is found by stored_age.
const readConsumers = `-- console.consumers
with recursive named as (
  (select s.consumer from holdfast.stored s order by s.consumer limit 1)
  union all
  select n.consumer from named m, lateral (select s.consumer from holdfast.stored s where s.consumer > m.consumer order by s.consumer limit 1) n
), letters as (
  select l.consumer, count(*) as n
    from (select o.consumer from holdfast.letter o where o.state in ('open', 'replaying') limit 10001) l
   group by l.consumer
)
select consumer, coalesce(c.stored, 0), c.oldest, coalesce(l.n, 0)
  from (select m.consumer,
               (select count(*) from (select from holdfast.stored s where s.consumer = m.consumer limit 10001) x) as stored,
               (select s.first_at from holdfast.stored s where s.consumer = m.consumer and s.event_id <> '' order by s.first_at limit 1) as oldest
          from named m limit 1000) c
  full join letters l using (consumer)
 order by 1`
