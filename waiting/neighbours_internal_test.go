package waiting

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/internal/test/pgtest"
)

// In each of the lanes 2, 3 and 4 wait events of three topics with three keys, and without a key, in the same places: 10 to 30 when a command
// comes, 2000 when it has come. Of each queue the first one waits for its next attempt. The ids say lane, topic, key and place.
func neighbours(t *testing.T) (*pgtest.DB, *Room) {
	t.Helper()
	db, r := room(t)
	pgtest.Exec(t, db.Pool, `insert into holdfast.parked (lane, topic, key, place, why, attempts, next_at, id, source, type, time)
		select l, t, k, p, case when p = 10 or k = '' then 'record' else 'follows' end, 3, case when p = 10 or k = '' then now() + interval '1 hour' else 'infinity' end,
		       concat_ws('/', l, t, k, p), 's', 't', now()
		  from generate_series(2, 4) l, unnest('{bills,orders,parcels}'::text[]) t, unnest('{"",j,k,l}'::text[]) k, unnest('{10,20,30,2000}'::bigint[]) p`)
	pgtest.Exec(t, db.Pool, "select setval('holdfast.parked_place', 1000)")
	var waited time.Duration
	r.now = func() time.Time { return time.Unix(0, 0).Add(waited) }
	r.rest = func(_ context.Context, by time.Duration) error { waited += by; return nil }
	return db, r
}

