// Package inbox takes events in and handles each once.
//
// An event is recorded in the table `inbox` in the transaction of its handler, so that the handler's writes and the
// record are one commit: a redelivery finds the record and runs nothing (deduplication). What fails is parked in the table
// `stored` and tried again later, and its key's later events wait for it (ordering). What is given up becomes a dead letter,
// a row of `letter`.
//
//	in, err := inbox.New(pool, inbox.Config{Consumer: "billing"})
//	in.Handle("order.placed", func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error { … })
//	group, err := kafkago.NewGroup(kafkago.Connection{Brokers: brokers}, kafkago.GroupConfig{GroupID: "billing", Topics: []string{"orders"}})
//	err = in.Consume(ctx, group)
//
// # Words
//
// These names are used everywhere: Config (config.go), Handler and Outcome (outcome.go), Observer (observer.go), Source and
// its records (source.go), what an event may be (event.go). The statements are constants, one file for each subject:
// queries.go, position_queries.go, letter_queries.go, retention_queries.go.
//
// # The way of an event
//
// Read the files in this order. Each uses what comes after it; testkit/internal/lint/structure counts the exceptions, and
// how often the way of one event enters a file: twice at most.
//
//  1. A program calls Receive or Store (receive.go), or Run and Consume (run.go). It may ask what waits (waiting.go), and a
//     handler may ask for a watermark (watermark.go). hooks.go is for packages webhook and holdfasttest. inbox.go puts the
//     parts together.
//  2. Consume joins the group and is given partitions (consume.go). Their positions are saved and committed as events settle,
//     and released at a rebalance or shutdown (position.go).
//  3. A partition is read page by page (read.go). First it is assigned: the fence is raised, so that the last owner cannot
//     commit any more (assign.go). Where the group has no offset, a checkpoint tells whether the log is the same
//     (checkpoint.go). After a crash events are replayed one at a time (serial.go). The page's records that were settled
//     before are recognised (recognise.go). Others become events (record.go), and their disposition is decided
//     (disposition.go).
//  4. An event goes to the workers when its key is free (dispatch.go), and a worker reports how it went (progress.go). An
//     event that finds no room waits: backpressure (capacity.go). All of this shares partition.go. A database that lost its
//     last transactions makes a partition stale (incarnation.go).
//  5. A worker of the pool takes one job after the other (pool.go). It may go on with the key that it has (followers.go); else
//     the scheduler decides which events may run beside each other (scheduler.go). job.go is one transaction's worth of
//     them. The tracker knows which offsets are settled (tracker.go).
//  6. Run works the parked events (backlog.go): the handler of a due event runs (stored.go), and its row goes or waits for its
//     next attempt (settle.go). Each was claimed (claim.go) under a lease (lease.go). sweep.go wakes keys that are dormant.
//  7. Every event that is not parked comes in through accept.go or a worker, and is tried until an attempt commits
//     (intake.go).
//  8. An attempt is one transaction: the row, the handler, COMMIT. It is pipelined with the next one (pipeline.go). A type
//     without a handler here may have one on another node (declarations.go).
//  9. An event that has to wait joins the queue of its key (queues.go), within the quota (quota.go). ledger.go writes rows,
//     starts.go counts starts, letter.go writes dead letters, and report.go tells the log and the Observer. delivery.go is an
//     event with where it came from, fence.go the right to its partition (fencing), start.go where that is read from.
//  10. Each handler runs in one place (handler.go), in a transaction (transaction.go) that commits or rolls back (ending.go).
//     Errors are cut to size (errortext.go). history.go decides what follows a failure, and fault.go says whose fault it is.
//  11. Rows that nobody needs any more are removed (retention.go), at a pace (retention_pace.go).
//  12. Every part works with env.go, registry.go (the handlers) and statements.go. transient.go bounds how often a repeated
//     error is logged, backoff.go how long to wait, group.go runs loops, wiring.go explains a missing schema.
package inbox
