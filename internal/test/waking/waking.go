// Package waking has the test of every statement that wakes the head of a queue in a consumer: those with waitroom.Woken.
package waking

import (
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/internal/test/migrated"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
)

// OnlyTheHead has wake free the queue of billing, orders and the key. That makes the queue's head due if nothing else holds it, and no other
// event. What wake adds to the queue it takes away again, but for letters that hold nothing.
func OnlyTheHead(t *testing.T, wake func(t *testing.T, db *pgtest.DB, key string)) {
	for name, c := range map[string]struct {
		key, head, more string
		woken           bool
	}{
		"a head that is dormant":                    {"k", "next_at = 'infinity'", "", true},
		"one that claims have passed":               {"k", "next_at = now() - interval '1 hour'", "", true},
		"one that a worker has":                     {"k", "next_at = now() - interval '1 hour', lease_until = now() + interval '1 hour'", "", false},
		"one that waits for its next attempt":       {"k", "next_at = now() + interval '1 hour'", "", false},
		"one after another letter":                  {"k", "next_at = 'infinity'", "after 9", false},
		"one in the place of another letter":        {"k", "next_at = 'infinity'", "after 10", true},
		"one before another letter":                 {"k", "next_at = 'infinity'", "after 11", true},
		"a replay after another letter":             {"k", "next_at = 'infinity', letter = 4711", "after 9", true},
		"one of a key that is paused":               {"k", "next_at = 'infinity'", "paused", false},
		"an event without a key, which has no head": {"", "next_at = 'infinity'", "", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := migrated.New(t)
			// In each queue the head and an event behind it. Those whose consumer, topic or key is another are below and above ours; letters
			// hold none of them, but hold later events of theirs, and those before them by the place.
			pgtest.Exec(t, db.Pool, `insert into holdfast.stored (consumer, topic, key, place, source, event_id, type, time, hash, next_at)
				select q.consumer, q.topic, q.key, q.place, '', concat_ws('/', q.consumer, q.topic, q.key, q.place), 't', now(), '', 'infinity'
				  from (values ('a', 'orders', $1::text, 3), ('a', 'orders', $1::text, 20), ('mail', 'orders', $1::text, 4), ('billing', 'aaa', $1::text, 5), ('billing', 'zzz', $1::text, 6),
				               ('billing', 'orders', $1 || '!', 7), ('billing', 'orders', $1 || 'z', 8), ('billing', 'orders', 'a', 2),
				               ('a', 'orders', $1::text, 10), ('mail', 'orders', $1::text, 10), ('billing', 'aaa', $1::text, 10), ('billing', 'zzz', $1::text, 10),
				               ('billing', 'orders', $1 || '!', 10), ('billing', 'orders', $1 || 'z', 10), ('billing', 'orders', 'a', 10), ('other', 'orders', 'other', 10),
				               ('billing', 'orders', $1::text, 10), ('billing', 'orders', $1::text, 11)) q (consumer, topic, key, place)`, c.key)
			pgtest.Exec(t, db.Pool, `insert into holdfast.letter (origin, consumer, reason, holds, event_id, source, type, topic, key, time, hash, place)
				select 'inbox', s.consumer, 'it failed', true, 'held ' || s.event_id, '', 't', s.topic, s.key, now(), '', 1 from holdfast.stored s
				 where not (s.consumer = 'billing' and s.topic = 'orders' and s.key = $1) and s.consumer <> 'other'`, c.key)
			pgtest.Exec(t, db.Pool, "update holdfast.stored set "+c.head+" where consumer = 'billing' and topic = 'orders' and key = $1 and place = 10", c.key)
			if c.more == "paused" {
				pgtest.Exec(t, db.Pool, "insert into holdfast.pause (consumer, topic, key, by, reason) values ('billing', 'orders', $1, 'ann', '')", c.key)
			} else if place, ok := strings.CutPrefix(c.more, "after "); ok {
				pgtest.Exec(t, db.Pool, `insert into holdfast.letter (origin, consumer, reason, holds, event_id, source, type, topic, key, time, hash, place)
					values ('inbox', 'billing', 'it failed', true, 'before', '', 't', 'orders', $1, now(), '', $2::text::bigint)`, c.key, place)
			}
			const all = "select string_agg(concat(event_id, ' at ', next_at), ', ' order by event_id) from holdfast.stored"
			before := pgtest.Text(t, db.Pool, all)
			wake(t, db, c.key)
			woken := pgtest.Text(t, db.Pool, "select coalesce(string_agg(event_id, ' '), '') from holdfast.stored where next_at > now() - interval '30 minutes' and next_at <= now()")
			want := ""
			if c.woken {
				want = "billing/orders/" + c.key + "/10"
			}
			if woken != want {
				t.Errorf("%q was woken, want %q", woken, want)
			}
			if after := pgtest.Text(t, db.Pool, all); !c.woken && after != before {
				t.Errorf("what waits was\n%s\nand is\n%s", before, after)
			}
		})
	}
}
