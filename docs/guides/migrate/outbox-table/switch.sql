-- From this commit on every new row of outbox is an event of holdfast, and no row waits for the old relay. Services go on
-- inserting into outbox. If it fails, nothing has changed: run it again.
begin isolation level read committed;

-- A transaction that holds the table for longer than this makes the script fail, in place of all writers waiting with it.
set local lock_timeout = '3s';

-- Nothing is looked up in a schema in which others may create: their function would run as you.
set local search_path = pg_catalog, pg_temp;

-- 1. Wait for every transaction that has inserted a row, and for a relay that holds rows by SELECT ... FOR UPDATE while it
-- publishes them. New ones wait until this transaction ends.
lock table public.outbox in exclusive mode;

-- 2. Forward what is inserted from now on. The row stays, already published: your cleanup removes it as ever. Its event is
-- written by a trigger of its own after the insert, because a row that ON CONFLICT discards is no event.
drop function if exists public.outbox_mark();
create function public.outbox_mark() returns trigger
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
    new.published_at := now();
    return new;
end $$;
revoke execute on function public.outbox_mark() from public;

drop function if exists public.outbox_forward();
create function public.outbox_forward() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    perform holdfast.write(e.topic, e.key, e.type, e.payload, e.headers, id => e.id, "time" => e."time") from public.outbox_event(new) e;
    return null;
end $$;
revoke execute on function public.outbox_forward() from public;

create trigger holdfast_mark before insert on public.outbox for each row execute function public.outbox_mark();
create trigger holdfast_forward after insert on public.outbox for each row execute function public.outbox_forward();

-- 3. Move what the old relay has not published, in its order.
do $$
declare
    most    constant bigint := 100000; -- writers wait some seconds for so many
    waiting bigint;
    batch   record;
begin
    select count(*) into waiting from (select from public.outbox where published_at is null limit most + 1) w;
    if waiting > most then
        raise exception 'more than % rows are not published yet: let the old relay catch up first', most;
    end if;
    for batch in
        select array_agg(e.id order by n) as ids, array_agg(''::text order by n) as sources, array_agg(e.type order by n) as types,
               array_agg(e.topic order by n) as topics, array_agg(e.key order by n) as keys, array_agg(e."time" order by n) as times,
               array_agg(e.headers::text order by n) as headers, array_agg(e.payload order by n) as payloads
          from (select o, row_number() over (order by o.id) as n from public.outbox o where o.published_at is null) waiting
         cross join lateral public.outbox_event(waiting.o) e
         group by (n - 1) / 1000
         order by (n - 1) / 1000
    loop
        perform holdfast.append(batch.ids, batch.sources, batch.types, batch.topics, batch.keys, batch.times, batch.headers, batch.payloads, null, null);
    end loop;
    update public.outbox set published_at = now() where published_at is null;
    raise notice '% rows were moved', waiting;
end $$;

commit;
