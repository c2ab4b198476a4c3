// Package inbox takes events in and handles each once.
//
// It records an event in the table `inbox` in the transaction of its handler, so that the handler's writes and the record are
// one commit. A redelivery finds the record and runs nothing (deduplication). An event that fails is stored in the table
// `stored` and tried again later; later events of its key wait for it (ordering). An event that is given up becomes a dead
// letter, a row of `letter`.
//
//	in, err := inbox.New(pool, inbox.Config{Consumer: "billing"})
//	in.Handle("order.placed", func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error { … })
//	group, err := kafkago.NewGroup(kafkago.Connection{Brokers: brokers}, kafkago.GroupConfig{GroupID: "billing", Topics: []string{"orders"}})
//	err = in.Consume(ctx, group)
//
// # Use
//
// New makes an Inbox, which holds the handlers and the configuration of one consumer. Register a handler for each type of
// event (Handle, HandleBatch) before the first event; only Config.Consumer is required. Then call Consume for events of a
// consumer group, or Receive and Store for single events from elsewhere, with Run on at least one node.
//
// A handler that returns an error is retried as Config.Retry says, and its event becomes a dead letter in the end.
// retry.Permanent gives it up at once, retry.After says when to try again. An Outcome says what became of an event; an error
// of Receive means that nothing was decided, and wraps ErrOutcomeUnknown if the event may have been handled.
//
// To stop, end the context of Run or Consume. Handlers may finish within Config.StopTimeout, offsets are committed, and the
// call returns nil. Other errors than nil mean that waiting would not help: ErrHungHandlers, ErrConfiguration,
// holdfast.ErrSchemaMissing, holdfast.ErrSchemaVersion. docs/guides/consume.md and docs/guides/shutdown.md are the guides.
//
// # Words
//
// All files use these names: Config (config.go), Option (options.go, upcast.go), Handler and Outcome (outcome.go), Observer (observer.go), what
// a consumer group and its records are (package source), what an event may be (event.go), and its headers (headers.go). The statements are constants:
// queries.go, and letter_queries.go for dead letters.
//
// # Rooms
//
// Each of these has one idea, and none imports this package:
//
//	source             what a Source gives: sessions, generations, pages, records (public)
//	internal/readahead how far a partition is read ahead: settled offsets, bytes in memory, the bound of a backfill
//	internal/position  where the consumer stands in each partition, and which node may move it: fences, positions, where to read from
//	internal/dependency what handlers need beyond Postgres: when it is away, and when an event tries it (pure)
//	internal/failure   what becomes of an event whose transaction failed: whose fault it is, and what follows (pure)
//	internal/group     which events may share a transaction, and how many
//	internal/turns     how many handlers of a type run at once
//	internal/retention which rows nobody needs any more, and at what pace they go
//	internal/loop      loops side by side, their rests and their delays
//
// # The way of an event
//
// Read the files in this order. Each uses those that come after it.
//
//  1. A program calls Receive or Store (receive.go), ConsumeUntil (backfill.go), or Run and Consume (run.go). A probe may ask
//     whether it works (health.go), and a handler for a watermark (watermark.go). hooks.go is for packages webhook and holdfasttest. Handlers that
//     want values get them from typed.go. inbox.go puts the parts together, and registers handlers so that they get payloads in the
//     clear (decrypt.go).
//  2. Consume joins the group and gets partitions (consume.go), all at once or some of them. It
//     saves and commits the positions as events settle, and releases them at a
//     rebalance or shutdown (position.go, by package position). owned.go has all partitions of a node.
//  3. A partition is read page by page (read.go). First it is assigned: the fence is raised, so that the last owner can no
//     longer commit (assign.go). If the log does not hold the next offset, the partition is held (hold.go). A checkpoint shows
//     whether the log is still the same (checkpoint.go). After a crash starts are counted, and suspects run alone (serial.go).
//     Records that were settled before are recognised by the page (recognise.go). The others become events (record.go), and
//     their disposition is decided (disposition.go). A key that holds up the others is stored (hotkey.go). A page has no more
//     than the partition's share of the memory (page.go).
//  4. The workers get an event when its key is free, and report how it went (dispatch.go). An event that finds
//     no room waits: backpressure (capacity.go). partition.go is what these files share. A database that lost its last
//     transactions makes a partition stale.
//  5. A worker of the pool does one job after the other (pool.go). If their handlers may share, it does several in one
//     transaction while many wait (together.go). It may go on with the key that it has; otherwise the scheduler decides which events may run
//     in parallel (scheduler.go). job.go is the work of one transaction. Package readahead knows which offsets are settled.
//  6. Run handles stored events (backlog.go), those of a type with a limit of its own one by one (limited.go). The handler of a due event runs (stored.go), and its row goes or waits for the
//     next attempt (settle.go). Each event was claimed (claim.go), from a mark on (claim_mark.go), within the memory for stored
//     events (stored_memory.go), under a lease (lease.go). sweep.go resumes heads of keys that are dormant.
//  7. Run also removes rows that nobody needs any more (package retention).
//  8. Any other event comes in through accept.go or a worker, and is tried until an attempt commits (intake.go).
//  9. An attempt is one transaction: the row, the handler, COMMIT. It is pipelined with the next one (pipeline.go). A type
//     without a handler here may have one on another node (declarations.go), or its events are skipped (skipped.go).
//  10. An event that has to wait joins the queue of its key (queues.go), within the quota (quota.go). ledger.go writes rows,
//     paused.go knows what people have paused, dependencies.go what handlers need and find away, and trial.go tries that; starts.go counts starts, letter.go writes dead letters, and report.go reports to the log and the Observer, without what a
//     handler's error has of its event (redact.go). delivery.go
//     is an event and where it came from; package position has the right to its partition (fencing), and decides where to read that from.
//  11. Every handler runs in one place (handler.go), in a transaction (transaction.go) that commits or rolls back (ending.go),
//     and is judged in one place (package failure). connection.go takes the connections, bounds what is waited for on them, and
//     gets rid of dead ones. Package failure decides whose fault a failure is, and what follows from it.
//  12. wiring.go explains a missing schema, and what keeps a node from working though nothing fails; running.go tells a handler what it is about. All parts use env.go, registry.go (the
//     handlers), middleware.go (what is around them), settings.go (what holds for a type), and statements.go. Package loop runs loops, and says how long they wait.
//     vitals.go keeps what the loops saw last. backfill_progress.go says how far a backfill has got, and package readahead where it stops.
package inbox
