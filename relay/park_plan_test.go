package relay

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/test/migrated"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/retry"
)

// parkRows parks events of one key that have nothing but an id and perhaps a letter, in one statement.
func parkRows(t *testing.T, db *pgtest.DB, ids []string, letters ...int64) {
	t.Helper()
	n := len(ids)
	whys, texts := slices.Repeat([]string{"follows"}, n), slices.Repeat([]string{""}, n)
	topics, keys := slices.Repeat([]string{"orders"}, n), slices.Repeat([]string{"k"}, n)
	_, err := db.Exec(t.Context(), parkEvents, int16(0), topics, keys, whys, make([]int32, n), texts, ids, texts, slices.Repeat([]string{"t"}, n),
		slices.Repeat([]time.Time{time.Now()}, n), make([]*string, n), make([][]byte, n), letters, make([]*float64, n), make([]*int32, n))
	if err != nil {
		t.Fatalf("park %q of letters %d: %v", ids, letters, err)
	}
}

// Only the first row of a queue may ever be due: two heads would be published side by side. None may be missing: nobody would make it due.
// What the lane remembers does not decide that.
func TestParkPlan_WhatEntersIsDueIfNothingIsBeforeIt(t *testing.T) {
	t.Parallel()
	db := migrated.New(t)
	const row = "insert into holdfast.parked (lane, topic, key, place, why, next_at, id, source, type, time) values (%s, 'record', 'infinity', 'before', 's', 't', now())"
	const letter = "insert into holdfast.letter (origin, consumer, reason, state, holds, event_id, source, type, topic, key, time, hash, lane) values (%s, 'e', 's', 't', %s, now(), '', %s)"
	q := queue{"orders", "k"}
	for _, c := range []struct {
		name         string
		before       string
		of           queue
		dispositions []disposition
		letter       int64 // whose replay the first is
		want         string
	}{
		{"nothing is before it", "select", q, []disposition{follows, follows}, 0, "due waits"},
		{"refused, with what follows it", "select", q, []disposition{recordRefused, follows, follows}, 0, "later waits waits"},
		{"a row is before it", fmt.Sprintf(row, "0, 'orders', 'k', 1"), q, []disposition{follows, follows}, 0, "waits waits"},
		{"a row of another lane", fmt.Sprintf(row, "1, 'orders', 'k', 1"), q, []disposition{follows}, 0, "due"},
		{"a row of another topic", fmt.Sprintf(row, "0, 'refunds', 'k', 1"), q, []disposition{follows}, 0, "due"},
		{"a row of another key", fmt.Sprintf(row, "0, 'orders', 'l', 1"), q, []disposition{follows}, 0, "due"},
		{"no key", fmt.Sprintf(row, "0, 'orders', '', 1"), queue{"orders", ""}, []disposition{follows, recordRefused}, 0, "due later"},
		{"a letter holds the key", fmt.Sprintf(letter, "'relay', '', 'r', 'open', true", "'orders', 'k'", "0"), q, []disposition{follows}, 0, "waits"},
		{"a replay that is refused, whose letter holds the key", fmt.Sprintf(letter, "'relay', '', 'r', 'replaying', true", "'orders', 'k'", "0"), q, []disposition{recordRefused, follows}, 9, "later waits"},
		{"a letter that holds nothing", fmt.Sprintf(letter, "'relay', '', 'r', 'open', false", "'orders', 'k'", "0"), q, []disposition{follows}, 0, "due"},
		{"a letter that was discarded", fmt.Sprintf(letter, "'relay', '', 'r', 'discarded', true", "'orders', 'k'", "0"), q, []disposition{follows}, 0, "due"},
		{"a letter of another key", fmt.Sprintf(letter, "'relay', '', 'r', 'open', true", "'orders', 'l'", "0"), q, []disposition{follows}, 0, "due"},
		{"a letter of another topic", fmt.Sprintf(letter, "'relay', '', 'r', 'open', true", "'refunds', 'k'", "0"), q, []disposition{follows}, 0, "due"},
		{"a letter of another lane", fmt.Sprintf(letter, "'relay', '', 'r', 'open', true", "'orders', 'k'", "1"), q, []disposition{follows}, 0, "due"},
		{"a malformed event becomes a letter before it", "select", q, []disposition{malformed, follows}, 0, "waits"},
		{"a malformed event becomes a letter after it", "select", q, []disposition{recordRefused, malformed, follows}, 0, "later waits"},
		{"a replay and what follows", "select", q, []disposition{first, follows}, 9, "due waits"},
		{"a replay passes what is parked", fmt.Sprintf(row, "0, 'orders', 'k', 1"), q, []disposition{first}, 9, "due"},
		{"a replay passes what is due", strings.Replace(fmt.Sprintf(row, "0, 'orders', 'k', 1"), "'infinity'", "now()", 1), q, []disposition{first, first}, 9, "due waits"},
		{"of a topic that is queued as a whole: its head is due at last", fmt.Sprintf(row, "0, 'whole', 'k', 1"), queue{"whole", "k"}, []disposition{follows, follows}, 0, "waits waits"},
		{"its topic is held", "select", q, []disposition{topicHeld, topicHeld}, 0, "waits waits"},
		{"its partition is held", "select", q, []disposition{partitionDown, follows}, 0, "waits waits"},
	} {
		pgtest.Exec(t, db.Pool, "truncate holdfast.parked, holdfast.letter, holdfast.letter_action")
		pgtest.Exec(t, db.Pool, c.before)
		l := newLane(&Relay{bounds: usualBounds, env: env{chance: func() float64 { return 0.5 }}, c: Config{HoldKey: true, Retry: retry.Policy{Base: time.Hour, Cap: time.Hour}}}, "", time.Time{})
		l.holds[spot{q.topic, wholeTopic}], l.holds[spot{q.topic, anyPartition}] = &hold{}, &hold{}
		l.queues.whole["whole"] = true
		var leave []*pending
		for i, f := range c.dispositions {
			e := &logEvent{Event: holdfast.Event{Topic: c.of.topic, Key: c.of.key}}
			if i == 0 {
				e.letter = c.letter
			}
			leave = append(leave, &pending{event: e, item: item{queue: c.of}, disposition: f})
		}
		rows := l.rowsOf(leave)
		places, err := db.Query(t.Context(), parkEvents, 0, rows.topics, rows.keys, rows.whys, rows.attempts, rows.errors, rows.ids, rows.sources, rows.types, rows.times,
			rows.headers, rows.payloads, rows.letters, rows.delays, rows.partitions)
		if err != nil {
			t.Fatal(err)
		}
		added, err := pgx.CollectRows(places, pgx.RowTo[int64])
		if err != nil {
			t.Fatal(err)
		}
		for i := range rows.fix.topics {
			pgtest.Exec(t, db.Pool, fixHead, 0, rows.fix.topics[i], rows.fix.keys[i])
		}
		if len(rows.resume.topics) > 0 {
			pgtest.Exec(t, db.Pool, resumeQueues, 0, rows.resume.topics, rows.resume.keys)
		}
		var got string
		if err := db.QueryRow(t.Context(), `select string_agg(case when p.next_at = 'infinity' then 'waits' when p.next_at > now() then 'later' else 'due' end, ' ' order by p.place)
			from holdfast.parked p where p.lane = 0 and p.place = any ($1::bigint[])`, added).Scan(&got); err != nil {
			t.Fatal(err)
		}
		if n := pgtest.Count(t, db.Pool, "select count(*) from holdfast.parked p where p.lane = 0 and p.topic = $1 and p.key = $2 and p.key <> '' and p.next_at < 'infinity'", c.of.topic, c.of.key); n > 1 || l.queues.whole[c.of.topic] && n == 0 {
			t.Errorf("%s: %d are due", c.name, n)
		}
		if got != c.want {
			t.Errorf("%s: it is %q, want %q", c.name, got, c.want)
		}
	}
}

