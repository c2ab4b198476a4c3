package tenant

import "github.com/holdfast-go/holdfast/internal/waitroom"

// This file holds every statement of the package, written for the schema "holdfast". $1 is the tenant, $2 the separator, $3 the header,
// $4 how the scopes of its requests begin, and $5 and $6 between which places of the table it reads. All parameters are cast, because in
// the modes exec and simple_protocol pgx does not ask Postgres for their types.

// of are the parameters by their names. It costs nothing: the planner puts them where they are used.
const of = `(select $1::text as name, $2::text as separator, $3::text as header, $4::text as scopes, $5::text::tid as low, $6::text::tid as high) w`

// within is a part of the table, by a TID range scan.
const within = `e.ctid >= w.low and e.ctid < w.high`

// These say whose a row is; null: the row does not say it.
const (
	keysTenant   = `case when position(w.separator in e.key) > 0 then split_part(e.key, w.separator, 1) end`
	sourceTenant = `case when position(w.separator in e.source) > 0 then split_part(e.source, w.separator, 1) end`
	idsTenant    = `case when position(w.separator in e.event_id) > 0 then split_part(e.event_id, w.separator, 1) end`

	eventsTenant    = `coalesce(e.headers->>w.header, ` + keysTenant + `, ` + sourceTenant + `)`
	actionsTenant   = `coalesce(` + keysTenant + `, ` + sourceTenant + `)`
	inboxTenant     = `coalesce(` + idsTenant + `, ` + sourceTenant + `)`
	watermarkTenant = `case when position(w.separator in e.entity) > 0 then split_part(e.entity, w.separator, 1) end`
	stepsTenant     = `coalesce(` + itsEvents + `, ` + keysTenant + `, ` + idsTenant + `, ` + sourceTenant + `)`
	replaysTenant   = `case when position(w.separator in e.filter->>'Key') > 0 then split_part(e.filter->>'Key', w.separator, 1) end`

	// Of a scope that says whose it is: that of TenantFunc, or a principal that is the tenant, or one of it.
	scopesTenant = `case when starts_with(e.scope, w.scopes) or e.scope = 'principal:' || w.name or starts_with(e.scope, 'principal:' || w.name || w.separator) then w.name
            when starts_with(e.scope, 'tenant:') or starts_with(e.scope, 'principal:') then '' end`
)

// itsLetter is the letter of an action, looked up for each: with offset 0 the planner cannot read all letters for a part of the actions.
const itsLetter = `lateral (select l.headers, l.key, l.source from holdfast.letter l where l.id = a.letter offset 0) e`

// itsEvents is what the header of a step's event says, while that is stored or a dead letter. It is looked up for each step, by index.
const itsEvents = `(select s.headers->>w.header from holdfast.stored s where s.consumer = e.consumer and s.source = e.source and s.event_id = e.event_id),
         (select max(l.headers->>w.header) from holdfast.letter l where l.origin = 'inbox' and l.consumer = e.consumer and l.source = e.source and l.event_id = e.event_id)`

// What of a row is erased.
const (
	hasPayload = `(e.payload is not null or e.headers is not null)`
	hasErrors  = `(e.payload is not null or e.headers is not null or e.errors <> '{}')`
)

const blocks = `-- tenant.blocks
select coalesce(max(pg_relation_size(c.oid)), 0) / current_setting('block_size')::bigint
  from pg_class c join pg_namespace n on n.oid = c.relnamespace
 where n.nspname = $1::text
   and (c.relname = $2::text or exists (select from pg_inherits i join pg_class p on p.oid = i.inhparent
                                         where i.inhrelid = c.oid and p.relname = $2::text and p.relnamespace = n.oid))`

// signErasure keeps who erased a tenant and why, among what was done to dead letters. The database signs it: see sign_action. An
// erasure is of no letter, so its number is 0.
const signErasure = `-- tenant.sign_erasure
insert into holdfast.letter_action (letter, action, by, reason)
values (0, 'discard', $1::text, $2::text)`

