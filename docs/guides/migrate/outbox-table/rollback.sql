-- From this commit on new rows of outbox wait for the old relay again. Start that when published.sql says true, not before.
begin isolation level read committed;
set local lock_timeout = '3s';
set local search_path = pg_catalog, pg_temp;

lock table public.outbox in access exclusive mode;
drop trigger holdfast_mark on public.outbox;
drop trigger holdfast_forward on public.outbox;

commit;
