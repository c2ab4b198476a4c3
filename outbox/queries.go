package outbox

// appendEvents adds the events to the log in one round trip. The last argument of holdfast.append is for the replay of
// dead letters. It takes no lock but that of the segment's table, which no other writer or reader waits for.
const appendEvents = `-- outbox.append
select holdfast.append($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::timestamptz[], $7::text[], $8::bytea[], $9::timestamptz[], null)`

// appendEvent adds one event that does not wait for its time: the common case, and cheaper without arrays.
const appendEvent = `-- outbox.append_one
select holdfast.append_one($1::text, $2::text, $3::text, $4::text, $5::text, $6::timestamptz, $7::text, $8::bytea)`

// lockKeys waits for one advisory transaction lock a key, in the order of their numbers.
const lockKeys = `-- outbox.lock
select holdfast.lock(variadic $1::text[])`