// Counting: how many rows are the tenant's, and how many are nobody's, among those that have something to erase.
const (
	counted       = `select count(*) filter (where o.tenant = o.name), count(*) filter (where o.tenant is null) from (select w.name, `
	countEvents   = "-- tenant.count_events\n" + counted + eventsTenant + ` as tenant from ` + of + `, holdfast.event e where ` + within + ` and ` + hasPayload + `) o`
	countWaiting  = "-- tenant.count_scheduled\n" + counted + eventsTenant + ` as tenant from ` + of + `, holdfast.scheduled e where ` + within + `) o`
	countOnce     = "-- tenant.count_written_once\n" + counted + actionsTenant + ` as tenant from ` + of + `, holdfast.written_once e where ` + within + `) o`
	countParked   = "-- tenant.count_parked\n" + counted + eventsTenant + ` as tenant from ` + of + `, holdfast.parked e where ` + within + ` and ` + hasErrors + `) o`
	countStored   = "-- tenant.count_stored\n" + counted + eventsTenant + ` as tenant from ` + of + `, holdfast.stored e where ` + within + ` and ` + hasErrors + `) o`
	countActions  = "-- tenant.count_stored_actions\n" + counted + actionsTenant + ` as tenant from ` + of + `, holdfast.stored_action e where ` + within + `) o`
	countInbox    = "-- tenant.count_inbox\n" + counted + inboxTenant + ` as tenant from ` + of + `, holdfast.inbox e where ` + within + `) o`
	countDone     = "-- tenant.count_inbox_steps\n" + counted + stepsTenant + ` as tenant from ` + of + `, holdfast.inbox_step e where ` + within + `) o`
	countStarts   = "-- tenant.count_starts\n" + counted + inboxTenant + ` as tenant from ` + of + `, holdfast.start e where ` + within + `) o`
	countMarks    = "-- tenant.count_watermarks\n" + counted + watermarkTenant + ` as tenant from ` + of + `, holdfast.watermark e where ` + within + `) o`
	countLetters  = "-- tenant.count_letters\n" + counted + eventsTenant + ` as tenant from ` + of + `, holdfast.letter e where ` + within + `) o`
	countReplays  = "-- tenant.count_letter_replays\n" + counted + replaysTenant + ` as tenant from ` + of + `, holdfast.letter_replay e where ` + within + ` and e.filter->>'Key' <> '') o`
	countPauses   = "-- tenant.count_pauses\n" + counted + keysTenant + ` as tenant from ` + of + `, holdfast.pause e where ` + within + ` and e.key <> '') o`
	countPaused   = "-- tenant.count_pause_actions\n" + counted + keysTenant + ` as tenant from ` + of + `, holdfast.pause_action e where ` + within + ` and e.key <> '') o`
	countAnswers  = "-- tenant.count_idempotency\n" + counted + scopesTenant + ` as tenant from ` + of + `, holdfast.idempotency e where ` + within + `) o`
	countRequests = "-- tenant.count_idempotency_requests\n" + counted + scopesTenant + ` as tenant from ` + of + `, holdfast.idempotency_request e where ` + within + `) o`
	countExpired  = "-- tenant.count_idempotency_expired\n" + counted + scopesTenant + ` as tenant from ` + of + `, holdfast.idempotency_expired e where ` + within + `) o`

	// Rows of these are the tenant's if what they belong to is.
	countLetterActions = `-- tenant.count_letter_actions
select count(*) filter (where ` + eventsTenant + ` = w.name), 0::bigint
  from ` + of + `, holdfast.letter_action a, ` + itsLetter + `
 where a.ctid >= w.low and a.ctid < w.high`
	countSteps = `-- tenant.count_idempotency_steps
select count(*) filter (where ` + scopesTenant + ` = w.name), 0::bigint
  from ` + of + `, holdfast.idempotency_step s join holdfast.idempotency e on e.run = s.run
 where s.ctid >= w.low and s.ctid < w.high`
)

