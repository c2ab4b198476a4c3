-- The whole schema of holdfast. Read from top to bottom it is the data model. It is embedded in the library, and
-- `holdfast migrate --print` prints it. The name of the schema is configurable: Migrate replaces "holdfast" before a dot
-- by the configured name, quoted.
--
-- The way of an event: holdfast.write (or outbox.Write) appends it to the log `event` in the caller's transaction. A relay
-- that owns the event's lane reads the log by cursor and publishes to Kafka. A consumer records it in `inbox` in the
-- transaction of its handler. An event that must wait is in `parked` (producer side) or `stored` (consumer side), and one
-- that is given up becomes a `letter`.
--
-- Every text that identifies something (an id, a key, a topic, a consumer) has the collation "C", in which texts are equal
-- and in order by their bytes. Under a collation of the operating system an upgrade of that can make an index wrong, and a
-- wrong index of the inbox lets an event be handled twice.
--
-- Who changes this file writes a migration too: migrations/README.md.

create schema if not exists holdfast;

-- ---------------------------------------------------------------------------------------------------------------------
-- What is installed, and in which history of the database.

-- One row: what Migrate created. `lanes` never changes: the same key must hash to the same lane for ever. Builds made for a
-- version older than `compatible_from` must not run on this schema; every part asks when it starts.
create table holdfast.installation (
    one              boolean primary key default true constraint one_row check (one),
    version          integer not null,
    lanes            smallint not null constraint lanes_between_1_and_256 check (lanes between 1 and 256),
    migrated_at      timestamptz not null default now(),
    compatible_from  integer not null
);

-- One row, written once and never updated. `born` equals this row's own xmin as long as the database's files keep the
-- same history (restarts, failover to a physical standby, pg_upgrade). A dump restored elsewhere copies the value but gets
-- another xmin: then every transaction id that we remember is meaningless.
create table holdfast.birth (
    one   boolean primary key default true constraint one_row check (one),
    born  xid8 not null default pg_current_xact_id()
);

-- One row: the cluster (pg_control_system) whose transaction ids are in our cursors. Relays refuse to run on another
-- one; `holdfast adopt` fixes that.
create table holdfast.cluster (
    one                boolean primary key default true constraint one_row check (one),
    system_identifier  bigint not null,
    adopted_at         timestamptz not null default now()
);

-- One row, or none after a crash: crash recovery empties an unlogged table. A relay remembers the token under which it
-- claimed its lanes, and each of its statements checks it: after a crash Postgres may assign a transaction id again that a
-- snapshot in the relay's memory calls ended. A consumer saves positions under the token under which it got a partition,
-- because what it settled before may be lost.
create unlogged table holdfast.incarnation (
    one    boolean primary key default true constraint one_row check (one),
    token  uuid not null default gen_random_uuid()
);

-- What processes remember and compare: the token, and since when this server runs and its last crash recovery. Some servers
-- keep unlogged tables through a crash (Aurora), and a cold copy of the files has the old token. Both start anew. A
-- recovery without a start resets the server's statistics.
create view holdfast.current_incarnation with (security_invoker = true) as
    select format('%s/%s/%s', i.token, extract(epoch from pg_postmaster_start_time()),
                  extract(epoch from pg_stat_get_bgwriter_stat_reset_time())) as token
      from holdfast.incarnation i;

-- ---------------------------------------------------------------------------------------------------------------------
-- The log. Append only: no status, no UPDATE, no DELETE. A relay reads it by two snapshots (see `lane`).

-- CACHE 1 is part of the order: a transaction that waited for another's lock must draw the larger number.
create sequence holdfast.event_seq cache 1;

-- It has no CHECKs: Postgres parses their text in every statement, which took a third of the cost of an insert. Writers
-- can only call holdfast.append, append_one and write, which enforce the limits (holdfast.refusal) for much less.
-- The parent is only read. Rows live in the four segments below, which are used in rotation. A segment whose every
-- row has been published is emptied by TRUNCATE (holdfast.reclaim).
create table holdfast.event (
    xid      xid8 not null default pg_current_xact_id(),   -- decides when the row may be read
    seq      bigint not null default nextval('holdfast.event_seq'), -- decides the order among rows that may be read
    lane     smallint not null,                            -- holdfast.lane_of(key, id)
    id       text collate "C" not null,
    source   text collate "C" not null default '',
    type     text collate "C" not null,
    topic    text collate "C" not null,
    key      text collate "C" not null default '', -- '' = no order
    time     timestamptz not null default now(),
    headers  jsonb,
    payload  bytea,                                        -- null is a tombstone
    letter   bigint,                                       -- set when this is the replay of a dead letter
    snap     pg_snapshot                                   -- in about one row of 1,000: a snapshot at which a backlog may be cut
);

-- All segments are written alike, here and in append, append_unchecked and append_one below: a test writes 1 to 3 from segment 0
-- (schema_segments_test.go).
create table holdfast.event_0 (like holdfast.event including defaults) inherits (holdfast.event);
create table holdfast.event_1 (like holdfast.event including defaults) inherits (holdfast.event);
create table holdfast.event_2 (like holdfast.event including defaults) inherits (holdfast.event);
create table holdfast.event_3 (like holdfast.event including defaults) inherits (holdfast.event);

create index event_0_lane_xid_seq on holdfast.event_0 (lane, xid, seq);
create index event_1_lane_xid_seq on holdfast.event_1 (lane, xid, seq);
create index event_2_lane_xid_seq on holdfast.event_2 (lane, xid, seq);
create index event_3_lane_xid_seq on holdfast.event_3 (lane, xid, seq);

create index event_0_cut on holdfast.event_0 (xid) where snap is not null;
create index event_1_cut on holdfast.event_1 (xid) where snap is not null;
create index event_2_cut on holdfast.event_2 (xid) where snap is not null;
create index event_3_cut on holdfast.event_3 (xid) where snap is not null;

-- A segment has nothing to vacuum. An autovacuum caused by inserts would only hold the lock that TRUNCATE needs.
alter table holdfast.event_0 set (autovacuum_vacuum_insert_threshold = -1);
alter table holdfast.event_1 set (autovacuum_vacuum_insert_threshold = -1);
alter table holdfast.event_2 set (autovacuum_vacuum_insert_threshold = -1);
alter table holdfast.event_3 set (autovacuum_vacuum_insert_threshold = -1);

-- Only holdfast adopt updates events, which have no key. Where a publication FOR ALL TABLES exists, Postgres refuses that
-- without a replica identity. It costs an insert nothing.
alter table holdfast.event replica identity full;
alter table holdfast.event_0 replica identity full;
alter table holdfast.event_1 replica identity full;
alter table holdfast.event_2 replica identity full;
alter table holdfast.event_3 replica identity full;

-- One row: which of the segments new events are written to. When it is full, a relay rotates to an empty one, or to another one if none is empty.
create table holdfast.segments (
    one         boolean primary key default true constraint one_row check (one),
    current     smallint not null default 0 constraint current_between_0_and_3 check (current between 0 and 3),
    rotated_at  timestamptz not null default now()
);

-- The same for writers, who have it in their plans as a constant: reading the table took a fifth of what append_one cost. Like
-- max_payload it is stable, so that plans are made anew after a rotation. A transaction has new plans from
-- its start; one that has written before may go on with the segment that it has locked. That does no harm: relays read all
-- segments, and one is emptied under a lock that waits for writers, if nothing in it is unread.
create function holdfast.current_segment() returns integer
language sql stable parallel safe as $$ select 0 $$;

-- Writes current_segment anew with every rotation, whichever build of a relay rotates.
create function holdfast.switch_segment() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    if new.current <> holdfast.current_segment() then
        execute format('create or replace function %I.current_segment() returns integer language sql stable parallel safe as %L', tg_table_schema, format(' select %s ', new.current));
    end if;
    return null;
end $$;
create trigger switch_segment after insert or update on holdfast.segments for each row execute function holdfast.switch_segment();

-- A lane is a share of the keys, read by one relay at a time. The cursor is a pair of snapshots: everything visible in
-- `done` is published; the window being read holds the rows visible in `upto` and not in `done`, in order of seq, and
-- is published up to seq `pos`. owner, epoch and lease_until say who may write this row: every statement that changes
-- it names owner and epoch, and touches no row when the lane was lost.
create table holdfast.lane (
    lane         smallint primary key,
    owner        text collate "C",
    epoch        bigint not null default 0,
    lease_until  timestamptz not null default '-infinity',
    done         pg_snapshot not null,
    upto         pg_snapshot,
    pos          bigint not null default 0,
    saved_at     timestamptz not null default now(),
    save         bigint not null default 0, -- number of the last save of this epoch: an earlier one that arrives late writes nothing
    published    bigint not null default 0, -- events that the broker has acknowledged since the lane was created, repeats too
    constraint pos_only_inside_a_window check (upto is not null or pos = 0)
) with (fillfactor = 10);

-- The relays that run, so that they can share the lanes fairly.
-- `trouble` is why the publisher takes nothing now, for people; '' if it does, or nothing was tried.
create table holdfast.relay (
    name        text collate "C" primary key,
    seen_until  timestamptz not null,
    started_at  timestamptz not null default now(),
    trouble     text not null default ''
) with (fillfactor = 50);

-- Events that wait for their time (Event.NotBefore). The owner of the lane moves them into the log when they are due.
create table holdfast.scheduled (
    lane     smallint not null,
    due_at   timestamptz not null,
    seq      bigint not null default nextval('holdfast.event_seq'),
    id       text collate "C" not null constraint id_at_most_255_bytes check (octet_length(id) between 1 and 255),
    source   text collate "C" not null default '' constraint source_at_most_255_bytes check (octet_length(source) <= 255),
    type     text collate "C" not null constraint type_1_to_255_bytes check (octet_length(type) between 1 and 255),
    topic    text collate "C" not null constraint topic_is_a_kafka_name check (octet_length(topic) >= 1 and octet_length(topic) <= 249 and topic !~ '[^a-zA-Z0-9._-]' and topic not in ('.', '..')),
    key      text collate "C" not null default '' constraint key_at_most_1024_bytes check (octet_length(key) <= 1024),
    time     timestamptz not null constraint time_in_the_years_1_to_9999 check (time >= '0001-01-01 00:00:00+00' and time < '10000-01-01 00:00:00+00'),
    headers  jsonb constraint headers_are_an_object check (jsonb_typeof(headers) = 'object'),
    payload  bytea,
    primary key (lane, due_at, seq)
);

-- Events that were written under a dedupe key (holdfast.write_once), so that the same business event is written once: one row
-- for each topic, type and key, inserted in the transaction that writes the event. A second writer of the key waits for that
-- transaction at the primary key. `hash` is the SHA-256 of the payload, empty for a tombstone, and null where payloads
-- are not compared, because they are encrypted. Rows are removed once they have expired, by the relay that owns lane 0.
create table holdfast.written_once (
    dedupe_key  text collate "C" not null constraint dedupe_key_of_1_to_255_bytes check (octet_length(dedupe_key) between 1 and 255),
    topic       text collate "C" not null,
    type        text collate "C" not null,
    event_id    text collate "C" not null,
    source      text collate "C" not null,
    key         text collate "C" not null,
    hash        bytea,
    written_at  timestamptz not null default now(),
    expires_at  timestamptz not null,
    primary key (dedupe_key, topic, type)
);
create index written_once_expiry on holdfast.written_once (expires_at);

