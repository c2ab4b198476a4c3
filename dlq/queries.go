package dlq

import "github.com/holdfast-go/holdfast/internal/sqlschema"

// listLetters reads letters by the primary key or by letter_open; a null argument asks for nothing.
const listLetters = `-- dlq.list
select l.id, l.origin, l.consumer, l.reason, l.fingerprint, l.state, l.holds, l.event_id, l.source, l.type, l.topic, l.key,
       l.time, l.headers::text, l.payload, l.version, coalesce(l.partition, -1), coalesce(l."offset", -1), l.attempts, l.errors, l.first_at, l.last_at
  from holdfast.letter l
 where ($1::bigint[] is null or l.id = any ($1::bigint[]))
   and ($2::text is null or l.origin = $2::text)
   and ($3::text is null or l.consumer = $3::text)
   and ($4::text is null or l.type = $4::text)
   and ($5::text is null or l.topic = $5::text)
   and ($6::text is null or l.key = $6::text)
   and ($7::text is null or l.source = $7::text)
   and ($8::text is null or l.event_id = $8::text)
   and ($9::text is null or l.fingerprint = $9::text)
   and ($10::text is null or l.state = $10::text)
   and ($11::timestamptz is null or l.last_at >= $11::timestamptz)
   and ($12::timestamptz is null or l.last_at < $12::timestamptz)
   and l.id > $13::bigint
 order by l.id
 limit $14::integer`

// lockLetter keeps others from a letter until the transaction ends.
const lockLetter = `-- dlq.lock
select l.id, l.origin, l.consumer, l.reason, l.fingerprint, l.state, l.holds, l.event_id, l.source, l.type, l.topic, l.key,
       l.time, l.headers::text, l.payload, l.version, coalesce(l.partition, -1), coalesce(l."offset", -1), l.attempts, l.errors, l.first_at, l.last_at
  from holdfast.letter l
 where l.id = $1::bigint
   for update`

const setState = `-- dlq.set_state
update holdfast.letter set state = $2::text where id = $1::bigint`

const discardInbox = `-- dlq.discard_inbox
update holdfast.inbox set result = 'discarded'
 where consumer = $1::text and source = $2::text and event_id = $3::text and result = 'dead'`

const actOnLetter = `-- dlq.act
insert into holdfast.letter_action (letter, action, by, reason, payload, version)
values ($1::bigint, $2::text, $3::text, $4::text, $5::bytea, $6::integer)`

// editLetter puts the new payload in. A letter of the relay gets a new event id.
const editLetter = `-- dlq.edit
update holdfast.letter
   set payload = $2::bytea, hash = sha256(coalesce($2::bytea, '')), version = version + 1,
       event_id = case when origin = 'relay' then holdfast.new_id() else event_id end
 where id = $1::bigint`

const rehashInbox = `-- dlq.rehash_inbox
update holdfast.inbox set hash = sha256(coalesce($4::bytea, ''))
 where consumer = $1::text and source = $2::text and event_id = $3::text and result = 'dead'`

// lockQueue is the lock under which the inbox changes the queue of a key.
const lockQueue = `-- dlq.lock_queue
select pg_advisory_xact_lock($1::integer, $2::integer)`

// storeLetter puts a letter's event at the head of its key's queue, due now. A conflict letter's event has a twin of its
// id in the inbox already: the unique constraint refuses only a second place in the queue.
const storeLetter = `-- dlq.store
insert into holdfast.stored (consumer, topic, key, place, source, event_id, type, time, headers, payload, hash, partition, "offset", attempts, next_at, letter)
select l.consumer, l.topic, l.key,
       coalesce((select min(s.place) - 1 from holdfast.stored s where s.consumer = l.consumer and s.topic = l.topic and s.key = l.key), nextval('holdfast.stored_place')),
       l.source, l.event_id, l.type, l.time, l.headers, l.payload, l.hash, l.partition, l."offset", 0, now(), l.id
  from holdfast.letter l
 where l.id = $1::bigint`

// appendEvents writes a relay's letter to the log again, with the letter it replays.
const appendEvents = `-- dlq.append
select holdfast.append($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::timestamptz[], $7::text[], $8::bytea[], null, $9::bigint[])`

// statements are the constants above, for the configured schema.
type statements struct {
	list, lock, setState, discardInbox, act, edit, rehashInbox, lockKey, store, append string
}

func newStatements(schema string) statements {
	in := func(s string) string { return sqlschema.In(schema, s) }
	return statements{
		list: in(listLetters), lock: in(lockLetter), setState: in(setState), discardInbox: in(discardInbox), act: in(actOnLetter),
		edit: in(editLetter), rehashInbox: in(rehashInbox), lockKey: in(lockQueue), store: in(storeLetter), append: in(appendEvents),
	}
}
