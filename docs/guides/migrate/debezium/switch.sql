-- From this commit on every new row of outbox is also an event of holdfast. Debezium goes on publishing the rows. No relay may
-- publish yet: first confirmed.sql must say true, and the connector must be stopped. If this fails, nothing has changed: run it
-- again.
begin isolation level read committed;

-- A transaction that holds the table for longer than this makes the script fail, in place of all writers waiting with it.
set local lock_timeout = '3s';

-- 1. Wait for every transaction that has inserted a row. New ones wait until this transaction ends. So a row is either in
-- the WAL below the mark of step 3, and only there, or it is forwarded.
lock table outbox in exclusive mode;

-- 2. Forward what is inserted from now on.
create or replace function outbox_forward() returns trigger
language plpgsql security definer set search_path = public, pg_temp as $$
begin
    perform holdfast.write(e.topic, e.key, e.type, e.payload, e.headers, id => e.id, "time" => e."time") from outbox_event(new) e;
    return null;
end $$;

create trigger holdfast_forward after insert on outbox for each row execute function outbox_forward();

-- 3. Remember how far Debezium must come.
create table if not exists outbox_switch (lsn pg_lsn not null);
delete from outbox_switch;
insert into outbox_switch values (pg_current_wal_insert_lsn());

commit;
