-- From this commit on messages are stored for the forwarder again. It must not run meanwhile: start it when published.sql says
-- true, not before.
begin isolation level read committed;
set local lock_timeout = '3s';
set local search_path = pg_catalog, pg_temp;

lock table public.watermill_forwarder_topic in access exclusive mode;
drop trigger holdfast_forward on public.watermill_forwarder_topic;

commit;