// Exporting: the row as JSON, and what of it is bytes.
const (
	ofEvents  = within + ` and ` + eventsTenant + ` = w.name`
	ofScopes  = within + ` and ` + scopesTenant + ` = w.name`
	asPayload = `select (to_jsonb(e) - 'payload')::text, e.payload from ` + of
	asBody    = `select (to_jsonb(e) - 'body')::text, e.body from ` + of
	asRow     = `select row_to_json(e)::text, null::bytea from ` + of

	exportEvents        = "-- tenant.export_events\n" + asPayload + `, holdfast.event e where ` + ofEvents
	exportScheduled     = "-- tenant.export_scheduled\n" + asPayload + `, holdfast.scheduled e where ` + ofEvents
	exportOnce          = "-- tenant.export_written_once\n" + asRow + `, holdfast.written_once e where ` + within + ` and ` + actionsTenant + ` = w.name`
	exportParked        = "-- tenant.export_parked\n" + asPayload + `, holdfast.parked e where ` + ofEvents
	exportStored        = "-- tenant.export_stored\n" + asPayload + `, holdfast.stored e where ` + ofEvents
	exportLetters       = "-- tenant.export_letters\n" + asPayload + `, holdfast.letter e where ` + ofEvents
	exportActions       = "-- tenant.export_stored_actions\n" + asRow + `, holdfast.stored_action e where ` + within + ` and ` + actionsTenant + ` = w.name`
	exportInbox         = "-- tenant.export_inbox\n" + asRow + `, holdfast.inbox e where ` + within + ` and ` + inboxTenant + ` = w.name`
	exportDone          = "-- tenant.export_inbox_steps\n" + asRow + `, holdfast.inbox_step e where ` + within + ` and ` + stepsTenant + ` = w.name`
	exportStarts        = "-- tenant.export_starts\n" + asRow + `, holdfast.start e where ` + within + ` and ` + inboxTenant + ` = w.name`
	exportMarks         = "-- tenant.export_watermarks\n" + asRow + `, holdfast.watermark e where ` + within + ` and ` + watermarkTenant + ` = w.name`
	exportReplays       = "-- tenant.export_letter_replays\n" + asRow + `, holdfast.letter_replay e where ` + within + ` and ` + replaysTenant + ` = w.name`
	exportPauses        = "-- tenant.export_pauses\n" + asRow + `, holdfast.pause e where ` + within + ` and ` + keysTenant + ` = w.name`
	exportPaused        = "-- tenant.export_pause_actions\n" + asRow + `, holdfast.pause_action e where ` + within + ` and ` + keysTenant + ` = w.name`
	exportAnswers       = "-- tenant.export_idempotency\n" + asBody + `, holdfast.idempotency e where ` + ofScopes
	exportRequests      = "-- tenant.export_idempotency_requests\n" + asBody + `, holdfast.idempotency_request e where ` + ofScopes
	exportExpired       = "-- tenant.export_idempotency_expired\n" + asRow + `, holdfast.idempotency_expired e where ` + ofScopes
	exportLetterActions = `-- tenant.export_letter_actions
select (to_jsonb(a) - 'payload')::text, a.payload
  from ` + of + `, holdfast.letter_action a, ` + itsLetter + `
 where a.ctid >= w.low and a.ctid < w.high and ` + eventsTenant + ` = w.name`
	exportSteps = `-- tenant.export_idempotency_steps
select row_to_json(s)::text, null::bytea
  from ` + of + `, holdfast.idempotency_step s join holdfast.idempotency e on e.run = s.run
 where s.ctid >= w.low and s.ctid < w.high and ` + scopesTenant + ` = w.name`
)

// openLetters are those that must be discarded before they can be erased.
const openLetters = `-- tenant.open_letters
select e.id from ` + of + `, holdfast.letter e
 where ` + ofEvents + ` and e.state in ('open', 'replaying')
 order by e.id`