// A command changes the events of its filter in every lane, and none that are like them in all but the lane, the topic, the key or the place.
func TestNeighbours_WhatIsDoneToParkedEventsConcernsNoOthers(t *testing.T) {
	t.Parallel()
	const (
		owned  = "update holdfast.lane set owner = 'the sidecar', lease_until = now() + interval '1 hour', epoch = 7 where lane = 3"
		leases = "insert into holdfast.parked_lease (lane, topic, key, place) values (3, '', '', 7), (2, 'orders', 'k', 0), (4, 'orders', 'k', 0), (3, 'bills', 'k', 0), (3, 'parcels', 'k', 0), " +
			"(3, 'orders', 'j', 0), (3, 'orders', 'l', 0), (3, 'orders', 'k', -1), (3, 'orders', 'k', 10), (3, 'bills', '', 20), (3, 'parcels', '', 20), (2, 'orders', '', 20), (4, 'orders', '', 20), (3, 'orders', '', 0)"
		later  = "update holdfast.parked set next_at = '%s', why = '%s', partition = %s where place = 2000 and topic = 'orders' and key = 'k'"
		letter = "insert into holdfast.letter (origin, reason, holds, event_id, source, type, topic, key, time, hash, lane) values ('relay', 'r', true, 'held', '', 't', '%s', '%s', now(), '', %d)"
	)
	held := func(topic, key string, lane int) string { return fmt.Sprintf(letter, topic, key, lane) }
	for name, c := range map[string]struct {
		key    string
		before []string
		left   string // which of the topic "orders" with that key are left, beside those that came later: a condition; "" for none
		sent   bool   // left because a relay sends them; else because a letter holds them, of which only a redirect takes notice
		stays  string // which that come later are due afterwards no more than before; "" for none
		opens  string // the same after a give-up, which opens a letter again
	}{
		"a key":   {key: "k"},
		"a topic": {},
		"a key, the others are leased": {
			key:    "k",
			before: []string{owned, leases},
		},
		"a key that is leased": {
			key:    "k",
			before: []string{owned, leases, "insert into holdfast.parked_lease values (3, 'orders', 'k', 0)"},
			left:   "lane = 3",
			sent:   true,
			stays:  "lane = 3",
		},
		"a key that is leased in two lanes": {
			key: "k",
			before: []string{owned, leases, "insert into holdfast.parked_lease values (3, 'orders', 'k', 0), (4, '', '', 7)",
				"update holdfast.lane set owner = 'the sidecar', lease_until = now() + interval '1 hour', epoch = 7 where lane = 4"},
			left:  "lane <> 2",
			sent:  true,
			stays: "lane <> 2",
		},
		"a topic that is leased": {
			before: []string{owned, leases, "insert into holdfast.parked_lease values (3, 'orders', '', 20)"},
			left:   "lane = 3 and (key in ('j', 'l') or key = '' and place = 20)",
			sent:   true,
			stays:  "lane = 3 and key in ('j', 'l')",
		},
		"what comes later waits for its topic": {
			key:    "k",
			before: []string{fmt.Sprintf(later, "infinity", "topic", "null")},
			stays:  "true",
		},
		"what comes later waits for a partition": {
			key:    "k",
			before: []string{fmt.Sprintf(later, "infinity", "partition", "5")},
			stays:  "true",
		},
		"what comes later waits for its next attempt": {
			key:    "k",
			before: []string{fmt.Sprintf(later, "2100-01-01", "record", "null")},
			stays:  "true",
		},
		"others are held": {
			key:    "k",
			before: []string{held("bills", "k", 3), held("parcels", "k", 3), held("orders", "j", 3), held("orders", "l", 3), held("orders", "k", 1), held("orders", "k", 5)},
		},
		"a key that is held": {
			key:    "k",
			before: []string{held("orders", "k", 3)},
			left:   "lane = 3",
			stays:  "lane = 3",
		},
		"a replay comes later, its key is held": {
			key:    "k",
			before: []string{held("orders", "k", 3), "update holdfast.parked set letter = 99 where place = 2000"},
			left:   "lane = 3",
		},
		"a replay whose letter was purged": {
			key:    "k",
			before: []string{"update holdfast.parked set letter = 99 where id = '3/orders/k/20'"},
		},
		"a key that is held, with a replay of another letter": {
			key: "k",
			before: []string{held("orders", "k", 3), held("orders", "k", 3), held("orders", "j", 3), "update holdfast.letter set holds = false, state = 'replaying' where id <> 1",
				"update holdfast.parked set letter = 2 where id = '3/orders/k/10'", "update holdfast.parked set letter = 3 where id = '3/orders/j/10'"},
			left:  "lane = 3",
			stays: "lane = 3",
		},
		"a key that is held, with a replay of its letter": {
			key: "k",
			before: []string{held("orders", "j", 3), held("orders", "k", 3), held("orders", "l", 3), "update holdfast.letter set state = 'replaying'",
				"update holdfast.parked set letter = 2 where id = '3/orders/k/10'"},
			opens: "lane = 3",
		},
	} {
		for verb, act := range map[string]struct {
			do     func(r *Room, f Filter, o Options) (int, error)
			events string // where the changed ones are then
		}{
			"give up": {func(r *Room, f Filter, o Options) (int, error) { return r.GiveUp(t.Context(), f, o) },
				"(select case when event_id = 'held' then '3/orders/k/10' else event_id end as id from holdfast.letter where state = 'open' and reason <> 'r')"},
			"discard": {func(r *Room, f Filter, o Options) (int, error) { return r.Discard(t.Context(), f, o) },
				"(select case when event_id = 'held' then '3/orders/k/10' else event_id end as id from holdfast.letter where state = 'discarded' and reason <> 'r')"},
			"redirect": {func(r *Room, f Filter, o Options) (int, error) { return r.Redirect(t.Context(), f, "elsewhere", o) },
				"(select id from holdfast.event where topic = 'elsewhere')"},
		} {
			t.Run(name+", "+verb, func(t *testing.T) {
				t.Parallel()
				db, r := neighbours(t)
				for _, sql := range c.before {
					pgtest.Exec(t, db.Pool, sql)
				}
				left, stays := cmp.Or(c.left, "false"), cmp.Or(c.stays, "false")
				if !c.sent && verb != "redirect" {
					left = "false"
				} else if !c.sent && c.left != "" {
					stays = c.left
				}
				if verb == "give up" {
					stays = cmp.Or(c.opens, stays)
				}
				f := Filter{Origin: "relay", Topic: "orders", Key: c.key}
				ours := fmt.Sprintf("p.topic = 'orders' and ('%[1]s' = '' or p.key = '%[1]s')", c.key)
				changes := ours + " and p.place < 1000 and not (" + left + ")"
				frees := ours + " and p.place = 2000 and p.key <> '' and not (" + stays + ")"
				list := func(of, where string) string {
					t.Helper()
					return pgtest.Text(t, db.Pool, "select string_agg(p.id, ' ' order by p.id) from "+of+" p where "+where)
				}
				const due = "(select id || case when next_at <= now() then ' due' else ' at ' || next_at end as id from holdfast.parked)"
				wantChanged := list("holdfast.parked", changes)
				wantLeft := pgtest.Text(t, db.Pool, "select string_agg(id || case when "+frees+" then ' due' else ' at ' || next_at end, ' ' order by id || case when "+frees+" then ' due' else ' at ' || next_at end) from holdfast.parked p where not ("+changes+")")
				wantN := int(pgtest.Count(t, db.Pool, "select count(*) from holdfast.parked p where "+changes))
				sent := pgtest.Count(t, db.Pool, "select count(*) from holdfast.parked p where "+ours+" and place < 1000") - int64(wantN)

				total := int(pgtest.Count(t, db.Pool, "select count(*) from holdfast.parked p where "+ours))
				if n, err := act.do(r, f, Options{By: "ann", DryRun: true}); n != total || err != nil {
					t.Errorf("a dry run finds %d, %v; want %d", n, err, total)
				}
				n, err := act.do(r, f, Options{By: "ann", Reason: "why"})
				if n != wantN || errors.Is(err, ErrBeingSent) != (c.sent && sent > 0) || errors.Is(err, ErrBehindLetter) != (!c.sent && sent > 0) || err != nil && sent == 0 {
					t.Errorf("%d, %v; want %d", n, err, wantN)
				}
				if err != nil && !strings.Contains(err.Error(), fmt.Sprintf(" %d of the topic orders", sent)) && !strings.Contains(err.Error(), fmt.Sprintf(" %d events of the topic orders were left", sent)) {
					t.Errorf("it does not say that %d are left: %v", sent, err)
				}
				if got := list(due, "true"); got != wantLeft {
					t.Errorf("left are\n%s, want\n%s", got, wantLeft)
				}
				if got := list(act.events, "true"); got != wantChanged {
					t.Errorf("changed were\n%s, want\n%s", got, wantChanged)
				}
			})
		}
	}
}

