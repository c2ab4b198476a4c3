-- The one file to adapt: which event a job is. Check, switch and trigger all ask this function.
--
-- It is written for jobs of the kind publish_event with the arguments id, topic, key, type and payload. If your arguments have no
-- id, take 'river-' || j.id, and let your worker send that for some days before the switch.
--
-- The trigger calls it with its owner's rights. Keep the search_path as it is, and name the schema of what is not Postgres' own.
begin;

create or replace function public.river_event(j public.river_job, out id text, out topic text, out key text, out type text, out payload bytea, out headers jsonb, out "time" timestamptz)
language sql stable set search_path = pg_catalog, pg_temp as $$
    select j.args ->> 'id', j.args ->> 'topic', j.args ->> 'key', j.args ->> 'type', convert_to((j.args -> 'payload')::text, 'UTF8'),
           jsonb_build_object('event-id', j.args ->> 'id'), j.created_at
$$;
alter function public.river_event(public.river_job) owner to current_user; -- whoever made one before
revoke execute on function public.river_event(public.river_job) from public;

commit;