-- Events that were read from the log but cannot be published yet, in queues of one topic and key each. The first row of
-- a queue (lowest place) is its head. Invariant: only a head has a finite next_at; followers wait at 'infinity', and so
-- does the head of a key that a dead letter holds. Events without a key wait alone: each is a head.
create table holdfast.parked (
    lane      smallint not null,
    topic     text collate "C" not null,
    key       text collate "C" not null,
    place     bigint not null,             -- order within the queue; a replay goes before the first
    why       text collate "C" not null constraint why_is_known check (why in ('record', 'follows', 'topic', 'partition')),
    attempts  integer not null default 0,  -- refusals of the record itself
    next_at   timestamptz not null,
    errors    text[] not null default '{}',
    first_at  timestamptz not null default now(),
    id        text collate "C" not null,
    source    text collate "C" not null,
    type      text collate "C" not null,
    time      timestamptz not null,
    headers   jsonb,
    payload   bytea,
    letter    bigint,
    partition integer,                     -- the partition for which this row waits, because it takes no events now
    primary key (lane, topic, key, place)
);
-- What waits for its topic (-2) or its partition, in the order in which it was parked.
create index parked_holds on holdfast.parked (lane, topic, (coalesce(partition, -2)), place) where partition is not null or why = 'topic';
create index parked_due on holdfast.parked (lane, next_at) where next_at < 'infinity';
-- For people: the oldest of each kind, however many there are. Only a statement that says id <> '' can use it: Postgres would take
-- it, which is small, for all that a relay asks of a lane.
create index parked_age on holdfast.parked (lane, why, first_at) where id <> '';
create sequence holdfast.parked_place;

-- What of the parked events the owner of a lane has in memory, because it sends them: queues (place 0), and events without a key by
-- their places. A command removes parked rows, and makes them due, under the advisory lock that the owner takes for each change of its
-- own, and leaves these out. An owner that has claimed the lane says so by a row without a topic, whose place is the epoch. Without that nobody knows what it
-- has: it is just loading the lane, or of an older build, or a crash has emptied this table, with which it loses the lane.
create unlogged table holdfast.parked_lease (
    lane   smallint not null,
    topic  text collate "C" not null,
    key    text collate "C" not null,
    place  bigint not null,
    primary key (lane, topic, key, place)
);

-- ---------------------------------------------------------------------------------------------------------------------
-- The consumer side.

-- One row for each event that a consumer has settled, written in the transaction of its handler, with result and
-- processed_at. Partition and offset are null for an event that did not come from Kafka. `hash` shows when an id comes with
-- another type or payload: it is the SHA-256 of the type, a NUL and the payload. For a webhook whose provider counts its
-- deliveries in the payload it is that of the payload without the count, and after an edit that of the new payload. A row
-- has no processed_at while its result is 'stored', and only then. No CHECK says so, because every event would pay for it;
-- tests look at the rows that they leave.
create table holdfast.inbox (
    consumer      text collate "C" not null,
    source        text collate "C" not null,
    event_id      text collate "C" not null,
    topic         text collate "C" not null,
    partition     integer,
    "offset"      bigint,
    hash          bytea not null,
    received_at   timestamptz not null default now(),
    processed_at  timestamptz,
    result        text not null,              -- 'handled', 'stored', 'dead', 'skipped' or 'discarded'
    attempts      integer not null default 1,
    primary key (consumer, source, event_id)
);
-- The order in which rows are removed; a row that waits ('stored') is not in it. Not BRIN: new rows reuse the space of
-- removed ones, and a summary that once covered an old row never narrows again.
create index inbox_settled on holdfast.inbox (consumer, processed_at) where processed_at is not null;

-- One row for each consumer: the progress of removing its inbox rows. Only the session that has it locked removes rows, and
-- `next_at` is when that may begin again. A pass reads settled rows in the order of processed_at, up to the end of the
-- retention window; `from_at` is how far it has got (null: nowhere). Some old rows must stay, because their partition's
-- position is below them or a letter is open: the next pass begins at `kept_at`, the oldest of them. `sources` is how far it has
-- got with sources that have a retention of their own.
create table holdfast.retention (
    consumer  text collate "C" primary key,
    from_at   timestamptz,
    kept_at   timestamptz,
    next_at   timestamptz not null default '-infinity',
    sources   jsonb not null default '{}'
) with (fillfactor = 10);

-- Events that a consumer took in but has not handled: retries, followers of a failing event of their key, and events of
-- Store. Each consumer, topic and key has a queue. Its head is the row with the lowest place, found when it is read: there
-- is no marker that could become stale. Events without a key wait alone.
--
-- A follower may be dormant (next_at 'infinity'), so that a long queue does not slow the search for due heads. The worker
-- that removes the head makes the next row due, and makes later rows dormant that Store has added since. A sweep resumes a
-- head that is still dormant, say after the letter that held it was discarded. A finite next_at of a follower does no harm:
-- only heads are claimed.
create table holdfast.stored (
    consumer   text collate "C" not null,
    topic      text collate "C" not null,
    key        text collate "C" not null,
    place      bigint not null,
    source     text collate "C" not null,
    event_id   text collate "C" not null,
    type       text collate "C" not null,
    time       timestamptz not null,
    headers    jsonb,
    payload    bytea,
    hash       bytea not null,
    partition  integer,
    "offset"   bigint,
    attempts   integer not null default 0,
    losses     integer not null default 0,                 -- tries in a row that cost no attempt: connections that were lost; below zero, full disks; above 100, something away
    next_at    timestamptz not null default now(),
    errors     text[] not null default '{}',
    first_at   timestamptz not null default now(),         -- when it was stored; for a head, since when its key waits
    failed_at  timestamptz,                                -- when its handler failed first; null: never
    lease_until timestamptz not null default '-infinity',  -- until then a worker has it
    lease_token uuid,                                      -- which worker; every settling statement names it
    letter     bigint,                                     -- set when this is the replay of a dead letter
    primary key (consumer, topic, key, place),
    -- The id comes first: with the consumer first, Postgres took this index for a key's queue, and read all of the consumer.
    constraint stored_consumer_source_event_id_key unique (event_id, source, consumer)
);
-- What is due, by type: a claim reads only events of types that its node handles, and may go on from where the last one ended. Only a statement that says type <> '' can use
-- it. Otherwise Postgres, planning for a small table, would take it for the active rows of a key and read those of all keys.
create index stored_due on holdfast.stored (consumer, type, next_at, place) where next_at < 'infinity' and type <> '';
-- The rows of a key that are not dormant: its head, replays, and the rows that a worker has. Without this index a claim and
-- a replay would look for these among all followers of the key. No column of it changes when an event is claimed.
create index stored_active on holdfast.stored (consumer, topic, key, place) where next_at < 'infinity';
-- For people: what has waited longest, however much waits. As for parked_age, only a statement that says event_id <> '' can use it.
create index stored_age on holdfast.stored (consumer, first_at) where event_id <> '';
create sequence holdfast.stored_place;

-- What people did to stored events (holdfast waiting), and why. An event that they gave up or discarded is a letter.
-- `login` and `at` are the database's own: see sign_action.
create table holdfast.stored_action (
    id        bigint generated always as identity primary key,
    action    text not null constraint action_is_known check (action in ('retry', 'discard', 'give-up')),
    consumer  text collate "C" not null,
    source    text collate "C" not null,
    event_id  text collate "C" not null,
    type      text collate "C" not null,
    topic     text collate "C" not null,
    key       text collate "C" not null,
    letter    bigint,                                      -- which letter it became; null if it was released
    by        text not null,
    reason    text not null,
    at        timestamptz not null default now(),
    login     text collate "C"
);
create index stored_action_event on holdfast.stored_action (consumer, source, event_id);

-- Where a consumer stands in each partition: every offset below `position` is settled. `epoch` is the fence: the node
-- that is given the partition raises it, to a number that no owner had before (microseconds of the clock), and handlers
-- that began under an older one cannot commit. `clean` says that the last owner stopped in order; after an unclean end the
-- next one counts attempts before it starts a handler, and so do those after it until one has got past what may have been
-- in progress. `checkpoint_identity` stands for the event at `checkpoint_offset`, the last one below the position: it tells
-- this log from another of the same name.
create table holdfast.consumer_position (
    consumer             text collate "C" not null,
    topic                text collate "C" not null,
    partition            integer not null,
    epoch                bigint not null default 0,
    position             bigint not null default 0,
    clean                boolean not null default true,
    owner                text collate "C",
    held                 text,                             -- why the partition is held; null: it is not
    group_id             text collate "C",                 -- the consumer group that assigned it last; null: unknown
    checkpoint_offset    bigint,
    checkpoint_identity  bigint,
    updated_at           timestamptz not null default now(),
    primary key (consumer, topic, partition)
) with (fillfactor = 10);

-- How far a consumer's last backfill (Inbox.ConsumeUntil) has got, for people: one row for each consumer, which the node that runs it
-- writes every few seconds. `told_at` says when.
create table holdfast.consumer_backfill (
    consumer         text collate "C" primary key,
    node             text collate "C" not null,
    began_at         timestamptz not null,
    told_at          timestamptz not null default now(),
    partitions       integer not null,
    partitions_left  integer not null,
    done             bigint not null,              -- offsets since the call began, over all nodes
    remaining        bigint not null,              -- offsets up to the bound
    per_second       double precision not null,    -- done in the last minute
    waits            text,                         -- why reading waits, as the node knows; null: it does not
    ended_at         timestamptz,
    error            text                          -- why it ended before its bound; null: it did not
) with (fillfactor = 50);

-- Starts of handlers, counted before they run, only after an unclean end: they show which payload kills the process. An event
-- that comes to an end leaves no row.
create table holdfast.start (
    consumer   text collate "C" not null,
    source     text collate "C" not null,
    event_id   text collate "C" not null,
    starts     integer not null default 0,
    last_at    timestamptz not null default now(),
    primary key (consumer, source, event_id)
);

-- Steps of handlers that are done (inbox.Step), each recorded in a transaction of its own: when a handler runs again for the event, they have these
-- results and do not run. hash is that of the event's row in stored or inbox: after an edit of the payload they run again. A row goes with the event's row in
-- inbox. key is the event's. json, not jsonb, because jsonb refuses \u0000 in texts.
create table holdfast.inbox_step (
    consumer   text collate "C" not null,
    source     text collate "C" not null,
    event_id   text collate "C" not null,
    hash       bytea not null,
    name       text collate "C" not null constraint name_of_1_to_128_bytes check (octet_length(name) between 1 and 128),
    key        text collate "C" not null,
    result     json not null,
    done_at    timestamptz not null default now(),
    primary key (consumer, source, event_id, hash, name)
);
create index inbox_step_done on holdfast.inbox_step (consumer, done_at);

-- Which node of a consumer has a handler for which type, so that during a rolling deploy an event is left for a node that
-- handles it.
create table holdfast.consumer_type (
    consumer    text collate "C" not null,
    type        text collate "C" not null,
    node        text collate "C" not null,
    seen_until  timestamptz not null,
    stopped     boolean not null default false,   -- it has said that it stops: its types are believed for as long
    needs       text[] not null default '{}',     -- what its handler needs (inbox.Needs): names of `dependency`
    primary key (consumer, type, node)
);

-- How many events a consumer has skipped because no node handles their type (Config.UnknownType), for people. Type and topic
-- are '' for those beyond a node's first thousand types.
create table holdfast.consumer_skip (
    consumer  text collate "C" not null,
    topic     text collate "C" not null,
    type      text collate "C" not null,
    events    bigint not null,
    first_at  timestamptz not null default now(),
    last_at   timestamptz not null default now(),
    primary key (consumer, topic, type)
) with (fillfactor = 50);

