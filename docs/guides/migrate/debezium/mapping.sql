-- The one file to adapt: which event a row of the outbox is. Check and trigger ask this function.
--
-- It is written for the columns and the topics that the event router expects by default: id uuid, aggregatetype, aggregateid,
-- type, payload jsonb; topic outbox.event.<aggregatetype>; the id in the header "id". The payload is what the connector sends
-- with value.converter = org.apache.kafka.connect.storage.StringConverter: compare one record of each kind before you go on.
--
-- The trigger calls it with its owner's rights. Keep the search_path as it is, and name the schema of what is not Postgres' own.
begin;

create or replace function public.outbox_event(o public.outbox, out id text, out topic text, out key text, out type text, out payload bytea, out headers jsonb, out "time" timestamptz)
language sql stable set search_path = pg_catalog, pg_temp as $$
    select o.id::text, 'outbox.event.' || o.aggregatetype, o.aggregateid, o.type, convert_to(o.payload::text, 'UTF8'), jsonb_build_object('id', o.id), now()
$$;
alter function public.outbox_event(public.outbox) owner to current_user; -- whoever made one before
revoke execute on function public.outbox_event(public.outbox) from public;

commit;
