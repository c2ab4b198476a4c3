package steps

// recordedSQL reads the steps of one event of a consumer, through the primary key. $1 consumer, $2 source, $3 event id; $4 the hash of the event now, null
// for that of its row in the inbox; $5 with results; $6 how many at most: first those of the event as it is now, then the latest.
const recordedSQL = `-- steps.recorded
select r.name, r.hash, r.other, r.done_at, r.result
  from (select s.name, s.hash, s.done_at, case when $5::boolean then s.result::text else '' end as result,
               coalesce(s.hash <> case when octet_length(coalesce($4::bytea, i.hash)) > 32 then '' else coalesce($4::bytea, i.hash) end, false) as other
          from holdfast.inbox_step s
          left join holdfast.inbox i on i.consumer = s.consumer and i.source = s.source and i.event_id = s.event_id
         where s.consumer = $1::text and s.source = $2::text and s.event_id = $3::text
         order by other, s.done_at desc, s.name desc
         limit $6::integer) r
 order by r.done_at, r.name`
