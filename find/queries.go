package find

// This file holds every statement of the package, written for the schema "holdfast". Each returns the columns of a Sighting for $1
// id, $2 source, $3 topic and $4 key, where empty matches any, and at most $5 rows. Texts are cut off: rows that somebody wrote by SQL
// may hold anything.

// limitSearch bounds the statements of a transaction, in milliseconds.
const limitSearch = `-- find.limit
select set_config('statement_timeout', $1::text, true)`

// asked are the rows of the log and of scheduled that a query asks for, and inLane those of them that are in the lane of its key.
const (
	asked = `
 where e.id = $1::text
   and ($2::text = '' or e.source = $2::text)
   and ($3::text = '' or e.topic = $3::text)
   and ($4::text = '' or e.key = $4::text)`
	inLane = `
   and e.lane = (select holdfast.lane_of($4::text, $1::text, count(*)::integer) from holdfast.lane)`
	upTo = `
 limit $5::integer`
)

// It reads all rows: scheduled has no index by id.
const findScheduled = `-- find.scheduled
` + scheduledRows + asked + upTo

// The same of a key. It reads the rows of its lane by the primary key.
const findScheduledOfKey = `-- find.scheduled_of_key
` + scheduledRows + asked + inLane + upTo

const scheduledRows = `select e.id, e.source, e.type, e.topic, e.key, e.time, '', e.lane, -1, -1::bigint, case when e.due_at <= now() then 'due' else 'waits' end,
       0, '', 0::bigint, '', '', null::timestamptz, e.due_at
  from holdfast.scheduled e`

// It reads all of the log.
const findLog = `-- find.log
` + logRows + asked + upTo

// The same of a key. It reads the log of its lane by event_N_lane_xid_seq.
const findLogOfKey = `-- find.log_of_key
` + logRows + asked + inLane + upTo

// A relay has read what is visible in done, and what is in its window up to pos.
const logRows = `select left(e.id, 1024), left(e.source, 1024), left(e.type, 1024), left(e.topic, 1024), left(e.key, 1024), e.time, '', e.lane, -1, -1::bigint,
       case when pg_visible_in_snapshot(e.xid, l.done) or coalesce(pg_visible_in_snapshot(e.xid, l.upto) and e.seq <= l.pos, false) then 'read'
            when l.lease_until > now() then 'unread' else 'unowned' end,
       0, '', coalesce(e.letter, 0), coalesce(l.owner, ''), '', e.time, null::timestamptz
  from holdfast.event e join holdfast.lane l on l.lane = e.lane`

// Of the view that tells what waits: findParked reads all parked rows, or those of a topic and key by the primary key; findStored uses the
// unique constraint that begins with the id.
const (
	findParked = `-- find.parked
select ` + waitingRows + `, '', w.since, w.next_at
  from holdfast.waiting_in_relays w` + askedWaiting + upTo

	findStored = `-- find.stored
select ` + waitingRows + `,
       case when w.why = 'dependency' then coalesce((
            select string_agg(concat(left(d.name, 1024), ', which is away since ', to_char(d.since at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"'),
                                     '; last error: ' || nullif(left(split_part(d.error, E'\n', 1), 1024), '')), ', and for ' order by d.name)
              from holdfast.dependency d
             where d.consumer = w.consumer and d.away
               and exists (select from holdfast.consumer_type t where t.consumer = w.consumer and t.type = w.type and d.name = any(t.needs))), '') else '' end,
       w.since, w.next_at
  from holdfast.waiting_in_consumers w` + askedWaiting + `
 order by w.consumer, w.source` + upTo

	waitingRows = ` left(w.event_id, 1024), left(w.source, 1024), left(w.type, 1024), w.topic, w.key, w.time, w.consumer, case w.waits_in when 'relay' then w.lane else -1 end,
       coalesce(w.partition, w.record_partition, -1), coalesce(w.record_offset, -1), case when w.running then 'runs' else w.why end,
       w.attempts, coalesce(left(w.errors[cardinality(w.errors)], 1024), ''), coalesce(w.letter, 0), ''`
	askedWaiting = `
 where w.event_id = $1::text
   and ($2::text = '' or w.source = $2::text)
   and ($3::text = '' or w.topic = $3::text)
   and ($4::text = '' or w.key = $4::text)`
)

// By the primary key (consumer, source, event_id): it goes from one pair of consumer and source to the next, up to 1,000 of them, and
// looks up the id in each: with offset 0 the planner cannot read the table instead. A row has no key.
const findInbox = `-- find.inbox
with recursive pair as (
  (select i.consumer, i.source from holdfast.inbox i order by i.consumer, i.source limit 1)
  union all
  select n.consumer, n.source
    from pair p, lateral (select i.consumer, i.source from holdfast.inbox i
                           where (i.consumer, i.source) > (p.consumer, p.source)
                           order by i.consumer, i.source limit 1) n)
select i.event_id, i.source, '', i.topic, '', null::timestamptz, i.consumer, -1, coalesce(i.partition, -1), coalesce(i."offset", -1), i.result,
       i.attempts, '', 0::bigint, '', '', coalesce(i.processed_at, i.received_at), null::timestamptz
  from (select * from pair limit 1000) p,
       lateral (select m.* from holdfast.inbox m where m.consumer = p.consumer and m.source = p.source and m.event_id = $1::text offset 0) i
 where ($2::text = '' or i.source = $2::text)
   and ($3::text = '' or i.topic = $3::text)
   and $4::text is not null
 order by i.consumer, i.source
 limit $5::integer`

