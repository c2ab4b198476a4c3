-- From version 1 to 2: the collation "C" for every text that identifies something; replica identities for tables without a key.
--
-- What is rewritten: the indexes with text columns of inbox, stored, letter and smaller tables. No table is. The log comes
-- last, because producers wait for it: it has no such index, so that takes no time.

-- Which builds may run here. Those for version 1 may; they do not ask.
alter table holdfast.installation add column compatible_from integer not null default 1;
alter table holdfast.installation alter column compatible_from drop default;

drop view holdfast.lane_hold, holdfast.consumer_hold; -- a column of a view keeps its collation; they come back below

alter table holdfast.inbox
    alter column consumer type text collate "C",
    alter column source type text collate "C",
    alter column event_id type text collate "C",
    alter column topic type text collate "C";

alter table holdfast.stored
    alter column consumer type text collate "C",
    alter column topic type text collate "C",
    alter column key type text collate "C",
    alter column source type text collate "C",
    alter column event_id type text collate "C",
    alter column type type text collate "C";

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
    alter column node type text collate "C";

alter table holdfast.consumer_position
    alter column consumer type text collate "C",
    alter column topic type text collate "C",
    alter column owner type text collate "C";

alter table holdfast.retention
    alter column consumer type text collate "C";

alter table holdfast.letter_replay
    alter column name type text collate "C";

alter table holdfast.parked
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
    add constraint topic_is_a_kafka_name check (octet_length(topic) between 1 and 249 and topic !~ '[^a-zA-Z0-9._-]' and topic not in ('.', '..'));

alter table holdfast.relay
    alter column name type text collate "C";

alter table holdfast.lane
    alter column owner type text collate "C";

alter table holdfast.idempotency_expired replica identity full;

create view holdfast.lane_hold with (security_invoker = true) as
    select l.lane, l.topic, l.key, l.id as letter, l.state
      from holdfast.letter l
     where l.holds and l.state in ('open', 'replaying');

create view holdfast.consumer_hold with (security_invoker = true) as
    select l.consumer, l.topic, l.key, l.id as letter, coalesce(l.place, '-9223372036854775808') as after
      from holdfast.letter l
     where l.holds and l.origin = 'inbox' and l.state in ('open', 'replaying');

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
