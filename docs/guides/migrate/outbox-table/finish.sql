-- Removes the old table, when no service inserts into it any more.
begin isolation level read committed;
set local lock_timeout = '3s';
set local search_path = pg_catalog, pg_temp;

lock table public.outbox in access exclusive mode;
do $$
begin
    if exists (select from public.outbox where published_at is null) then
        raise exception 'outbox has rows that are not published: run switch.sql first';
    end if;
    if exists (select from public.outbox where created_at > now() - interval '1 hour') then
        raise exception 'a service has inserted into outbox within the last hour';
    end if;
end $$;
drop function public.outbox_event;
drop table public.outbox;
drop function public.outbox_mark;
drop function public.outbox_forward;

commit;
