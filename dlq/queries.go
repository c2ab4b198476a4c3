package dlq

import (
	"github.com/holdfast-go/holdfast/internal/sqlschema"
	"github.com/holdfast-go/holdfast/internal/waitroom"
)

// This file holds every statement of the package, written for the schema "holdfast". newStatements replaces it once
// with the configured schema. All parameters are cast, because in the modes exec and simple_protocol pgx does not ask
// Postgres for their types.

// andFilter are the conditions of a Filter on a letter l, including its id, so that every statement selects the same
// letters. $1... the filter, where null or empty matches any; $12 the id after which to continue.
const andFilter = `
   and ($1::bigint[] is null or l.id = any ($1::bigint[]))
   and ($2::text = '' or l.origin = $2::text)
   and ($3::text = '' or l.consumer = $3::text)
   and ($4::text = '' or l.type = $4::text)
   and ($5::text = '' or l.topic = $5::text)
   and ($6::text = '' or l.key = $6::text)
   and ($7::text = '' or l.source = $7::text)
   and ($8::text = '' or l.event_id = $8::text)
   and ($9::text = '' or l.fingerprint = $9::text)
   and ($10::timestamptz is null or l.last_at >= $10::timestamptz)
   and ($11::timestamptz is null or l.last_at < $11::timestamptz)
   and l.id > $12::bigint`

// fromStates selects the letters of a filter in its states. The two branches read one table: open letters ($13) use the
// partial index letter_open, closed ones the primary key. The other branch never runs. $14 states.
const fromStates = `
  from (select o.* from holdfast.letter o where $13::boolean and o.state in ('open', 'replaying')
        union all
        select c.* from holdfast.letter c where not $13::boolean) l
 where l.state = any ($14::text[])` + andFilter

// listLetters reads a page of letters by id. $15 how many, $16 with payloads. Letters of rows that somebody wrote by SQL may hold
// anything that the types allow. What Go cannot hold, or would take too much memory, is left out, and the last column says so:
// such a letter must not hide the others. The page ends after the letter with which it has 32 MiB of what is read.
const listLetters = `-- dlq.list
select l.id, l.origin, l.consumer, l.reason, l.fingerprint, l.state, l.holds, left(l.event_id, 65536), left(l.source, 65536), left(l.type, 65536), l.topic, left(l.key, 65536),
       case when l.time >= '0001-01-01 00:00:00+00' and l.time < '10000-01-01 00:00:00+00' then l.time end,
       case when pg_column_size(l.headers) <= 1048576 then l.headers::text end,
       case when $16::boolean and octet_length(l.payload) <= 268435456 then l.payload end, coalesce(octet_length(l.payload), -1), l.version,
       l.partition, l."offset", l.attempts, array(select left(t, 65536) from unnest(l.errors) t where t is not null),
       greatest('0001-01-01 00:00:00+00', least(l.first_at, '9999-12-31 23:59:59+00')), greatest('0001-01-01 00:00:00+00', least(l.last_at, '9999-12-31 23:59:59+00')),
       array_remove(array[
         case when l.time < '0001-01-01 00:00:00+00' or l.time >= '10000-01-01 00:00:00+00' then format('time is %s: a year from 1 to 9999', l.time) end,
         case when pg_column_size(l.headers) > 1048576 then format('headers have %s bytes as they are stored: read them by SQL from the column headers of letter', pg_column_size(l.headers)) end,
         case when octet_length(l.payload) > 268435456 then format('payload has %s bytes: read it by SQL from the column payload of letter', octet_length(l.payload)) end,
         case when greatest(octet_length(l.event_id), octet_length(l.source), octet_length(l.type), octet_length(l.key)) > 65536 then 'id, source, type or key is cut off: read them by SQL from letter' end], null), l.hash
  from (select o.*, sum(o.bytes) over (order by o.id) - o.bytes as before
          from (select l.*, case when $16::boolean and octet_length(l.payload) <= 268435456 then octet_length(l.payload) else 0 end
                       + case when pg_column_size(l.headers) <= 1048576 then pg_column_size(l.headers) else 0 end
                       + least(octet_length(l.event_id), 65536) + least(octet_length(l.source), 65536) + least(octet_length(l.type), 65536) + least(octet_length(l.key), 65536)
                       + (select coalesce(sum(least(octet_length(t), 65536)), 0) from unnest(l.errors) t) as bytes` + fromStates + `
                 order by l.id
                 limit $15::integer) o) l
 where l.before < 33554432
 order by l.id`

