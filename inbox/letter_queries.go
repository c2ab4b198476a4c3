package inbox

// The statements on dead letters.

// Writes a letter. A letter holds back what comes after its place ($20; null stands for the end of the queue). Events before
// it, which wait for another attempt, go on. An event has one letter for each payload: see the unique index letter_event. An
// event that is given up again opens its letter again. A conflict that comes again ($19 false) changes nothing.
const letterSQL = `-- inbox.letter
insert into holdfast.letter as letter (origin, consumer, reason, fingerprint, holds, event_id, source, type, topic, key, time,
       headers, payload, hash, partition, "offset", attempts, errors, first_at, place)
values ('inbox', $1::text, $2::text, $3::text, $4::boolean, $5::text, $6::text, $7::text, $8::text, $9::text,
        coalesce($10::timestamptz, now()), $11::text::jsonb, $12::bytea, $13::bytea, $14::int, $15::bigint,
        $16::int, $17::text[], now() - $18::bigint * interval '1 microsecond', coalesce($20::bigint, nextval('holdfast.stored_place')))
on conflict (consumer, source, event_id, hash) where origin = 'inbox' do update
   set state = 'open', reason = excluded.reason, fingerprint = excluded.fingerprint, holds = excluded.holds, place = excluded.place, last_at = now(),
       attempts = letter.attempts + excluded.attempts,
       errors = holdfast.last_errors(letter.errors || excluded.errors)
 where $19::boolean
returning id`

// Opens a letter again after its replay failed, and adds the replay's attempts and errors. It holds the key if it did before.
const letterReopenSQL = `-- inbox.letter_reopen
update holdfast.letter
   set state = 'open', last_at = now(), attempts = attempts + $2::int, reason = $3::text, fingerprint = $4::text,
       errors = holdfast.last_errors(errors || $5::text[])
 where id = $1::bigint`

const letterReplayedSQL = `-- inbox.letter_replayed
update holdfast.letter set state = 'replayed', last_at = now() where id = $1::bigint and state in ('open', 'replaying')`

// Says whether a person replaced a payload with one of the hashes in $4, or in another version than the first of them
// (delivery.is), by an edit of the event's letter. Index letter_event finds the event's letters, and letter_action_letter what
// was done to them.
const editedSQL = `-- inbox.edited
select exists (
    select from holdfast.letter l join holdfast.letter_action a on a.letter = l.id
     where l.origin = 'inbox' and l.consumer = $1::text and l.source = $2::text and l.event_id = $3::text
       and a.action = 'edit'
       and (a.hash = any($4::bytea[])
            or (octet_length(a.hash) > 32 and octet_length(($4::bytea[])[1]) > 32 and substr(a.hash, 33) <> substr(($4::bytea[])[1], 33))))`

const publishLetterSQL = `-- inbox.publish_letter
select holdfast.publish_letter($1::bigint, $2::text, $3::integer)`
