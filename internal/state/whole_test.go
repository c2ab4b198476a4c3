package state

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/internal/test/migrated"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/wait"
)

// near is a number of seconds that has grown a little since it was written.
func near(got, want int64) bool { return got >= want && got <= want+30 }

// What is read of a shop in every kind of trouble, beside rows that look like it.
func TestWhole_EveryPartOfTheStateIsWhatTheTablesHold(t *testing.T) {
	t.Parallel()
	db := migrated.New(t)
	const parked = `insert into holdfast.parked (lane, topic, key, place, why, partition, next_at, first_at, id, source, type, time) values `
	const stored = `insert into holdfast.stored (consumer, topic, key, place, source, event_id, type, time, hash, next_at, lease_until, first_at, attempts, errors, letter) values `
	for _, sql := range []string{
		`update holdfast.lane set owner = 'r' || lane, epoch = 10 + lane, lease_until = now() + interval '1 hour', saved_at = now() - interval '50 seconds' where lane in (1, 2)`,
		`update holdfast.lane set owner = 'gone', lease_until = now() - interval '1 second' where lane = 3`,
		`insert into holdfast.relay (name, seen_until, started_at, trouble) values ('r1', now() + interval '1 hour', now() - interval '90 seconds', 'away'),
			('r2', now() - interval '1 second', now(), 'it has died'), ('r9', now() + interval '1 hour', now() - interval '70 seconds', '')`,
		parked + `(1, 'gone', 'a', 1, 'topic', null, 'infinity', now() - interval '1 hour', '1', 's', 't', now()), (1, 'gone', 'a', 2, 'follows', null, 'infinity', now() - interval '20 minutes', '2', 's', 't', now()),
			(1, 'gone', 'b', 3, 'topic', null, 'infinity', now(), '3', 's', 't', now()), (1, 'gone', 'c', 4, 'record', null, now(), now() - interval '21 minutes', '4', 's', 't', now()),
			(1, 'slow', 'a', 5, 'partition', 4, 'infinity', now() - interval '22 minutes', '5', 's', 't', now()), (1, 'slow', 'b', 6, 'record', 4, now(), now(), '6', 's', 't', now()),
			(1, 'other', 'b', 7, 'record', null, now(), now() - interval '5 minutes', '7', 's', 't', now()), (1, 'other', 'b', 8, 'record', null, now(), now() - interval '2 hours', '', 's', 't', now()),
			(2, 'gone', 'd', 9, 'topic', null, 'infinity', now(), '9', 's', 't', now()), (2, 'slow', 'd', 10, 'partition', 4, 'infinity', now(), '10', 's', 't', now()),
			(2, 'slow', 'e', 11, 'partition', 5, 'infinity', now(), '11', 's', 't', now()), (1, 'aaa', 'k', 12, 'record', null, now(), now(), '12', 's', 't', now()),
			(4, 'abc', 'k', 13, 'partition', 2, 'infinity', now(), '13', 's', 't', now()), (2, 'lost', 'k', 14, 'topic', null, 'infinity', now(), '14', 's', 't', now()),
			(1, 'tall', 'k', 15, 'partition', 4, 'infinity', now(), '15', 's', 't', now())`,
		`insert into holdfast.scheduled (lane, due_at, id, type, topic, time) values (1, now() - interval '100 seconds', 'd', 't', 'orders', now()), (1, now() + interval '1 hour', 'e', 't', 'orders', now()),
			(2, now() + interval '1 hour', 'f', 't', 'orders', now())`,
		`insert into holdfast.letter (origin, consumer, lane, reason, state, holds, event_id, source, type, topic, key, time, hash, place) values
			('relay', '', 1, 'r', 'open', false, '1', 's', 't', 'orders', 'k', now(), '', null), ('relay', '', 1, 'r', 'open', false, '2', 's', 't', 'orders', 'k', now(), '', null),
			('relay', '', 2, 'r', 'replayed', false, '3', 's', 't', 'orders', 'k', now(), '', null), ('inbox', 'billing', null, 'r', 'open', true, '4', 's', 't', 'orders', 'd', now(), '', 0),
			('inbox', 'billing', null, 'r', 'replaying', false, '5', 's', 't', 'orders', 'z', now(), '', 0), ('inbox', 'crm', null, 'r', 'replaying', true, '6', 's', 't', 'orders', 'k', now(), '', 0),
			('inbox', 'billing', null, 'r', 'discarded', true, '7', 's', 't', 'orders', 'a', now(), '', 0)`,
		`insert into holdfast.consumer_type (consumer, type, node, seen_until) values ('billing', 't', 'n', now() + interval '2 minutes'), ('billing', 'u', 'n', now() - interval '1 hour'), ('silent', 't', 'n', now() - interval '1 hour')`,
		stored + `('billing', 'orders', 'a', 1, 's', 'a1', 't', now(), '', now() - interval '6 minutes', '-infinity', now() - interval '40 minutes', 2, '{one,two}', null),
			('billing', 'orders', 'b', 1, 's', 'b1', 't', now(), '', now() - interval '10 minutes', now() + interval '1 minute', now() - interval '39 minutes', 1, '{}', null),
			('billing', 'orders', 'c', 1, 's', 'c1', 't', now(), '', now() + interval '1 hour', '-infinity', now() - interval '38 minutes', 3, '{x}', null),
			('billing', 'orders', 'c', 2, 's', 'c2', 'u', now(), '', now() - interval '20 minutes', '-infinity', now() - interval '37 minutes', 0, '{}', null),
			('billing', 'orders', 'd', 1, 's', 'd1', 't', now(), '', now() - interval '30 minutes', '-infinity', now() - interval '36 minutes', 0, '{}', null),
			('billing', 'others', 'a', 1, 's', 'e1', 'b', now(), '', 'infinity', '-infinity', now() - interval '35 minutes', 0, '{}', null),
			('billing', 'others', 'b', 1, 's', 'f1', 't', now(), '', now() + interval '1 hour', '-infinity', now(), 0, '{}', null),
			('stock', 'orders', 'b', 1, 's', 's2', 't', now(), '', now() + interval '1 hour', '-infinity', now(), 0, '{}', null),
			('mail', 'orders', '', 1, 's', 'm1', 't', now(), '', now() - interval '7 minutes', '-infinity', now(), 0, '{}', null),
			('stock', 'orders', 'k', 1, 's', 's1', 't', now(), '', now() - interval '4 minutes', '-infinity', now(), 0, '{}', null),
			('crm', 'orders', 'k', 1, 's', '6', 't', now(), '', now() - interval '8 minutes', '-infinity', now(), 0, '{}', 6),
			('billing', 'orders', '', 9, 's', '', 't', now(), '', 'infinity', '-infinity', now() - interval '9 hours', 0, '{}', null), ('aaa', 'orders', '', 9, 's', '', 't', now(), '', 'infinity', '-infinity', now(), 0, '{}', null)`,
		`insert into holdfast.consumer_position (consumer, topic, partition, position, owner, held, updated_at) values ('billing', 'orders', 0, 100, 'n1', null, now() - interval '80 seconds'),
			('billing', 'orders', 1, 11, null, 'its offset is out of range', now()), ('read', 'orders', 0, 7, null, null, now())`,
		`insert into holdfast.consumer_skip (consumer, topic, type, events, last_at) values ('billing', 'orders', 'typo', 5, now() - interval '60 seconds')`,
		`insert into holdfast.pause (consumer, topic, key, by, reason, at) values ('stock', '', '', 'ann', 'a fix', now())`,
		`insert into holdfast.event_0 (lane, id, type, topic, time) values (2, 'u', 't', 'orders', now() - interval '200 seconds')`,
	} {
		pgtest.Exec(t, db.Pool, sql)
	}
	s, err := Read(t.Context(), db.Pool, Options{Schema: "holdfast", Limits: Limits{Waiting: 10 * time.Minute}})
	if err != nil {
		t.Fatal(err)
	}
	same := func(what string, got, want any) {
		t.Helper()
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%s:\n%v, want\n%v", what, got, want)
		}
	}
	old := func(what string, got, want int64) {
		t.Helper()
		if !near(got, want) {
			t.Errorf("%s is %d, want %d", what, got, want)
		}
	}
	if one, two, three := s.Lanes[1], s.Lanes[2], s.Lanes[3]; len(s.Lanes) != 8 || one.Owner != "r1" || one.Epoch != 11 || one.Unread || one.Waiting != 9 || one.Scheduled != 2 || one.Trouble != "away" || one.Letters != 2 ||
		two.Owner != "r2" || !two.Unread || two.Waiting != 4 || two.Scheduled != 1 || two.Trouble != "" || two.Letters != 0 || three.Owner != "" || three.Lease != 0 || one.Lease < 3000 ||
		one.HeldBy != "broker: away, topic gone, partition 4 of slow, partition 4 of tall" || two.HeldBy != "topic gone, topic lost, partition 4 of slow, 1 more" {
		t.Errorf("lanes are %+v", s.Lanes[1:4])
	}
	old("what is due and not in the log", s.Lanes[1].Oldest, 100)
	old("what is unread", s.Lanes[2].Oldest, 200)
	old("the oldest that waits", s.Lanes[1].OldestWaiting, 3600)
	old("the last save", s.Lanes[1].Saved, 50)
	owners, err := Reader{db.Pool, "holdfast"}.Owners(t.Context())
	same("owners", []any{owners[1], owners[2], owners[3], len(owners), err}, []any{Owner{"r1", 11}, Owner{"r2", 12}, Owner{"", 0}, 8, nil})
	same("relays", []string{s.Relays[0].Relay, s.Relays[0].Trouble, s.Relays[1].Relay, fmt.Sprint(len(s.Relays))}, []string{"r1", "away", "r9", "2"})
	old("a relay", s.Relays[0].Up, 90)
	same("held", s.Held, []Held{{4, "abc", 2, 1}, {1, "gone", -2, 2}, {2, "gone", -2, 1}, {2, "lost", -2, 1}, {1, "slow", 4, 2}, {2, "slow", 4, 1}, {2, "slow", 5, 1}, {1, "tall", 4, 1}})
	same("held places", s.HeldPlaces, HeldPlaces{2, 4})
	same("long waiting", s.Long, []LongWaiting{{1, 3}})
	same("letters", s.Letters, []Letters{{1, "relay", "", 2, 5}, {-1, "inbox", "billing", 1, 5}})
	same("letters that were looked at", s.Looked, 5)
	var consumers []string
	for _, c := range s.Consumers {
		consumers = append(consumers, fmt.Sprint(c.Consumer, " ", c.Waiting, " ", c.Keys, " ", c.NoHandler, " ", c.Overdue/60, " ", c.Letters, " ", c.Nodes, " ", c.Heard < 0))
	}
	same("consumers", strings.Join(consumers, "\n"), "billing 7 6 2 6 1 1 false\ncrm 1 1 1 8 0 0 true\nmail 1 0 1 7 0 0 true\nread 0 0 0 0 0 0 true\nsilent 0 0 0 0 0 0 false\nstock 2 2 2 0 0 0 true")
	old("the oldest of billing", s.Consumers[0].Oldest, 2400)
	var blocked []string
	for _, b := range s.Blocked {
		if b.Consumer == "billing" {
			blocked = append(blocked, fmt.Sprint(b.Topic, " ", b.Key, " ", b.Events, " ", b.HeadID, " ", b.HeadType, " ", b.Attempts, " ", b.Letter, " ", b.Error, " ", b.Why, " ", b.Running, " ", b.Next < 0))
		}
	}
	same("blocked keys", strings.Join(blocked, "\n"), "orders a 1 a1 t 2 0 two  false false\norders b 1 b1 t 1 0   true false\norders c 2 c1 t 3 0 x failed false false\norders d 1 d1 t 0 4  behind-letter false false\nothers a 1 e1 b 0 0  no-handler false true\nothers b 1 f1 t 0 0  failed false false")
	old("the first key", s.Blocked[0].Seconds, 2400)
	same("skipped", []any{s.Skipped[0].Consumer, s.Skipped[0].Topic, s.Skipped[0].Type, s.Skipped[0].Events, len(s.Skipped)}, []any{"billing", "orders", "typo", 5, 1})
	old("the last skip", s.Skipped[0].Last, 60)
	same("positions", []any{s.Positions[0].Position, s.Positions[0].Owner, s.Positions[1].Held, s.Positions[2].Consumer, len(s.Positions)}, []any{100, "n1", "its offset is out of range", "read", 3})
	old("a position", s.Positions[0].Saved, 80)
	names, err := Reader{db.Pool, "holdfast"}.Names(t.Context())
	same("names", []any{names, err}, []any{Names{[]string{"orders"}, []string{"t", "u"}}, nil})
	progress, err := Reader{db.Pool, "holdfast"}.Progress(t.Context())
	same("progress", []any{progress, err}, []any{[]Progress{{"billing", 2, 1, 111}, {"read", 1, 0, 7}}, nil})
	same("pauses", []any{s.Paused[0].Of(), s.Paused[0].By, s.Paused[0].Reason, len(s.Paused)}, []any{"consumer stock", "ann", "a fix", 1})
	old("a pause", s.Paused[0].Seconds, 0)
	var tables []string
	for _, z := range s.Sizes {
		tables = append(tables, z.Table)
	}
	same("sizes", tables, []string{"log", "parked", "scheduled", "inbox", "stored", "letter", "idempotency", "watermark", "lane", "consumer_position"})
	same("segments", []any{s.Segments[0].Current, s.Segments[0].Bytes > 0, s.Segments[1].Current, s.Segments[1].Bytes, len(s.Segments), s.Full(), s.LogHolders == nil}, []any{true, true, false, 0, 4, false, true})
	same("the history", s.History, []History{{true}})
}

