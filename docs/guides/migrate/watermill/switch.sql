-- From this commit on every message that is published to the forwarder's table is an event of holdfast, and none waits for the
-- forwarder, which may go on running. Services go on publishing as before. If it fails, nothing has changed: run it again.
begin isolation level read committed;

-- A transaction that holds a table for longer than this makes the script fail, in place of all writers waiting with it.
set local lock_timeout = '3s';

-- Nothing is looked up in a schema in which others may create: their function would run as you.
set local search_path = pg_catalog, pg_temp;

-- 1. Wait for the forwarder, which holds its row of the offsets while it publishes up to 100 messages, and only then for the
-- transactions that have written messages. New ones wait until this transaction ends.
lock table public.watermill_offsets_forwarder_topic in exclusive mode;
lock table public.watermill_forwarder_topic in exclusive mode;

-- 2. Forward what is published from now on. The message itself is not stored: Watermill does not ask how many rows it inserted,
-- and what is not in the table cannot be forwarded twice.
drop function if exists public.watermill_forward();
create function public.watermill_forward() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    perform holdfast.write(e.topic, e.key, e.type, e.payload, e.headers, id => e.id, "time" => e."time") from public.watermill_event(new) e;
    return null;
end $$;
revoke execute on function public.watermill_forward() from public;

create trigger holdfast_forward before insert on public.watermill_forwarder_topic for each row execute function public.watermill_forward();

-- 3. Move what the forwarder has not acknowledged, in the order of the inserts. Deleting it moves no offset: a forwarder that is
-- started again after a rollback goes on where it was.
do $$
declare
    most     constant bigint := 100000; -- writers wait some seconds for so many
    waiting  bigint;
    position public.watermill_offsets_forwarder_topic;
    batch    record;
begin
    select * into position from public.watermill_offsets_forwarder_topic o where o.consumer_group = '';
    if not found then
        raise exception 'there is no consumer group "": name the one of your forwarder here';
    end if;
    select count(*) into waiting from (select from public.watermill_forwarder_topic m
     where (m.transaction_id, m."offset") > (position.last_processed_transaction_id, coalesce(position.offset_acked, 0)) limit most + 1) w;
    if waiting > most then
        raise exception 'more than % messages wait: let the forwarder catch up first', most;
    end if;
    for batch in
        select array_agg(e.id order by n) as ids, array_agg(''::text order by n) as sources, array_agg(e.type order by n) as types,
               array_agg(e.topic order by n) as topics, array_agg(e.key order by n) as keys, array_agg(e."time" order by n) as times,
               array_agg(e.headers::text order by n) as headers, array_agg(e.payload order by n) as payloads
          from (select m, row_number() over (order by m."offset") as n from public.watermill_forwarder_topic m
                 where (m.transaction_id, m."offset") > (position.last_processed_transaction_id, coalesce(position.offset_acked, 0))) waiting
         cross join lateral public.watermill_event(waiting.m) e
         group by (n - 1) / 1000
         order by (n - 1) / 1000
    loop
        perform holdfast.append(batch.ids, batch.sources, batch.types, batch.topics, batch.keys, batch.times, batch.headers, batch.payloads, null, null);
    end loop;
    delete from public.watermill_forwarder_topic m
     where (m.transaction_id, m."offset") > (position.last_processed_transaction_id, coalesce(position.offset_acked, 0));
    -- A forwarder that waited for the lock has a snapshot from before, in which the messages are still there. It is
    -- REPEATABLE READ and locks this row: a change of the row makes it start anew.
    update public.watermill_offsets_forwarder_topic o set offset_acked = o.offset_acked where o.consumer_group = '';
    raise notice '% messages were moved', waiting;
end $$;

commit;
