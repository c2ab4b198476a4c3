-- Lists rows that holdfast would refuse, with the reason. Run it before the switch: afterwards such a row fails the transaction
-- that inserts it. An empty answer is what you want, if the table has rows.
select o.id, refused.why
  from public.outbox o
 cross join lateral public.outbox_event(o) e
 cross join lateral (select holdfast.refusal(e.id, '', e.type, e.topic, e.key, e."time", e.headers::text, pg_catalog.octet_length(e.payload))) refused (why)
 where refused.why is not null
 limit 100;
