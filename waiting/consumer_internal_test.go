package waiting

import (
	"fmt"
	"testing"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/waking"
)

// An event that is given up frees its key.
func TestConsumer_OnlyTheHeadOfAnEventsKeyIsWoken(t *testing.T) {
	t.Parallel()
	waking.OnlyTheHead(t, func(t *testing.T, db *pgtest.DB, key string) {
		r, err := New(db.Pool, Config{})
		if err != nil {
			t.Fatal(err)
		}
		pgtest.Exec(t, db.Pool, `insert into holdfast.stored (consumer, topic, key, place, source, event_id, type, time, hash, next_at)
			values ('billing', 'orders', $1, 1, 'shop', 'given up', 't', now(), '', now())`, key)
		if n, err := r.GiveUp(t.Context(), Filter{Consumer: "billing", EventID: "given up"}, Options{By: "ann"}); n != 1 || err != nil {
			t.Fatalf("gave up %d: %v", n, err)
		}
	})
}

// like are the queues that are like billing's of orders and k in all but one: the consumer, the topic or the key, below and above.
var like = [][3]string{
	{"a", "orders", "k"}, {"mail", "orders", "k"}, {"billing", "bills", "k"}, {"billing", "parcels", "k"}, {"billing", "orders", "j"}, {"billing", "orders", "l"},
}

// The list is read before the key is locked: what it said of an event may have changed.
func TestConsumer_ARetryAsksAgainWhetherAnEventIsAHeadThatNothingHolds(t *testing.T) {
	t.Parallel()
	const (
		row    = "insert into holdfast.stored (consumer, topic, key, place, source, event_id, type, time, hash, next_at) values ('%s', '%s', '%s', %d, 'shop', '%d', 't', now(), '', 'infinity')"
		letter = "insert into holdfast.letter (origin, consumer, topic, key, place, holds, reason, event_id, source, type, time, hash) values ('inbox', '%s', '%s', '%s', %d, true, 'r', '%d', 'shop', 't', now(), '')"
		pause  = "insert into holdfast.pause (consumer, topic, key, by, reason) values ('%s', '%s', '%s', 'ann', 'r')"
		lease  = "update holdfast.stored set lease_until = now() + interval '1 hour' where consumer = '%s' and topic = '%s' and key = '%s' and place = 10"
	)
	ours := [3]string{"billing", "orders", "k"}
	in := func(sql string, queue [3]string, more ...any) string {
		return fmt.Sprintf(sql, append([]any{queue[0], queue[1], queue[2]}, more...)...)
	}
	var behind, held, paused, leased []string
	for n, q := range like {
		behind, held, paused = append(behind, in(row, q, 9, n)), append(held, in(letter, q, 9, n)), append(paused, in(pause, q))
		leased = append(leased, in(lease, q))
	}
	for name, c := range map[string]struct {
		key    string
		before []string
		want   bool
	}{
		"alone":                            {"k", nil, true},
		"behind an event":                  {"k", []string{in(row, ours, 9, 1)}, false},
		"before an event":                  {"k", []string{in(row, ours, 11, 1)}, true},
		"like others, behind theirs":       {"k", behind, true},
		"behind a letter":                  {"k", []string{in(letter, ours, 9, 1)}, false},
		"at its letter's place":            {"k", []string{in(letter, ours, 10, 1)}, true},
		"like others, behind letters":      {"k", held, true},
		"of a paused key":                  {"k", []string{in(pause, ours)}, false},
		"like others, of paused keys":      {"k", paused, true},
		"a replay behind a letter":         {"k", []string{in(letter, ours, 9, 1), "update holdfast.stored set letter = 77"}, true},
		"a replay behind an event":         {"k", []string{in(row, ours, 9, 1), "update holdfast.stored set letter = 77"}, false},
		"in a call":                        {"k", []string{in(lease, ours)}, false},
		"like others, which are in a call": {"k", leased, true},
		"gone":                             {"k", []string{"delete from holdfast.stored where event_id = '100'"}, false},
		"without a key, before an event":   {"", []string{in(row, [3]string{"billing", "orders", ""}, 11, 1)}, true},
		"without a key, behind an event":   {"", []string{in(row, [3]string{"billing", "orders", ""}, 9, 1)}, true},
		"without a key, behind a letter":   {"", []string{in(letter, [3]string{"billing", "orders", ""}, 9, 1)}, true},
		"without a key, in a call":         {"", []string{in(lease, [3]string{"billing", "orders", ""})}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db, r := room(t)
			pgtest.Exec(t, db.Pool, in(row, [3]string{"billing", "orders", c.key}, 10, 100))
			for n, q := range like {
				pgtest.Exec(t, db.Pool, in(row, q, 10, 200+n))
			}
			for _, sql := range c.before {
				pgtest.Exec(t, db.Pool, sql)
			}
			const others = "select string_agg(s::text, ' ' order by consumer, topic, key, place) from holdfast.stored s where event_id <> '100'"
			before := pgtest.Text(t, db.Pool, others)
			e := Event{Consumer: "billing", Event: holdfast.Event{ID: "100", Source: "shop", Topic: "orders", Key: c.key, Type: "t"}, Place: 10}
			for _, dryRun := range []bool{true, false} {
				if changed, err := r.changeOne(t.Context(), &e, Filter{}, actRetry, Options{By: "ann", DryRun: dryRun}); changed != c.want || err != nil {
					t.Errorf("dry run %v: %v, %v; want %v", dryRun, changed, err, c.want)
				}
				if due := pgtest.Count(t, db.Pool, "select count(*) from holdfast.stored where event_id = '100' and next_at <= clock_timestamp()") == 1; due != (c.want && !dryRun) {
					t.Errorf("dry run %v: it is due: %v", dryRun, due)
				}
			}
			if after := pgtest.Text(t, db.Pool, others); after != before {
				t.Errorf("the others were\n%s\nand are\n%s", before, after)
			}
		})
	}
}

