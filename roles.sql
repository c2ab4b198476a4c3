-- The roles of holdfast, each with what its part does and nothing else. `holdfast roles --print` prints this file with your
-- names. Run it after `holdfast migrate`, as a superuser, or as the owner of the schema who may create roles; and again after
-- every upgrade: it changes nothing that is as it should be, and takes back what a role no longer needs.
--
-- None of them can log in. Grant them to the users of your services: grant holdfast_producer, holdfast_web to shop;
-- A service that embeds a relay or consumes gets those roles too. docs/operations.md says which role is for whom, and
-- a test tries every statement that a role must not make.

begin;

-- Nothing is looked up in a schema in which others may create: their function would run as you.
set local search_path = pg_catalog, pg_temp;

do $$
declare
    name text;
begin
    foreach name in array array['holdfast_owner', 'holdfast_producer', 'holdfast_relay', 'holdfast_consumer', 'holdfast_web', 'holdfast_operator', 'holdfast_reader'] loop
        if not exists (select from pg_roles r where r.rolname = name) then
            execute format('create role %I nologin', name);
        end if;
    end loop;
end $$;

-- What earlier runs granted, so that nothing stays that is not granted below. A right to a table takes those to its columns
-- with it.
revoke all on all tables in schema holdfast from holdfast_producer, holdfast_relay, holdfast_consumer, holdfast_web, holdfast_operator, holdfast_reader;
revoke all on all sequences in schema holdfast from holdfast_producer, holdfast_relay, holdfast_consumer, holdfast_web, holdfast_operator, holdfast_reader;
revoke all on all functions in schema holdfast from holdfast_producer, holdfast_relay, holdfast_consumer, holdfast_web, holdfast_operator, holdfast_reader;
revoke create on schema holdfast from public, holdfast_producer, holdfast_relay, holdfast_consumer, holdfast_web, holdfast_operator, holdfast_reader;

grant usage on schema holdfast to holdfast_producer, holdfast_relay, holdfast_consumer, holdfast_web, holdfast_operator, holdfast_reader;

-- Every part asks for the version when it starts.
grant select on holdfast.installation to holdfast_producer, holdfast_relay, holdfast_consumer, holdfast_web, holdfast_operator, holdfast_reader;

-- A producer writes events, by functions that enforce the limits. It sees no table of events: it can neither choose an
-- event's place, nor name a dead letter, nor use a reserved header.
grant execute on function holdfast.append, holdfast.append_one, holdfast.write, holdfast.write_once, holdfast.once_id, holdfast.new_id, holdfast.lock, holdfast.lock_number to holdfast_producer;

-- A relay reads the log and moves what waits. It cannot write to the log but by its functions, nor remove a letter. Nobody chooses
-- a letter's id: one that is taken would stop the next letter of others.
grant select on holdfast.event, holdfast.event_0, holdfast.event_1, holdfast.event_2, holdfast.event_3, holdfast.birth, holdfast.cluster to holdfast_relay;
grant select, insert on holdfast.incarnation to holdfast_relay;
grant select, update on holdfast.segments, holdfast.lane to holdfast_relay;
grant select, insert, update, delete on holdfast.relay, holdfast.parked to holdfast_relay;
grant select, insert, delete on holdfast.parked_lease to holdfast_relay;
grant select, delete on holdfast.scheduled to holdfast_relay;
grant select, update, insert (origin, consumer, reason, fingerprint, state, holds, event_id, source, type, topic, key, time, headers, payload, hash, version, lane, partition, "offset", place, attempts, errors, first_at, last_at) on holdfast.letter to holdfast_relay;
grant select on holdfast.lane_hold, holdfast.current_incarnation, holdfast.pause to holdfast_relay;
grant usage on sequence holdfast.parked_place to holdfast_relay;
grant execute on function holdfast.append_unchecked, holdfast.reclaim, holdfast.expire_written_once, holdfast.publish_letter, holdfast.last_errors to holdfast_relay;

-- A consumer records, stores and gives up events. It cannot remove a letter. Which consumers' rows, and to which topic it publishes
-- letters, is said by a row of consumer_binding.
grant select, insert, update, delete on holdfast.inbox, holdfast.stored, holdfast.start, holdfast.consumer_type, holdfast.consumer_skip to holdfast_consumer;
grant select, insert, delete on holdfast.inbox_step to holdfast_consumer;
grant select, insert, update on holdfast.retention, holdfast.consumer_position, holdfast.consumer_backfill, holdfast.watermark, holdfast.dependency to holdfast_consumer;
grant select, update, insert (origin, consumer, reason, fingerprint, state, holds, event_id, source, type, topic, key, time, headers, payload, hash, version, lane, partition, "offset", place, attempts, errors, first_at, last_at) on holdfast.letter to holdfast_consumer;
grant select, insert on holdfast.incarnation to holdfast_consumer;
grant select on holdfast.letter_action, holdfast.consumer_hold, holdfast.current_incarnation, holdfast.pause to holdfast_consumer;
grant usage on sequence holdfast.stored_place to holdfast_consumer;
grant execute on function holdfast.publish_letter, holdfast.last_errors to holdfast_consumer;

-- A service with idempotent routes.
grant select, insert, update, delete on holdfast.idempotency, holdfast.idempotency_step, holdfast.idempotency_request, holdfast.idempotency_expired to holdfast_web;
grant usage on sequence holdfast.idempotency_fence to holdfast_web;

