-- The one file to adapt: which event a row of your table is. Check, switch and trigger all ask this function.
--
-- It is written for this table:
--
--   create table outbox (
--       id            bigint generated always as identity primary key,
--       event_id      uuid not null default gen_random_uuid(),
--       topic         text not null,
--       key           text not null,
--       type          text not null,
--       payload       jsonb not null,
--       created_at    timestamptz not null default now(),
--       published_at  timestamptz
--   );
--
-- id and payload must be what your relay sends, byte for byte: by these a consumer recognises a repeat. Headers are what
-- your consumers read today; holdfast adds ce_id, ce_type and ce_time.
--
-- The trigger calls it with its owner's rights. Keep the search_path as it is, and name the schema of what is not Postgres' own.
begin;

create or replace function public.outbox_event(o public.outbox, out id text, out topic text, out key text, out type text, out payload bytea, out headers jsonb, out "time" timestamptz)
language sql stable set search_path = pg_catalog, pg_temp as $$
    select o.event_id::text, o.topic, o.key, o.type, convert_to(o.payload::text, 'UTF8'), jsonb_build_object('event-id', o.event_id), o.created_at
$$;
alter function public.outbox_event(public.outbox) owner to current_user; -- whoever made one before
revoke execute on function public.outbox_event(public.outbox) from public;

commit;
