-- From this commit on every new row of outbox is also an event of holdfast. Debezium goes on publishing the rows. No relay may
-- publish yet: first confirmed.sql must say true, and the connector must be stopped. If this fails, nothing has changed: run it
-- again.
begin isolation level read committed;

-- A transaction that holds the table for longer than this makes the script fail, in place of all writers waiting with it.
set local lock_timeout = '3s';

-- Nothing is looked up in a schema in which others may create: their function would run as you.
set local search_path = pg_catalog, pg_temp;

-- 1. Wait for every transaction that has inserted a row. New ones wait until this transaction ends. So a row is either in
-- the WAL below the mark of step 3, and only there, or it is forwarded.
lock table public.outbox in exclusive mode;

-- 2. Forward what is inserted from now on.
drop function if exists public.outbox_forward();
create function public.outbox_forward() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    perform holdfast.write(e.topic, e.key, e.type, e.payload, e.headers, id => e.id, "time" => e."time") from public.outbox_event(new) e;
    return null;
end $$;
revoke execute on function public.outbox_forward() from public;

create trigger holdfast_forward after insert on public.outbox for each row execute function public.outbox_forward();

-- 3. Remember how far Debezium must come.
drop table if exists public.outbox_switch;
create table public.outbox_switch (lsn pg_lsn not null);
insert into public.outbox_switch values (pg_current_wal_insert_lsn());

commit;
