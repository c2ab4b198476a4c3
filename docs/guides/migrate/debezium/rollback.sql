-- From this commit on new rows of outbox are Debezium's alone. Start the connector when published.sql says true, not before. Its
-- slot kept everything since it was stopped: it publishes those rows once more, in order, and then the new ones.
begin isolation level read committed;
set local lock_timeout = '3s';
set local search_path = pg_catalog, pg_temp;

lock table public.outbox in access exclusive mode;
drop trigger holdfast_forward on public.outbox;

commit;
