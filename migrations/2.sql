-- From version 1 to 2: the collation "C" for every text that identifies something; limits at every way into the log; dead
-- letters that only holdfast.replay_letter names; replica identities for tables without a key; what relays need to compare the
-- server with what they remember, and to wait for one partition; what consumers skip, and what people do to stored events, and pause; a
-- trail that outlives its letters; bindings of users to consumers and topics; dedupe keys of producers.
--
-- What is rewritten: the indexes with text columns of inbox, stored, letter and smaller tables. No table is. The log comes
-- last, because producers wait for it: it has no such index, so that takes no time.

-- Which builds may run here. Those for version 1 may; they do not ask.
alter table holdfast.installation add column compatible_from integer not null default 1;
alter table holdfast.installation alter column compatible_from drop default;

drop view holdfast.lane_hold, holdfast.consumer_hold; -- a column of a view keeps its collation; they come back below

alter table holdfast.inbox
    drop constraint result_is_known,
    drop constraint processed_unless_stored,
    alter column consumer type text collate "C",
    alter column source type text collate "C",
    alter column event_id type text collate "C",
    alter column topic type text collate "C";

drop index holdfast.stored_due; -- it comes back with the type in it

alter table holdfast.stored
    drop constraint stored_consumer_source_event_id_key,
    alter column consumer type text collate "C",
    alter column topic type text collate "C",
    alter column key type text collate "C",
    alter column source type text collate "C",
    alter column event_id type text collate "C",
    alter column type type text collate "C",
    add constraint stored_consumer_source_event_id_key unique (event_id, source, consumer);

create index stored_due on holdfast.stored (consumer, type, next_at, place) where next_at < 'infinity' and type <> '';

alter table holdfast.letter
    alter column consumer type text collate "C",
    alter column fingerprint type text collate "C",
    alter column event_id type text collate "C",
    alter column source type text collate "C",
    alter column type type text collate "C",
    alter column topic type text collate "C",
    alter column key type text collate "C";

alter table holdfast.idempotency_expired
    alter column scope type text collate "C",
    alter column operation type text collate "C",
    alter column key type text collate "C";

alter table holdfast.idempotency_step
    alter column name type text collate "C";

alter table holdfast.idempotency_request
    alter column route type text collate "C";

alter table holdfast.start
    alter column consumer type text collate "C",
    alter column source type text collate "C",
    alter column event_id type text collate "C";

alter table holdfast.watermark
    alter column consumer type text collate "C",
    alter column entity type text collate "C";

alter table holdfast.consumer_type
    alter column consumer type text collate "C",
    alter column type type text collate "C",
    alter column node type text collate "C",
    add column stopped boolean not null default false,
    add column needs text[] not null default '{}';

alter table holdfast.consumer_position
    add column held text,
    add column group_id text collate "C",
    alter column consumer type text collate "C",
    alter column topic type text collate "C",
    alter column owner type text collate "C";

alter table holdfast.retention
    alter column consumer type text collate "C",
    add column sources jsonb not null default '{}';

alter table holdfast.letter_replay
    alter column name type text collate "C";

alter table holdfast.parked
    add column partition integer,
    alter column topic type text collate "C",
    alter column key type text collate "C",
    alter column id type text collate "C",
    alter column source type text collate "C",
    alter column type type text collate "C";

-- The constraint is made anew, because Postgres would write it in another form than a new installation has.
alter table holdfast.scheduled
    drop constraint topic_is_a_kafka_name,
    alter column id type text collate "C",
    alter column source type text collate "C",
    alter column type type text collate "C",
    alter column topic type text collate "C",
    alter column key type text collate "C",
    add constraint topic_is_a_kafka_name check (octet_length(topic) >= 1 and octet_length(topic) <= 249 and topic !~ '[^a-zA-Z0-9._-]' and topic not in ('.', '..'));

alter table holdfast.relay
    alter column name type text collate "C",
    add column trouble text not null default '';

alter table holdfast.lane
    add column published bigint not null default 0,
    alter column owner type text collate "C";

create unlogged table holdfast.parked_lease (
    lane   smallint not null,
    topic  text collate "C" not null,
    key    text collate "C" not null,
    place  bigint not null,
    primary key (lane, topic, key, place)
);

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

create table holdfast.consumer_skip (
    consumer  text collate "C" not null,
    topic     text collate "C" not null,
    type      text collate "C" not null,
    events    bigint not null,
    first_at  timestamptz not null default now(),
    last_at   timestamptz not null default now(),
    primary key (consumer, topic, type)
) with (fillfactor = 50);

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

create index stored_action_event on holdfast.stored_action (consumer, source, event_id);

create index stored_age on holdfast.stored (consumer, first_at) where event_id <> '';

alter table holdfast.parked
    alter column why type text collate "C";

