-- Removes the triggers, when no service inserts jobs of this kind any more. The table is River's.
begin isolation level read committed;
set local lock_timeout = '3s';
set local search_path = pg_catalog, pg_temp;

lock table public.river_job in access exclusive mode;
do $$
begin
    if exists (select from public.river_job where kind = 'publish_event' and created_at > now() - interval '1 hour') then
        raise exception 'a service has inserted a job of the kind publish_event within the last hour';
    end if;
end $$;
drop trigger holdfast_mark on public.river_job;
drop trigger holdfast_forward on public.river_job;
drop function public.river_event;
drop function public.river_mark;
drop function public.river_forward;

commit;
