package outbox

// appendEvents adds the events to the log in one round trip. The last argument of holdfast.append is always null. It locks
// only the segment's table, in a mode for which no other writer or reader waits. Where arguments are texts and array_nulls is off, a
// tombstone would have the payload "NULL": then the last condition is an error that says so.
const appendEvents = `-- outbox.append
select holdfast.append($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::timestamptz[], $7::text[], $8::bytea[], $9::timestamptz[], null)
 where current_setting('array_nulls') = 'on' or array_position($8::bytea[], 'NULL') is null or current_setting('array_nulls is off: it must be on') is null`

// appendEvent adds one event that is due at once: the common case, and cheaper without arrays.
const appendEvent = `-- outbox.append_one
select holdfast.append_one($1::text, $2::text, $3::text, $4::text, $5::text, $6::timestamptz, $7::text, $8::bytea)`

// lockKeys takes one advisory transaction lock per key, in the order of their numbers.
const lockKeys = `-- outbox.lock
select holdfast.lock(variadic $1::text[])`

// writeEventOnce writes one event unless its dedupe key is known. It waits for a transaction that has written the key, at the primary
// key of written_once.
const writeEventOnce = `-- outbox.write_once
select o.written, o.event_id
  from holdfast.write_once($1::text, $2::text, $3::text, $4::text, $5::bytea, $6::text::jsonb, $7::text, $8::text, $9::timestamptz,
       $10::timestamptz, $11::text::interval, $12::text::boolean) o`