// The log can hold several replays of one letter, and a restored database has all of them read again.
func TestParkPlan_ReplaysAreParkedInTheOrderOfTheirLetters(t *testing.T) {
	t.Parallel()
	db := migrated.New(t)
	parkRows(t, db, []string{"a", "5", "b", "5 again", "9", "5 once more"}, 0, 5, 0, 5, 9, 5)
	parkRows(t, db, []string{"7"}, 7)
	parkRows(t, db, []string{"c", "6", "5 at last", "4"}, 0, 6, 5, 4)
	parkRows(t, db, []string{"the last there can be", "d"}, 1<<46-1, 0)
	var order string
	err := db.QueryRow(t.Context(), "select string_agg(id, ', ' order by place) from holdfast.parked").Scan(&order)
	if want := "4, 5, 5 again, 5 once more, 5 at last, 6, 7, 9, the last there can be, a, b, c, d"; err != nil || order != want {
		t.Errorf("they wait in the order %q, want %q; %v", order, want, err)
	}
}

// A replayed event's place in a long queue is found, not searched for: a replay of many letters of one key would take
// for ever.
func TestParkPlan_ThePlaceOfAReplayedEventInALongQueueIsFoundByTheKey(t *testing.T) {
	t.Parallel()
	db := migrated.New(t)
	pgtest.Exec(t, db.Pool, `insert into holdfast.parked (lane, place, topic, key, why, id, source, type, time, next_at, letter)
		select 0, (n::bigint << 16) - (1::bigint << 62), 'orders', 'k', 'record', n::text, 's', 't', now(), 'infinity', n from generate_series(1, 2000) n`)
	pgtest.Exec(t, db.Pool, "analyze holdfast.parked")
	for _, plan := range []string{"force_custom_plan", "force_generic_plan"} {
		err := pgx.BeginFunc(t.Context(), db.Pool, func(tx pgx.Tx) error {
			pgtest.Exec(t, tx, "select set_config('plan_cache_mode', $1, true)", plan)
			pgtest.Exec(t, tx, "prepare explained as "+parkEvents)
			rows, err := tx.Query(t.Context(), `explain (analyze, costs off, timing off, summary off)
				execute explained (0, '{orders}', '{k}', '{record}', '{0}', '{e}', '{again}', '{s}', '{t}', '{now}', '{null}', '{null}', '{1000}', '{1}', '{null}')`, pgx.QueryExecModeSimpleProtocol)
			if err != nil {
				return err
			}
			lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
			if err != nil {
				return err
			}
			pgtest.Exec(t, tx, "deallocate explained")
			if text := strings.Join(lines, "\n"); regexp.MustCompile(`Rows Removed by Filter: \d\d`).MatchString(text) {
				t.Errorf("%s: it reads the queue:\n%s", plan, text)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		pgtest.Exec(t, db.Pool, "delete from holdfast.parked where id = 'again'")
	}
}
