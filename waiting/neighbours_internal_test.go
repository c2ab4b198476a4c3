package waiting

import (
	"context"
	"errors"
	"fmt"
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
		later  = "update holdfast.parked set next_at = 'infinity', why = '%[2]s', partition = %[3]s, letter = %[4]s where place = 2000 and topic = 'orders' and key = '%[1]s'"
		letter = "insert into holdfast.letter (origin, reason, holds, event_id, source, type, topic, key, time, hash, lane) values ('relay', 'r', true, 'held', '', 't', '%s', '%s', now(), '', %d)"
	)
	for name, c := range map[string]struct {
		key    string
		before []string
		want   string // which of the topic "orders" are changed
		left   bool   // for a relay
		due    string // which are due then that were not
	}{
		"a key":   {"k", nil, "key = 'k' and place < 1000", false, "place = 2000 and key = 'k'"},
		"a topic": {"", nil, "place < 1000", false, "place = 2000 and key <> ''"},
		"a key, the others are leased": {"k", []string{owned, leases}, "key = 'k' and place < 1000", false,
			"place = 2000 and key = 'k'"},
		"a key that is leased": {"k", []string{owned, leases, "insert into holdfast.parked_lease values (3, 'orders', 'k', 0)"}, "key = 'k' and place < 1000 and lane <> 3", true, "place = 2000 and key = 'k' and lane <> 3"},
		"a key that is leased in two lanes": {"k", []string{owned, leases, "insert into holdfast.parked_lease values (3, 'orders', 'k', 0), (4, '', '', 7)", "update holdfast.lane set owner = 'the sidecar', lease_until = now() + interval '1 hour', epoch = 7 where lane = 4"},
			"key = 'k' and place < 1000 and lane = 2", true, "place = 2000 and key = 'k' and lane = 2"},
		"a topic that is leased":  {"", []string{owned, leases, "insert into holdfast.parked_lease values (3, 'orders', '', 20)"}, "place < 1000 and not (lane = 3 and (key in ('j', 'l') or key = '' and place = 20))", true, "place = 2000 and key <> '' and not (lane = 3 and key in ('j', 'l'))"},
		"of a topic that is gone": {"k", []string{fmt.Sprintf(later, "k", "topic", "null", "null")}, "key = 'k' and place < 1000", false, "false"},
		"of a partition":          {"k", []string{fmt.Sprintf(later, "k", "partition", "5", "null")}, "key = 'k' and place < 1000", false, "false"},
		"others are held": {"k", []string{fmt.Sprintf(letter, "bills", "k", 3), fmt.Sprintf(letter, "parcels", "k", 3), fmt.Sprintf(letter, "orders", "j", 3), fmt.Sprintf(letter, "orders", "l", 3), fmt.Sprintf(letter, "orders", "k", 1), fmt.Sprintf(letter, "orders", "k", 5)},
			"key = 'k' and place < 1000", false, "place = 2000 and key = 'k'"},
	} {
		for verb, act := range map[string]struct {
			do   func(r *Room, f Filter, o Options) (int, error)
			then string // where what is changed is then
		}{
			"give up": {func(r *Room, f Filter, o Options) (int, error) { return r.GiveUp(t.Context(), f, o) },
				"select string_agg(l.event_id, ' ' order by l.event_id collate \"C\") from holdfast.letter l where l.state = 'open' and l.event_id <> 'held'"},
			"discard": {func(r *Room, f Filter, o Options) (int, error) { return r.Discard(t.Context(), f, o) },
				"select string_agg(l.event_id, ' ' order by l.event_id collate \"C\") from holdfast.letter l where l.state = 'discarded'"},
			"redirect": {func(r *Room, f Filter, o Options) (int, error) { return r.Redirect(t.Context(), f, "elsewhere", o) },
				"select string_agg(e.id, ' ' order by e.id collate \"C\") from holdfast.event e where e.topic = 'elsewhere'"},
		} {
			t.Run(name+", "+verb, func(t *testing.T) {
				t.Parallel()
				db, r := neighbours(t)
				for _, sql := range c.before {
					pgtest.Exec(t, db.Pool, sql)
				}
				const rows = "select string_agg(concat(p.id, case when p.next_at <= now() then ' due' else p.next_at::text end), ' ' order by p.id collate \"C\") from holdfast.parked p where "
				chosen := "p.topic = 'orders' and " + c.want
				want := pgtest.Text(t, db.Pool, "select string_agg(p.id, ' ' order by p.id collate \"C\") from holdfast.parked p where "+chosen)
				left := pgtest.Text(t, db.Pool, "select string_agg(concat(p.id, case when p.topic = 'orders' and "+c.due+" then ' due' else p.next_at::text end), ' ' order by p.id collate \"C\") from holdfast.parked p where not ("+chosen+")")
				f := Filter{Origin: "relay", Topic: "orders", Key: c.key}
				total := int(pgtest.Count(t, db.Pool, "select count(*) from holdfast.parked where topic = 'orders' and ($1 = '' or key = $1)", c.key))
				if n, err := act.do(r, f, Options{By: "ann", DryRun: true}); n != total || err != nil {
					t.Errorf("a dry run finds %d, %v; want %d", n, err, total)
				}
				n, err := act.do(r, f, Options{By: "ann", Reason: "why"})
				if n64 := pgtest.Count(t, db.Pool, "select count(*) from unnest(string_to_array($1, ' '))", want); n != int(n64) || errors.Is(err, ErrBeingSent) != c.left || err != nil && !c.left {
					t.Errorf("%d, %v; want %d", n, err, n64)
				}
				sent := pgtest.Count(t, db.Pool, "select count(*) from holdfast.parked where topic = 'orders' and ($1 = '' or key = $1) and place < 1000", c.key)
				if err != nil && !strings.Contains(err.Error(), fmt.Sprintf(" %d of the topic orders", sent)) {
					t.Errorf("it does not say that %d are being sent: %v", sent, err)
				}
				if got := pgtest.Text(t, db.Pool, rows+"true"); got != left {
					t.Errorf("left are\n%s, want\n%s", got, left)
				}
				if got := pgtest.Text(t, db.Pool, act.then); got != want {
					t.Errorf("changed were\n%s, want\n%s", got, want)
				}
			})
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
