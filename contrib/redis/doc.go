// Package redisstore keeps idempotency keys in Redis, for routes whose handlers have no effect in Postgres: they call
// another service, or fill a cache, and a repeat that slips through now and then does no harm that matters.
//
//	store, err := redisstore.New(client, redisstore.Config{})
//	guard, err := idempotency.NewEphemeral(store, idempotency.Config{Principal: account})
//
// # The weaker promise
//
// With Postgres the effect and its key commit together. Here they are two writes, one after the other, and Redis may
// forget what it has acknowledged. So an effect happens again where
//
//   - the process ends between the effect and Finish, and the retry comes when the lease has run out;
//   - Redis restarts without its append-only file, or with one that misses the last second (appendfsync everysec);
//   - a replica that lagged takes over; WAIT and min-replicas-to-write make that rarer, not impossible, so the package
//     issues no WAIT;
//   - Redis evicts keys: any maxmemory-policy but noeviction.
//
// Where money moves, or where a second time costs anything, use idempotency.New on Postgres. [Store.Check] says which of
// these a Redis invites by its configuration.
//
// What does hold, as long as Redis remembers: of many requests with a key one has it at a time; each has a fence of its
// own, larger than any before; what was claimed, finished or released under an old fence changes nothing; an answer comes
// back byte for byte until its time is up, by Redis' clock. What Redis cannot do is an error, never a free key: its
// users answer 503.
//
// # How it is kept
//
// A key is one hash in Redis, and each step one script on it, so Redis Cluster needs nothing special. Its name is
// "idempotency:{operation}:{hash}", without the braces: the operation with whatever may mean something to Redis or to a
// terminal replaced by "_" and cut after 64 bytes, and the SHA-256 of scope, operation and key, which may have any byte.
// All keys expire by themselves.
//
// The fence is Redis' time in microseconds, or the last fence and one where that is more. So it also rises over a key's
// end, unless Redis' clock steps back further than the key has been gone.
//
// # What is not known
//
// The client of Redis sends a command again whose answer was lost. So each Claim carries a token, and the same Claim,
// arriving twice, gets the same fence. A Claim that ends in an error may still have been carried out: nobody has
// the key then, and it becomes free when its lease runs out. A lease is what such a key's users wait for at worst, so
// keep it short; a handler that works longer renews it.
//
// It needs Redis 5 or newer, or what speaks like it.
package redisstore