// Beside what is away: the same name in another consumer, types of nodes that are gone, and events that wait for something else.
func TestWhole_WhatIsAwayIsReadWithWhatNeedsIt(t *testing.T) {
	t.Parallel()
	db := migrated.New(t)
	for _, sql := range []string{
		`insert into holdfast.consumer_type (consumer, type, node, seen_until, needs) values ('billing', 'refund', 'n1', now() + interval '1 minute', '{mail,stripe}'), ('billing', 'charge', 'n1', now() + interval '1 minute', '{stripe}'),
			('billing', 'charge', 'n2', now() + interval '1 minute', '{stripe}'), ('billing', 'dropped', 'n0', now() - interval '1 minute', '{stripe}'), ('billing', 'free', 'n1', now() + interval '1 minute', '{}'),
			('crm', 'charge', 'n3', now() + interval '1 minute', '{stripe}')`,
		`insert into holdfast.dependency (consumer, name, away, since, until, tries, error, node) values
			('billing', 'stripe', true, now() - interval '20 minutes', now() + interval '25 seconds', 6, E'no answer\nof any kind', 'n2'), ('billing', 'mail', false, now() - interval '3 minutes', now() - interval '3 minutes', 2, 'refused', 'n1'),
			('crm', 'stripe', true, now() - interval '2 hours', now() - interval '1 hour', 1, '', 'n3'), ('gone', 'bank', true, now() - interval '9 hours', now() - interval '300 seconds', 1, 'x', 'n')`,
		`insert into holdfast.stored (consumer, topic, key, place, source, event_id, type, time, hash, next_at, lease_until) values
			('billing', 'orders', 'a', 1, 's', 'a1', 'charge', now(), '', now(), '-infinity'), ('billing', 'orders', 'a', 2, 's', 'a2', 'charge', now(), '', 'infinity', '-infinity'),
			('billing', 'orders', 'b', 1, 's', 'b1', 'refund', now(), '', now() + interval '1 hour', '-infinity'), ('billing', 'orders', 'c', 1, 's', 'c1', 'free', now(), '', now(), '-infinity'),
			('billing', 'orders', 'd', 1, 's', 'd1', 'charge', now(), '', now(), now() + interval '1 hour'), ('crm', 'orders', 'a', 1, 's', 'a1', 'free', now(), '', now(), '-infinity'),
			('billing', 'orders', '', 1, 's', 'e1', 'charge', now(), '', now(), '-infinity'), ('billing', 'orders', 'p', 1, 's', 'p1', 'charge', now(), '', now(), '-infinity')`,
		`insert into holdfast.pause (consumer, topic, key, by, reason) values ('billing', 'orders', 'p', 'ann', 'r')`,
	} {
		pgtest.Exec(t, db.Pool, sql)
	}
	s, err := Read(t.Context(), db.Pool, Options{Schema: "holdfast"})
	if err != nil {
		t.Fatal(err)
	}
	want := []Dependency{
		{"billing", "mail", false, 180, -180, 2, "refused", "n1", []string{"refund"}, 0},
		{"billing", "stripe", true, 1200, 25, 6, "no answer", "n2", []string{"charge", "refund"}, 3},
		{"crm", "stripe", true, 7200, -3600, 1, "", "n3", []string{"charge"}, 0},
		{"gone", "bank", true, 32400, -300, 1, "x", "n", []string{}, 0},
	}
	if len(s.Needed) != len(want) {
		t.Fatalf("%d are read: %+v", len(s.Needed), s.Needed)
	}
	for i, d := range s.Needed {
		w := want[i]
		if !near(d.Seconds, w.Seconds) || !near(-d.Next, -w.Next) {
			t.Errorf("the times of %+v, want %+v", d, w)
		}
		d.Seconds, d.Next = w.Seconds, w.Next
		if fmt.Sprint(d) != fmt.Sprint(w) {
			t.Errorf("got %+v, want %+v", d, w)
		}
	}
	few, err := Reader{db.Pool, "holdfast"}.Dependencies(t.Context(), 2)
	if err != nil || few[1].Waiting != 2 {
		t.Errorf("of as many as 2: %+v, %v", few, err)
	}
}

