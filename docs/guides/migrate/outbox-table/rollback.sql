-- From this commit on new rows of outbox wait for the old relay again. Start that when published.sql says true, not before.
begin isolation level read committed;
set local lock_timeout = '3s';

lock table outbox in access exclusive mode;
drop trigger holdfast_mark on outbox;
drop trigger holdfast_forward on outbox;

commit;
