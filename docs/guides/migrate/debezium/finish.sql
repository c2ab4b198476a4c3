-- Removes the outbox, the publication and the slot, when no service inserts into outbox any more. A slot that nobody reads keeps
-- the WAL until the disk is full. The connector must be stopped: a slot in use cannot be dropped.
begin isolation level read committed;
set local lock_timeout = '3s';
set local search_path = pg_catalog, pg_temp;

drop function public.outbox_event;
drop table public.outbox;
drop function public.outbox_forward;
drop table public.outbox_switch;
drop publication dbz_publication;

commit;

select pg_catalog.pg_drop_replication_slot('debezium');
