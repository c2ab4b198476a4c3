package manual

// lockQueue waits for the consumer's transactions on the queue of a key. The inbox takes the same lock.
const lockQueue = `-- manual.lock
select pg_advisory_xact_lock($1::int, $2::int)`