-- What handlers need beyond Postgres (inbox.Needs), once one of them has found it away: whether it still is, since when it is or is not,
-- when an event tries it next, and how often in a row that found it away. `error` and `node` say who found it away last. Where it is away,
-- no handler that needs it begins on any node of the consumer, but for that event's.
create table holdfast.dependency (
    consumer  text collate "C" not null,
    name      text collate "C" not null,
    away      boolean not null default false,
    since     timestamptz not null default now(),
    until     timestamptz not null default now(),
    tries     integer not null default 0,
    error     text not null default '',
    node      text collate "C" not null default '',
    primary key (consumer, name)
) with (fillfactor = 50);

-- The highest version of an entity that a consumer's handlers have seen (Inbox.Watermark). A handler whose events may
-- overtake each other asks it whether an event is older than what it has seen. One row for each entity, not for each
-- event. An update touches no index, and the fillfactor leaves room for it on the page, so it is HOT, and the table does
-- not grow with the events.
-- Nothing removes rows, because only you know how late an event can be: for an entity without a row every version is
-- newer. Once no older event can come any more, delete by updated_at, as docs/operations.md shows.
create table holdfast.watermark (
    consumer    text collate "C" not null,
    entity      text collate "C" not null constraint entity_1_to_1024_bytes check (octet_length(entity) between 1 and 1024),
    version     bigint not null,
    updated_at  timestamptz not null default now(),
    primary key (consumer, entity)
) with (fillfactor = 80);

-- ---------------------------------------------------------------------------------------------------------------------
-- HTTP requests with an Idempotency-Key.

-- One row for each key that is in use or answered. In transaction mode it is written once, in the transaction of the
-- request's effect, and never changed. In lease mode it is first `pending`: the holder of the latest fence works on the
-- request, at least until lease_until. Then the row gets the answer. `scope` is 'principal:' and whose key it is, 'operation'
-- or 'global'. The fingerprint identifies the request: a key with another fingerprint is refused. The body is bytea
-- because jsonb would not give back the same bytes. Nothing references a row: it goes when it has expired.
create table holdfast.idempotency (
    scope                text collate "C" not null constraint scope_of_1_to_522_bytes check (octet_length(scope) between 1 and 522),
    operation            text collate "C" not null constraint operation_of_at_most_256_bytes check (octet_length(operation) <= 256),
    key                  text collate "C" not null constraint key_of_1_to_255_bytes check (octet_length(key) between 1 and 255),
    fingerprint          bytea not null,          -- SHA-256; then checksums of the parts of the request, to say what differs
    fingerprint_version  smallint not null,
    state                text not null constraint state_is_known check (state in ('pending', 'complete', 'omitted')), -- omitted: the body was too long
    status               smallint constraint status_is_final check (status between 200 and 599),
    headers              jsonb,                   -- each name's lines; bytes above 127 as the characters of Latin-1
    body                 bytea,
    body_hash            bytea,                   -- SHA-256 of what is stored
    result_ref           text,                    -- what the operation created, say a payment's id
    owner                uuid not null,           -- the try that stored it, or is working on it
    fence                bigint,                  -- of the claim that works on it, or stored it; null in transaction mode
    run                  bigint,                  -- its first fence: the key of its rows in idempotency_step and _request
    attempt              integer not null default 1, -- how often the handler was started
    lease_until          timestamptz,             -- -infinity once it is released, null once it is answered
    created_at           timestamptz not null default clock_timestamp(),
    expires_at           timestamptz not null,    -- of a pending row later than its lease, and far off once it has a step
    primary key (scope, operation, key),
    constraint answered_or_pending check ((state = 'pending') = (status is null) and (status is null) = (headers is null) and (status is null) = (body_hash is null)),
    constraint pending_under_a_lease check ((state = 'pending') = (lease_until is not null)),
    constraint pending_under_a_fence check (state <> 'pending' or (fence is not null and run is not null))
);
create index idempotency_expiry on holdfast.idempotency (expires_at);
create index idempotency_pending on holdfast.idempotency (created_at) where state = 'pending'; -- for people

-- A fence is never given twice, even if a row was removed meanwhile.
create sequence holdfast.idempotency_fence;

-- The steps of pending requests that are done, each committed together with its row here: when the request runs again
-- its steps have these results and do not run. A table rather than a column, so that a result is written once. json, not
-- jsonb, because jsonb refuses \u0000 in texts.
create table holdfast.idempotency_step (
    run      bigint not null,
    name     text collate "C" not null constraint name_of_1_to_128_bytes check (octet_length(name) between 1 and 128),
    result   json not null,
    done_at  timestamptz not null default clock_timestamp(),
    primary key (run, name)
);

-- Pending requests that holdfast may run again by itself (Route.Complete), as they came, without credentials. A row goes
-- when its request is answered. due_at is null after the last try: then a person has to look.
create table holdfast.idempotency_request (
    run          bigint primary key,
    scope        text collate "C" not null,
    operation    text collate "C" not null,       -- of the key
    key          text collate "C" not null,
    route        text collate "C" not null,                   -- Route.Operation: only nodes that have it run it
    principal    text not null,
    method       text not null,
    host         text not null,
    url          text not null,
    pattern      text not null default '',        -- the router's, '' if it had none
    path_values  jsonb not null,
    headers      jsonb not null,
    body         bytea not null,
    tries        integer not null default 0,      -- by holdfast; attempt counts all
    due_at       timestamptz
);
create index idempotency_request_due on holdfast.idempotency_request (due_at) where due_at is not null;

-- What is kept of expired keys, for audits, if Config.KeepExpired is set.
create table holdfast.idempotency_expired (
    scope        text collate "C" not null,
    operation    text collate "C" not null,
    key          text collate "C" not null,
    fingerprint  bytea not null,
    status       smallint,                    -- null: it never had an answer
    result_ref   text,
    created_at   timestamptz not null,
    expires_at   timestamptz not null,
    keep_until   timestamptz not null
);
create index idempotency_expired_keep on holdfast.idempotency_expired (keep_until);
create index idempotency_expired_key on holdfast.idempotency_expired (key);
alter table holdfast.idempotency_expired replica identity full; -- it has no key, and its rows are removed

-- Two tables by the names that other documents on idempotency use, for people and their queries (docs/reference/requirement-names.md).
-- Nothing of holdfast reads them. They use the rights of the role that queries.
create view holdfast.idempotency_keys with (security_invoker = true) as
    select i.key, i.operation as operation_type, left(encode(i.fingerprint, 'hex'), 64) as request_hash, encode(i.body_hash, 'hex') as response_hash,
           case i.state when 'pending' then 'pending' else 'complete' end as status, i.created_at, i.expires_at
      from holdfast.idempotency i;

create view holdfast.inbox_events with (security_invoker = true) as
    select i.event_id, i.source, encode(i.hash, 'hex') as payload_hash, i.received_at, i.processed_at, i.result
      from holdfast.inbox i;

-- ---------------------------------------------------------------------------------------------------------------------
-- What people have paused.

-- One row for each topic, consumer, or key of a consumer that somebody has paused (holdfast pause), until it is resumed. Relays
-- publish no event of a paused topic, and park them in order. No handler of a paused consumer begins. The events of a paused key
-- wait in `stored`, as if a dead letter held it. Relays and consumers read the table once a second; a key is looked up with each
-- event, by the view consumer_hold. The database signs each row: see sign_action.
create table holdfast.pause (
    consumer  text collate "C" not null default '',   -- '': a topic is paused, for relays
    topic     text collate "C" not null default '',   -- '': all of a consumer is paused
    key       text collate "C" not null default '',
    by        text not null,
    reason    text not null,
    at        timestamptz not null default now(),
    login     text collate "C",
    primary key (consumer, topic, key),
    constraint a_topic_a_consumer_or_a_key check ((consumer = '' and topic <> '' and key = '') or (consumer <> '' and (topic = '') = (key = '')))
);

-- Who paused and resumed what, and who did what to the parked events of a topic, and why.
create table holdfast.pause_action (
    id        bigint generated always as identity primary key,
    action    text not null constraint action_is_known check (action in ('pause', 'resume', 'retry', 'give-up', 'discard', 'redirect')),
    consumer  text collate "C" not null default '',
    topic     text collate "C" not null default '',
    key       text collate "C" not null default '',
    by        text not null,
    reason    text not null,
    at        timestamptz not null default now(),
    login     text collate "C"
);

-- ---------------------------------------------------------------------------------------------------------------------
-- Dead letters: events that were given up, on either side, written in the transaction that gives them up.

create table holdfast.letter (
    id           bigint generated always as identity primary key,
    origin       text not null constraint origin_is_known check (origin in ('relay', 'inbox')),
    consumer     text collate "C" not null default '',    -- '' for the relay
    reason       text not null,               -- one line: why it was given up
    fingerprint  text collate "C" not null default '',    -- equal for letters of one kind of failure
    state        text not null default 'open' constraint state_is_known check (state in ('open', 'replaying', 'replayed', 'discarded')),
    holds        boolean not null default false, -- later events of its topic and key wait until a person has decided
    event_id     text collate "C" not null,
    source       text collate "C" not null,
    type         text collate "C" not null,
    topic        text collate "C" not null,
    key          text collate "C" not null,
    time         timestamptz not null,
    headers      jsonb,
    payload      bytea,
    hash         bytea not null,              -- SHA-256 of the payload; of the inbox: that of its row
    version      integer not null default 1,  -- +1 with every edit; the old payload is in letter_action
    lane         smallint,                    -- of the relay
    partition    integer,                     -- of the inbox
    "offset"     bigint,
    place        bigint,                      -- of the inbox: the event's place in the queue of its key; the letter holds what comes after it
    attempts     integer not null default 0,
    errors       text[] not null default '{}',
    first_at     timestamptz not null default now(),
    last_at      timestamptz not null default now(), -- given up, replayed or discarded last
    constraint only_the_inbox_has_a_consumer check ((origin = 'inbox') = (consumer <> ''))
);
create index letter_open on holdfast.letter (id) where state in ('open', 'replaying');
create index letter_closed on holdfast.letter (last_at) where state in ('replayed', 'discarded'); -- for dlq.Purge
create index letter_holds on holdfast.letter (lane, topic, key) where holds and state in ('open', 'replaying');
create index letter_holds_inbox on holdfast.letter (consumer, topic, key) where holds and origin = 'inbox' and state in ('open', 'replaying');
create unique index letter_event on holdfast.letter (consumer, source, event_id, hash) where origin = 'inbox';

-- What dead letters hold back. Every statement that needs to know whether a letter holds a key reads one of these two views,
-- so that all get the same answer. The views use the rights of the role that queries (security_invoker): without a right to
-- `letter` the query fails.
--
-- At the relay, a letter holds what comes later in its lane, topic and key. By the index letter_holds.
create view holdfast.lane_hold with (security_invoker = true) as
    select l.lane, l.topic, l.key, l.id as letter, l.state
      from holdfast.letter l
     where l.holds and l.state in ('open', 'replaying');