// Erasing. A row that somebody has locked is passed over, so that neither waits for the other.
const (
	// Nobody locks events. They become tombstones, so that every key keeps its order.
	eraseEvents = `-- tenant.erase_events
update holdfast.event e set payload = null, headers = null
  from ` + of + `
 where ` + ofEvents + ` and ` + hasPayload

	eraseScheduled = `-- tenant.erase_scheduled
delete from holdfast.scheduled d where d.ctid = any (array(
  select e.ctid from ` + of + `, holdfast.scheduled e
   where ` + ofEvents + ` for update of e skip locked))`

	eraseParked = `-- tenant.erase_parked
update holdfast.parked p set payload = null, headers = null, errors = '{}' where p.ctid = any (array(
  select e.ctid from ` + of + `, holdfast.parked e
   where ` + ofEvents + ` and ` + hasErrors + ` for update of e skip locked))`

	eraseStored = `-- tenant.erase_stored
update holdfast.stored s set payload = null, headers = null, errors = '{}' where s.ctid = any (array(
  select e.ctid from ` + of + `, holdfast.stored e
   where ` + ofEvents + ` and ` + hasErrors + ` for update of e skip locked))`

	// A closed letter goes with what its edits replaced, and with why things were done to it. Who did what and when stays.
	eraseLetters = `-- tenant.erase_letters
with gone as (
  delete from holdfast.letter d where d.ctid = any (array(
    select e.ctid from ` + of + `, holdfast.letter e
     where ` + ofEvents + ` and e.state in ('replayed', 'discarded') for update of e skip locked))
  returning d.id
), emptied as (
  update holdfast.letter_action a set payload = null, reason = 'erased' where a.letter = any (array(select g.id from gone g)))
select count(*) from gone`

	eraseActions = `-- tenant.erase_stored_actions
delete from holdfast.stored_action e using ` + of + `
 where ` + within + ` and ` + actionsTenant + ` = w.name`

	eraseReplays = `-- tenant.erase_letter_replays
delete from holdfast.letter_replay e using ` + of + `
 where ` + within + ` and ` + replaysTenant + ` = w.name and e.ended_at is not null`

	// A key goes on whose pause ends, unless a letter holds it. The statement still sees the pause, which is the only one of its key.
	erasePauses = `-- tenant.erase_pauses
with gone as (
  delete from holdfast.pause e using ` + of + `
   where ` + within + ` and ` + keysTenant + ` = w.name
  returning e.consumer, e.topic, e.key
), woken as (
  update holdfast.stored s set next_at = clock_timestamp()
    from gone q
   where ` + waitroom.Asleep + `
   and (s.letter is not null
        or not exists (select from holdfast.consumer_hold o
                        where o.consumer = q.consumer and o.topic = q.topic and o.key = q.key and o.letter is not null and o.after < s.place offset 0)))
select count(*) from gone`

	erasePaused = `-- tenant.erase_pause_actions
delete from holdfast.pause_action e using ` + of + `
 where ` + within + ` and ` + keysTenant + ` = w.name`

	eraseMarks = `-- tenant.erase_watermarks
delete from holdfast.watermark d where d.ctid = any (array(
  select e.ctid from ` + of + `, holdfast.watermark e
   where ` + within + ` and ` + watermarkTenant + ` = w.name for update of e skip locked))`

	eraseOnce = `-- tenant.erase_written_once
delete from holdfast.written_once d where d.ctid = any (array(
  select e.ctid from ` + of + `, holdfast.written_once e
   where ` + within + ` and ` + actionsTenant + ` = w.name for update of e skip locked))`

	// Rows of events that wait or were given up belong to those, and stay as long.
	eraseInbox = `-- tenant.erase_inbox
delete from holdfast.inbox d where d.ctid = any (array(
  select e.ctid from ` + of + `, holdfast.inbox e
   where ` + within + ` and ` + inboxTenant + ` = w.name and e.result in ('handled', 'skipped', 'discarded') for update of e skip locked))`

	// What other systems returned goes, whether the event is settled or not: a result that stayed would be the tenant's data, and one that was
	// emptied would tell the handler of a call that returned nothing. An event that waits is a tombstone for its handler then. If that calls
	// for it all the same, it calls again, with the same key, which is made of the event's hash.
	eraseDone = `-- tenant.erase_inbox_steps
delete from holdfast.inbox_step d where d.ctid = any (array(
  select e.ctid from ` + of + `, holdfast.inbox_step e
   where ` + within + ` and ` + stepsTenant + ` = w.name for update of e skip locked))`

	// Answers, and requests that nobody works on, with their steps.
	eraseAnswers = `-- tenant.erase_idempotency
with gone as (
  delete from holdfast.idempotency d where d.ctid = any (array(
    select e.ctid from ` + of + `, holdfast.idempotency e
     where ` + ofScopes + ` and (e.state <> 'pending' or e.lease_until < clock_timestamp()) for update of e skip locked))
  returning d.run
), steps as (
  delete from holdfast.idempotency_step s where s.run = any (array(select g.run from gone g))
), requests as (
  delete from holdfast.idempotency_request r where r.run = any (array(select g.run from gone g)))
select count(*) from gone`

	eraseExpired = `-- tenant.erase_idempotency_expired
delete from holdfast.idempotency_expired d where d.ctid = any (array(
  select e.ctid from ` + of + `, holdfast.idempotency_expired e
   where ` + ofScopes + ` for update of e skip locked))`
)
