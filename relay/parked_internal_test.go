package relay

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/test/migrated"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
)

// Queues are listed a page at a time. None is left out between two pages, whatever bytes its topic and its key have.
func TestParked_ALaneRemembersEachQueueThatHasRows(t *testing.T) {
	t.Parallel()
	db := migrated.New(t)
	texts := []string{"a", "a\x01", "a\x01\x01", "a ", "aa", "\x01", "ä", "\U0010ffff"}
	want, dormant := map[queue]bool{}, map[queue]bool{}
	for i, topic := range texts {
		for j, key := range append(texts, "") {
			due, why := "infinity", "follows"
			switch (i + j) % 3 {
			case 0:
				due = "2026-01-01"
			case 1:
				why = "topic"
			default:
				if key != "" {
					dormant[queue{topic, key}] = true
				}
			}
			want[queue{topic, key}] = true
			pgtest.Exec(t, db.Pool, `insert into holdfast.parked (lane, topic, key, place, why, next_at, id, source, type, time)
				select 1, $1, $2, n, $3, case when n = 1 then $4::timestamptz else 'infinity' end, n, 's', 't', now() from generate_series(1, 3) n`, topic, key, why, due)
		}
	}
	pgtest.Exec(t, db.Pool, `insert into holdfast.parked (lane, topic, key, place, why, next_at, id, source, type, time)
		select n, 'another lane', 'k', 1, 'follows', 'infinity', n, 's', 't', now() from unnest('{0,2}'::integer[]) n`)
	for _, listed := range []int{1, 2, 7, len(want), 1000} {
		r := newRelay(db.Pool, nil, Config{Logger: noLog}.withDefaults(), simStatements)
		r.bounds.listed = listed
		l := newLane(r, "", time.Time{})
		l.number = 1
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		err := r.load(ctx, l)
		cancel()
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(names(want), names(l.queues.parked)); diff != "" {
			t.Errorf("%d at a time (-want +got):\n%s", listed, diff)
		}
		asleep := map[queue]bool{}
		for _, q := range l.dormantQueues {
			asleep[q] = true
		}
		if diff := cmp.Diff(names(dormant), names(asleep)); diff != "" || len(asleep) != len(l.dormantQueues) {
			t.Errorf("%d at a time, those that nothing would make due (-want +got):\n%s", listed, diff)
		}
	}
}

func names(of map[queue]bool) map[string]bool {
	names := map[string]bool{}
	for q := range of {
		names[fmt.Sprintf("%q %q", q.topic, q.key)] = true
	}
	return names
}

// A topic with too many queues is queued as a whole, and those after it are listed still. It is queued by key again once it has few.
func TestParked_ATopicWithTooManyQueuesIsQueuedAsAWholeUntilItHasFew(t *testing.T) {
	t.Parallel()
	db := migrated.New(t)
	pgtest.Exec(t, db.Pool, `insert into holdfast.parked (lane, topic, key, place, why, next_at, id, source, type, time)
		select 0, 'many', 'key ' || n, n, 'topic', 'infinity', n, 's', 't', now() from generate_series(1, $1::integer) n`, usualBounds.queues+usualBounds.listed)
	pgtest.Exec(t, db.Pool, `insert into holdfast.parked (lane, topic, key, place, why, next_at, id, source, type, time)
		select 0, t, 'k', 1, 'follows', 'infinity', t, 's', 't', now() from unnest($1::text[]) t`, []string{"few", "many\x01", "many!", "zero"})
	r := newRelay(db.Pool, nil, Config{Logger: noLog}.withDefaults(), simStatements)
	now := time.Now()
	r.env.now = func() time.Time { return now }
	l := newLane(r, "", time.Time{})
	if err := r.load(t.Context(), l); err != nil {
		t.Fatal(err)
	}
	others := map[queue]bool{{"few", "k"}: true, {"many\x01", "k"}: true, {"many!", "k"}: true, {"zero", "k"}: true}
	if diff := cmp.Diff(names(others), names(l.queues.parked)); diff != "" || !l.queues.whole["many"] || len(l.queues.whole) != 1 {
		t.Errorf("as a whole are %v; by key (-want +got):\n%s", l.queues.whole, diff)
	}
	fewQueues := usualBounds.queues / 10
	for _, rows := range []int{fewQueues + 1, fewQueues} {
		pgtest.Exec(t, db.Pool, "delete from holdfast.parked where topic = 'many' and place > $1::integer", rows)
		if err := l.lookAtWhole(t.Context()); err != nil || !l.queues.whole["many"] {
			t.Errorf("it is looked at before its time, with %d queues: %v", rows, err)
		}
		now = now.Add(wholeEvery)
		if err := l.lookAtWhole(t.Context()); err != nil {
			t.Fatal(err)
		}
		if by := len(l.queues.parked); l.queues.whole["many"] != (rows > fewQueues) || rows > fewQueues && by != len(others) || rows <= fewQueues && by != len(others)+rows {
			t.Errorf("with %d queues: as a whole %v, %d by key", rows, l.queues.whole, by)
		}
	}
}

