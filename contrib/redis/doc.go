// Package redisstore keeps idempotency keys in Redis. It is for routes whose handlers have no effect in Postgres: they
// call another service, or fill a cache, and an occasional second run does no harm.
//
//	store, err := redisstore.New(client, redisstore.Config{})
//	guard, err := idempotency.NewEphemeral(store, idempotency.Config{Principal: account})
//
// # The weaker promise
//
// With Postgres the effect and its key commit together. Here they are two writes, one after the other, and Redis may
// forget what it has acknowledged. So an effect happens again if
//
//   - the process ends between the effect and Finish, and the retry comes after the lease has run out;
//   - Redis restarts without its append-only file, or with one that misses the last second (appendfsync everysec);
//   - a replica that lagged takes over; WAIT and min-replicas-to-write make that rarer, not impossible, so the package
//     issues no WAIT;
//   - Redis evicts keys: any maxmemory-policy but noeviction.
//
// If money moves, or a second run costs anything, use idempotency.New on Postgres. [Store.Check] says which of these
// risks a Redis has by its configuration.
//
// As long as Redis remembers, these promises hold. Of many requests with a key, one has it at a time. Each has a fence
// of its own, larger than any earlier one, and a claim, finish or release under an old fence changes nothing. An answer
// comes back byte for byte until it expires, by Redis' clock. A failure of Redis is an error, never a free key: the
// request is answered with 503.
//
// # How it is kept
//
// A key is one hash in Redis, and each step is one script on it, so Redis Cluster needs nothing special. Its name is
// "idempotency:{operation}:{hash}", without the braces. The operation is cut after 64 bytes, and characters with a
// meaning to Redis or a terminal become "_". The hash is the SHA-256 of scope, operation and key, which may have any
// byte. All keys expire by themselves.
//
// The fence is Redis' time in microseconds, or one more than the last fence if that is larger. So it also increases
// after a key expires, unless Redis' clock steps back further than the key has been gone.
//
// # Unknown results
//
// The Redis client sends a command again if its answer was lost. So each Claim carries a token, and if the same Claim
// arrives twice it gets the same fence. A Claim that ends in an error may still have been carried out. Nobody has the
// key then, and it becomes free when its lease runs out. Users of the key wait for the lease in the worst case, so keep
// it short; a handler that works longer renews it.
//
// The package needs Redis 5 or newer, or a server that speaks its protocol.
package redisstore
