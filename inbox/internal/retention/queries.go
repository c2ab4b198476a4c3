package retention

import (
	"fmt"

	"github.com/holdfast-go/holdfast/inbox/internal/loop"
	"github.com/holdfast-go/holdfast/internal/sqlschema"
)

// beginSQL opens retention's transactions. They read by index, in the index's order, whatever the planner expects. A plan
// made while the table was new, or before it was analyzed, would read all of it, and a connection keeps its plans. All settings
// end with the transaction, so that a pooler may pass the connection on.
const beginSQL = `begin isolation level read committed;
set local idle_in_transaction_session_timeout = 10000;
set local lock_timeout = 1000;
set local statement_timeout = %d;
set local enable_seqscan = off;
set local enable_bitmapscan = off;
set local enable_sort = off;
set local jit = off`

// statements are the constants of this file, for a schema.
type statements struct{ begin, row, take, sweep, save, starts, steps string }

func newStatements(schema string) statements {
	in := func(statement string) string { return sqlschema.In(schema, statement) }
	return statements{
		begin:  fmt.Sprintf(beginSQL, loop.Patience.Milliseconds()),
		row:    in(rowSQL),
		take:   in(takeSQL),
		sweep:  in(sweepSQL),
		save:   in(saveSQL),
		starts: in(startsSQL),
		steps:  in(stepsSQL),
	}
}

// Makes the consumer's row. It looks first: an insert beside another node that has changed the row would wait until that commits.
const rowSQL = `-- inbox.retention_row
insert into holdfast.retention (consumer) select $1::text
 where not exists (select from holdfast.retention r where r.consumer = $1::text)
on conflict (consumer) do nothing`

// Takes the turn by locking the consumer's row, unless another node has it or the turn is not due. If the turn is further away than
// twice the longest pause ($2), a wrong clock set it.
const takeSQL = `-- inbox.retention_take
select r.from_at, r.kept_at, r.sources from holdfast.retention r
 where r.consumer = $1::text
   and (r.next_at <= now() or r.next_at > now() + 2 * $2::bigint * interval '1 microsecond')
   for update skip locked`

// Removes what may go, with its steps, among the next $4 rows of index inbox_settled, from $2 on, that were settled longer than $3 ago and
// whose source is one of $5, or, if $6 is false, is none of these. The rows of other sources are read and left. Rows that
// must stay are read without a lock. Rows that another transaction has locked (a replay) are skipped, so that this one never
// waits for a lock. Rows are found again by their ctid, which needs no statistics and no second look at the index: a row that
// this statement's snapshot sees cannot move, and its place is not reused, while the statement runs. The steps of each event are looked up by
// its key: without offset 0, a plan made while there were few would read all steps of the consumer.
const sweepSQL = `-- inbox.retention_sweep
with old as materialized (
    select i.ctid as place, i.source, i.event_id, i.topic, i.partition, i."offset", i.result, i.processed_at,
           (i.source = any ($5::text[])) = $6::boolean as mine
      from holdfast.inbox i
     where i.consumer = $1::text and i.processed_at >= coalesce($2::timestamptz, '-infinity')
       and i.processed_at < now() - $3::bigint * interval '1 microsecond'
     order by i.processed_at
     limit $4::int
), due as (
    select o.place
      from old o
      left join holdfast.consumer_position p on p.consumer = $1::text and p.topic = o.topic and p.partition = o.partition
     where o.mine and (o.partition is null or o."offset" < p.position)
       and (o.result <> 'dead'
            or not exists (select from holdfast.letter l
                            where l.consumer = $1::text and l.source = o.source and l.event_id = o.event_id
                              and l.origin = 'inbox' and l.state in ('open', 'replaying')))
), gone as (
    delete from holdfast.inbox i
     where i.ctid = any (array(
               select f.ctid from holdfast.inbox f
                where f.ctid = any (array(select d.place from due d))
                  and f.processed_at < now() - $3::bigint * interval '1 microsecond'
                  for update skip locked))
    returning i.ctid as place, i.source, i.event_id
), steps as (
    delete from holdfast.inbox_step s
     where s.ctid = any (array(
               select f.place from gone g
                cross join lateral (select t.ctid as place from holdfast.inbox_step t
                                     where t.consumer = $1::text and t.source = g.source and t.event_id = g.event_id
                                       and not (` + unsettled + `) offset 0) f))
)
select count(*), (select count(*) from gone), max(o.processed_at),
       min(o.processed_at) filter (where o.mine and not exists (select from gone g where g.place = o.place)),
       coalesce((extract(epoch from now() - min(o.processed_at) filter (where o.mine)) * 1000000)::bigint - $3::bigint, 0)
  from old o`

const saveSQL = `-- inbox.retention_save
update holdfast.retention r
   set from_at = $2::timestamptz, kept_at = $3::timestamptz, next_at = clock_timestamp() + $4::bigint * interval '1 microsecond',
       sources = $5::jsonb
 where r.consumer = $1::text`

// unsettled is a step t whose event waits, or has an open letter. It may be of another payload than the event's row in the inbox: of a conflict that
// is replayed. offset 0 lets Postgres look at one event's, whatever it expects.
const unsettled = `exists (select from holdfast.stored w where w.consumer = t.consumer and w.source = t.source and w.event_id = t.event_id offset 0)
                                            or exists (select from holdfast.letter l where l.consumer = t.consumer and l.source = t.source and l.event_id = t.event_id
                                                          and l.origin = 'inbox' and l.state in ('open', 'replaying') offset 0)`

// Removes up to $3 recorded steps that are older than $2 and whose event has no row in the inbox, and does not wait: it has not come again since.
const stepsSQL = `-- inbox.retention_steps
delete from holdfast.inbox_step s
 where s.ctid = any (array(
           select t.ctid from holdfast.inbox_step t
            where t.consumer = $1::text and t.done_at < now() - $2::bigint * interval '1 microsecond'
              and not exists (select from holdfast.inbox i where i.consumer = t.consumer and i.source = t.source and i.event_id = t.event_id offset 0)
              and not (` + unsettled + `)
            order by t.done_at
            limit $3::int))`

// Removes counts of starts that are older than $2, up to 10,000 at a time, unless one is being counted. No index has last_at. The
// statement reads the consumer's part of the primary key, because the table holds few rows at any time.
const startsSQL = `-- inbox.retention_starts
delete from holdfast.start s
 where s.ctid = any (array(
           select f.ctid from holdfast.start f
            where f.consumer = $1::text and f.last_at < now() - $2::bigint * interval '1 microsecond'
            limit 10000
              for update skip locked))`
