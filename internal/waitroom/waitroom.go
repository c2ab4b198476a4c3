// Package waitroom says in SQL when an event that waits in the queue of its key goes on, and who may change such queues. For what an event waits
// says the view holdfast.waiting.
//
// Whoever frees a queue asks the same: a worker whose event is done, a person who closes a letter or ends a pause, the erasure of a
// tenant. Two statements do not use it: waiting.retry_consumer makes an event due that a person names, whether it is asleep or not, and
// inbox.next claims the head at once.
package waitroom

// Asleep says which event of the queue q no claim would take, though it is the head: it is dormant, or it fell due while its key was held,
// and claims have passed it (they go on from the last one: inbox/claim_mark.go). The time is the clock's, as for what is woken: now() is when
// the transaction began, before it waited for a lock. Write it as
//
//	update holdfast.stored s set next_at = clock_timestamp() from (select …) q where ` + waitroom.Asleep
//
// with the columns consumer, topic and key in q.
const Asleep = `s.consumer = q.consumer and s.topic = q.topic and s.key = q.key and q.key <> ''
   and (s.next_at = 'infinity' or s.next_at <= clock_timestamp() and s.lease_until <= clock_timestamp())
   and s.place = (select min(h.place) from holdfast.stored h
                   where h.consumer = q.consumer and h.topic = q.topic and h.key = q.key)`

// Woken is Asleep for a head that nothing holds, under the lock of the key: it is made due. Letters and a pause hold what comes after
// them, but no replay of a letter. Without "offset 0" Postgres reads all open letters.
const Woken = Asleep + `
   and (s.letter is not null
        or not exists (select from holdfast.consumer_hold o
                        where o.consumer = q.consumer and o.topic = q.topic and o.key = q.key and o.after < s.place offset 0))`

// LockLane waits until nobody else changes the parked events of the lane l, and keeps it so until the transaction ends. Only the statements after it see
// what others have changed meanwhile. The lock is an advisory one, of the table and the lane: the lane's row stays free for the saver, and for claims.
const LockLane = `pg_advisory_xact_lock(('holdfast.parked'::regclass::oid::bigint - 2147483648)::integer, l.lane)`