// claimed claims a lane, and loads nothing.
func claimed(t *testing.T, r *Relay) *lane {
	t.Helper()
	at, err := r.readServer(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	l, err := r.claimOne(t.Context(), at.token, []int16{})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// ownLane claims a lane that remembers two queues, for whose topics the rest waits as a whole.
func ownLane(t *testing.T, pool *pgxpool.Pool) *lane {
	t.Helper()
	r := newRelay(pool, nil, Config{Logger: noLog}.withDefaults(), simStatements)
	r.bounds.queues, r.bounds.listed = 2, 2
	now := time.Now()
	r.env.now = func() time.Time { now = now.Add(wholeEvery); return now }
	l := claimed(t, r)
	if err := errors.Join(r.beginLeases(t.Context(), l), r.load(t.Context(), l)); err != nil {
		t.Fatal(err)
	}
	return l
}

// parkDormant parks events of a key each, which nothing makes due but a lane that looks.
func parkDormant(t *testing.T, pool *pgxpool.Pool, topic string, keys ...string) {
	t.Helper()
	pgtest.Exec(t, pool, `insert into holdfast.parked (lane, topic, key, place, why, next_at, id, source, type, time)
		select 0, $1, k, nextval('holdfast.parked_place'), 'follows', 'infinity', k, 's', 't', now() from unnest($2::text[]) k`, topic, keys)
}

func idsDue(t *testing.T, pool *pgxpool.Pool) string {
	t.Helper()
	var ids string
	if err := pool.QueryRow(t.Context(), "select coalesce(string_agg(id, ' ' order by id), '') from holdfast.parked where next_at < 'infinity'").Scan(&ids); err != nil {
		t.Fatal(err)
	}
	return ids
}

// A person may have dealt with the letters that held them while nobody owned the lane.
func TestParked_NoHeadOfATopicQueuedAsAWholeWaitsForEver(t *testing.T) {
	t.Parallel()
	db := migrated.Lanes(t, 1)
	parkDormant(t, db.Pool, "many", "a", "b", "c", "d", "e")
	pgtest.Exec(t, db.Pool, "insert into holdfast.letter (origin, reason, state, holds, event_id, source, type, topic, key, time, payload, hash, lane) "+
		"values ('relay', 'refused', 'open', true, 'held', 's', 't', 'many', 'd', now(), 'x', sha256('x'), 0)")
	l := ownLane(t, db.Pool)
	l.dormantQueues = nil // those that the claim saw
	l.pauseTopic("many")
	for range 3 {
		if err := l.lookAtWhole(t.Context()); err != nil || len(l.dormantQueues) > 0 {
			t.Fatalf("of a paused topic %v are looked at, %v", l.dormantQueues, err)
		}
	}
	l.holds = map[spot]*hold{}
	l.leases.of[rowKey{queue: queue{"many", "c"}}] = 1
	var looked []queue
	for range 3 {
		if !l.queues.whole["many"] {
			t.Fatal("the topic is not queued as a whole")
		}
		if err := l.lookAtWhole(t.Context()); err != nil {
			t.Fatal(err)
		}
		looked = append(looked, l.dormantQueues...)
		if err := l.resumeReleased(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if due := idsDue(t, db.Pool); due != "a b e" || len(looked) != 3 {
		t.Errorf("due are %q, looked at %v: want all but the one whose key a letter holds, and the one in memory", due, looked)
	}
}

// What heads its queue may wait for something else. A person who discards it leaves what is behind it to the end of the hold.
func TestParked_NoRowWaitsForWhatIsNotHeld(t *testing.T) {
	t.Parallel()
	db := migrated.Lanes(t, 1)
	pgtest.Exec(t, db.Pool, `insert into holdfast.parked (lane, topic, key, place, why, partition, next_at, id, source, type, time)
		select 0, 'orders', k, nextval('holdfast.parked_place'), w, p, n, k || w, 's', 't', now() from (values
			('a', 'record', null, now() + interval '1 hour'), ('a', 'topic', null, 'infinity'), ('a', 'follows', null, 'infinity'),
			('b', 'record', null, now() + interval '1 hour'), ('b', 'record', 3, 'infinity'), ('b', 'topic', null, 'infinity')) r (k, w, p, n)`)
	l := ownLane(t, db.Pool)
	if len(l.holds) != 2 {
		t.Fatalf("held are %v", l.holds)
	}
	for range 4 {
		if err := errors.Join(l.probe(t.Context()), l.resumeHolds(t.Context())); err != nil {
			t.Fatal(err)
		}
	}
	if waits := pgtest.Count(t, db.Pool, "select count(*) from holdfast.parked where partition is not null or why = 'topic'"); waits != 0 || len(l.holds) != 0 {
		t.Errorf("%d rows wait for a topic or a partition, and held are %v", waits, l.holds)
	}
	if due := idsDue(t, db.Pool); due != "arecord brecord" {
		t.Errorf("%q have a time", due)
	}
}

// A row that cannot be changed is passed over when what it waits for takes events again. What is held again meanwhile may lie before it.
func TestParked_WhatIsHeldAgainIsResumedAgain(t *testing.T) {
	t.Parallel()
	db := migrated.Lanes(t, 1)
	parkDormant(t, db.Pool, "orders", "a", "stuck", "c", "d")
	pgtest.Exec(t, db.Pool, "update holdfast.parked set why = 'topic'")
	pgtest.Exec(t, db.Pool, "create function somebodys() returns trigger language plpgsql as $$ begin raise exception 'somebodys'; end $$")
	pgtest.Exec(t, db.Pool, "create trigger somebodys before update or delete on holdfast.parked for each row when (old.id = 'stuck') execute function somebodys()")
	l := ownLane(t, db.Pool)
	l.failures, l.r.bounds.resumes = 2, 1
	resume := func(times int) {
		l.resumeTopic("orders")
		for range times {
			if err := l.resumeHolds(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	}
	resume(2)
	if due := idsDue(t, db.Pool); due != "a c" || len(l.stuck) != 1 {
		t.Fatalf("due are %q, stuck %d", due, len(l.stuck))
	}
	l.pauseTopic("orders")
	pgtest.Exec(t, db.Pool, "update holdfast.parked set why = 'topic', next_at = 'infinity' where id = 'a'") // as the lane does with what it reads
	resume(4)
	if due := idsDue(t, db.Pool); due != "a c d" || len(l.stuck) != 1 || l.stuck[0].waits == nil || len(l.holds) != 0 {
		t.Errorf("due are %q, stuck %v, held %v", due, l.stuck, l.holds)
	}
}

// A replay is parked before what waits already.
func TestParked_AReplayParkedWhileAHoldEndsIsResumed(t *testing.T) {
	t.Parallel()
	db := migrated.Lanes(t, 1)
	pgtest.Exec(t, db.Pool, `insert into holdfast.parked (lane, topic, key, place, why, partition, next_at, id, source, type, time)
		select 0, 'orders', '', nextval('holdfast.parked_place'), 'partition', 3, 'infinity', n, 's', 't', now() from unnest('{stuck,b,c}'::text[]) n`)
	pgtest.Exec(t, db.Pool, "create function somebodys() returns trigger language plpgsql as $$ begin raise exception 'somebodys'; end $$")
	pgtest.Exec(t, db.Pool, "create trigger somebodys before update on holdfast.parked for each row when (old.id = 'stuck') execute function somebodys()")
	l, at := ownLane(t, db.Pool), spot{"orders", 3}
	l.holds[at].resume(false)
	if err := l.resumeHolds(t.Context()); err != nil || l.holds[at] == nil || l.holds[at].past == nil {
		t.Fatalf("held are %v, %v", l.holds, err)
	}
	p := &pending{
		event: &logEvent{letter: 7, Event: holdfast.Event{ID: "replay", Type: "t", Topic: "orders", Time: time.Unix(0, 0)}},
		item:  item{queue: queue{"orders", ""}, replay: true},
		to:    &destination{spot: at, route: &topicRoute{topic: "orders"}},
	}
	l.leave(p, partitionDown, nil)
	if err := l.park(t.Context(), []*pending{p}, l.cursor); err != nil {
		t.Fatal(err)
	}
	for range 5 {
		if err := l.resumeHolds(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if due := idsDue(t, db.Pool); due != "b c replay" || len(l.holds) != 0 {
		t.Errorf("due are %q, held %v", due, l.holds)
	}
	h := hold{takes: true, past: new(int64)}
	if h.resume(true); h.past == nil {
		t.Error("a partition that is late tries what is stuck again with each call")
	}
}

// Each time a lane looks, it meets heads of others.
func TestParked_AHeadThatIsRefusedEndsNoLane(t *testing.T) {
	t.Parallel()
	db := migrated.Lanes(t, 1)
	parkDormant(t, db.Pool, "many", "a", "b", "c", "d", "e", "f")
	pgtest.Exec(t, db.Pool, "create function somebodys() returns trigger language plpgsql as $$ begin raise exception 'somebodys'; end $$")
	pgtest.Exec(t, db.Pool, "create trigger somebodys before update or delete on holdfast.parked for each row when (old.id = 'd') execute function somebodys()")
	l := ownLane(t, db.Pool)
	for range 6 {
		if err := errors.Join(l.resumeReleased(t.Context()), l.lookAtWhole(t.Context())); err != nil {
			t.Fatal(err)
		}
	}
	if due := idsDue(t, db.Pool); due != "a b c e f" || len(l.stuck) != 1 {
		t.Errorf("due are %q, stuck %d", due, len(l.stuck))
	}
}

// A head that waits for its topic is not made due because the next event of its key cannot be parked.
func TestParked_AHeadIsTriedOnlyIfTheTransactionTriesIt(t *testing.T) {
	t.Parallel()
	db := migrated.Lanes(t, 1)
	parkDormant(t, db.Pool, "many", "a", "b", "k")
	l := ownLane(t, db.Pool)
	l.pauseTopic("many")
	p := &pending{event: &logEvent{Event: holdfast.Event{ID: "event", Type: "t", Topic: "many", Key: "k", Time: time.Unix(0, 0)}}, item: item{queue: queue{"many", "k"}}}
	l.leave(p, topicHeld, nil)
	if most, err := l.isolate(t.Context(), []*pending{p}, &pgconn.PgError{Code: "23514"}); most != 1 || err != nil || p.disposition != malformed || idsDue(t, db.Pool) != "" {
		t.Errorf("%d at a time, %v; the event is %s, due are %q", most, err, p.disposition, idsDue(t, db.Pool))
	}
}

// The transaction that parks an event of a topic queued as a whole also makes the head of its queue due. If that fails for the head, the event
// is not to blame.
func TestParked_TheHeadOfATopicQueuedAsAWholeIsBlamedItself(t *testing.T) {
	t.Parallel()
	refuse := func(when, ids string) string {
		return "create trigger somebodys before " + when + " on holdfast.parked for each row when (old.id in (" + ids + ")) execute function somebodys()"
	}
	for name, c := range map[string]struct {
		refused, repair string
		want, letters   string
	}{
		"nothing is wrong any more": {refuse("update", "'k'"), "drop trigger somebodys on holdfast.parked", "parked", ""},
		"its head":                  {refuse("update", "'k'"), "", "parked", "k"},
		"two heads":                 {refuse("update", "'k', 'second'"), "", "parked", "k second"},
		"a head that cannot leave":  {refuse("update or delete", "'k'"), "", "parked", ""},
		"the event":                 {strings.NewReplacer("before update", "before insert", "old.", "new.").Replace(refuse("update", "'event'")), "", "refused", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := migrated.Lanes(t, 1)
			parkDormant(t, db.Pool, "many", "a", "b", "k")
			pgtest.Exec(t, db.Pool, "insert into holdfast.parked (lane, topic, key, place, why, next_at, id, source, type, time) values (0, 'many', 'k', nextval('holdfast.parked_place'), 'follows', 'infinity', 'second', 's', 't', now())")
			pgtest.Exec(t, db.Pool, "create function somebodys() returns trigger language plpgsql as $$ begin raise exception 'somebodys' using errcode = '23514'; end $$")
			pgtest.Exec(t, db.Pool, c.refused)
			l := ownLane(t, db.Pool)
			p := &pending{event: &logEvent{Event: holdfast.Event{ID: "event", Type: "t", Topic: "many", Key: "k", Time: time.Unix(0, 0)}}, item: item{queue: queue{"many", "k"}}}
			l.leave(p, follows, nil)
			got := ""
			for tries := 0; got == "" && tries < 6; tries++ {
				err := l.park(t.Context(), []*pending{p}, l.cursor)
				if err == nil {
					got = "parked"
					break
				}
				if tries == 0 && c.repair != "" {
					pgtest.Exec(t, db.Pool, c.repair)
				}
				if most, err := l.isolate(t.Context(), []*pending{p}, err); err != nil || most != 1 {
					t.Fatalf("%d at a time, %v", most, err)
				}
				if p.disposition == malformed {
					got = "refused"
				}
			}
			if got != c.want {
				t.Errorf("the event is %s, want %s", got, c.want)
			}
			var letters string
			if err := db.Pool.QueryRow(t.Context(), "select coalesce(string_agg(event_id, ' ' order by event_id), '') from holdfast.letter").Scan(&letters); err != nil || letters != c.letters {
				t.Errorf("letters of %q, want %q (%v)", letters, c.letters, err)
			}
		})
	}
}

// Nothing waits behind an event without a key, so it is enough to look now and then whether one is left.
func TestParked_WhatWaitsWithoutAKeyIsForgottenOnceItHasLeft(t *testing.T) {
	t.Parallel()
	db := migrated.New(t)
	pgtest.Exec(t, db.Pool, `insert into holdfast.parked (lane, topic, key, place, why, next_at, id, source, type, time)
		select l, t, k, 1, 'record', 'infinity', t, 's', 't', now() from (values (0, 'some', ''), (0, 'keys', 'k'), (1, 'gone', '')) r (l, t, k)`)
	l := claimed(t, newRelay(db.Pool, nil, Config{Logger: noLog}.withDefaults(), simStatements))
	l.queues.parked = map[queue]bool{{"some", ""}: true, {"keys", ""}: true, {"keys", "k"}: true, {"gone", ""}: true, {"gone", "k"}: true}
	l.leases.events = 1
	if l.dueBehind(queue{"gone", ""}) {
		t.Error("it looks for more beside a row that is in memory")
	}
	l.leases.events = 0
	if !l.dueBehind(queue{"gone", ""}) || l.dueBehind(queue{"never", ""}) {
		t.Error("it does not look after the last row in memory has left, or without any")
	}
	if err := l.loadDue(t.Context()); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(names(map[queue]bool{{"some", ""}: true, {"keys", "k"}: true, {"gone", "k"}: true}), names(l.queues.parked)); diff != "" {
		t.Errorf("it remembers (-want +got):\n%s", diff)
	}
}

// An event waits behind what is parked of its key, what is about to be, and what a dead letter holds.
func TestParked_AKeyWaitsWhileAnythingOfItMay(t *testing.T) {
	t.Parallel()
	qs, q := newQueues(usualBounds.queues), queue{"t", "k"}
	for _, step := range []struct {
		name      string
		do        func()
		has, rows bool
		none      bool
	}{
		{"nothing", func() {}, false, false, true},
		{"two are about to be parked", func() { qs.enter(q); qs.enter(q) }, true, false, false},
		{"one stays", func() { qs.entered(q) }, true, false, false},
		{"the other is parked", func() { qs.entered(q); qs.remember(q) }, true, true, false},
		{"another queue has no row", func() { qs.forget([]queue{{"t", "l"}}) }, true, true, false},
		{"it has no row", func() { qs.forget([]queue{q}) }, false, false, true},
		{"a letter holds it", func() { qs.held[q] = true }, true, false, false},
		{"it is closed", func() { delete(qs.held, q) }, false, false, true},
		{"one without a key is about to be parked", func() { qs.enter(queue{topic: "t"}) }, false, false, true},
		{"its topic is queued as a whole", func() { qs.whole["t"] = true; qs.remember(q) }, false, true, false},
	} {
		if step.do(); qs.has(q) != step.has || qs.mayHaveRows(q) != step.rows || qs.none() != step.none {
			t.Errorf("%s: it has something %v, may have rows %v, nothing waits %v", step.name, qs.has(q), qs.mayHaveRows(q), qs.none())
		}
	}
	if qs.enters != 1 {
		t.Errorf("%d are about to be parked, want 1", qs.enters)
	}
}
