// Package idempotency makes HTTP requests with an Idempotency-Key safe to send again: the effect happens once, and every
// repeat gets the first one's answer, byte for byte.
//
// The middleware opens a transaction of Postgres and gives it to the handler, Tx(ctx). What the handler writes, the
// events it sends through outbox.Write, and the answer that it gave are committed together, and only then does the
// answer leave. So there is no moment at which one of them exists without the others, whatever fails: a crash before the
// commit leaves nothing, and the retry begins anew; a crash after it leaves the answer, and the retry gets it.
//
// # One request's way
//
//  1. Its method is not guarded (GET, HEAD, …): it goes through untouched.
//  2. The key is read (key.go), and whose it is: a key belongs to one principal and one operation (request.go, Scope).
//  3. The body is read and fingerprinted (fingerprint.go, canonical.go), before the handler can change anything.
//  4. A transaction begins, locks the key without waiting, and looks it up, all in one round trip (claim.go): a repeat is
//     answered from here (decide.go, answer.go). Where repeats have come lately a look without a transaction is first.
//  5. Another request that has the key makes this one look whether that has ended, wait a little, or answers 409 with
//     Retry-After.
//  6. The handler runs, and its answer is collected (record.go). What becomes of it is decided in decide.go: kept with the
//     effect, kept without it (most of 4xx), or forgotten with it (5xx, a panic), so that the key is free again.
//  7. The answer is stored, the transaction commits (settle.go), and the answer leaves.
//
// # Which mode
//
// Is all that the handler does in Postgres? Then leave Route.Lease zero: the one transaction above is the simplest promise
// there is. Does it call the outside, say a payment provider? Then set Route.Lease. A transaction must not be open during
// such a call, and its rollback would not undo it; so in lease mode the key is claimed by a row of its own (postgres.go),
// renewed while the handler runs (lease.go), and what the handler does in the database it does in Steps (step.go). Each
// commits by itself and is never repeated; a call to the outside stands between two steps, under DownstreamKey. A crash
// leaves the steps that are done; the next request, by the client or by Run (complete.go, Route.Complete), goes on after the
// last of them. docs/guides/lease-mode.md has it in full. NewEphemeral works in lease mode without Postgres, on a Store
// (store.go), and has no steps.
//
// # What the handler must do
//
// Write through Tx(ctx), or in a Step. What it writes through another connection, or does outside of Postgres, is not undone when the
// transaction is; to the outside pass DownstreamKey on, so that the other side recognises a repeat. Answers are collected
// in memory: http.Flusher and http.Hijacker are not there.
//
// The contract is that of draft-ietf-httpapi-idempotency-key-header-07, with the choices of Stripe's API where the draft
// leaves them open; docs/reference/http.md has the table of what is answered when.
package idempotency
