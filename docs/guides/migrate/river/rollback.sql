-- From this commit on new jobs wait for a worker again. Resume the queue when published.sql says true, not before. Scheduled
-- events whose time has not come stay with holdfast: a relay must run until then.
begin isolation level read committed;
set local lock_timeout = '3s';
set local search_path = pg_catalog, pg_temp;

lock table public.river_job in access exclusive mode;
drop trigger holdfast_mark on public.river_job;
drop trigger holdfast_forward on public.river_job;

commit;
