// Package waitroom says in SQL when an event that waits in the queue of its key goes on, and for what it waits.
//
// Asleep and Woken say when one goes on. Whoever frees a queue asks the same: a worker
// whose event is done, a person who closes a letter or ends a pause, the erasure of a tenant. Two statements do not use it: waiting.retry_consumer
// makes an event due that a person names, whether it is asleep or not, and inbox.next claims the head at once.
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

// InRelay says of a row w of parked whether it is a head (e.head), and for what it waits (y.why), in the words of package waiting. It
// looks for the row before it by the primary key. Write it after "from holdfast.parked w".
const InRelay = `
 cross join lateral (
       select w.key = '' or not exists (select from holdfast.parked h
                                         where h.lane = w.lane and h.topic = w.topic and h.key = w.key and h.place < w.place) as head) e
 cross join lateral (
       select case when exists (select from holdfast.pause u where u.consumer = '' and u.topic = w.topic) then 'paused'
                   when w.partition is not null then 'partition'
                   when w.why = 'topic' then 'topic'
                   when not e.head then 'behind-event'
                   when w.key <> '' and w.letter is null and w.next_at = 'infinity'
                        and exists (select from holdfast.lane_hold o where o.lane = w.lane and o.topic = w.topic and o.key = w.key) then 'behind-letter'
                   when w.next_at > now() and w.next_at < 'infinity' then 'failed'
                   else '' end as why) y`

// InConsumer says the same of a row w of stored, and whether its handler runs (e.running): then it waits for nothing. A node says which types
// it handles until seen_until. A pause of a key does not stop the replay of a letter. Write it after "from holdfast.stored w".
const InConsumer = `
 cross join lateral (
       select w.lease_until > now() as running,
              w.key = '' or not exists (select from holdfast.stored h
                                         where h.consumer = w.consumer and h.topic = w.topic and h.key = w.key and h.place < w.place) as head) e
 cross join lateral (
       select case when e.running then ''
                   when not exists (select from holdfast.consumer_type t
                                     where t.consumer = w.consumer and t.type = w.type and t.seen_until > now()) then 'no-handler'
                   when exists (select from holdfast.pause u
                                 where u.consumer = w.consumer
                                   and (u.topic = '' or u.topic = w.topic and u.key = w.key and w.letter is null)) then 'paused'
                   when not e.head then 'behind-event'
                   when w.key <> '' and w.letter is null
                        and exists (select from holdfast.consumer_hold o
                                     where o.consumer = w.consumer and o.topic = w.topic and o.key = w.key and o.after < w.place) then 'behind-letter'
                   when w.next_at > now() and w.next_at < 'infinity' then 'failed'
                   else '' end as why) y`