create index parked_age on holdfast.parked (lane, why, first_at) where id <> '';

create index parked_holds on holdfast.parked (lane, topic, (coalesce(partition, -2)), place) where partition is not null or why = 'topic';

alter table holdfast.idempotency_expired replica identity full;

create view holdfast.current_incarnation with (security_invoker = true) as
    select format('%s/%s/%s', i.token, extract(epoch from pg_postmaster_start_time()),
                  extract(epoch from pg_stat_get_bgwriter_stat_reset_time())) as token
      from holdfast.incarnation i;

create view holdfast.lane_hold with (security_invoker = true) as
    select l.lane, l.topic, l.key, l.id as letter, l.state
      from holdfast.letter l
     where l.holds and l.state in ('open', 'replaying');

create view holdfast.consumer_hold with (security_invoker = true) as
    select l.consumer, l.topic, l.key, l.id as letter, coalesce(l.place, '-9223372036854775808') as after
      from holdfast.letter l
     where l.holds and l.origin = 'inbox' and l.state in ('open', 'replaying')
    union all
    select p.consumer, p.topic, p.key, null, '-9223372036854775808'
      from holdfast.pause p
     where p.key <> '';

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

-- Two tables by the names that other documents on idempotency use, for people and their queries (docs/reference/requirement-names.md).
-- Nothing of holdfast reads them. They use the rights of the role that queries.
create view holdfast.idempotency_keys with (security_invoker = true) as
    select i.key, i.operation as operation_type, left(encode(i.fingerprint, 'hex'), 64) as request_hash, encode(i.body_hash, 'hex') as response_hash,
           case i.state when 'pending' then 'pending' else 'complete' end as status, i.created_at, i.expires_at
      from holdfast.idempotency i;

create view holdfast.inbox_events with (security_invoker = true) as
    select i.event_id, i.source, encode(i.hash, 'hex') as payload_hash, i.received_at, i.processed_at, i.result
      from holdfast.inbox i;

drop function holdfast.refusal(text, text, text, text, text, timestamptz, text);

create function holdfast.max_payload() returns integer
language sql stable parallel safe as $$ select 1032192 $$;

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

create function holdfast.current_segment() returns integer
language sql stable parallel safe as $$ select 0 $$;

create function holdfast.switch_segment() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    if new.current <> holdfast.current_segment() then
        execute format('create or replace function %I.current_segment() returns integer language sql stable parallel safe as %L', tg_table_schema, format(' select %s ', new.current));
    end if;
    return null;
end $$;
create trigger switch_segment after insert or update on holdfast.segments for each row execute function holdfast.switch_segment();
update holdfast.segments set current = current; -- which writes current_segment anew, unless it is 0

create or replace function holdfast.lane_of(key text, id text, lanes integer) returns smallint
language sql stable parallel safe as $$
    select case when lanes & (lanes - 1) = 0 then
        get_byte(sha256(convert_to(case when key = '' then id else key end, 'UTF8')), 3) % lanes
    else
        ('x' || substr(encode(sha256(convert_to(case when key = '' then id else key end, 'UTF8')), 'hex'), 1, 8))::bit(32)::bigint % lanes
    end::smallint
$$;

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

create function holdfast.examine(id text, source text, type text, topic text, key text, "time" timestamptz, headers text,
    payload_bytes integer) returns boolean
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
declare
    refused constant text := holdfast.refusal(id, source, type, topic, key, "time", headers, payload_bytes);
begin
    if refused is not null then raise exception 'write event: %', refused using errcode = '22023'; end if;
    return true;
end $$;

create function holdfast.examine_binding(topic text, source text) returns void
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
declare
    refused constant text := holdfast.binding_refusal(topic, source);
begin
    if refused is not null then raise exception 'write event: %', refused using errcode = '42501', hint = 'an administrator binds users to topics in the table producer_binding'; end if;
end $$;

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

