-- Removes the tables of the forwarder, when no service publishes to it any more. Be sure of that: a publisher with
-- AutoInitializeSchema makes the table again, without the trigger, and nobody reads it.
begin isolation level read committed;
set local lock_timeout = '3s';
set local search_path = pg_catalog, pg_temp;

drop function public.watermill_event;
drop table public.watermill_forwarder_topic;
drop table public.watermill_offsets_forwarder_topic;
drop function public.watermill_forward;

commit;