// groupLetters counts by kind of failure what listLetters would read. Like that, it reads open letters by letter_open.
// It looks up the example, the newest letter of a group, only for the returned groups. $15 how many groups.
const groupLetters = `-- dlq.groups
select g.fingerprint, g.origin, g.consumer, g.type, g.topic, g.letters, g.holding, g.first_at, g.last_at, e.id, e.reason
  from (
select l.fingerprint, l.origin, l.consumer, l.type, l.topic, count(*) as letters, count(*) filter (where l.holds) as holding,
       min(greatest('0001-01-01 00:00:00+00', least(l.first_at, '9999-12-31 23:59:59+00'))) as first_at,
       max(greatest('0001-01-01 00:00:00+00', least(l.last_at, '9999-12-31 23:59:59+00'))) as last_at, max(l.id) as example` + fromStates + `
 group by l.fingerprint, l.origin, l.consumer, l.type, l.topic
 order by letters desc, example desc
 limit $15::integer) g
  join holdfast.letter e on e.id = g.example
 order by g.letters desc, g.example desc`

// fromOpen selects the open letters of a filter that a walk visits. It reads letter_open in index order, so a page
// costs the same however many letters there are. It looks up each letter that a named replay has moved by
// letter_action_replay; a "not exists" would read that index whole for every page. $13 the last letter, $14 the named
// replay, 0 for none.
const fromOpen = `
  from holdfast.letter l
 where l.state = 'open'` + andFilter + `
   and ($13::bigint = 0 or l.id <= $13::bigint)
   and ($14::bigint = 0 or (select a.letter from holdfast.letter_action a where a.replay = $14::bigint and a.letter = l.id) is null)`

// walkLetters reads the addresses of letters, page by page. $15 how many.
const walkLetters = `-- dlq.walk
select l.id, l.origin, l.consumer, l.topic, l.key` + fromOpen + `
 order by l.id
 limit $15::integer`

// countLetters counts what a walk would visit. $15 the maximum, 0 for no limit.
const countLetters = `-- dlq.count
select count(*) from (
select` + fromOpen + `
 limit nullif($15::integer, 0)) few`

// lastLetter bounds a replay: letters written while it runs are left for the next one.
const lastLetter = `-- dlq.last
select coalesce(max(l.id), 0) from holdfast.letter l`

// readAddress reads a letter's address before anything is locked. It never changes.
const readAddress = `-- dlq.address
select l.origin, l.consumer, l.topic, l.key from holdfast.letter l where l.id = $1::bigint`

// takeLetter locks a letter until the transaction ends. It comes after lockQueue, as in the inbox, so that the two
// cannot deadlock.
const takeLetter = `-- dlq.take
select l.state from holdfast.letter l where l.id = $1::bigint for update`

// wholeLetter returns no row if the letter is of a record whose value was left out (wire.HeaderValueLeftOut), and nobody has
// given it a payload.
const wholeLetter = `-- dlq.whole
select l.id from holdfast.letter l
 where l.id = $1::bigint and (l.payload is not null or l.version > 1 or not coalesce(l.headers ? 'hf_value_left_out', false))`

const markLetter = `-- dlq.mark
update holdfast.letter set state = $2::text where id = $1::bigint and state in ('open', 'replaying')`

// closeLetter closes a letter. From now on its age counts for a purge.
const closeLetter = `-- dlq.close
update holdfast.letter set state = 'discarded', last_at = now() where id = $1::bigint and state in ('open', 'replaying')`