// Consumers of the same keys, holds of others and of other topics, and events without a key.
func TestWhole_WhatAnotherConsumerHoldsOrStoresIsNotThisOnes(t *testing.T) {
	t.Parallel()
	db := migrated.New(t)
	const stored = `insert into holdfast.stored (consumer, topic, key, place, source, event_id, type, time, hash, next_at, lease_until, first_at) values `
	for _, sql := range []string{
		stored + `('audit', 'orders', 'k', 3, 's', 'k3', 't', now(), '', now() - interval '9 minutes', '-infinity', now() - interval '60 minutes'),
			('audit', 'orders', 'z', 1, 's', 'z1', 't', now(), '', now() + interval '1 hour', '-infinity', now() - interval '58 minutes'),
			('audit', 'others', 'k', 1, 's', 'o1', 't', now(), '', now() + interval '1 hour', '-infinity', now() - interval '57 minutes'),
			('crm', 'orders', 'k', 1, 's', 'c1', 't', now(), '', now() + interval '1 hour', '-infinity', now() - interval '10 minutes'),
			('ledger', 'orders', 'm', 1, 's', 'm1', 't', now(), '', now() - interval '12 minutes', '-infinity', now() - interval '20 minutes'),
			('mail', 'orders', '', 1, 's', 'q1', 't', now(), '', now() - interval '30 minutes', now() + interval '1 hour', now() - interval '30 minutes'),
			('mail', 'orders', '', 2, 's', 'q2', 't', now(), '', now() + interval '1 hour', '-infinity', now()),
			('late', 'orders', 'x', 1, 's', 'x1', 't', now(), '', now() + interval '1 hour', '-infinity', now())`,
		`insert into holdfast.stored (consumer, topic, key, place, source, event_id, type, time, hash, next_at, first_at)
			select 'many', 'orders', 'n' || lpad(n::text, 2, '0'), 1, 's', 'n' || n, 't', now(), '', now() + interval '1 hour', now() - interval '100 minutes' + n * interval '1 minute' from generate_series(1, 12) n`,
		`insert into holdfast.letter (origin, consumer, reason, holds, event_id, source, type, topic, key, time, hash, place) values
			('inbox', 'crm', 'r', true, '1', 's', 't', 'orders', 'k', now(), '', 0), ('inbox', 'audit', 'r', true, '2', 's', 't', 'others', 'k', now(), '', 0),
			('inbox', 'ledger', 'r', true, '3', 's', 't', 'orders', 'm', now(), '', 1)`, // a letter of what was behind its event m1
	} {
		pgtest.Exec(t, db.Pool, sql)
	}
	s, err := Read(t.Context(), db.Pool, Options{Schema: "holdfast"})
	if err != nil {
		t.Fatal(err)
	}
	var overdue, blocked []string
	for _, c := range s.Consumers {
		overdue = append(overdue, fmt.Sprint(c.Consumer, " ", c.Overdue/60))
	}
	if got := strings.Join(overdue, ", "); got != "audit 9, crm 0, late 0, ledger 12, mail 0, many 0" {
		t.Errorf("minutes that nobody took what was due: %s", got)
	}
	for _, b := range s.Blocked {
		blocked = append(blocked, fmt.Sprint(b.Consumer, " ", b.Topic, " ", b.Key, " ", b.Events, " ", b.HeadID, " ", b.Letter))
	}
	want := []string{"audit orders k 1 k3 0", "audit orders z 1 z1 0", "audit others k 1 o1 2", "crm orders k 1 c1 1", "late orders x 1 x1 0", "ledger orders m 1 m1 0"}
	for n := range 10 {
		want = append(want, fmt.Sprintf("many orders n%02d 1 n%d 0", n+1, n+1))
	}
	if got := strings.Join(blocked, "\n"); got != strings.Join(want, "\n") {
		t.Errorf("blocked are\n%s, want\n%s", got, strings.Join(want, "\n"))
	}
}