create or replace function holdfast.append(ids text[], sources text[], types text[], topics text[], keys text[], times timestamptz[],
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

create or replace function holdfast.append_one(id text, source text, type text, topic text, key text, "time" timestamptz, headers text,
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

create or replace function holdfast.write(topic text, key text, type text, payload bytea, headers jsonb default null,
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

create or replace function holdfast.publish_letter(letter_id bigint, to_topic text, max_payload integer) returns text
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

create or replace function holdfast.reclaim(segment integer, expected_token uuid, lock_wait_ms integer) returns text
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

-- The trail of what people did: an action outlives its letter, and is signed by the database.
alter table holdfast.letter_action
    drop constraint letter_action_letter_fkey,
    drop constraint action_is_known,
    add constraint action_is_known check (action in ('replay', 'discard', 'edit', 'reopen')),
    add column login text collate "C";

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

-- Bindings of users to consumers and topics, of which there is none yet.
create table holdfast.consumer_binding (
    role          regrole not null,
    consumer      text collate "C" not null,          -- '': the dead letters of relays
    letter_topic  text collate "C" not null default '' -- inbox.Config.DeadLetterTopic: "*" is the event's topic; '' = none
        constraint letter_topic_is_a_topic_or_a_pattern check (letter_topic ~ '^([a-zA-Z0-9._-]*|[a-zA-Z0-9._-]+\*[a-zA-Z0-9._-]*|\*[a-zA-Z0-9._-]+)$'),
    primary key (role, consumer)
);

create table holdfast.producer_binding (
    role    regrole not null,
    topic   text collate "C" not null constraint topic_is_a_topic_or_a_prefix check (topic ~ '^([a-zA-Z0-9._-]+|[a-zA-Z0-9._-]*\*)$'),
    source  text collate "C" not null default '*',
    primary key (role, topic, source)
);

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

create function holdfast.producers_bound() returns boolean
language sql stable parallel safe as $$ select false $$;

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

create function holdfast.fits(pattern text, value text) returns boolean
language sql immutable parallel safe as $$
    select case when right(pattern, 1) = '*' then starts_with(value, left(pattern, -1)) else value = pattern end
$$;

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

create function holdfast.once_id(dedupe_key text, topic text, type text) returns text
language sql stable parallel safe as $$
    select encode(set_byte(set_byte(h.sum, 6, get_byte(h.sum, 6) & 15 | 128), 8, get_byte(h.sum, 8) & 63 | 128), 'hex')::uuid::text
      from (select substring(sha256(decode('b1c0d5f27c4e4b6f9a3d2e8f60714253', 'hex') || convert_to(topic, 'UTF8') || '\x00'::bytea
                || convert_to(type, 'UTF8') || '\x00'::bytea || convert_to(dedupe_key, 'UTF8')) for 16) as sum) h
$$;

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

-- What builds for version 2 need besides, to the roles that did the same in version 1: relays move scheduled events, those who
-- work on dead letters replay them and act on stored events, consumers count what they skip and tell of backfills, and producers write once.
do $$
declare
    grantee text;
begin
    for grantee in select distinct x.grantee::regrole::text from pg_proc p, aclexplode(p.proacl) x
                    where p.oid = 'holdfast.reclaim(integer, uuid, integer)'::regprocedure and x.grantee not in (0, p.proowner) loop
        execute 'grant execute on function holdfast.append_unchecked, holdfast.expire_written_once to ' || grantee;
        execute 'grant select, insert, delete on holdfast.parked_lease to ' || grantee;
        execute 'grant select on holdfast.pause to ' || grantee;
    end loop;
    for grantee in select distinct x.grantee::regrole::text from pg_proc p, aclexplode(p.proacl) x
                    where p.oid = 'holdfast.write(text, text, text, bytea, jsonb, text, text, timestamptz, timestamptz)'::regprocedure and x.grantee not in (0, p.proowner) loop
        execute 'grant execute on function holdfast.write_once, holdfast.once_id to ' || grantee;
    end loop;
    for grantee in select distinct x.grantee::regrole::text from pg_class c, aclexplode(c.relacl) x
                    where c.oid = 'holdfast.letter_replay'::regclass and x.privilege_type = 'INSERT' and x.grantee not in (0, c.relowner) loop
        execute 'grant execute on function holdfast.replay_letter, holdfast.purge_letters to ' || grantee;
        execute 'grant insert on holdfast.letter to ' || grantee;
        execute 'grant select, insert on holdfast.stored_action to ' || grantee;
        execute 'grant select on holdfast.consumer_type to ' || grantee;
        execute 'grant select, delete on holdfast.inbox_step to ' || grantee;
    end loop;
    for grantee in select distinct x.grantee::regrole::text from pg_class c, aclexplode(c.relacl) x
                    where c.oid = 'holdfast.consumer_type'::regclass and x.privilege_type = 'INSERT' and x.grantee not in (0, c.relowner) loop
        execute 'grant select, insert, update, delete on holdfast.consumer_skip to ' || grantee;
        execute 'grant select, insert, delete on holdfast.inbox_step to ' || grantee;
        execute 'grant select, insert, update on holdfast.dependency to ' || grantee;
        execute 'grant select, insert, update on holdfast.consumer_backfill to ' || grantee;
    end loop;
end $$;

alter table holdfast.event
    alter column id type text collate "C",
    alter column source type text collate "C",
    alter column type type text collate "C",
    alter column topic type text collate "C",
    alter column key type text collate "C";
alter table holdfast.event replica identity full;
alter table holdfast.event_0 replica identity full;
alter table holdfast.event_1 replica identity full;
alter table holdfast.event_2 replica identity full;
alter table holdfast.event_3 replica identity full;