// recordAction runs after takeLetter. No row means that the named replay ($5, 0 for none) has moved this letter before,
// according to the unique index letter_action_replay.
const recordAction = `-- dlq.action
insert into holdfast.letter_action (letter, action, by, reason, replay)
values ($1::bigint, $2::text, $3::text, $4::text, nullif($5::bigint, 0))
on conflict (replay, letter) where replay is not null do nothing`

// findReplay finds the unfinished replay of a name, and how many letters it has moved.
const findReplay = `-- dlq.find_replay
select r.id, r.filter::text, r.upto, r.by, r.began_at, (select count(*) from holdfast.letter_action a where a.replay = r.id)
  from holdfast.letter_replay r where r.name = $1::text and r.ended_at is null`

// beginReplay begins a replay unless the name has one: the unique index letter_replay_unended.
const beginReplay = `-- dlq.begin_replay
insert into holdfast.letter_replay (name, filter, upto, by, reason)
select $1::text, $2::text::jsonb, coalesce(max(l.id), 0), $3::text, $4::text from holdfast.letter l
on conflict (name) where ended_at is null do nothing`

const endReplay = `-- dlq.end_replay
update holdfast.letter_replay set ended_at = now() where name = $1::text and ended_at is null and ($2::bigint = 0 or id = $2::bigint)`

// purgeLetters removes up to $2 letters that were closed longer than $1 microseconds ago, and returns how many. Those who work on
// letters cannot delete any: the function refuses open ones, and keeps what was done to the others.
const purgeLetters = `-- dlq.purge
select holdfast.purge_letters($1::bigint, $2::integer)`

const countPurge = `-- dlq.count_purge
select count(*) from holdfast.letter l
 where l.state in ('replayed', 'discarded') and l.last_at < now() - $1::bigint * interval '1 microsecond'`

// storeLetter puts a letter's event back in its place in the key's queue, under lockQueue: before the events that came
// after it, in whatever order letters are replayed. No row means that the event is stored already.
//
// A letter without a place goes before all others, by its id, far below what nextval gives. The named conflict lets any
// other conflict surface. It is due by the clock: the transaction may have waited for the lock since now().
const storeLetter = `-- dlq.store
insert into holdfast.stored (consumer, topic, key, place, source, event_id, type, time, headers, payload, hash, partition, "offset", letter, next_at)
select l.consumer, l.topic, l.key, coalesce(l.place, l.id - (1::bigint << 62)),
       l.source, l.event_id, l.type, l.time, l.headers, l.payload, l.hash, l.partition, l."offset", l.id, clock_timestamp()
  from holdfast.letter l
 where l.id = $1::bigint
on conflict (consumer, source, event_id) do nothing`

// storeResult records in the inbox that the event waits again, so that its row is kept and a redelivery is recognised.
// A row for another payload under the same id (a conflict) is not changed.
const storeResult = `-- dlq.store_result
insert into holdfast.inbox (consumer, source, event_id, topic, partition, "offset", hash, processed_at, result, attempts)
select l.consumer, l.source, l.event_id, l.topic, l.partition, l."offset", l.hash, null, 'stored', l.attempts
  from holdfast.letter l where l.id = $1::bigint
on conflict (consumer, source, event_id) do update
   set result = 'stored', processed_at = null
 where inbox.hash = excluded.hash and inbox.result <> 'handled'`

// letterUnhandled returns no row if the letter's very event was handled after all: it came again before it had a row in the inbox. It runs
// after storeResult, which has the row.
const letterUnhandled = `-- dlq.unhandled
select l.id from holdfast.letter l
 where l.id = $1::bigint
   and not exists (select from holdfast.inbox i
                    where i.consumer = l.consumer and i.source = l.source and i.event_id = l.event_id and i.hash = l.hash and i.result = 'handled')`