func TestWhole_SizesAreThoseOfEachTable(t *testing.T) {
	t.Parallel()
	db := migrated.New(t)
	for _, sql := range []string{
		"insert into holdfast.watermark (consumer, entity, version) select 'billing', n::text, n from generate_series(1, 700) n",
		"insert into holdfast.event_0 (lane, id, type, topic) select 1, n::text, 't', 'o' from generate_series(1, 40) n",
		"insert into holdfast.event_2 (lane, id, type, topic) select 1, n::text, 't', 'o' from generate_series(1, 60) n",
		"analyze holdfast.watermark", "analyze holdfast.event_0", "analyze holdfast.event_1", "analyze holdfast.event_2", "analyze holdfast.event_3", "analyze holdfast.lane",
	} {
		pgtest.Exec(t, db.Pool, sql)
	}
	s, err := Read(t.Context(), db.Pool, Options{Schema: "holdfast"})
	if err != nil {
		t.Fatal(err)
	}
	rows := map[string]int64{}
	for _, z := range s.Sizes {
		rows[z.Table] = z.Rows
		if z.Table != "log" {
			if want := pgtest.Count(t, db.Pool, "select pg_total_relation_size(('holdfast.' || $1)::regclass)", z.Table); z.Bytes != want {
				t.Errorf("%s has %d bytes, want %d", z.Table, z.Bytes, want)
			}
		}
	}
	if rows["watermark"] != 700 || rows["log"] != 100 || rows["lane"] != 8 || rows["stored"] != -1 {
		t.Errorf("rows are %v", rows)
	}
}

