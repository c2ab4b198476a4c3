-- Lists jobs that holdfast would refuse, the newest first, with the reason. Run it before the switch: afterwards such a job fails
-- the transaction that inserts it. An empty answer is what you want.
select j.id, refused.why
  from public.river_job j
 cross join lateral public.river_event(j) e
 cross join lateral (select coalesce(case when e.id is null then 'the arguments have no id' end,
                                     holdfast.refusal(e.id, '', coalesce(e.type, ''), coalesce(e.topic, ''), coalesce(e.key, ''), e."time", e.headers::text, pg_catalog.octet_length(e.payload)))) refused (why)
 where j.kind = 'publish_event' and refused.why is not null
 order by j.id desc
 limit 100;
