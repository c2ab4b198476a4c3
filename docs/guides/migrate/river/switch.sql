-- From this commit on every new job of the kind publish_event is an event of holdfast, and none waits for a worker. Services go
-- on inserting jobs. Pause the queue first, and wait until its jobs have ended. If this fails, nothing has changed: run it again.
begin isolation level read committed;

-- A transaction that holds the table for longer than this makes the script fail, in place of all of River waiting with it.
set local lock_timeout = '3s';

-- Nothing is looked up in a schema in which others may create: their function would run as you.
set local search_path = pg_catalog, pg_temp;

-- 1. Wait for every transaction that has inserted, fetched or completed a job. New ones wait until this transaction ends.
lock table public.river_job in exclusive mode;

do $$
declare
    busy bigint;
begin
    select count(*) into busy from public.river_job where kind = 'publish_event' and state = 'running';
    if busy > 0 then
        raise exception '% jobs are running: pause the queue and wait until they have ended', busy;
    end if;
    select count(*) into busy from public.river_job where kind = 'publish_event' and state = 'pending';
    if busy > 0 then
        raise exception '% jobs are pending: their workflows must end first', busy;
    end if;
end $$;

-- 2. Forward what is inserted from now on. The job stays, already completed: River removes it as ever. Its event is written by a
-- trigger of its own after the insert, because a unique job that River skips is no event. The metadata keep the state: only a
-- job that River would have scheduled is a scheduled event. scheduled_at does not tell, because it is the client's clock.
drop function if exists public.river_mark();
create function public.river_mark() returns trigger
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
    new.metadata := new.metadata || jsonb_build_object('holdfast', new.state);
    new.state := 'completed';
    new.finalized_at := now();
    return new;
end $$;
revoke execute on function public.river_mark() from public;

drop function if exists public.river_forward();
create function public.river_forward() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    perform holdfast.write(e.topic, e.key, e.type, e.payload, e.headers, id => e.id, "time" => e."time",
                           not_before => case when new.metadata ->> 'holdfast' = 'scheduled' then new.scheduled_at end)
       from public.river_event(new) e;
    return null;
end $$;
revoke execute on function public.river_forward() from public;

create trigger holdfast_mark before insert on public.river_job for each row when (new.kind = 'publish_event') execute function public.river_mark();
create trigger holdfast_forward after insert on public.river_job for each row when (new.kind = 'publish_event') execute function public.river_forward();

-- 3. Move the jobs that wait, in the order of their ids. Those that failed before are tried at once, by a relay. Discarded and
-- cancelled jobs stay where they are: River had given them up.
do $$
declare
    most    constant bigint := 100000; -- River waits some seconds for so many
    waiting bigint;
    batch   record;
begin
    select count(*) into waiting from (select from public.river_job where kind = 'publish_event' and state in ('available', 'retryable', 'scheduled') limit most + 1) w;
    if waiting > most then
        raise exception 'more than % jobs wait: let the workers catch up first', most;
    end if;
    for batch in
        select array_agg(e.id order by n) as ids, array_agg(''::text order by n) as sources, array_agg(e.type order by n) as types,
               array_agg(e.topic order by n) as topics, array_agg(e.key order by n) as keys, array_agg(e."time" order by n) as times,
               array_agg(e.headers::text order by n) as headers, array_agg(e.payload order by n) as payloads,
               array_agg(case when (j).state = 'scheduled' then (j).scheduled_at end order by n) as not_befores
          from (select j, row_number() over (order by j.id) as n from public.river_job j
                 where j.kind = 'publish_event' and j.state in ('available', 'retryable', 'scheduled')) waiting
         cross join lateral public.river_event(waiting.j) e
         group by (n - 1) / 1000
         order by (n - 1) / 1000
    loop
        perform holdfast.append(batch.ids, batch.sources, batch.types, batch.topics, batch.keys, batch.times, batch.headers, batch.payloads, batch.not_befores, null);
    end loop;
    update public.river_job set state = 'completed', finalized_at = now()
     where kind = 'publish_event' and state in ('available', 'retryable', 'scheduled');
    raise notice '% jobs were moved', waiting;
end $$;

commit;