// What is given up becomes a letter, or the letter again whose replay it is: its own event's, and none that is like it in all but one.
func TestConsumer_WhatIsGivenUpConcernsNoOtherEvent(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		before string // of the event 5 of the queue billing, orders, k
		filter Filter
		action string
		want   string // the state and result of its letter and its row in the inbox; "" if it stays
	}{
		"given up":                        {"", Filter{}, actGiveUp, "open dead 1 1"},
		"discarded":                       {"", Filter{}, actDiscard, "discarded discarded 1 1"},
		"a head":                          {"", Filter{Heads: true}, actGiveUp, "open dead 1 1"},
		"no head any more":                {"update holdfast.stored set place = 9 where event_id = '6' and key = 'k'", Filter{Heads: true}, actGiveUp, ""},
		"it still waits so":               {"update holdfast.stored set next_at = now() + interval '1 hour' where event_id = '5'", Filter{Why: Failed}, actGiveUp, "open dead 1 1"},
		"it waits otherwise":              {"update holdfast.stored set next_at = now() + interval '1 hour' where not (consumer = 'billing' and event_id = '5')", Filter{Why: Failed}, actGiveUp, ""},
		"another one of its key waits so": {"", Filter{Why: BehindEvent}, actGiveUp, ""},
		"it waits for a later reason":     {"insert into holdfast.pause (consumer, by, reason) values ('billing', 'ann', '')", Filter{Why: Failed}, actGiveUp, ""},
		"in a call":                       {"update holdfast.stored set lease_until = now() + interval '1 hour' where event_id = '5'", Filter{}, actGiveUp, ""},
		"others are in calls":             {"update holdfast.stored set lease_until = now() + interval '1 hour' where not (consumer = 'billing' and topic = 'orders' and key = 'k')", Filter{}, actGiveUp, "open dead 1 1"},
		"gone":                            {"delete from holdfast.stored where event_id = '5' and consumer = 'billing'", Filter{}, actGiveUp, ""},
		"the replay of a letter":          {"update holdfast.stored set letter = 2 where event_id = '5' and consumer = 'billing'", Filter{}, actGiveUp, "open dead 1 8"},
		"the replay of a purged one":      {"update holdfast.stored set letter = 99 where event_id = '5' and consumer = 'billing'", Filter{}, actGiveUp, "open dead 1 1"},
		"it came once more, is handled":   {"update holdfast.inbox set result = 'handled', processed_at = now() where event_id = '5'", Filter{}, actGiveUp, "open handled 0 1"},
		"it has a letter":                 {"update holdfast.letter set event_id = '5', state = 'discarded' where id = 2", Filter{}, actGiveUp, "open dead 1 8"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db, r := room(t)
			for n, id := range []string{"4", "5", "6"} {
				pgtest.Exec(t, db.Pool, `insert into holdfast.letter (origin, consumer, topic, key, place, reason, state, attempts, event_id, source, type, time, hash)
					values ('inbox', 'billing', 'orders', 'k', $1, 'r', 'replaying', 7, $2, 'shop', 't', now(), '')`, n, "letter "+id)
			}
			for _, q := range append(like, [3]string{"billing", "orders", "k"}) {
				for n, id := range []string{"5", "6"} {
					if q[0] == "billing" && (q[1] != "orders" || q[2] != "k") { // An event waits once in a consumer.
						id = fmt.Sprint(q[1], q[2], n)
					}
					pgtest.Exec(t, db.Pool, `insert into holdfast.stored (consumer, topic, key, place, source, event_id, type, time, hash, next_at, attempts)
						values ($1, $2, $3, $4, 'shop', $5, 't', now(), '', 'infinity', 1)`, q[0], q[1], q[2], 10+n, id)
				}
			}
			pgtest.Exec(t, db.Pool, "insert into holdfast.consumer_type (consumer, type, node, seen_until) select c, 't', 'n', now() + interval '1 hour' from unnest('{a,billing,mail}'::text[]) c")
			pgtest.Exec(t, db.Pool, `insert into holdfast.inbox (consumer, source, event_id, topic, hash, result, attempts)
				select c, s, e, 'orders', '', 'stored', 0 from unnest('{a,billing,mail}'::text[]) c, unnest('{depot,shop,zoo}'::text[]) s, unnest('{4,5,6}'::text[]) e`)
			if c.before != "" {
				pgtest.Exec(t, db.Pool, c.before)
			}
			const (
				others = `select concat((select string_agg(concat_ws(' ', consumer, topic, key, place, event_id, next_at, lease_until), ', ' order by consumer, topic, key, place) from holdfast.stored
					where not (consumer = 'billing' and topic = 'orders' and key = 'k')),
					(select string_agg(i::text, ', ' order by consumer, source, event_id) from holdfast.inbox i where not (consumer = 'billing' and source = 'shop' and event_id = '5')),
					(select string_agg(l::text, ', ' order by id) from holdfast.letter l where id in (1, 3)))`
				queue = "select string_agg(concat(event_id, case when next_at <= now() then ' due' end), ' ' order by place) from holdfast.stored where consumer = 'billing' and topic = 'orders' and key = 'k'"
			)
			before, waits := pgtest.Text(t, db.Pool, others), pgtest.Text(t, db.Pool, queue)
			e := Event{Consumer: "billing", Event: holdfast.Event{ID: "5", Source: "shop", Topic: "orders", Key: "k", Type: "t"}, Place: 10}
			if changed, err := r.changeOne(t.Context(), &e, c.filter, c.action, Options{By: "ann", Reason: "why"}); changed != (c.want != "") || err != nil {
				t.Errorf("%v, %v", changed, err)
			}
			if c.want != "" {
				waits = "6 due"
			}
			if got := pgtest.Text(t, db.Pool, queue); got != waits {
				t.Errorf("in its queue are %q, want %q", got, waits)
			}
			if after := pgtest.Text(t, db.Pool, others); after != before {
				t.Errorf("the others were\n%s\nand are\n%s", before, after)
			}
			if got := pgtest.Text(t, db.Pool, `select string_agg(concat_ws(' ', l.state, i.result, i.attempts, l.attempts), ', ') from holdfast.letter l, holdfast.inbox i
				where l.reason = 'a person gave it up: why' and i.consumer = 'billing' and i.source = 'shop' and i.event_id = '5'`); got != c.want {
				t.Errorf("its letter, its row and their attempts are %q, want %q", got, c.want)
			}
		})
	}
}
