package doctor

// The statements of doctor.

// doctorXmin lists what keeps rows from being removed, the oldest first.
const doctorXmin = `-- doctor.xmin
select h.kind, h.name, h.pid, h.seconds, h.age from (
    select 'session' as kind, coalesce(a.application_name, '') as name, a.pid::bigint as pid, coalesce(round(extract(epoch from now() - a.xact_start)), -1)::bigint as seconds,
           greatest(age(a.backend_xmin), age(a.backend_xid))::bigint as age
      from pg_stat_activity a
     where a.datname = current_database() and a.pid <> pg_backend_pid() and a.backend_type = 'client backend' and (a.backend_xmin is not null or a.backend_xid is not null)
    union all
    select 'prepared', p.gid, 0, round(extract(epoch from now() - p.prepared))::bigint, age(p.transaction) from pg_prepared_xacts p where p.database = current_database()
    union all
    select 'slot', s.slot_name::text, coalesce(s.active_pid, 0), -1, age(s.xmin) from pg_replication_slots s where s.xmin is not null
    union all
    select 'standby', coalesce(r.application_name, ''), r.pid, -1, age(r.backend_xmin) from pg_stat_replication r where r.backend_xmin is not null) h
 order by h.age desc, h.seconds desc limit 20`

const doctorConnections = `-- doctor.connections
select (select count(*) from pg_stat_activity a where a.backend_type = 'client backend'),
       current_setting('max_connections')::integer - current_setting('superuser_reserved_connections')::integer`

// doctorGroups lists the consumer groups that own partitions of each consumer.
const doctorGroups = `-- doctor.groups
select distinct p.consumer, p.group_id from holdfast.consumer_position p where p.group_id is not null`

const doctorTopics = `-- doctor.topics
select distinct p.topic from holdfast.consumer_position p order by p.topic`

// doctorLargest reads the largest payload that may be written, in the body of a function that not every role may call.
const doctorLargest = `-- doctor.largest
select coalesce((select btrim(p.prosrc, ' select')::integer from pg_proc p
                  where p.oid = to_regprocedure('holdfast.max_payload()') and p.prosrc ~ '^ select [0-9]{1,9} $'), 0)`

const doctorClock = `-- doctor.clock
select clock_timestamp()`

// doctorSession tells whose connection this is, as the server sees it.
const doctorSession = `-- doctor.session
select pg_backend_pid(), coalesce(inet_client_port(), 0)`