func TestWhole_WhatIsWrittenIsCountedByTable(t *testing.T) {
	t.Parallel()
	db := migrated.New(t)
	r := Reader{db.Pool, "holdfast"}
	pgtest.Exec(t, db.Pool, "update holdfast.lane set published = 1000")
	before, err := r.Written(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, sql := range []string{
		"create table public.inbox as select n from generate_series(1, 50) n", // of somebody else
		"insert into holdfast.event_1 (lane, id, type, topic) select 1, n::text, 't', 'o' from generate_series(1, 3) n",
		"insert into holdfast.event_3 (lane, id, type, topic) select 1, n::text, 't', 'o' from generate_series(1, 4) n",
		"insert into holdfast.inbox (consumer, source, event_id, topic, hash, processed_at, result) select 'billing', 's', n::text, 'o', '', now(), 'handled' from generate_series(1, 2) n",
		"insert into holdfast.letter (origin, consumer, reason, event_id, source, type, topic, key, time, hash) select 'inbox', 'billing', 'r', n::text, 's', 't', 'o', '', now(), '' from generate_series(1, 5) n",
		"update holdfast.lane set published = published + lane", // of 8
	} {
		pgtest.Exec(t, db.Pool, sql)
	}
	var got [3]int64
	wait.Until(t, "Postgres has counted all of it", func() bool { // each connection tells what it wrote after its transaction, by and by
		now, err := r.Written(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		got = [3]int64{now.Written - before.Written, now.Recorded - before.Recorded, now.Letters - before.Letters}
		return got[0] >= 7 && got[1] >= 2 && got[2] >= 5
	})
	if got != [3]int64{7, 2, 5} {
		t.Errorf("written are %v, want 7 events, 2 rows of the inbox and 5 letters", got)
	}
	if now, err := r.Written(t.Context()); before.Published != 8000 || now.Published != 8028 || err != nil {
		t.Errorf("published are %d and then %d, %v; want 8000 and 8028", before.Published, now.Published, err)
	}
}

func TestWhole_ALaneThatHasNotReadAnOlderSegmentIsFound(t *testing.T) {
	t.Parallel()
	db := migrated.New(t)
	for _, sql := range []string{
		"insert into holdfast.event_0 (xid, lane, id, type, topic) values ('1000', 3, 'a', 't', 'o'), ('2000', 6, 'current', 't', 'o')",
		"insert into holdfast.event_1 (xid, lane, id, type, topic) values ('1000', 3, 'b', 't', 'o'), ('1001', 4, 'c', 't', 'o')",
		"insert into holdfast.event_2 (xid, lane, id, type, topic) values ('1000', 3, 'd', 't', 'o'), ('990', 5, 'e', 't', 'o')",
		"insert into holdfast.event_3 (xid, lane, id, type, topic) values ('1002', 7, 'f', 't', 'o'), ('1000', 3, 'g', 't', 'o')",
		"update holdfast.lane set done = '1500:1500:'",
		"update holdfast.lane set done = '1001:1001:' where lane = 4",
		"update holdfast.lane set done = '990:1000:990' where lane = 5",
		"update holdfast.lane set done = '1003:1003:' where lane = 7",
	} {
		pgtest.Exec(t, db.Pool, sql)
	}
	behind := func() string {
		t.Helper()
		s, err := Read(t.Context(), db.Pool, Options{Schema: "holdfast"})
		if err != nil || !s.Full() {
			t.Fatalf("full %t, %v", s.Full(), err)
		}
		return fmt.Sprint(s.Behind)
	}
	if got := behind(); got != "[{4} {5}]" { // 4 reads what comes after its cursor next, 5 what was in flight at it
		t.Errorf("behind are %s", got)
	}
	pgtest.Exec(t, db.Pool, "update holdfast.lane set done = '1500:1500:' where lane in (4, 5); update holdfast.lane set done = '1002:1002:' where lane = 7")
	if got := behind(); got != "[{7}]" {
		t.Errorf("behind are %s", got)
	}
}

// Each segment in turn has what two lanes have not read: 4 reads what comes at the end of its cursor next, 5 what was in flight at it.
// The others have no such event: of theirs, or not of this kind.
func TestWhole_WhoHasNotReadASegmentIsFoundInEachOfThem(t *testing.T) {
	t.Parallel()
	db := migrated.New(t)
	pgtest.Exec(t, db.Pool, `update holdfast.lane set done = case when lane = 4 then '1001:1001:' when lane in (1, 5, 6) then '990:2000:990' when lane = 0 then '10:10:' else '5000:5000:' end::pg_snapshot`)
	for n := range 4 {
		table := fmt.Sprint("holdfast.event_", n)
		pgtest.Exec(t, db.Pool, "insert into "+table+" (xid, lane, id, type, topic) values ('1001', 4, 'a', 't', 'o'), ('990', 5, 'b', 't', 'o'), ('1995', 6, 'c', 't', 'o'), ('1', 0, 'd', 't', 'o')")
		for current := range 4 {
			pgtest.Exec(t, db.Pool, "update holdfast.segments set current = $1", current)
			behind, err := list[Behind](t.Context(), Reader{db.Pool, "holdfast"}, readBehind)
			want := "[{4} {5}]"
			if current == n { // it is being written
				want = "[]"
			}
			if got := fmt.Sprint(behind); err != nil || got != want {
				t.Errorf("segment %d is current, and %d was not read: behind are %s (%v), want %s", current, n, got, err, want)
			}
		}
		pgtest.Exec(t, db.Pool, "truncate "+table)
	}
}