// forgetSteps removes what steps of the handler of a letter's event have returned, for the payload that the letter has. Other payloads are those
// before an edit, whose steps never run again, or of another letter with the event's id, a conflict.
const forgetSteps = `-- dlq.forget_steps
delete from holdfast.inbox_step s
 using holdfast.letter l
 where l.id = $1::bigint and s.consumer = l.consumer and s.source = l.source and s.event_id = l.event_id and s.hash = case when octet_length(l.hash) > 32 then '' else l.hash end`

// replayLetter marks an open letter of a relay, and sends its event through the log once more. Only this function names a
// letter in the log.
const replayLetter = `-- dlq.replay
select from (select holdfast.replay_letter($1::bigint) as moved) r where r.moved`

// readUnfit says why the event of a relay's letter would be given up again at once, or null. replay_letter refuses the rest.
const readUnfit = `-- dlq.unfit
select case when jsonb_typeof(l.headers) not in ('object', 'null') then format('its headers are a JSON %s: set the column headers of letter to an object of strings by SQL, or discard it', jsonb_typeof(l.headers))
            when pg_column_size(l.headers) > ` + sqlschema.MaxStoredHeaders + ` then format('its headers have %s bytes as they are stored, at most ` + sqlschema.MaxStoredHeaders + `: set the column headers of letter by SQL, or discard it', pg_column_size(l.headers))
            when octet_length(l.payload) > ` + sqlschema.MaxPayload + ` then format('its payload has %s bytes, at most ` + sqlschema.MaxPayload + `: edit it, or discard it', octet_length(l.payload)) end
  from holdfast.letter l where l.id = $1::bigint`

// unstoreLetter takes the waiting replay of a letter out of its queue, under lockQueue, unless a worker is handling it.
const unstoreLetter = `-- dlq.unstore
delete from holdfast.stored s
 using holdfast.letter l
 where l.id = $1::bigint and s.letter = l.id and s.consumer = l.consumer and s.source = l.source and s.event_id = l.event_id
   and s.lease_until <= now()`

// discardResult records in the inbox that the event will never be handled, if its row is for this payload.
const discardResult = `-- dlq.discard_result
update holdfast.inbox i set result = 'discarded', processed_at = coalesce(i.processed_at, now())
  from holdfast.letter l
 where l.id = $1::bigint and i.consumer = l.consumer and i.source = l.source and i.event_id = l.event_id
   and i.hash = l.hash and i.result in ('dead', 'stored')`

// wakeQueue makes the head of the letter's queue due if nothing holds it any more, under lockQueue.
const wakeQueue = `-- dlq.wake
update holdfast.stored s set next_at = clock_timestamp()
  from (select l.consumer, l.topic, l.key from holdfast.letter l where l.id = $1::bigint) q
 where ` + waitroom.Woken

// keepVersion keeps the payload that an edit is about to replace, with its hash.
const keepVersion = `-- dlq.keep_version
insert into holdfast.letter_action (letter, action, by, reason, payload, hash, version)
select l.id, 'edit', $2::text, $3::text, l.payload, l.hash, l.version from holdfast.letter l where l.id = $1::bigint`

// editHash is the hash of a new payload: that which it had, if the letter has it or has had it before, or else $3.
const editHash = `-- dlq.edit_hash
select coalesce((select l.hash from holdfast.letter l where l.id = $1::bigint and l.payload = $2::bytea),
                (select a.hash from holdfast.letter_action a where a.letter = $1::bigint and a.action = 'edit' and a.payload = $2::bytea order by a.id limit 1),
                $3::bytea)`

// editResult puts the new payload's hash into the inbox row. It runs before editLetter, because it finds the row by the
// old hash.
const editResult = `-- dlq.edit_result
update holdfast.inbox i set hash = $2::bytea
  from holdfast.letter l
 where l.id = $1::bigint and i.consumer = l.consumer and i.source = l.source and i.event_id = l.event_id
   and i.hash = l.hash and i.result <> 'handled'`