// A batch ends where its rows or its bytes do, and the next one goes on after it: after a key that is leased, however many events it has, and
// after each event without a key.
func TestNeighbours_ABatchGoesOnWhereTheLastOneEnded(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		statement string
		more      []any
		changed   string // where the changed ones are
	}{
		"give up":  {giveUpRelay, []any{"open", "given up", "ann", ""}, "select event_id as id, id as n from holdfast.letter"},
		"redirect": {redirectRelay, []any{"elsewhere", "redirected"}, "select id, seq as n from holdfast.event"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db, r := neighbours(t)
			pgtest.Exec(t, db.Pool, "insert into holdfast.parked_lease (lane, topic, key, place) values (3, 'orders', '', 20), (3, 'orders', 'j', 0)")
			two := pgtest.Count(t, db.Pool, "select sum(pg_column_size(errors)) from holdfast.parked where lane = 3 and topic = 'orders' and key = 'k' and place < 30")
			key, place := "", int64(math.MinInt64)
			for _, want := range []struct {
				rows  int32
				bytes int64
				free  int
				more  bool
				keys  string
				key   string
				place int64
			}{
				{2, 1 << 20, 1, true, "[]", "", 20},
				{2, 1 << 20, 1, true, "[]", "j", math.MaxInt64}, // the last without a key, and one of the leased one
				{9, two, 2, true, `["k"]`, "k", 20},
				{9, two - 1, 1, true, `["k"]`, "k", 30},
				{9, 1 << 20, 3, false, `["l"]`, "l", 30},
			} {
				tx := pgtest.Begin(t, db)
				var free, changed int
				var more bool
				var keys []string
				args := append([]any{3, "orders", "", key, place, int64(1000), want.rows, want.bytes, true}, c.more...)
				err := tx.QueryRow(t.Context(), r.sql.In(c.statement), args...).Scan(&free, &changed, &more, &keys, &key, &place)
				if err == nil {
					err = tx.Commit(t.Context())
				}
				if err != nil || free != want.free || changed != free || more != want.more || fmt.Sprintf("%q", keys) != want.keys || key != want.key || place != want.place {
					t.Errorf("%d of %d, more %v, of %q, up to %q %d, %v; want %+v", changed, free, more, keys, key, place, err, want)
				}
			}
			if got := pgtest.Text(t, db.Pool, "select string_agg(id, ' ' order by n) from ("+c.changed+") c"); got != "3/orders//10 3/orders//30 3/orders/k/10 3/orders/k/20 3/orders/k/30 3/orders/l/10 3/orders/l/20 3/orders/l/30" {
				t.Errorf("changed are %s", got)
			}
		})
	}
}

