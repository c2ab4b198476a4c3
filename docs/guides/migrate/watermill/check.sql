-- Lists messages that holdfast would refuse, the newest first, with the reason. Run it before the switch: afterwards such a
-- message fails the transaction that publishes it. An empty answer is what you want.
select m."offset", refused.why
  from public.watermill_forwarder_topic m
 cross join lateral public.watermill_event(m) e
 cross join lateral (select coalesce(holdfast.refusal(e.id, '', coalesce(e.type, ''), e.topic, coalesce(e.key, ''), e."time", e.headers::text, pg_catalog.octet_length(e.payload)),
                                     case when e.key is null then 'the metadata has no key: the event would have no order' end)) refused (why)
 where refused.why is not null
 order by m."offset" desc
 limit 100;
