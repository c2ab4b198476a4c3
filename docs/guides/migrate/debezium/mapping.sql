-- The one file to adapt: which event a row of the outbox is. Check and trigger ask this function.
--
-- It is written for the columns and the topics that the event router expects by default: id uuid, aggregatetype, aggregateid,
-- type, payload jsonb; topic outbox.event.<aggregatetype>; the id in the header "id". The payload is what the connector sends
-- with value.converter = org.apache.kafka.connect.storage.StringConverter: compare one record of each kind before you go on.
create or replace function outbox_event(o outbox, out id text, out topic text, out key text, out type text, out payload bytea, out headers jsonb, out "time" timestamptz)
language sql stable as $$
    select o.id::text, 'outbox.event.' || o.aggregatetype, o.aggregateid, o.type, convert_to(o.payload::text, 'UTF8'), jsonb_build_object('id', o.id), now()
$$;
