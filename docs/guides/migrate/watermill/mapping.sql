-- The one file to adapt: which event a message of Watermill's forwarder is. Check, switch and trigger all ask this function.
--
-- It is written for the default schema of watermill-sql v4, whose payload is JSON. For GeneratePayloadType "bytea" write
-- convert_from(m.payload, 'UTF8')::json in place of m.payload. The names "key" and "type" in the metadata are yours.
--
-- The time of a moved message is that of the switch: created_at has no time zone.
--
-- The trigger calls it with its owner's rights. Keep the search_path as it is, and name the schema of what is not Postgres' own.
begin;

create or replace function public.watermill_event(m public.watermill_forwarder_topic, out id text, out topic text, out key text, out type text, out payload bytea, out headers jsonb, out "time" timestamptz)
language sql stable set search_path = pg_catalog, pg_temp as $$
    select m.payload ->> 'uuid', m.payload ->> 'destination_topic', m.payload -> 'metadata' ->> 'key', m.payload -> 'metadata' ->> 'type',
           decode(m.payload ->> 'payload', 'base64'),
           coalesce(nullif((m.payload -> 'metadata')::jsonb, 'null'), '{}') || jsonb_build_object('_watermill_message_uuid', m.payload ->> 'uuid'), now()
$$;
alter function public.watermill_event(public.watermill_forwarder_topic) owner to current_user; -- whoever made one before
revoke execute on function public.watermill_event(public.watermill_forwarder_topic) from public;

commit;
