// Package idempotency makes HTTP requests with an Idempotency-Key safe to send again. The effect happens once, and every
// repeat gets the first kept answer, byte for byte.
//
// The middleware opens a Postgres transaction and gives it to the handler: Tx(ctx). The handler's writes, its events
// (outbox.Write) and its answer are committed together, and only then is the answer sent. So none of them ever exists
// without the others. A crash before the commit leaves nothing, and the retry starts again. A crash after it leaves the
// answer, and the retry gets it.
//
// # The life of a request
//
//  1. A request whose method is not guarded (GET, HEAD, …) passes through unchanged.
//  2. The guard reads the key (key.go) and asks who sends the request. A key belongs to one principal and one operation
//     (request.go, Scope).
//  3. It reads the body and computes its fingerprint (fingerprint.go, exact.go, canonical.go), before the handler can change anything.
//  4. A transaction begins, locks the key without waiting, and looks it up, all in one round trip (claim.go). A repeat gets
//     the answer that this finds (decide.go, answer.go). If there were repeats recently, the guard first looks the key up
//     without a transaction.
//  5. If another request has the key, the guard waits a little for it to end. If it does not end, the answer is 409 with
//     Retry-After.
//  6. The handler runs, and the guard collects its answer (record.go). decide.go decides whether the answer is kept with
//     the effect, without it (402), or not at all (5xx, most 4xx, a panic, no answer). In the last case the key is free again.
//  7. The answer is stored, the transaction commits (settle.go), and the answer is sent.
//
// # Which mode
//
// If the handler writes only to Postgres, leave Route.Lease zero. The single transaction above is the simplest promise.
//
// If it calls another system, such as a payment provider, set Route.Lease. A transaction must not stay open during such a
// call, and a rollback would not undo it. In lease mode a row of its own claims the key (postgres.go), and it is renewed
// while the handler runs (lease.go, package internal/lease). The handler does its database work in Steps (step.go). Each step commits by itself
// and is never repeated; a call to another system goes between two steps, with DownstreamKey. After a crash the finished
// steps remain. The next request continues after the last of them, whether the client sends it or Run does (complete.go,
// Route.Complete). docs/guides/lease-mode.md is the full guide. NewEphemeral works in lease mode without Postgres, on a
// Store (package store), and has no steps.
//
// # What the handler must do
//
// Write through Tx(ctx), or in a Step. A rollback does not undo writes through another connection or effects outside
// Postgres. Pass DownstreamKey to other systems, so that they recognise a repeat. Answers are collected in memory, so
// http.Flusher and http.Hijacker are not available.
//
// The contract is draft-ietf-httpapi-idempotency-key-header-07. Where the draft leaves things open, some choices are those of Stripe's API.
// An answer of 5xx is not: it is never stored. docs/reference/http.md has the table of answers.
package idempotency
