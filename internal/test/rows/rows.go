// Package rows puts rows into holdfast's tables, in the schema "holdfast", as a longer run of the code would leave them.
package rows

import (
	"testing"

	"github.com/holdfast-go/holdfast/internal/test/pgtest"
)

// Dead makes an open dead letter of an event that failed five times, as an inbox or, without a consumer, a relay writes it.
func Dead(t testing.TB, db pgtest.Querier, consumer, key, id string) (letter int64) {
	t.Helper()
	origin := "inbox"
	if consumer == "" {
		origin = "relay"
	} else {
		pgtest.Exec(t, db, `insert into holdfast.inbox (consumer, source, event_id, topic, hash, processed_at, result, attempts)
			values ($1, 'shop', $2, 'orders', sha256('{}'), now(), 'dead', 5)`, consumer, id)
	}
	return pgtest.Count(t, db, `insert into holdfast.letter (origin, consumer, reason, fingerprint, event_id, source, type, topic, key, time, headers, payload, hash, attempts, errors)
		values ($1, $2, 'it failed', 'order.placed: it failed', $3, 'shop', 'order.placed', 'orders', $4, now(), '{"a": "b"}', '{}', sha256('{}'), 5, '{one,two}') returning id`, origin, consumer, id, key)
}

// Holding makes an open dead letter of a relay that holds its key, in the lane that the key has of 8.
func Holding(t testing.TB, db pgtest.Querier) (letter int64) {
	t.Helper()
	return pgtest.Count(t, db, `insert into holdfast.letter (origin, reason, holds, event_id, source, type, topic, key, time, payload, hash, lane)
		values ('relay', 'refused', true, 'e', '', 't', 'orders', 'k', now(), 'x', sha256('x'), holdfast.lane_of('k', 'e', 8)) returning id`)
}

// Settled inserts n rows of the inbox "billing", a millisecond apart, that were settled a month ago. They have a partition of
// the topic "orders" and offsets from 0, or no partition if that is nil.
func Settled(t testing.TB, db pgtest.Querier, name string, partition any, n int) {
	t.Helper()
	pgtest.Exec(t, db, `insert into holdfast.inbox (consumer, source, event_id, topic, partition, "offset", hash, received_at, processed_at, result)
		select 'billing', 'shop', $1::text || n, 'orders', $2::int, case when $2::int is not null then n end, '',
		       now() - interval '30 days' + n * interval '1 millisecond', now() - interval '30 days' + n * interval '1 millisecond', 'handled'
		  from generate_series(0, $3::int - 1) n`, name, partition, n)
}