// It reads the table, which has a row for each event whose handler is running after an unclean end.
const findStarts = `-- find.starts
select s.event_id, s.source, '', '', '', null::timestamptz, s.consumer, -1, -1, -1::bigint, 'started',
       s.starts, '', 0::bigint, '', '', s.last_at, null::timestamptz
  from holdfast.start s
 where s.event_id = $1::text
   and ($2::text = '' or s.source = $2::text)
   and $3::text is not null and $4::text is not null
 order by s.consumer, s.source
 limit $5::integer`

// thatLetter is a letter of the event $1: its own, or one to which edits have given ids since, each made of the one before as dlq.edit makes it.
const thatLetter = `(l.event_id = $1::text or l.origin = 'relay' and l.version > 1 and exists (
         with recursive was (id, n) as (
           select $1::text, 1
           union all
           select encode(substring(sha256(convert_to(format('holdfast edit %s of letter %s: %s', w.n, l.id, w.id), 'UTF8')) from 1 for 16), 'hex')::uuid::text, w.n + 1 from was w where w.n < least(l.version, 100))
         select from was w where w.id = l.event_id))`

// It reads all letters: those of relays and closed ones have no index by id.
const findLetters = `-- find.letters
select left(l.event_id, 1024), left(l.source, 1024), left(l.type, 1024), l.topic, left(l.key, 1024), l.time, l.consumer, coalesce(l.lane, -1),
       coalesce(l.partition, -1), coalesce(l."offset", -1), l.state,
       l.attempts, coalesce(left(l.errors[cardinality(l.errors)], 1024), ''), l.id, '', left(l.reason, 1024), l.last_at, null::timestamptz
  from holdfast.letter l
 where ` + thatLetter + `
   and ($2::text = '' or l.source = $2::text)
   and ($3::text = '' or l.topic = $3::text)
   and ($4::text = '' or l.key = $4::text)
 order by l.id
 limit $5::integer`

// What was done to the letters of an event, and to it while it was stored. It reads all letters, and their actions by letter_action_letter.
const findActions = `-- find.actions
select f.* from (
  select left(l.event_id, 1024), left(l.source, 1024), left(l.type, 1024), l.topic, left(l.key, 1024), l.time, l.consumer, coalesce(l.lane, -1), -1, -1::bigint, a.action,
         0, '', l.id, left(a.by, 1024), left(a.reason, 1024), a.at, null::timestamptz
    from holdfast.letter l join holdfast.letter_action a on a.letter = l.id
   where ` + thatLetter + `
     and ($2::text = '' or l.source = $2::text)
     and ($3::text = '' or l.topic = $3::text)
     and ($4::text = '' or l.key = $4::text)
  union all
  select s.event_id, s.source, s.type, s.topic, s.key, null, s.consumer, -1, -1, -1, s.action, 0, '', coalesce(s.letter, 0), left(s.by, 1024), left(s.reason, 1024), s.at, null
    from holdfast.stored_action s
   where s.event_id = $1::text
     and ($2::text = '' or s.source = $2::text)
     and ($3::text = '' or s.topic = $3::text)
     and ($4::text = '' or s.key = $4::text)) f
 order by f.at
 limit $5::integer`

// Of keys: $1 key, $2 how many at most, $3 scope and $4 operation, where empty matches any. It reads all keys, and of the expired ones
// those of the key by idempotency_expired_key.
const findKeys = `-- find.keys
select * from (` + keyRows + `
 where k.key = $1::text and ($3::text = '' or k.scope = $3::text) and ($4::text = '' or k.operation = $4::text)
 limit $2::integer) k` + expiredKeys

// The same of a scope and operation, by the primary key.
const findKey = `-- find.key
select * from (` + keyRows + `
 where k.scope = $3::text and k.operation = $4::text and k.key = $1::text
 limit $2::integer) k` + expiredKeys

const (
	keyRows = `select left(k.scope, 1024), left(k.operation, 1024),
       case when k.state = 'pending' and k.lease_until > now() then 'running' when k.state = 'pending' then 'interrupted' when k.state = 'complete' then 'answered' else k.state end,
       coalesce(k.status, 0), coalesce(left(k.result_ref, 1024), ''), k.attempt, (select count(*) from holdfast.idempotency_step s where s.run = k.run)::integer,
       k.created_at, k.expires_at, (select r.due_at from holdfast.idempotency_request r where r.run = k.run)
  from holdfast.idempotency k`
	expiredKeys = `
union all
(select left(x.scope, 1024), left(x.operation, 1024), 'expired', coalesce(x.status, 0), coalesce(left(x.result_ref, 1024), ''), 0, 0, x.created_at, x.expires_at, null::timestamptz
  from holdfast.idempotency_expired x
 where x.key = $1::text and ($3::text = '' or x.scope = $3::text) and ($4::text = '' or x.operation = $4::text)
 order by x.created_at desc limit $2::integer)`
)