// editLetter replaces the payload. At the relay the event gets a new id: consumers that have seen the old one would
// take the new payload for a repeat. It is made of the old one, so that package find finds the letter by that. At the inbox the event keeps its id, by which its redelivery is recognised.
const editLetter = `-- dlq.edit
update holdfast.letter l
   set payload = $2::bytea, hash = $3::bytea, version = l.version + 1,
       event_id = case when l.origin = 'relay' then encode(substring(sha256(convert_to(format('holdfast edit %s of letter %s: %s', l.version, l.id, l.event_id), 'UTF8')) from 1 for 16), 'hex')::uuid::text else l.event_id end
 where l.id = $1::bigint`

// listActions reads who did what to a letter, by the index letter_action_letter.
const listActions = `-- dlq.actions
select a.id, a.letter, a.action, a.by, coalesce(a.login, ''), a.reason, a.at, a.payload, coalesce(a.version, 0)
  from holdfast.letter_action a where a.letter = $1::bigint order by a.id`

// reopenEvent makes a dead letter of an event that its consumer has handled or skipped, if its payload is that of the row: $10 is the hash of
// type and payload, $11 that of the payload alone (see inbox). It returns the letter, or what the row says, null if there is none, and
// whether the payload is the row's.
const reopenEvent = `-- dlq.reopen
with again as (
  update holdfast.inbox i set result = 'dead', processed_at = coalesce(i.processed_at, now())
   where i.consumer = $1::text and i.source = $2::text and i.event_id = $3::text and i.result in ('handled', 'skipped')
     and i.hash in ($10::bytea, $11::bytea)
  returning i.partition, i."offset", i.hash
), letter as (
  insert into holdfast.letter as l (origin, consumer, reason, fingerprint, event_id, source, type, topic, key, time, headers, payload, hash, partition, "offset")
  select 'inbox', $1::text, $12::text, $4::text || ' reopened by a person', $3::text, $2::text, $4::text, $5::text, $6::text, coalesce($7::timestamptz, now()),
         $8::text::jsonb, $9::bytea, a.hash, a.partition, a."offset"
    from again a
  on conflict (consumer, source, event_id, hash) where origin = 'inbox' do update
     set state = 'open', reason = excluded.reason, fingerprint = excluded.fingerprint, holds = false, place = null, last_at = now()
  returning id
), signed as (
  insert into holdfast.letter_action (letter, action, by, reason) select l.id, 'reopen', $13::text, $14::text from letter l)
select (select l.id from letter l), i.result, i.hash in ($10::bytea, $11::bytea)
  from (values (1)) one left join holdfast.inbox i on i.consumer = $1::text and i.source = $2::text and i.event_id = $3::text`

// statements holds the statements above for the configured schema.
type statements struct {
	list, count, last, address, unfit, take, whole, mark, record, store, storeResult, unhandled, replay,
	unstore, forget, discardResult, wake, keepVersion, editHash, editResult, edit, actions,
	groups, walk, close, findReplay, beginReplay, endReplay, purge, countPurge, reopen string
}

func newStatements(schema string) statements {
	in := func(statement string) string { return sqlschema.In(schema, statement) }
	return statements{
		list:          in(listLetters),
		count:         in(countLetters),
		last:          in(lastLetter),
		address:       in(readAddress),
		unfit:         in(readUnfit),
		take:          in(takeLetter),
		whole:         in(wholeLetter),
		mark:          in(markLetter),
		record:        in(recordAction),
		store:         in(storeLetter),
		storeResult:   in(storeResult),
		unhandled:     in(letterUnhandled),
		replay:        in(replayLetter),
		unstore:       in(unstoreLetter),
		forget:        in(forgetSteps),
		discardResult: in(discardResult),
		wake:          in(wakeQueue),
		keepVersion:   in(keepVersion),
		editHash:      in(editHash),
		editResult:    in(editResult),
		edit:          in(editLetter),
		actions:       in(listActions),
		groups:        in(groupLetters),
		walk:          in(walkLetters),
		close:         in(closeLetter),
		findReplay:    in(findReplay),
		beginReplay:   in(beginReplay),
		endReplay:     in(endReplay),
		purge:         in(purgeLetters),
		countPurge:    in(countPurge),
		reopen:        in(reopenEvent),
	}
}
