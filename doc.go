// Package holdfast is a transactional outbox and inbox for services on Postgres and Kafka: a change and its events
// commit together, every event reaches Kafka, and its effect happens once in the consumer's database, as long as its
// inbox row is kept. Events of a key keep their order where a lock makes their transactions wait for each other.
//
// docs/getting-started.md takes you from an empty directory to a program that writes, publishes and handles an event.
//
// # The life of an event
//
//  1. A service changes its tables in a transaction and calls outbox.Write with that transaction. The SQL function
//     append puts the event into the log (the table event): with the transaction's id, xid, and a number, seq.
//  2. The transaction commits, and both the change and the event exist; or it rolls back, and neither does.
//  3. A relay that owns the event's lane (relay.Relay; claim.go) finds it in the window between two snapshots (log.go).
//     It reads events of transactions that ended between two snapshots, ordered by seq. A key's events come in the order in
//     which its transactions took their locks, however long another transaction stays open.
//  4. The lane publishes the page (lane.go) through a Publisher, usually kafkago.Publisher, with all in-sync replicas
//     acknowledging. decide.go decides what happens to each event, without a clock or a database.
//  5. An acknowledged event needs no mark: the lane's cursor advances, and is saved a moment later (saver.go). An event
//     that Kafka refuses is parked with its key (park.go), retried, and finally becomes a dead letter (drain.go).
//     Segments of the log that have been read (their events are published or parked) are emptied whole (segments.go).
//  6. A node of the consumer (inbox.Inbox) fetches the record. It has taken the fence of the partition, so that it cannot
//     commit after another node took over.
//  7. In one transaction it inserts the event's row into the inbox and runs the handler with the same pgx.Tx. If the row is
//     there already, the event is a duplicate, and nothing runs.
//  8. The transaction commits, and only then does the partition's offset move.
//  9. An event whose handler fails is stored durably (the table stored), and later events of its key wait for it. Other keys
//     continue. It is tried again with backoff and jitter, across restarts.
//  10. An event that keeps failing becomes a dead letter with its whole chain of errors. A person reads it, fixes the cause or
//     the payload, and replays it (package dlq). It goes ahead of the events of its key that still wait. Without HoldKey, later
//     events may have been handled already.
//
// # Packages
//
// An arrow shows what a package imports besides internal packages and the standard library. Any of them may be imported by
// cmd, examples, rig and the tests. A test of rig/internal/lint compares this drawing with the code, in both directions.
//
//	contrib/echo (a module)   ->  echo
//	contrib/echo/echo4        ->  echo
//	contrib/franz (a module)  ->  relay/publish, inbox/source, holdfast, franz-go, compress, lz4, x/sync
//	contrib/gin (a module)    ->  gin
//	contrib/mskiam (a module) ->  kafkago/oauthbearer, kafka-go, aws-msk-iam-sasl-signer-go, aws-sdk-go-v2
//	contrib/nats (a module)   ->  relay/publish, inbox/source, retry, holdfast, nats.go
//	contrib/otel (a module)   ->  metrics, idempotency, webhook, inbox, relay, relay/publish, outbox, retry, holdfast, otel
//	contrib/prometheus (a module) ->  metrics, client_golang
//	contrib/redis (a module)  ->  idempotency/store, go-redis
//	contrib/schemaregistry (a module) ->  retry, holdfast, avro, franz-go, protobuf
//	contrib/sql (a module)    ->  outbox, holdfast
//	contrib/sql/sqltx         ->  retry, holdfast, pgx
//	kafkago                   ->  inbox/source, relay/publish, retry, holdfast, kafka-go, compress, x/sync
//	kafkago/oauthbearer       ->  kafka-go
//	direct                    ->  relay/publish, inbox, retry, holdfast
//	service                   ->  metrics, idempotency, inbox, relay, pgx
//	console                   ->  find, waiting, dlq, inbox/source, holdfast, pgx
//	metrics                   ->  idempotency, webhook, inbox, inbox/source, relay, relay/publish, outbox, retry, holdfast, pgx
//	holdfasttest (for tests)  ->  inbox/sourcetest, relay/publish, inbox, inbox/source, holdfast, pgx
//	inbox/sourcetest          ->  inbox, inbox/source
//	relay/publishertest       ->  relay/publish, holdfast
//	webhook                   ->  inbox, retry, holdfast, pgx
//	webhook/sign              ->  nothing
//	inbox                     ->  inbox/source, retry, holdfast, pgx, puddle, uuid, x/sync
//	relay                     ->  relay/publish, retry, holdfast, pgx, puddle, x/sync
//	idempotency               ->  idempotency/store, retry, pgx, puddle, uuid, jcs, httpsfv
//	tenant                    ->  dlq, pgx
//	waiting                   ->  dlq, holdfast, pgx
//	dlq                       ->  holdfast, pgx
//	find                      ->  holdfast, pgx
//	outbox                    ->  holdfast, pgx, uuid
//	relay/publish             ->  retry, holdfast
//	inbox/source              ->  nothing
//	idempotency/store         ->  nothing
//	retry                     ->  pgx, backoff, uuid
//	holdfast (this package)   ->  pgx
//
// docs/guarantees.md lists the promises, and the tests that show them.
package holdfast