// What waits for its next attempt is tried at once, of one lane and what else a filter says.
func TestNeighbours_WhatIsRetriedIsNoOther(t *testing.T) {
	t.Parallel()
	for key, want := range map[string]string{
		"k": "3/orders/k/10",
		"":  "3/orders//10 3/orders//20 3/orders//2000 3/orders//30 3/orders/k/10 3/orders/l/10",
	} {
		db, r := neighbours(t)
		pgtest.Exec(t, db.Pool, "update holdfast.parked set next_at = now() - interval '1 hour' where key = 'j'")
		due := func() string {
			return pgtest.Text(t, db.Pool, "select string_agg(id, ' ' order by id) from holdfast.parked where next_at <= now() and key <> 'j'")
		}
		for _, dryRun := range []bool{true, false} {
			if got := due(); got != "" {
				t.Errorf("before it, %s are due", got)
			}
			if n, err := r.retryLane(t.Context(), 3, Filter{Topic: "orders", Key: key}, dryRun, &signature{action: actRetry, topic: "orders", by: "ann"}); n != len(strings.Fields(want)) || err != nil {
				t.Errorf("%d, %v; want %s", n, err, want)
			}
		}
		if got := due(); got != want {
			t.Errorf("%s are due, want %s", got, want)
		}
	}
}

// Where an event is says its own row, not those of others with ids below and above, or of other sources.
func TestNeighbours_WhereAnEventIsSaysItsOwnRow(t *testing.T) {
	t.Parallel()
	db, r := room(t)
	at := map[string]string{
		"moving":    "insert into holdfast.scheduled (lane, due_at, id, source, type, topic, time) values (1, now() - interval '1 second', $1, $2, 't', 'orders', now())",
		"scheduled": "insert into holdfast.scheduled (lane, due_at, id, source, type, topic, time) values (1, now() + interval '1 hour', $1, $2, 't', 'orders', now())",
		"parked":    "insert into holdfast.parked (lane, topic, key, place, why, next_at, id, source, type, time) values (1, 'orders', '', nextval('holdfast.parked_place'), 'record', now(), $1, $2, 't', now())",
		"letter":    "insert into holdfast.letter (origin, reason, event_id, source, type, topic, key, time, hash, lane) values ('relay', 'r', $1, $2, 't', 'orders', '', now(), '', 1)",
		"log":       "insert into holdfast.event (lane, id, source, type, topic, key, time) values (1, $1, $2, 't', 'orders', '', now())",
	}
	ids := map[string]string{"moving": "b", "scheduled": "d", "parked": "f", "letter": "h", "log": "j"}
	for where, id := range ids {
		pgtest.Exec(t, db.Pool, at[where], id, "shop")
	}
	pgtest.Exec(t, db.Pool, "insert into holdfast.letter (origin, consumer, reason, event_id, source, type, topic, key, time, hash) values ('inbox', 'billing', 'r', 'l', 'shop', 't', 'orders', '', now(), '')")
	is := func(id, source string) (where string) {
		t.Helper()
		if err := db.QueryRow(t.Context(), r.sql.In(whereIs), id, source).Scan(&where); err != nil {
			t.Fatal(err)
		}
		return where
	}
	for where, id := range ids {
		for _, source := range []string{"", "shop"} {
			if got := is(id, source); got != where {
				t.Errorf("%s of %q is %q, want %q", id, source, got, where)
			}
		}
	}
	for _, other := range [][2]string{{"a", ""}, {"c", ""}, {"e", ""}, {"g", ""}, {"i", ""}, {"k", ""}, {"l", ""}, {"b", "a"}, {"b", "z"}, {"d", "a"}, {"d", "z"}, {"f", "a"}, {"f", "z"}, {"h", "a"}, {"h", "z"}, {"j", "a"}, {"j", "z"}} {
		if got := is(other[0], other[1]); got != "" {
			t.Errorf("%s of %q is %q, want nowhere", other[0], other[1], got)
		}
	}
}

