package backfill

// Rows lists the backfills of the last week, one for each consumer: at most 1000, by the primary key. A node that runs one writes every 5 s.
const Rows = `-- backfill.rows
select b.consumer, b.done, b.remaining, b.partitions, b.partitions_left, b.per_second, b.began_at, b.told_at,
       round(extract(epoch from coalesce(b.ended_at, b.told_at) - b.began_at))::bigint, round(extract(epoch from now() - b.told_at))::bigint,
       b.ended_at is not null, b.told_at >= now() - interval '30 seconds', coalesce(b.waits, ''), coalesce(b.error, '')
  from holdfast.consumer_backfill b
 where b.told_at > now() - interval '7 days' order by b.consumer limit 1000`