-- At a consumer, a letter holds the events of its topic and key whose place comes after `after`, by the index
-- letter_holds_inbox; and a pause holds all of its key, by its primary key. That has no letter.
create view holdfast.consumer_hold with (security_invoker = true) as
    select l.consumer, l.topic, l.key, l.id as letter, coalesce(l.place, '-9223372036854775808') as after
      from holdfast.letter l
     where l.holds and l.origin = 'inbox' and l.state in ('open', 'replaying')
    union all
    select p.consumer, p.topic, p.key, null, '-9223372036854775808'
      from holdfast.pause p
     where p.key <> '';

-- What people read, and what reads for them: status, the console, metrics, the list of what waits. Both views use the rights of the
-- role that queries.
--
-- What a lane has not published: whether there is anything (`unread`), the time of the oldest such event that the lane reads next, since
-- when the first event waits in it, and when the first scheduled one is due. Who has the lane is null if nobody has. It looks up a few
-- events for each lane by the indexes event_N_lane_xid_seq, parked_age and scheduled_pkey, however many there are: 20 of those that come
-- after the cursor, and of each transaction that was in flight at it. What a lane has published of its window is none of them, unless
-- it is the 20th: then a long window counts as unread until its end is saved.
create view holdfast.backlog with (security_invoker = true) as
    select l.lane, case when l.lease_until > now() then l.owner end as owner, n.unread, n.oldest_at, k.waiting_since, s.scheduled_for
      from holdfast.lane l
     cross join lateral (
           select count(*) > 0 as unread, min(u.time) filter (where isfinite(u.time) and u.time <= now()) as oldest_at from (
             (select e.time from (
                select e.time, e.xid, e.seq, row_number() over (order by e.xid, e.seq) as n from holdfast.event e
                 where e.lane = l.lane and e.xid >= pg_snapshot_xmax(l.done) order by e.xid, e.seq limit 20) e
               where e.n = 20 or l.upto is null or e.seq > l.pos or not pg_visible_in_snapshot(e.xid, l.upto))
             union all
             (select e.time from pg_snapshot_xip(l.done) flying (xid), lateral (
                select f.time, f.seq, row_number() over (order by f.seq) as n from holdfast.event f
                 where f.lane = l.lane and f.xid = flying.xid order by f.seq limit 20) e
               where e.n = 20 or l.upto is null or e.seq > l.pos or not pg_visible_in_snapshot(flying.xid, l.upto))) u) n
     cross join lateral (
           select min(p.first_at) filter (where isfinite(p.first_at)) as waiting_since
             from (values ('record'), ('follows'), ('topic'), ('partition')) w (why), lateral (
                  select p.first_at from holdfast.parked p where p.lane = l.lane and p.why = w.why and p.id <> '' order by p.first_at limit 1) p) k
     cross join lateral (
           select min(d.due_at) as scheduled_for from (
                  select f.due_at from holdfast.scheduled f where f.lane = l.lane order by f.due_at limit 1) d) s;

-- Every event that waits: in a relay (`parked`), in a consumer (`stored`), or for its time (`scheduled`). `why` says for what, in the words
-- of package waiting; '' if its turn has come, or its handler runs. `head` says that nothing of its key is before it, by the primary key.
-- A node says which types it handles until seen_until. A pause of a key does not stop the replay of a letter. Who may read one place only, or
-- must not wait for a lock on another, reads the view of that. They have no headers and no payloads, which readers may not read.
create view holdfast.waiting_in_relays with (security_invoker = true) as
    select 'relay' as waits_in, ''::text collate "C" as consumer, w.lane, w.topic, w.key, w.place, w.source, w.id as event_id, w.type, w.time,
           case when exists (select from holdfast.pause u where u.consumer = '' and u.topic = w.topic) then 'paused'
                when w.partition is not null then 'partition'
                when w.why = 'topic' then 'topic'
                when w.key <> '' and exists (select from holdfast.parked h
                                              where h.lane = w.lane and h.topic = w.topic and h.key = w.key and h.place < w.place) then 'behind-event'
                when w.key <> '' and w.letter is null and w.next_at = 'infinity'
                     and exists (select from holdfast.lane_hold o where o.lane = w.lane and o.topic = w.topic and o.key = w.key) then 'behind-letter'
                when w.next_at > now() and w.next_at < 'infinity' then 'failed'
                else '' end as why,
           w.key = '' or not exists (select from holdfast.parked h
                                      where h.lane = w.lane and h.topic = w.topic and h.key = w.key and h.place < w.place) as head,
           false as running, w.partition, w.attempts, w.errors, w.first_at as since, nullif(w.next_at, 'infinity') as next_at, w.letter,
           null::timestamptz as failed_at, null::integer as record_partition, null::bigint as record_offset
      from holdfast.parked w;

create view holdfast.waiting_in_consumers with (security_invoker = true) as
    select 'consumer' as waits_in, w.consumer, 0::smallint as lane, w.topic, w.key, w.place, w.source, w.event_id, w.type, w.time,
           case when w.lease_until > now() then ''
                when not exists (select from holdfast.consumer_type t
                                  where t.consumer = w.consumer and t.type = w.type and t.seen_until > now()) then 'no-handler'
                when exists (select from holdfast.pause u
                              where u.consumer = w.consumer
                                and (u.topic = '' or u.topic = w.topic and u.key = w.key and w.letter is null)) then 'paused'
                when w.key <> '' and exists (select from holdfast.stored h
                                              where h.consumer = w.consumer and h.topic = w.topic and h.key = w.key and h.place < w.place) then 'behind-event'
                when w.key <> '' and w.letter is null
                     and exists (select from holdfast.consumer_hold o
                                  where o.consumer = w.consumer and o.topic = w.topic and o.key = w.key and o.after < w.place) then 'behind-letter'
                when exists (select from holdfast.dependency d join holdfast.consumer_type t on t.consumer = d.consumer and d.name = any(t.needs)
                              where d.consumer = w.consumer and d.away and t.type = w.type and t.seen_until > now()) then 'dependency'
                when w.next_at > now() and w.next_at < 'infinity' then 'failed'
                else '' end as why,
           w.key = '' or not exists (select from holdfast.stored h
                                      where h.consumer = w.consumer and h.topic = w.topic and h.key = w.key and h.place < w.place) as head,
           w.lease_until > now() as running, null::integer as partition, w.attempts, w.errors, w.first_at as since, nullif(w.next_at, 'infinity') as next_at, w.letter,
           w.failed_at, w.partition as record_partition, w."offset" as record_offset
      from holdfast.stored w;

create view holdfast.waiting_in_schedule with (security_invoker = true) as
    select 'schedule' as waits_in, ''::text collate "C" as consumer, w.lane, w.topic, w.key, w.seq as place, w.source, w.id as event_id, w.type, w.time,
           'scheduled' as why, true as head, false as running, null::integer as partition, 0 as attempts, '{}'::text[] as errors, w.time as since, w.due_at as next_at,
           null::bigint as letter, null::timestamptz as failed_at, null::integer as record_partition, null::bigint as record_offset
      from holdfast.scheduled w;

create view holdfast.waiting with (security_invoker = true) as
    select * from holdfast.waiting_in_relays
    union all
    select * from holdfast.waiting_in_consumers
    union all
    select * from holdfast.waiting_in_schedule;

-- The last 20 errors, which is how many a row keeps.
create function holdfast.last_errors(errors text[]) returns text[]
language sql immutable parallel safe as $$ select errors[greatest(1, cardinality(errors) - 19):] $$;

-- Named replays of many letters, so that an interrupted one can go on: under the same name it has the filter and the bound
-- with which it began, and replays no letter a second time (letter_action.replay).
create table holdfast.letter_replay (
    id        bigint generated always as identity primary key,
    name      text collate "C" not null constraint name_1_to_255_bytes check (octet_length(name) between 1 and 255),
    filter    jsonb not null,                 -- dlq.Filter as it was when it began
    upto      bigint not null,                -- letters with larger ids are left for the next replay
    by        text not null,
    reason    text not null,
    began_at  timestamptz not null default now(),
    ended_at  timestamptz                     -- null until it has met its last letter
);
create unique index letter_replay_unended on holdfast.letter_replay (name) where ended_at is null;

-- Who did what to a letter, and why. An action outlives its letter, but not the payload that it keeps. `by` is what the person
-- says; `login` and `at` are the database's own: see sign_action.
create table holdfast.letter_action (
    id         bigint generated always as identity primary key,
    letter     bigint not null,
    action     text not null constraint action_is_known check (action in ('replay', 'discard', 'edit', 'reopen')),
    by         text not null,
    reason     text not null,
    at         timestamptz not null default now(),
    payload    bytea,                         -- edit: the payload before it
    hash       bytea,                         -- edit: its hash
    version    integer,                       -- edit: its version
    replay     bigint,                        -- replay: the letter_replay that it was part of, if any
    login      text collate "C"               -- null: before version 2 of the schema
);
create index letter_action_letter on holdfast.letter_action (letter);
create unique index letter_action_replay on holdfast.letter_action (replay, letter) where replay is not null;

-- Signs an action with the user that the session logged in as, whatever role it set since, and with the time at which the row
-- was written, however long its transaction is open. Nobody chooses either, whatever their grants are.
create function holdfast.sign_action() returns trigger
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
    new.login := session_user;
    new.at := clock_timestamp();
    return new;
end $$;
create trigger sign before insert on holdfast.letter_action for each row execute function holdfast.sign_action();
create trigger sign before insert on holdfast.stored_action for each row execute function holdfast.sign_action();
create trigger sign before insert on holdfast.pause for each row execute function holdfast.sign_action();
create trigger sign before insert on holdfast.pause_action for each row execute function holdfast.sign_action();

-- Removes up to `most` letters that were closed longer than `age` microseconds ago, the oldest first, and returns how many. Those
-- who work on letters may not delete any: this function refuses open ones. What was done to the letters stays, without the
-- payloads that edits replaced. Letters that are locked, or that were reopened meanwhile, are skipped. They are found by
-- letter_closed, and removed by an array of ids, because a join would read the whole table for every batch. The last call
-- also removes named replays that ended as long ago; it reads all of them, but people name few.
create function holdfast.purge_letters(age bigint, most integer) returns bigint
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
declare
    own   constant text[] := holdfast.own_consumers();
    gone  bigint[];
begin
    if age is null or age < 60000000 then raise exception 'purge letters: age is % microseconds: at least 60000000', age using errcode = '22023'; end if;
    if most is null or most not between 1 and 10000 then raise exception 'purge letters: most is %: it must be between 1 and 10000', most using errcode = '22023'; end if;
    gone := array(select o.id from holdfast.letter o
                   where o.state in ('replayed', 'discarded') and o.last_at < now() - age * interval '1 microsecond'
                     and (own is null or o.consumer = any (own))
                   order by o.last_at limit most
                     for update skip locked);
    delete from holdfast.letter l where l.id = any (gone);
    update holdfast.letter_action a set payload = null where a.letter = any (gone) and a.payload is not null;
    if cardinality(gone) < most and own is null then
        delete from holdfast.letter_replay r where r.ended_at < now() - age * interval '1 microsecond';
    end if;
    return cardinality(gone);
end $$;

-- Publishes a letter through the log, in the caller's transaction, for those who watch dead letters in Kafka. A user who is
-- bound to consumers publishes their letters only, each to the topic of its binding. The event
-- has an id of its own, the letter's key, type, source and time, and the headers that internal/wire lists. The result is
-- null, or why the letter was not published: that must not keep a letter from being written, so nothing is raised.
--
-- Headers are bounded, so that the broker does not refuse the record for them: ours take 8 KiB at most, the event's own
-- 8 KiB, the shortest first. A payload of more than max_payload bytes is left out. A header says what was left out.
create function holdfast.publish_letter(letter_id bigint, to_topic text, max_payload integer) returns text
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
declare
    l         holdfast.letter;
    kept      jsonb;
    ours      jsonb;
    left_out  bigint;
    large     boolean;
    refused   text;
    own       constant text[] := holdfast.own_consumers();