-- Who works on dead letters, stored, parked and scheduled events, and pauses: holdfast dlq, waiting, pause, resume, find. They delete letters by purge_letters, which
-- refuses open ones. What they did stays, signed by the database with their login and the time.
grant select, update, insert (origin, consumer, reason, fingerprint, state, holds, event_id, source, type, topic, key, time, headers, payload, hash, version, lane, partition, "offset", place, attempts, errors, first_at, last_at) on holdfast.letter to holdfast_operator;
grant select, insert (letter, action, by, reason, payload, hash, version, replay) on holdfast.letter_action to holdfast_operator;
grant select, insert (action, consumer, source, event_id, type, topic, key, letter, by, reason) on holdfast.stored_action to holdfast_operator;
grant select, update (ended_at), insert (name, filter, upto, by, reason) on holdfast.letter_replay to holdfast_operator;
grant select, insert, update, delete on holdfast.stored to holdfast_operator;
grant select, insert, update on holdfast.inbox to holdfast_operator;
grant select, delete on holdfast.inbox_step to holdfast_operator;
grant select, delete, update (next_at) on holdfast.parked to holdfast_operator;
grant select on holdfast.parked_lease to holdfast_operator;
grant select, update (owner) on holdfast.lane to holdfast_operator;
grant select on holdfast.consumer_type, holdfast.dependency, holdfast.lane_hold, holdfast.consumer_hold, holdfast.start to holdfast_operator;
grant select (xid, seq, lane, id, source, type, topic, key, time, letter) on holdfast.event to holdfast_operator;
grant select, delete on holdfast.scheduled to holdfast_operator;
grant select, delete, insert (consumer, topic, key, by, reason) on holdfast.pause to holdfast_operator;
grant select, insert (action, consumer, topic, key, by, reason) on holdfast.pause_action to holdfast_operator;
grant select (scope, operation, key, fingerprint, state, status, body_hash, result_ref, run, attempt, lease_until, created_at, expires_at) on holdfast.idempotency to holdfast_operator;
grant select (run) on holdfast.idempotency_step to holdfast_operator;
grant select (run, due_at) on holdfast.idempotency_request to holdfast_operator;
grant select (scope, operation, key, status, result_ref, created_at, expires_at) on holdfast.idempotency_expired to holdfast_operator;
grant usage on sequence holdfast.stored_place, holdfast.parked_place to holdfast_operator;
grant execute on function holdfast.replay_letter, holdfast.redirect_parked, holdfast.purge_letters, holdfast.new_id, holdfast.last_errors, holdfast.lane_of to holdfast_operator;

-- Monitoring: holdfast check and status. It sees no payload and no header. It sees errors of handlers, as the logs do.
grant select (lane, xid, seq, time) on holdfast.event, holdfast.event_0, holdfast.event_1, holdfast.event_2, holdfast.event_3 to holdfast_reader;
grant select on holdfast.birth, holdfast.cluster, holdfast.segments, holdfast.lane, holdfast.relay, holdfast.consumer_position, holdfast.consumer_backfill, holdfast.consumer_skip, holdfast.pause to holdfast_reader;
grant select (lane, due_at, seq, id, source, type, topic, key, time) on holdfast.scheduled to holdfast_reader;
grant select (lane, topic, key, place, why, attempts, next_at, errors, first_at, id, source, type, time, letter, partition) on holdfast.parked to holdfast_reader;
grant select (consumer, topic, key, place, source, event_id, type, time, partition, "offset", attempts, errors, next_at, first_at, failed_at, lease_until, letter) on holdfast.stored to holdfast_reader;
grant select (id, origin, consumer, lane, topic, key, place, state, holds) on holdfast.letter to holdfast_reader;
grant select on holdfast.lane_hold, holdfast.consumer_hold, holdfast.consumer_binding, holdfast.producer_binding to holdfast_reader;

-- metrics.ObserveDatabase: which types are handled.
grant select on holdfast.consumer_type, holdfast.dependency to holdfast_reader;

-- How old other sessions' transactions are, and who holds the log, which status shows. Without it status says -1.
do $$
begin
    grant pg_read_all_stats to holdfast_reader;
exception when insufficient_privilege then
    raise notice 'not granted: pg_read_all_stats to holdfast_reader: a superuser can';
end $$;

-- The owner migrates, and adopts a restored copy: connect as a member, and set role holdfast_owner. Functions that run with
-- the owner's rights then need no superuser. The schema comes first: a role may own what is in it only if it may create there.
do $$
declare
    thing record;
begin
    if not pg_has_role(current_user, 'holdfast_owner', 'member') then
        execute format('grant holdfast_owner to %I', current_user);
    end if;
    for thing in
        select format('schema %I', n.nspname) as name, n.nspowner as owner, 1 as turn from pg_namespace n where n.oid = 'holdfast'::regnamespace
        union all
        select format('%s %s', case c.relkind when 'v' then 'view' when 'S' then 'sequence' else 'table' end, c.oid::regclass), c.relowner, 2 from pg_class c
         where c.relnamespace = 'holdfast'::regnamespace and c.relkind in ('r', 'v', 'S') -- but not the sequence of an identity column
           and not exists (select from pg_depend d where d.classid = 'pg_class'::regclass and d.objid = c.oid and d.deptype = 'i' and c.relkind = 'S')
        union all
        select format('routine %s', p.oid::regprocedure), p.proowner, 2 from pg_proc p where p.pronamespace = 'holdfast'::regnamespace
         order by 3, 1
    loop
        if thing.owner <> 'holdfast_owner'::regrole then
            execute format('alter %s owner to holdfast_owner', thing.name);
        end if;
    end loop;
end $$;

commit;