// A scheduled event is found by its lane, its time and its number.
func TestNeighbours_WhatIsCancelledIsNoOtherScheduledEvent(t *testing.T) {
	t.Parallel()
	db, r := room(t)
	due := time.Now().Add(time.Hour).Truncate(time.Second)
	pgtest.Exec(t, db.Pool, `insert into holdfast.scheduled (lane, due_at, seq, id, source, type, topic, time)
		select l, $1::timestamptz + d * interval '1 second', n, concat_ws('/', l, d, n), 's', 't', 'orders', now() from generate_series(1, 3) l, generate_series(-1, 1) d, generate_series(1, 3) n`, due)
	if n, err := r.cancelPage(t.Context(), []Event{{Lane: 2, NextAt: due, Place: 2}, {Lane: 3, NextAt: due.Add(-time.Second), Place: 1}}, Options{By: "ann"}); n != 2 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
	if n := pgtest.Count(t, db.Pool, "select count(*) from holdfast.scheduled where id not in ('2/0/2', '3/-1/1')"); n != 25 {
		t.Errorf("%d of 25 others are left", n)
	}
	if got := pgtest.Text(t, db.Pool, "select string_agg(event_id, ' ' order by event_id) from holdfast.letter"); got != "2/0/2 3/-1/1" {
		t.Errorf("cancelled are %s", got)
	}
}

// A pause that ends ends no other, and a pause of another topic holds up no retry.
func TestNeighbours_APauseIsNoOthers(t *testing.T) {
	t.Parallel()
	db, r := room(t)
	pgtest.Exec(t, db.Pool, `insert into holdfast.pause (consumer, topic, key, by, reason)
		select c, t, k, 'ann', '' from unnest('{"",a,billing,mail}'::text[]) c, unnest('{"",bills,orders,parcels}'::text[]) t, unnest('{"",j,k,l}'::text[]) k
		 where c = '' and t <> '' and k = '' or c <> '' and (t = '') = (k = '')`)
	all := pgtest.Count(t, db.Pool, "select count(*) from holdfast.pause")
	for _, p := range []Pausable{{Topic: "orders"}, {Consumer: "billing"}, {Consumer: "billing", Topic: "orders", Key: "k"}} {
		if ended, err := r.Resume(t.Context(), p, "ann", ""); !ended || err != nil {
			t.Errorf("%+v: %v, %v", p, ended, err)
		}
		all--
		if n := pgtest.Count(t, db.Pool, "select count(*) from holdfast.pause"); n != all {
			t.Errorf("%+v: %d pauses are left, want %d", p, n, all)
		}
		if n := pgtest.Count(t, db.Pool, "select count(*) from holdfast.pause where consumer = $1 and topic = $2 and key = $3", p.Consumer, p.Topic, p.Key); n != 0 {
			t.Errorf("%+v is paused", p)
		}
	}
	pgtest.Exec(t, db.Pool, `insert into holdfast.parked (lane, topic, key, place, why, next_at, id, source, type, time) values (3, 'orders', 'k', -1, 'record', now() + interval '1 hour', 1, 's', 't', now())`)
	if n, err := r.Retry(t.Context(), Filter{Origin: "relay", Topic: "orders"}, Options{By: "ann"}); n != 1 || err != nil {
		t.Errorf("%d are retried, %v", n, err)
	}
}

func TestNeighbours_EachConsumerIsNamedOnce(t *testing.T) {
	t.Parallel()
	db, r := room(t)
	pgtest.Exec(t, db.Pool, `insert into holdfast.inbox (consumer, source, event_id, topic, hash, processed_at, result)
		select c, 's', n::text, 'orders', '', now(), 'handled' from unnest('{a,c,e}'::text[]) c, generate_series(1, 3) n`)
	pgtest.Exec(t, db.Pool, `insert into holdfast.stored (consumer, topic, key, place, source, event_id, type, time, hash)
		select c, 'orders', 'k', nextval('holdfast.stored_place'), 's', n::text, 't', now(), '' from unnest('{b,c,d}'::text[]) c, generate_series(1, 3) n`)
	pgtest.Exec(t, db.Pool, `insert into holdfast.consumer_type (consumer, type, node, seen_until)
		select c, n::text, 'n', now() from unnest('{a,d,f,g}'::text[]) c, generate_series(1, 3) n`)
	if got, err := r.Consumers(t.Context()); fmt.Sprint(got) != "[a b c d e f g]" || err != nil {
		t.Errorf("the consumers are %v, %v", got, err)
	}
}