begin
    select d.* into l from holdfast.letter d where d.id = letter_id and (own is null or d.consumer = any (own));
    if not found then return 'it is not there'; end if;
    if own is not null and l.consumer <> '' then
        refused := holdfast.letter_topic_refusal(l.consumer, l.topic, to_topic);
        if refused is not null then return refused; end if;
    end if;
    if l.headers ? 'hf_letter' then return 'it is the letter of a published letter'; end if;
    l.type := case when l.type = '' then 'none' else l.type end;
    select coalesce(jsonb_object_agg(h.key, h.value) filter (where h.size <= 8192), '{}'), count(*) filter (where h.size > 8192)
      into kept, left_out
      from (select e.key, e.value, sum(octet_length(e.key) + octet_length(e.value))
                   over (order by octet_length(e.key) + octet_length(e.value), e.key) as size
              from jsonb_each_text(coalesce(l.headers, '{}')) e where e.key !~* '^hf_') h;
    large := coalesce(octet_length(l.payload) > max_payload, false);
    ours := jsonb_strip_nulls(jsonb_build_object(
        'hf_letter', l.id::text,
        'hf_origin', l.origin,
        'hf_consumer', nullif(l.consumer, ''),
        'hf_reason', left(l.reason, 256),
        'hf_fingerprint', left(l.fingerprint, 256),
        'hf_error', left(split_part(l.errors[cardinality(l.errors)], E'\n', 1), 512), -- no stack
        'hf_attempts', l.attempts::text,
        'hf_event_id', l.event_id,
        'hf_topic', l.topic,
        'hf_partition', l.partition::text,
        'hf_offset', l."offset"::text,
        'hf_first_at', to_char(l.first_at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'),
        'hf_last_at', to_char(l.last_at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'),
        'hf_payload_left_out', case when large then octet_length(l.payload)::text end,
        'hf_headers_left_out', case when left_out > 0 then left_out::text end));
    refused := holdfast.refusal(l.event_id, l.source, l.type, to_topic, l.key, l.time, null);
    if refused is not null then return refused; end if;
    perform holdfast.append_unchecked(array[holdfast.new_id()], array[l.source], array[l.type], array[to_topic], array[l.key], array[l.time],
        array[(kept || ours)::text], array[case when not large then l.payload end], null, null);
    return null;
end $$;

-- ---------------------------------------------------------------------------------------------------------------------
-- Bindings: what the user of a session may do within its grants. Both tables are empty, and hold nobody back, until an
-- administrator fills them; only the owner of the schema may (docs/operations.md).
--
-- A binding is for a role, and holds for sessions that logged in as that role or as a member of it. What counts is session_user,
-- the name that the server authenticated: set role does not change it, nor does a function that runs with its owner's rights,
-- nor a pooler that logs in under the names of its clients, such as PgBouncer. Superusers and members of the schema's owner
-- are not bound: they could remove the binding. A role is kept by its number, so that a binding holds under a new name too.

-- The consumers of a role. As long as there is a row, row security is on: a bound user sees and changes the rows of its
-- consumers and no others, and publishes dead letters only to `letter_topic`.
create table holdfast.consumer_binding (
    role          regrole not null,
    consumer      text collate "C" not null,          -- '': the dead letters of relays
    letter_topic  text collate "C" not null default '' -- inbox.Config.DeadLetterTopic: "*" is the event's topic; '' = none
        constraint letter_topic_is_a_topic_or_a_pattern check (letter_topic ~ '^([a-zA-Z0-9._-]*|[a-zA-Z0-9._-]+\*[a-zA-Z0-9._-]*|\*[a-zA-Z0-9._-]+)$'),
    primary key (role, consumer)
);

-- The topics that a role may write to, and under which sources. A "*" at the end stands for any rest.
create table holdfast.producer_binding (
    role    regrole not null,
    topic   text collate "C" not null constraint topic_is_a_topic_or_a_prefix check (topic ~ '^([a-zA-Z0-9._-]+|[a-zA-Z0-9._-]*\*)$'),
    source  text collate "C" not null default '*',
    primary key (role, topic, source)
);

-- The consumers to which the session's user is bound; null if it is not bound. '' stands for relays, and is among them for a user
-- who may run one. It reveals nothing to anybody but what they may do themselves.
create function holdfast.own_consumers() returns text[]
language plpgsql stable parallel safe security definer set search_path = pg_catalog, pg_temp as $$
declare
    own text[];
begin
    if pg_has_role(session_user, current_user, 'member') then return null; end if; -- here current_user is the schema's owner
    own := (select array_agg(b.consumer) from holdfast.consumer_binding b where pg_has_role(session_user, b.role, 'member'));
    if own is not null and has_table_privilege(session_user, 'holdfast.lane', 'update') then own := own || ''::text; end if;
    return own;
end $$;

-- Every policy asks once in a statement, because the question is a subquery of its own.
create policy own_rows on holdfast.inbox using (coalesce(consumer = any ((select holdfast.own_consumers())::text[]), true));
create policy own_rows on holdfast.retention using (coalesce(consumer = any ((select holdfast.own_consumers())::text[]), true));
create policy own_rows on holdfast.stored using (coalesce(consumer = any ((select holdfast.own_consumers())::text[]), true));
create policy own_rows on holdfast.stored_action using (coalesce(consumer = any ((select holdfast.own_consumers())::text[]), true));
create policy own_rows on holdfast.pause using (coalesce(consumer = any ((select holdfast.own_consumers())::text[]), true));
create policy own_rows on holdfast.pause_action using (coalesce(consumer = any ((select holdfast.own_consumers())::text[]), true));
create policy own_rows on holdfast.consumer_position using (coalesce(consumer = any ((select holdfast.own_consumers())::text[]), true));
create policy own_rows on holdfast.consumer_backfill using (coalesce(consumer = any ((select holdfast.own_consumers())::text[]), true));
create policy own_rows on holdfast.start using (coalesce(consumer = any ((select holdfast.own_consumers())::text[]), true));
create policy own_rows on holdfast.inbox_step using (coalesce(consumer = any ((select holdfast.own_consumers())::text[]), true));
create policy own_rows on holdfast.consumer_type using (coalesce(consumer = any ((select holdfast.own_consumers())::text[]), true));
create policy own_rows on holdfast.consumer_skip using (coalesce(consumer = any ((select holdfast.own_consumers())::text[]), true));
create policy own_rows on holdfast.dependency using (coalesce(consumer = any ((select holdfast.own_consumers())::text[]), true));
create policy own_rows on holdfast.watermark using (coalesce(consumer = any ((select holdfast.own_consumers())::text[]), true));
create policy own_rows on holdfast.letter using (coalesce(consumer = any ((select holdfast.own_consumers())::text[]), true));
create policy own_rows on holdfast.letter_action using (
    (select holdfast.own_consumers()) is null or exists (select from holdfast.letter l where l.id = letter_action.letter));

-- Whether a producer is bound. The first row of producer_binding writes "true" here, the removal of the last one "false", so that
-- writers need not read the table while nobody is bound: a look at it made append_one a sixth slower. Like max_payload it is
-- stable, so that plans are made anew after a change.
create function holdfast.producers_bound() returns boolean
language sql stable parallel safe as $$ select false $$;

-- Turns the check of producers on with the first binding of one, and row security with the first of a consumer; and off after
-- the last one. Until then neither costs anything. Two sessions that change a table's rows do so one after the other, and
-- each sees what the other did. Row security locks the tables with policies for a moment; if their transactions do not end within
-- 5 s, nothing is changed.
create function holdfast.switch_bindings() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp set lock_timeout = '5s' as $$
declare
    bound  boolean;
    name   text;
begin
    if current_setting('transaction_isolation') <> 'read committed' then
        raise exception 'bind a role: the transaction is %: it must be read committed', current_setting('transaction_isolation') using errcode = '25001';
    end if;
    if tg_table_name = 'producer_binding' then
        lock table holdfast.producer_binding in share row exclusive mode;
        bound := exists (select from holdfast.producer_binding);
        if bound <> holdfast.producers_bound() then
            execute format('create or replace function %I.producers_bound() returns boolean language sql stable parallel safe as %L', tg_table_schema, format(' select %s ', case when bound then 'true' else 'false' end));
        end if;
        return null;
    end if;
    lock table holdfast.consumer_binding in share row exclusive mode;
    bound := exists (select from holdfast.consumer_binding);
    for name in select c.oid::regclass::text from pg_policy p join pg_class c on c.oid = p.polrelid
                 where p.polname = 'own_rows' and c.relnamespace = (select n.oid from pg_namespace n where n.nspname = tg_table_schema)
                   and c.relrowsecurity <> bound order by c.relname loop
        execute format('alter table %s %s row level security', name, case when bound then 'enable' else 'disable' end);
    end loop;
    return null;
end $$;
create trigger switch_bindings after insert or update or delete or truncate on holdfast.consumer_binding
    for each statement execute function holdfast.switch_bindings();
create trigger switch_bindings after insert or update or delete or truncate on holdfast.producer_binding
    for each statement execute function holdfast.switch_bindings();

-- Says in one line why the session's user may not publish a consumer's letter to a topic, or null. `topic` is the letter's.
create function holdfast.letter_topic_refusal(consumer text, topic text, to_topic text) returns text
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
declare
    bound    integer;
    allowed  boolean;
    topics   text;
begin
    if pg_has_role(session_user, current_user, 'member') then return null; end if;
    select count(*), bool_or(b.letter_topic <> '' and replace(b.letter_topic, '*', letter_topic_refusal.topic) = to_topic),
           string_agg(distinct nullif(b.letter_topic, ''), ', ')
      into bound, allowed, topics
      from holdfast.consumer_binding b
     where b.consumer = letter_topic_refusal.consumer and pg_has_role(session_user, b.role, 'member');
    if bound = 0 or allowed then return null; end if;
    return format('dead letter topic is %s: user %s may publish those of consumer %s to %s only (table consumer_binding)',
        left(quote_literal(to_topic), 260), session_user, consumer, coalesce(topics, 'no topic'));
end $$;

-- Whether a text is what a pattern says, in which a "*" at the end stands for any rest.
create function holdfast.fits(pattern text, value text) returns boolean
language sql immutable parallel safe as $$
    select case when right(pattern, 1) = '*' then starts_with(value, left(pattern, -1)) else value = pattern end
$$;

-- Says in one line why the session's user may not write an event to a topic under a source, or null.
create function holdfast.binding_refusal(topic text, source text) returns text
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
declare
    allowed  constant boolean := (select bool_or(holdfast.fits(p.topic, binding_refusal.topic) and holdfast.fits(p.source, binding_refusal.source))
                                    from holdfast.producer_binding p where pg_has_role(session_user, p.role, 'member'));
    topics   text;
    sources  text;
begin
    if allowed is null or allowed or pg_has_role(session_user, current_user, 'member') then return null; end if;
    select string_agg(distinct p.topic, ', '), string_agg(distinct quote_literal(p.source), ', ') filter (where holdfast.fits(p.topic, binding_refusal.topic))
      into topics, sources
      from holdfast.producer_binding p where pg_has_role(session_user, p.role, 'member');
    if sources is null then
        return format('topic is %s: user %s may write to %s only (table producer_binding)', left(quote_literal(topic), 260), session_user, left(topics, 1000));
    end if;
    return format('source is %s: user %s may write to topic %s with source %s only (table producer_binding)',
        left(quote_literal(source), 260), session_user, topic, left(sources, 1000));
end $$;

-- ---------------------------------------------------------------------------------------------------------------------
-- The functions for writers.

-- How many lanes there are. Migrate writes the number of this installation here, so that writers need not read a table: it
-- never changes.
create function holdfast.lanes() returns integer
language sql immutable parallel safe as $$ select 8 $$;

-- The lane of an event: by its key, or spread by its id when it has none. Equal, bit for bit, to lane.Of in Go.
-- Stable, not immutable, because convert_to is: so the planner can inline it, which makes it three times as fast. It is the
-- remainder of the first four bytes of a hash; if the number of lanes is a power of two, as the default is, that is the
-- remainder of the fourth byte alone.
create function holdfast.lane_of(key text, id text, lanes integer) returns smallint
language sql stable parallel safe as $$
    select case when lanes & (lanes - 1) = 0 then
        get_byte(sha256(convert_to(case when key = '' then id else key end, 'UTF8')), 3) % lanes
    else
        ('x' || substr(encode(sha256(convert_to(case when key = '' then id else key end, 'UTF8')), 'hex'), 1, 8))::bit(32)::bigint % lanes
    end::smallint
$$;

-- A UUIDv7 (RFC 9562): milliseconds since 1970 in the first 48 bits, random after.
create function holdfast.new_id() returns text
language sql volatile parallel safe as $$
    select encode(set_bit(set_bit(overlay(uuid_send(gen_random_uuid())
        placing substring(int8send((extract(epoch from clock_timestamp()) * 1000)::bigint) from 3) from 1 for 6), 52, 1), 53, 1), 'hex')::uuid::text
$$;

-- The largest payload that an event may have, in bytes. Migrate writes the number of this installation here
-- (SchemaConfig.MaxPayload), so that writers need not read a table. Stable, not immutable: plans have the number in them, and
-- Postgres makes them anew after a change only if it has inlined the function, not if it has evaluated it.
create function holdfast.max_payload() returns integer
language sql stable parallel safe as $$ select 1032192 $$;

-- Says in one line what is wrong with an event's headers, or null. The bound of the JSON comes first, so that nothing huge
-- is parsed; it lets in every object within the other bounds, whatever is escaped.
create function holdfast.header_refusal(headers text) returns text
language plpgsql stable parallel safe as $$
declare
    parsed   jsonb;
    refused  text;
begin
    if octet_length(headers) > 65536 then return format('headers has %s bytes of JSON: at most 65536', octet_length(headers)); end if;
    parsed := headers::jsonb;
    if jsonb_typeof(parsed) <> 'object' then return format('headers is a JSON %s: it must be an object of strings', jsonb_typeof(parsed)); end if;
    select case
               when count(*) > 64 then format('headers has %s names: at most 64', count(*))
               when min(h.refused) is not null then min(h.refused)
               when sum(h.bytes) > 8192 then format('headers has %s bytes: at most 8192, names and values together', sum(h.bytes))
           end into refused
      from (select octet_length(e.key) + octet_length(e.value #>> '{}') as bytes,
                   case
                       when e.key = '' or octet_length(e.key) > 255 or e.key ~ '[^!#$%&''*+.^_`|~0-9A-Za-z-]' then
                           format('header %s is not an HTTP token of 1 to 255 bytes', to_json(left(e.key, 60)))
                       when lower(left(e.key, 3)) in ('ce_', 'hf_') then
                           format('header %s is reserved: names that begin with ce_ or hf_ are written by the relay', left(e.key, 60))
                       when jsonb_typeof(e.value) <> 'string' then format('header %s is a JSON %s: it must be a string', left(e.key, 60), jsonb_typeof(e.value))
                   end as refused
              from jsonb_each(parsed) e) h;
    return refused;
end $$;

-- Says in one line why an event may not be written, or null. Every way into the log asks it, and its limits are those of
-- outbox.Write: a test sends the same events through all of them. payload_bytes is the size of the payload.
create function holdfast.refusal(id text, source text, type text, topic text, key text, "time" timestamptz, headers text,
    payload_bytes integer default null, not_before timestamptz default null) returns text
language sql stable parallel safe as $$
    select case
        when octet_length(id) not between 1 and 255 then format('id has %s bytes: it must have 1 to 255', octet_length(id))
        when octet_length(source) > 255 then format('source has %s bytes: at most 255', octet_length(source))
        when type = '' then 'type is empty: say what happened'
        when octet_length(type) > 255 then format('type has %s bytes: at most 255', octet_length(type))
        when topic = '' then 'topic is empty: name the Kafka topic'
        when octet_length(topic) > 249 or topic ~ '[^a-zA-Z0-9._-]' or topic in ('.', '..') then
            format('topic is %s: at most 249 letters, digits, dots, underscores and hyphens, and not "." or ".."', left(quote_literal(topic), 60))
        when octet_length(key) > 1024 then format('key has %s bytes: at most 1024', octet_length(key))
        when "time" < '0001-01-01 00:00:00+00' or "time" >= '10000-01-01 00:00:00+00' then format('time is %s: a year from 1 to 9999', "time")
        when not_before < '0001-01-01 00:00:00+00' or not_before >= '10000-01-01 00:00:00+00' then format('not before is %s: a year from 1 to 9999', not_before)
        when payload_bytes > holdfast.max_payload() then
            format('payload has %s bytes: at most %s (holdfast migrate --max-payload): store the content elsewhere and send its address', payload_bytes, holdfast.max_payload())
        -- Most headers are few and plain, which two regular expressions see for a tenth of the cost: within 255 bytes the
        -- bounds of names and bytes hold. Whatever these do not see is looked at.
        when octet_length(headers) > 255 or headers !~ '^\{"[!#$%&''*+.^_`|~0-9A-Za-z-]+": ?"[^"\\]*"(, ?"[!#$%&''*+.^_`|~0-9A-Za-z-]+": ?"[^"\\]*")*\}$'
          or headers ~ '"([cC][eE]|[hH][fF])_' then holdfast.header_refusal(headers)
    end
$$;

-- Whether an event is certainly within the limits: what append and append_one ask first, because an expression that could say
-- what is wrong costs ten times as much, even when nothing is. If it is not certain, examine looks closer.
create function holdfast.within_limits(id text, source text, type text, topic text, key text, "time" timestamptz, headers text,
    payload_bytes integer) returns boolean
language sql stable parallel safe as $$
    select id <> '' and octet_length(id) <= 255
       and octet_length(source) <= 255
       and type <> '' and octet_length(type) <= 255
       and topic ~ '^[a-zA-Z0-9._-]+$' and octet_length(topic) <= 249
       and topic <> '.' and topic <> '..'
       and octet_length(key) <= 1024
       and ("time" is null or "time" >= '0001-01-01 00:00:00+00' and "time" < '10000-01-01 00:00:00+00')
       and (payload_bytes is null or payload_bytes <= holdfast.max_payload())
       -- Most headers are few and plain: within 255 bytes the bounds of names and bytes hold.
       and (headers is null or octet_length(headers) <= 255
            and headers ~ '^\{"[!#$%&''*+.^_`|~0-9A-Za-z-]+": ?"[^"\\]*"(, ?"[!#$%&''*+.^_`|~0-9A-Za-z-]+": ?"[^"\\]*")*\}$'
            and headers !~ '"([cC][eE]|[hH][fF])_')
$$;

-- Raises an exception that says why an event may not be written, or returns true.
create function holdfast.examine(id text, source text, type text, topic text, key text, "time" timestamptz, headers text,
    payload_bytes integer) returns boolean
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
declare
    refused constant text := holdfast.refusal(id, source, type, topic, key, "time", headers, payload_bytes);
begin
    if refused is not null then raise exception 'write event: %', refused using errcode = '22023'; end if;
    return true;
end $$;

-- Raises an exception if the session's user may not write an event to a topic under a source.
create function holdfast.examine_binding(topic text, source text) returns void
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
declare
    refused constant text := holdfast.binding_refusal(topic, source);
begin
    if refused is not null then raise exception 'write event: %', refused using errcode = '42501', hint = 'an administrator binds users to topics in the table producer_binding'; end if;
end $$;

-- append for what is rare: scheduled events, users who are bound, and what is refused before any event is looked at.
create function holdfast.append_closely(ids text[], sources text[], types text[], topics text[], keys text[], times timestamptz[],
    headers text[], payloads bytea[], not_befores timestamptz[], letters bigint[]) returns void
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
declare
    sizes    integer[];
    refused  text;
begin
    if letters is not null then
        raise exception 'write event: letters is given: it must be null, because only the function replay_letter sends a dead letter again: replay it by a newer build of holdfast' using errcode = '22023';
    end if;
    if cardinality(ids) > 10000 then raise exception 'write event: there are % events: at most 10000 in one call', cardinality(ids) using errcode = '22023'; end if;
    -- Only if all payloads together exceed the limit of one. Sizes, because unnest in a FROM would copy every payload.
    if pg_column_size(payloads) > holdfast.max_payload() then
        sizes := array(select octet_length(p.payload) from (select unnest(payloads) as payload) p);
    end if;
    select holdfast.refusal(u.id, u.source, u.type, u.topic, u.key, u.time, u.headers, u.size, u.not_before) into refused
      from unnest(ids, sources, types, topics, keys, times, headers, sizes, not_befores) as u (id, source, type, topic, key, time, headers, size, not_before)
     where holdfast.refusal(u.id, u.source, u.type, u.topic, u.key, u.time, u.headers, u.size, u.not_before) is not null limit 1;
    if refused is not null then raise exception 'write event: %', refused using errcode = '22023'; end if;
    if holdfast.producers_bound() then
        select r.refused into refused
          from (select distinct u.topic, u.source from unnest(topics, sources) u (topic, source)) d
         cross join lateral (select holdfast.binding_refusal(d.topic, d.source) as refused offset 0) r
         where r.refused is not null limit 1;
        if refused is not null then raise exception 'write event: %', refused using errcode = '42501', hint = 'an administrator binds users to topics in the table producer_binding'; end if;
    end if;
    perform holdfast.append_unchecked(ids, sources, types, topics, keys, times, headers, payloads, not_befores, null);
end $$;

-- Appends events to the log, or to `scheduled` if not_befores is in the future, in the order of the arrays. All arrays
-- have the same length. This and append_one are the only ways into the log for writers: they are granted these functions,
-- not the tables, so nobody can choose xid, seq or snap, or name a dead letter. The last argument must be null: builds for
-- version 1 of the schema pass it. A version that no such build may run on can drop it.
--
-- One statement checks and writes. A subquery unpacks the arrays row by row; unnest in a FROM would copy every payload.
create function holdfast.append(ids text[], sources text[], types text[], topics text[], keys text[], times timestamptz[],
    headers text[], payloads bytea[], not_befores timestamptz[], letters bigint[]) returns void
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
declare
    segment  constant integer := holdfast.current_segment();
    cut      constant pg_snapshot := case when random() < cardinality(ids) * 0.001 then pg_current_snapshot() end;
begin
    if letters is not null or not_befores is not null or cardinality(ids) > 10000 or holdfast.producers_bound() then
        perform holdfast.append_closely(ids, sources, types, topics, keys, times, headers, payloads, not_befores, letters);
        return;
    end if;
    case segment
    when 0 then
        insert into holdfast.event_0 (lane, id, source, type, topic, key, time, headers, payload, snap)
        select holdfast.lane_of(u.key, u.id, holdfast.lanes()), u.id, u.source, u.type, u.topic, u.key,
               coalesce(u.time, now()), u.headers::jsonb, u.payload, u.snap
          from (select unnest(ids) as id, unnest(sources) as source, unnest(types) as type,
                       unnest(topics) as topic, unnest(keys) as key, unnest(times) as time,
                       unnest(headers) as headers, unnest(payloads) as payload, unnest(array[cut]) as snap) u
         where case when holdfast.within_limits(u.id, u.source, u.type, u.topic, u.key, u.time, u.headers, octet_length(u.payload)) then true
                    else holdfast.examine(u.id, u.source, u.type, u.topic, u.key, u.time, u.headers, octet_length(u.payload)) end;
    when 1 then
        insert into holdfast.event_1 (lane, id, source, type, topic, key, time, headers, payload, snap)
        select holdfast.lane_of(u.key, u.id, holdfast.lanes()), u.id, u.source, u.type, u.topic, u.key,
               coalesce(u.time, now()), u.headers::jsonb, u.payload, u.snap
          from (select unnest(ids) as id, unnest(sources) as source, unnest(types) as type,
                       unnest(topics) as topic, unnest(keys) as key, unnest(times) as time,
                       unnest(headers) as headers, unnest(payloads) as payload, unnest(array[cut]) as snap) u
         where case when holdfast.within_limits(u.id, u.source, u.type, u.topic, u.key, u.time, u.headers, octet_length(u.payload)) then true
                    else holdfast.examine(u.id, u.source, u.type, u.topic, u.key, u.time, u.headers, octet_length(u.payload)) end;
    when 2 then
        insert into holdfast.event_2 (lane, id, source, type, topic, key, time, headers, payload, snap)
        select holdfast.lane_of(u.key, u.id, holdfast.lanes()), u.id, u.source, u.type, u.topic, u.key,
               coalesce(u.time, now()), u.headers::jsonb, u.payload, u.snap
          from (select unnest(ids) as id, unnest(sources) as source, unnest(types) as type,
                       unnest(topics) as topic, unnest(keys) as key, unnest(times) as time,
                       unnest(headers) as headers, unnest(payloads) as payload, unnest(array[cut]) as snap) u
         where case when holdfast.within_limits(u.id, u.source, u.type, u.topic, u.key, u.time, u.headers, octet_length(u.payload)) then true
                    else holdfast.examine(u.id, u.source, u.type, u.topic, u.key, u.time, u.headers, octet_length(u.payload)) end;
    when 3 then
        insert into holdfast.event_3 (lane, id, source, type, topic, key, time, headers, payload, snap)
        select holdfast.lane_of(u.key, u.id, holdfast.lanes()), u.id, u.source, u.type, u.topic, u.key,
               coalesce(u.time, now()), u.headers::jsonb, u.payload, u.snap
          from (select unnest(ids) as id, unnest(sources) as source, unnest(types) as type,
                       unnest(topics) as topic, unnest(keys) as key, unnest(times) as time,
                       unnest(headers) as headers, unnest(payloads) as payload, unnest(array[cut]) as snap) u
         where case when holdfast.within_limits(u.id, u.source, u.type, u.topic, u.key, u.time, u.headers, octet_length(u.payload)) then true
                    else holdfast.examine(u.id, u.source, u.type, u.topic, u.key, u.time, u.headers, octet_length(u.payload)) end;
    end case;
end $$;

-- append without its checks: for the functions here, and for relays, which move scheduled events into the log. Those were
-- checked when they were written, and a limit that is lowered later must not stop a lane. A cut (snap) is kept for about one
-- event in 1,000, under any isolation level: under a higher one the snapshot is that of the transaction's first statement, an
-- older moment, but a true one.
create function holdfast.append_unchecked(ids text[], sources text[], types text[], topics text[], keys text[], times timestamptz[],
    headers text[], payloads bytea[], not_befores timestamptz[], letters bigint[]) returns void
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
declare
    lanes    constant integer := holdfast.lanes();
    segment  constant integer := holdfast.current_segment();
    cut      constant pg_snapshot := case when random() < cardinality(ids) * 0.001 then pg_current_snapshot() end;
begin
    if cardinality(not_befores) > 0 then
        insert into holdfast.scheduled (lane, due_at, id, source, type, topic, key, time, headers, payload)
        select holdfast.lane_of(u.key, u.id, lanes), u.not_before, u.id, u.source, u.type, u.topic, u.key,
               coalesce(u.time, now()), u.headers::jsonb, u.payload
          from unnest(ids, sources, types, topics, keys, times, headers, payloads, not_befores) with ordinality
               as u (id, source, type, topic, key, time, headers, payload, not_before, n)
         where u.not_before > now()
         order by u.n;
    end if;
    case segment
    when 0 then
        insert into holdfast.event_0 (lane, id, source, type, topic, key, time, headers, payload, letter, snap)
        select holdfast.lane_of(u.key, u.id, lanes), u.id, u.source, u.type, u.topic, u.key,
               coalesce(u.time, now()), u.headers::jsonb, u.payload, u.letter, case when u.n = 1 then cut end
          from unnest(ids, sources, types, topics, keys, times, headers, payloads, not_befores, letters) with ordinality
               as u (id, source, type, topic, key, time, headers, payload, not_before, letter, n)
         where u.not_before is null or u.not_before <= now()
         order by u.n;
    when 1 then
        insert into holdfast.event_1 (lane, id, source, type, topic, key, time, headers, payload, letter, snap)
        select holdfast.lane_of(u.key, u.id, lanes), u.id, u.source, u.type, u.topic, u.key,
               coalesce(u.time, now()), u.headers::jsonb, u.payload, u.letter, case when u.n = 1 then cut end
          from unnest(ids, sources, types, topics, keys, times, headers, payloads, not_befores, letters) with ordinality
               as u (id, source, type, topic, key, time, headers, payload, not_before, letter, n)
         where u.not_before is null or u.not_before <= now()
         order by u.n;
    when 2 then
        insert into holdfast.event_2 (lane, id, source, type, topic, key, time, headers, payload, letter, snap)
        select holdfast.lane_of(u.key, u.id, lanes), u.id, u.source, u.type, u.topic, u.key,
               coalesce(u.time, now()), u.headers::jsonb, u.payload, u.letter, case when u.n = 1 then cut end
          from unnest(ids, sources, types, topics, keys, times, headers, payloads, not_befores, letters) with ordinality
               as u (id, source, type, topic, key, time, headers, payload, not_before, letter, n)
         where u.not_before is null or u.not_before <= now()
         order by u.n;
    when 3 then
        insert into holdfast.event_3 (lane, id, source, type, topic, key, time, headers, payload, letter, snap)
        select holdfast.lane_of(u.key, u.id, lanes), u.id, u.source, u.type, u.topic, u.key,
               coalesce(u.time, now()), u.headers::jsonb, u.payload, u.letter, case when u.n = 1 then cut end
          from unnest(ids, sources, types, topics, keys, times, headers, payloads, not_befores, letters) with ordinality
               as u (id, source, type, topic, key, time, headers, payload, not_before, letter, n)
         where u.not_before is null or u.not_before <= now()
         order by u.n;
    end case;
end $$;

-- append for one event, the common case. It costs less without arrays (docs/performance.md).
create function holdfast.append_one(id text, source text, type text, topic text, key text, "time" timestamptz, headers text,
    payload bytea) returns void
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
declare
    segment constant integer := holdfast.current_segment();
begin
    if holdfast.producers_bound() then
        perform holdfast.examine_binding(topic, source);
    end if;
    case segment
    when 0 then
        insert into holdfast.event_0 (lane, id, source, type, topic, key, time, headers, payload, snap)
        select holdfast.lane_of(key, id, holdfast.lanes()), id, source, type, topic, key, coalesce("time", now()), headers::jsonb, payload,
               case when random() < 0.001 then pg_current_snapshot() end
         where case when holdfast.within_limits(id, source, type, topic, key, "time", headers, octet_length(payload)) then true
                    else holdfast.examine(id, source, type, topic, key, "time", headers, octet_length(payload)) end;
    when 1 then
        insert into holdfast.event_1 (lane, id, source, type, topic, key, time, headers, payload, snap)
        select holdfast.lane_of(key, id, holdfast.lanes()), id, source, type, topic, key, coalesce("time", now()), headers::jsonb, payload,
               case when random() < 0.001 then pg_current_snapshot() end
         where case when holdfast.within_limits(id, source, type, topic, key, "time", headers, octet_length(payload)) then true
                    else holdfast.examine(id, source, type, topic, key, "time", headers, octet_length(payload)) end;
    when 2 then
        insert into holdfast.event_2 (lane, id, source, type, topic, key, time, headers, payload, snap)
        select holdfast.lane_of(key, id, holdfast.lanes()), id, source, type, topic, key, coalesce("time", now()), headers::jsonb, payload,
               case when random() < 0.001 then pg_current_snapshot() end
         where case when holdfast.within_limits(id, source, type, topic, key, "time", headers, octet_length(payload)) then true
                    else holdfast.examine(id, source, type, topic, key, "time", headers, octet_length(payload)) end;
    when 3 then
        insert into holdfast.event_3 (lane, id, source, type, topic, key, time, headers, payload, snap)
        select holdfast.lane_of(key, id, holdfast.lanes()), id, source, type, topic, key, coalesce("time", now()), headers::jsonb, payload,
               case when random() < 0.001 then pg_current_snapshot() end
         where case when holdfast.within_limits(id, source, type, topic, key, "time", headers, octet_length(payload)) then true
                    else holdfast.examine(id, source, type, topic, key, "time", headers, octet_length(payload)) end;
    end case;
end $$;

-- Writes one event in the caller's transaction and returns its id: outbox.Write for all other languages.
--
-- Order: call it in a statement of its own, after the statement that takes the lock which orders the key (the UPDATE of
-- the aggregate's row, or holdfast.lock). Inside `update ... set e = holdfast.write(...)` it can be evaluated twice, and
-- next to `with u as (update ...)` it draws its place before the lock is held.
create function holdfast.write(topic text, key text, type text, payload bytea, headers jsonb default null,
    source text default '', id text default null, "time" timestamptz default null, not_before timestamptz default null)
returns text
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
declare
    event_id text := coalesce(id, holdfast.new_id());
begin
    if not_before is null then
        perform holdfast.append_one(event_id, coalesce(source, ''), coalesce(type, ''), coalesce(topic, ''), coalesce(key, ''), "time", headers::text, payload);
    else
        perform holdfast.append(array[event_id], array[coalesce(source, '')], array[coalesce(type, '')], array[coalesce(topic, '')], array[coalesce(key, '')],
            array["time"], array[headers::text], array[payload], array[not_before], null);
    end if;
    return event_id;
end $$;

-- The id of an event that is written once and has none: a UUIDv8 (RFC 9562) of the first 16 bytes of a SHA-256. Equal, bit for
-- bit, to onceID in Go. The same dedupe key always gives the same id: an inbox recognises a repeat by it, even when the key
-- has been forgotten here.
create function holdfast.once_id(dedupe_key text, topic text, type text) returns text
language sql stable parallel safe as $$
    select encode(set_byte(set_byte(h.sum, 6, get_byte(h.sum, 6) & 15 | 128), 8, get_byte(h.sum, 8) & 63 | 128), 'hex')::uuid::text
      from (select substring(sha256(decode('b1c0d5f27c4e4b6f9a3d2e8f60714253', 'hex') || convert_to(topic, 'UTF8') || '\x00'::bytea
                || convert_to(type, 'UTF8') || '\x00'::bytea || convert_to(dedupe_key, 'UTF8')) for 16) as sum) h
$$;

-- Writes one event in the caller's transaction, unless one of its topic and type was written under the same dedupe key: then
-- it writes nothing. It returns whether it wrote, and the id of the event that has the key. A writer that finds the key in a
-- transaction that has not ended waits for it. An event with another source, key or payload is an error (unique_violation),
-- because one of the two would be lost; headers and times may differ. A key is remembered for `keep`, or longer.
-- Under REPEATABLE READ or higher, a key that another transaction wrote since the snapshot is a serialization failure.
create function holdfast.write_once(dedupe_key text, topic text, key text, type text, payload bytea, headers jsonb default null,
    source text default '', id text default null, "time" timestamptz default null, not_before timestamptz default null,
    keep interval default '7 days', compare boolean default true, out written boolean, out event_id text)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
declare
    earlier  holdfast.written_once;
    differs  text;
    sum      constant bytea := case when not compare then null when payload is null then ''::bytea else sha256(payload) end;
begin
    topic := coalesce(topic, '');
    key := coalesce(key, '');
    type := coalesce(type, '');
    source := coalesce(source, '');
    if dedupe_key is null or octet_length(dedupe_key) not between 1 and 255 then
        raise exception 'write event: dedupe key has % bytes: it must have 1 to 255', coalesce(octet_length(dedupe_key), 0) using errcode = '22023';
    end if;
    if keep is null or keep <= '0'::interval or keep > '10 years'::interval then
        raise exception 'write event: keep is %: it must be positive, and at most 10 years', coalesce(keep::text, 'null') using errcode = '22023';
    end if;
    -- Before the key is looked up: who may not write to a topic learns nothing about it.
    if holdfast.producers_bound() then
        perform holdfast.examine_binding(topic, source);
    end if;
    event_id := coalesce(id, holdfast.once_id(dedupe_key, topic, type));
    perform holdfast.examine(event_id, source, type, topic, key, "time", headers::text, octet_length(payload));
    loop
        insert into holdfast.written_once (dedupe_key, topic, type, event_id, source, key, hash, expires_at)
        values (write_once.dedupe_key, write_once.topic, write_once.type, write_once.event_id, write_once.source, write_once.key, sum, now() + keep)
            on conflict on constraint written_once_pkey do nothing;
        if found then
            perform holdfast.write(topic, key, type, payload, headers, source, event_id, "time", not_before);
            written := true;
            return;
        end if;
        -- A statement of its own sees what the transaction committed for which the insert waited.
        select w.* into earlier from holdfast.written_once w
         where w.dedupe_key = write_once.dedupe_key and w.topic = write_once.topic and w.type = write_once.type;
        exit when found; -- or it has expired just now, and was removed
    end loop;
    differs := concat_ws(', ', case when earlier.source <> source then 'source' end, case when earlier.key <> key then 'key' end,
        case when earlier.hash <> sum then 'payload' end);
    if differs <> '' then
        raise exception 'write event: the dedupe key was used for event %, which differs in: %', earlier.event_id, differs
            using errcode = '23505', hint = 'a dedupe key names one business event: give another event another key';
    end if;
    written := false;
    event_id := earlier.event_id;
end $$;

-- Removes up to `most` dedupe keys that have expired, and returns how many. Rows that others have locked wait for the next call.
create function holdfast.expire_written_once(most integer) returns bigint
language sql volatile security definer set search_path = pg_catalog, pg_temp as $$
    with gone as (
        delete from holdfast.written_once w
         using (select e.dedupe_key, e.topic, e.type from holdfast.written_once e
                 where e.expires_at < now()
                 order by e.expires_at
                 limit least(most, 10000)
                   for update skip locked) e
         where w.dedupe_key = e.dedupe_key and w.topic = e.topic and w.type = e.type
        returning 1)
    select count(*) from gone
$$;

-- The number of a key in holdfast.lock. Equal, bit for bit, to lane.LockNumber in Go.
create function holdfast.lock_number(key text) returns integer
language sql stable parallel safe as $$
    select ('x' || substr(encode(sha256(convert_to(key, 'UTF8')), 'hex'), 9, 8))::bit(32)::integer
$$;

-- Serialises the transactions that write events for these keys, until each ends. Call it before the first read or write
-- of the transaction, with all its keys at once: they are locked in one order, so that two callers cannot deadlock.
-- 1751541606 is "hfdf" in ASCII: our class among the two-number advisory locks.
create function holdfast.lock(variadic keys text[]) returns void
language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
declare
    number integer;
begin
    if array_position(keys, '') is not null or array_position(keys, null) is not null then
        raise exception 'lock key: the key is empty: events without a key have no order to keep' using errcode = '22023';
    end if;
    for number in select distinct holdfast.lock_number(k) from unnest(keys) k order by 1 loop
        perform pg_advisory_xact_lock(1751541606, number);
    end loop;
end $$;

-- Sends the event of an open dead letter of a relay through the log once more, with its old id, and marks the letter as
-- being replayed. The relay recognises the letter by its number, and places the event before all others of its key. It
-- returns false if the letter is not open, or the user is bound to consumers only. It is for those who work on dead letters (package dlq): no other function names
-- a letter. Sizes and headers are not checked again.
create function holdfast.replay_letter(letter_id bigint) returns boolean
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
declare
    l        holdfast.letter;
    refused  text;
    own      constant text[] := holdfast.own_consumers();
begin
    update holdfast.letter d set state = 'replaying'
     where d.id = letter_id and d.origin = 'relay' and d.state = 'open' and (own is null or '' = any (own)) returning d.* into l;
    if not found then return false; end if;
    refused := holdfast.refusal(l.event_id, l.source, l.type, l.topic, l.key, l.time, null);
    if refused is not null then raise exception 'replay letter %: %', letter_id, refused using errcode = '22023'; end if;
    perform holdfast.append_unchecked(array[l.event_id], array[l.source], array[l.type], array[l.topic], array[l.key], array[l.time],
        array[l.headers::text], array[l.payload], null, array[l.id]);
    return true;
end $$;

-- Makes parked events of a topic events of another one: they leave their queues and enter the log, in the order of keys and places. The
-- caller has locked what is parked in the lane, and leaves out what its owner has leased. A replay takes its letter along.
create function holdfast.redirect_parked(from_lane smallint, from_topic text, keys text[], places bigint[], to_topic text, note text) returns void
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
declare
    own    constant text[] := holdfast.own_consumers();
    moved  record;
begin
    if own is not null and '' <> all (own) then
        raise exception 'redirect parked events: this user may work on the consumers % only', own using errcode = '42501';
    end if;
    if to_topic = from_topic or to_topic in ('.', '..') or to_topic !~ '^[a-zA-Z0-9._-]{1,249}$' then
        raise exception 'redirect parked events: to is %: it must be the name of another Kafka topic', left(quote_literal(to_topic), 60) using errcode = '22023';
    end if;
    with gone as (
        delete from holdfast.parked p
         where p.ctid = any (array(
           select f.row from unnest(keys, places) as u (key, place), lateral (
             select h.ctid as row from holdfast.parked h
              where h.lane = from_lane and h.topic = from_topic and h.key = u.key and h.place = u.place limit 1) f))
        returning p.*
    )
    select array_agg(g.id order by g.key, g.place) as ids, array_agg(g.source order by g.key, g.place) as sources,
           array_agg(g.type order by g.key, g.place) as types, array_agg(to_topic order by g.key, g.place) as topics,
           array_agg(g.key order by g.key, g.place) as keys, array_agg(g.time order by g.key, g.place) as times,
           array_agg(g.headers::text order by g.key, g.place) as headers, array_agg(g.payload order by g.key, g.place) as payloads,
           array_agg(g.letter order by g.key, g.place) as letters
      into moved from gone g;
    if moved.ids is null then return; end if;
    update holdfast.letter l set topic = to_topic, errors = holdfast.last_errors(l.errors || note)
     where l.id = any (moved.letters) and l.state = 'replaying';
    perform holdfast.append_unchecked(moved.ids, moved.sources, moved.types, moved.topics, moved.keys, moved.times, moved.headers, moved.payloads,
        null, moved.letters);
end $$;

-- ---------------------------------------------------------------------------------------------------------------------
-- Keeping the log small.

-- Says whether a segment has rows that a lane has not read. One end of the index answers each question, however many rows
-- there are. Volatile, so that each call has a snapshot of its own.
create function holdfast.unread(segment integer) returns boolean
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
declare
    unread boolean;
begin
    execute format($q$
        select coalesce(
               (select e.lane from only holdfast.event_%1$s e order by e.lane limit 1) < (select min(l.lane) from holdfast.lane l)
            or (select e.lane from only holdfast.event_%1$s e order by e.lane desc limit 1) > (select max(l.lane) from holdfast.lane l)
            or (select max(l.lane) - min(l.lane) + 1 <> count(*) from holdfast.lane l)
            or exists (select from holdfast.lane l where
               (select e.xid from only holdfast.event_%1$s e where e.lane = l.lane order by e.xid desc limit 1) >= pg_snapshot_xmax(l.done)
            or exists (select from pg_snapshot_xip(l.done) flying (xid), lateral (
                 select 1 from only holdfast.event_%1$s e where e.lane = l.lane and e.xid = flying.xid order by e.seq limit 1) e)), false)$q$, segment) into unread;
    return unread;
end $$;

-- Empties one segment if nothing in it is unread, and says what it did: 'emptied', 'unread', 'busy' (it did not get
-- the lock in time) or 'refused: why'. Lock, test and TRUNCATE are one call: under READ COMMITTED each statement of this
-- function has a snapshot of its own, so the test sees every row committed before the lock was granted. It is tested before
-- the lock, too: the lock keeps everybody from reading the log, costs two transaction ids, and is written to the WAL, where
-- standbys take it.
create function holdfast.reclaim(segment integer, expected_token uuid, lock_wait_ms integer) returns text
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
begin
    if current_setting('transaction_isolation') <> 'read committed' then return 'refused: the transaction is not READ COMMITTED'; end if;
    if pg_is_in_recovery() then return 'refused: this is a standby'; end if;
    if exists (select from holdfast.segments s where s.current = segment) then return 'refused: it is the current segment'; end if;
    if holdfast.unread(segment) then return 'unread'; end if;
    perform set_config('lock_timeout', lock_wait_ms || 'ms', true);
    begin
        execute format('lock table only holdfast.event_%s in access exclusive mode', segment);
    exception when lock_not_available then
        return 'busy';
    end;
    -- From here on: after the lock, in statements of their own. Nobody can read the log meanwhile.
    if not exists (select from holdfast.incarnation i where i.token = expected_token) then return 'refused: the database was restarted after a crash'; end if;
    if exists (select from holdfast.segments s where s.current = segment) then return 'refused: it is the current segment'; end if;
    if exists (select from holdfast.lane l where pg_snapshot_xmax(l.done) > pg_snapshot_xmax(pg_current_snapshot())) then
        return 'refused: a cursor lies in the future';
    end if;
    if holdfast.unread(segment) then return 'unread'; end if;
    execute format('truncate only holdfast.event_%s', segment);
    return 'emptied';
end $$;
