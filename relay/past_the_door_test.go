package relay_test

import (
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/test/migrated"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/wait"
	"github.com/holdfast-go/holdfast/relay"
	"github.com/holdfast-go/holdfast/relay/publish"
	"github.com/holdfast-go/holdfast/retry"
)

// strange is a row that somebody wrote by SQL, and not through the functions for writers.
type strange struct {
	name  string
	table string            // event_0, parked or scheduled
	with  map[string]string // columns, as SQL; the others are those of a usual event
	dead  bool              // it becomes a dead letter; else it is published
	why   string            // of the letter, a part of it
	spent bool              // its attempts are: it becomes a dead letter when it is refused
}

// usual are the columns of an event of the lane 0.
var usual = map[string]map[string]string{
	"event_0":   {"lane": "0", "id": "'strange'", "type": "'t'", "topic": "'orders'", "key": "'k'", "payload": "'strange'"},
	"parked":    {"lane": "0", "topic": "'orders'", "key": "'k'", "place": "nextval('holdfast.parked_place')", "why": "'record'", "next_at": "now()", "id": "'strange'", "source": "''", "type": "'t'", "time": "now()", "payload": "'strange'"},
	"scheduled": {"lane": "0", "due_at": "now()", "id": "'strange'", "type": "'t'", "topic": "'orders'", "key": "'k'", "time": "now()", "payload": "'strange'"},
}

// insert is the statement that writes the row of a key, with an id or payload.
func (s strange) insert(key, name string) string {
	var columns, values []string
	for column, value := range usual[s.table] {
		value = strings.NewReplacer("'k'", "'"+key+"'", "strange", name).Replace(value)
		if _, given := s.with[column]; !given {
			columns, values = append(columns, column), append(values, value)
		}
	}
	for column, value := range s.with {
		columns, values = append(columns, column), append(values, value)
	}
	return fmt.Sprintf("insert into holdfast.%s (%s) values (%s)", s.table, strings.Join(columns, ", "), strings.Join(values, ", "))
}

// noise is text that cannot be compressed, of n characters.
func noise(n int) string {
	return fmt.Sprintf("(select left(string_agg(md5(g::text), ''), %d) from generate_series(0, %d) g)", n, n/32)
}

func strangeRows() (rows []strange) {
	both := func(name string, dead bool, why string, with map[string]string) {
		rows = append(rows, strange{name: name, table: "event_0", with: with, dead: dead, why: why}, strange{name: name, table: "parked", with: with, dead: dead, why: why})
	}
	for _, t := range []string{"infinity", "-infinity", "4713-01-01 00:00:00+00 BC", "294276-12-31 23:59:59+00", "0044-03-15 00:00:00+00 BC"} {
		both("time is "+t, false, "", map[string]string{"time": "'" + t + "'"})
	}
	for _, h := range []string{"[]", `["a", {"b": 1}]`, "17", `"text"`, "true"} {
		both("headers are "+h, true, "headers", map[string]string{"headers": "'" + h + "'"})
	}
	for _, h := range []string{"null", "{}", `{"": ""}`, `{"a": null, "b": 1e400, "c": {"d": [1, {}]}, "e": false}`, `{"ce_id": "mine", "hf_letter": "1", "\u2028": "\n"}`} {
		both("headers are "+h, false, "", map[string]string{"headers": "'" + h + "'"})
	}
	both("100,000 headers", true, "headers", map[string]string{"headers": "(select jsonb_object_agg(g::text, md5(g::text)) from generate_series(1, 100000) g)"})
	both("headers of 70 MB", true, "headers", map[string]string{"headers": "jsonb_build_object('h', repeat('x', 70000000))"})
	both("a payload of 70 MB", true, "payload", map[string]string{"payload": "convert_to(repeat('x', 70000000), 'UTF8')"})
	both("no payload", false, "", map[string]string{"payload": "null"})
	for _, topic := range []string{"", " ", "a b", "..", "ünïcode", "a/b", strings.Repeat("t", 250)} {
		both(fmt.Sprintf("topic is %.10q", topic), true, "topic", map[string]string{"topic": "'" + topic + "'"})
	}
	both("id is empty", false, "", map[string]string{"id": "''"})
	both("id of 5 MB", true, "id", map[string]string{"id": "repeat('i', 5000000)"})
	both("type is empty", false, "", map[string]string{"type": "''"})
	both("type of 5 MB", true, "type", map[string]string{"type": "repeat('t', 5000000)"})
	both("source of 5 MB", true, "source", map[string]string{"source": "repeat('s', 5000000)"})
	both("no key", false, "", map[string]string{"key": "''"})
	both("a key of a line break", false, "", map[string]string{"key": "E'\\n\\t\\x01'"})
	both("a key of 2,000 bytes", false, "", map[string]string{"key": noise(2000)})
	rows = append(rows, strange{name: "a key that compresses, of 100,000 bytes", table: "parked", with: map[string]string{"key": "repeat('k', 100000)"}, dead: true, why: "key"},
		strange{name: "attempts is the largest", table: "parked", with: map[string]string{"attempts": "2147483647"}, spent: true, why: "scripted"})
	for _, letter := range []string{"0", "-1", "99", "140737488355328", "9223372036854775807", "-9223372036854775808"} {
		both("letter is "+letter, false, "", map[string]string{"letter": letter})
	}
	log := func(name string, dead bool, why string, with map[string]string) {
		rows = append(rows, strange{name: name, table: "event_0", with: with, dead: dead, why: why})
	}
	log("a key of 100,000 bytes", true, "key", map[string]string{"key": noise(100000)})
	log("seq is the largest", false, "", map[string]string{"seq": "9223372036854775807"})
	log("a cut that lies ahead", false, "", map[string]string{"snap": "'1:9000000:'"})
	log("a cut of the first transactions", false, "", map[string]string{"snap": "'3:3:'"})
	log("a cut that forgets who had ended", false, "", map[string]string{"snap": "(select format('3:%s:3,4,5', pg_snapshot_xmax(pg_current_snapshot()))::pg_snapshot)"})
	row := func(name string, dead bool, why string, with map[string]string) {
		rows = append(rows, strange{name: name, table: "parked", with: with, dead: dead, why: why})
	}
	row("attempts is the smallest", false, "", map[string]string{"attempts": "-2147483648"})
	row("errors of two dimensions", false, "", map[string]string{"errors": "array[array['a', null], array['b', 'c']]"})
	row("errors that begin at 5", false, "", map[string]string{"errors": "'[5:6]={a,b}'::text[]"})
	row("first_at is infinity", false, "", map[string]string{"first_at": "'infinity'"})
	row("due since ever", false, "", map[string]string{"next_at": "'-infinity'"})
	row("never due", false, "", map[string]string{"next_at": "'infinity'"})
	row("the last place", false, "", map[string]string{"place": "9223372036854775807"})
	row("the first place", false, "", map[string]string{"place": "-9223372036854775808"})
	for _, partition := range []string{"-2147483648", "-2", "-1", "7", "2147483647"} {
		row("waits for partition "+partition, false, "", map[string]string{"partition": partition})
	}
	row("waits for its topic", false, "", map[string]string{"why": "'topic'", "next_at": "'infinity'"})
	due := func(name string, dead bool, why string, with map[string]string) {
		rows = append(rows, strange{name: name, table: "scheduled", with: with, dead: dead, why: why})
	}
	due("due since ever", false, "", map[string]string{"due_at": "'-infinity'"})
	due("due before Christ", false, "", map[string]string{"due_at": "'4713-01-01 00:00:00+00 BC'"})
	due("headers of objects", false, "", map[string]string{"headers": `'{"a": {"b": [null]}}'`})
	due("headers of 70 MB", true, "headers", map[string]string{"headers": "jsonb_build_object('h', repeat('x', 70000000))"})
	due("a payload of 70 MB", true, "payload", map[string]string{"payload": "convert_to(repeat('x', 70000000), 'UTF8')"})
	due("seq is the smallest", false, "", map[string]string{"seq": "-9223372036854775808"})
	return rows
}

// No row of the tables that the relay reads stops a lane, whoever wrote it: it is published or becomes a dead letter, and
// what was written before and after it is published once, in order. It is so as well when the row has to be parked first.
func TestPastTheDoor_ARowPastTheDoorStopsNoLane(t *testing.T) {
	t.Parallel()
	for _, mode := range []pgx.QueryExecMode{pgx.QueryExecModeCacheStatement, pgx.QueryExecModeSimpleProtocol} {
		for _, refuses := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, refused once %v", mode, refuses), func(t *testing.T) {
				t.Parallel()
				db := migrated.Lanes(t, 1)
				rows := strangeRows()
				if refuses || mode != pgx.QueryExecModeCacheStatement || testing.Short() { // the large ones take long, and are alike
					rows = slices.DeleteFunc(rows, func(s strange) bool { return strings.Contains(s.name, " MB") })
				}
				pass(t, db.PoolWith(t, func(c *pgxpool.Config) { c.ConnConfig.DefaultQueryExecMode = mode }), rows, refuses, relay.Config{})
			})
		}
	}
}

func TestPastTheDoor_ALetterOfAMalformedRowHoldsItsKey(t *testing.T) {
	t.Parallel()
	pool, b := setup(t, 1), newBroker()
	write(t, pool, event("k", "before"))
	pgtest.Exec(t, pool, strange{table: "event_0", with: map[string]string{"headers": "'[]'"}}.insert("k", "strange"))
	write(t, pool, event("k", "after"), event("other", "other"))
	run(t, pool, b, relay.Config{HoldKey: true, DeadLetterTopic: "*.dlq"})
	arrives(t, b, "before", "other")
	wait.Until(t, "what follows it is parked", func() bool { return letters(t, pool) == 1 && parked(t, pool) == 1 })
	if b.has("after") {
		t.Error("it was overtaken")
	}
	pgtest.Exec(t, pool, "update holdfast.letter set headers = '{}'")
	replay(t, pool, pgtest.Count(t, pool, "select id from holdfast.letter"))
	arrives(t, b, "strange", "after")
	wantFirsts(t, b, "k", "before", "strange", "after")
	wantOnce(t, b)
}

// The letter of a malformed event holds its key also where events before it are parked: what follows it is not published with them.
func TestPastTheDoor_ALetterHoldsItsKeyBehindParkedEvents(t *testing.T) {
	t.Parallel()
	pool, b := setup(t, 1), newBroker()
	b.set(refusing(publish.FaultRecord, "before"))
	write(t, pool, event("k", "before"))
	pgtest.Exec(t, pool, strange{table: "event_0", with: map[string]string{"headers": "'[]'"}}.insert("k", "strange"))
	write(t, pool, event("k", "after"))
	run(t, pool, b, relay.Config{HoldKey: true, Retry: retry.Policy{Attempts: -1, Base: 50 * time.Millisecond, Cap: 50 * time.Millisecond}})
	wait.Until(t, "one is a letter, two are parked", func() bool { return letters(t, pool) == 1 && parked(t, pool) == 2 })
	b.set(nil)
	arrives(t, b, "before")
	write(t, pool, event("other", "other"))
	arrives(t, b, "other")
	wait.Until(t, "the first has left", func() bool { return parked(t, pool) == 1 })
	if b.has("after") {
		t.Error("it was overtaken")
	}
	pgtest.Exec(t, pool, "update holdfast.letter set state = 'discarded'")
	arrives(t, b, "after")
	wantOnce(t, b)
}

func TestPastTheDoor_AReplayThatIsMalformedOpensItsLetterAgain(t *testing.T) {
	t.Parallel()
	pool, b := setup(t, 1), newBroker()
	pgtest.Exec(t, pool, strange{table: "event_0", with: map[string]string{"headers": "'[]'"}}.insert("k", "strange"))
	run(t, pool, b, relay.Config{HoldKey: true})
	wait.Until(t, "it is a dead letter", func() bool { return letters(t, pool) == 1 })
	replay(t, pool, pgtest.Count(t, pool, "select id from holdfast.letter"))
	wait.Until(t, "it is open again", func() bool {
		return pgtest.Count(t, pool, "select count(*) from holdfast.letter where state = 'open' and cardinality(errors) = 2") == 1
	})
	if n := letters(t, pool); n != 1 || len(b.events()) != 0 {
		t.Errorf("%d letters, %d events", n, len(b.events()))
	}
}

// pass writes rows with an event before and one after each, and lets a relay work them off. Each has a key of its own.
func pass(t testing.TB, pool *pgxpool.Pool, rows []strange, refuses bool, c relay.Config) {
	t.Helper()
	b := newBroker()
	var mu sync.Mutex
	refused := map[string]bool{}
	b.set(func(e holdfast.Event) error {
		mu.Lock()
		defer mu.Unlock()
		if p := string(e.Payload); refuses && !refused[p] {
			refused[p] = true
			return refusal(publish.FaultRecord)
		}
		return nil
	})
	want, key := map[string][]string{}, func(i int) string { return fmt.Sprintf("k%d", i) }
	for i, row := range rows {
		write(t, pool, event(key(i), fmt.Sprintf("before-%d", i)))
		if _, err := pool.Exec(t.Context(), row.insert(key(i), fmt.Sprintf("strange-%d", i))); err != nil {
			t.Fatalf("%s, %s: %v", row.table, row.name, err)
		}
		write(t, pool, event(key(i), fmt.Sprintf("after-%d", i)))
		want[key(i)] = []string{fmt.Sprintf("before-%d", i), fmt.Sprintf("after-%d", i)}
	}
	var logged lines
	c.Logger = slog.New(slog.NewTextHandler(&logged, &slog.HandlerOptions{Level: slog.LevelWarn}))
	c.Retry = retry.Policy{Attempts: 100, Base: time.Millisecond, Cap: 5 * time.Millisecond}
	stop := run(t, pool, b, c)
	done := func(i int) (arrived, dead bool) {
		for _, e := range b.events() {
			arrived = arrived || string(e.Payload) == fmt.Sprintf("strange-%d", i) || e.ID == fmt.Sprintf("strange-%d", i)
		}
		return arrived, pgtest.Count(t, pool, `select count(*) from holdfast.letter where event_id = $1::text or octet_length(payload) < 100 and payload = convert_to($1::text, 'UTF8')`, fmt.Sprintf("strange-%d", i)) > 0
	}
	passed := 0 // all before it have
	wait.For(wait.Limit()/2, func() bool {
		for ; passed < len(rows); passed++ {
			if arrived, dead := done(passed); !b.has(want[key(passed)][0]) || !b.has(want[key(passed)][1]) || !arrived && !dead {
				return false
			}
		}
		return true
	})
	for i, row := range rows {
		arrived, dead := done(i)
		if arrived == dead || dead != (row.dead || row.spent && refuses) {
			t.Errorf("%s, %s: published %v, a letter %v, want a letter: %v", row.table, row.name, arrived, dead, row.dead || row.spent && refuses)
		}
		var got []string
		for _, e := range b.events() {
			if p := string(e.Payload); slices.Contains(want[key(i)], p) {
				got = append(got, p)
			}
		}
		if !slices.Equal(got, want[key(i)]) {
			t.Errorf("%s, %s: its neighbours were published as %q", row.table, row.name, got)
		}
		if dead && pgtest.Count(t, pool, `select count(*) from holdfast.letter where (event_id = $1::text or octet_length(payload) < 100 and payload = convert_to($1::text, 'UTF8'))
			and reason like '%' || $2::text || '%'`, fmt.Sprintf("strange-%d", i), row.why) != 1 {
			t.Errorf("%s, %s: its letter does not speak of %s", row.table, row.name, row.why)
		}
	}
	if r, err := relay.New(pool, b, relay.Config{}); err != nil {
		t.Error(err)
	} else if _, err := r.Backlog(t.Context()); err != nil {
		t.Errorf("nobody can see the backlog: %v", err)
	}
	stop()
	if t.Failed() {
		t.Logf("the relay says:\n%s", logged.last(10))
	}
}

// lines keeps what is logged.
type lines struct {
	mu  sync.Mutex
	all []string
}

func (l *lines) Write(line []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append(l.all, string(line[:min(len(line), 600)]))
	return len(line), nil
}

func (l *lines) last(n int) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Join(l.all[max(0, len(l.all)-n):], "\n")
}

// What Postgres refuses to park, for whatever reason that the relay cannot know, becomes a dead letter alone.
func TestPastTheDoor_AnEventThatPostgresDoesNotParkBecomesALetter(t *testing.T) {
	t.Parallel()
	pool, b := setup(t, 1), newBroker()
	pgtest.Exec(t, pool, "alter table holdfast.parked add constraint somebodys check (id <> 'strange')")
	b.set(refusing(publish.FaultRecord, "head"))
	write(t, pool, event("k", "head"), event("k", "before"))
	pgtest.Exec(t, pool, strange{table: "event_0"}.insert("k", "strange"))
	write(t, pool, event("k", "after"), event("other", "other"))
	run(t, pool, b, relay.Config{Retry: untiring})
	arrives(t, b, "other")
	wait.Until(t, "it is a dead letter", func() bool { return letters(t, pool) == 1 })
	b.set(nil)
	arrives(t, b, "after")
	wantFirsts(t, b, "k", "head", "before", "after")
	wantOnce(t, b)
	if n := pgtest.Count(t, pool, "select count(*) from holdfast.letter where event_id = 'strange' and payload = 'strange' and reason like '%somebodys%'"); n != 1 {
		t.Error("the letter is not that of the event, or does not say why")
	}
}

// What cannot be moved into the log becomes a dead letter alone, and the others are moved.
func TestPastTheDoor_AScheduledEventThatCannotBeMovedBecomesALetter(t *testing.T) {
	t.Parallel()
	pool, b := setup(t, 1), newBroker()
	pgtest.Exec(t, pool, "alter table holdfast.event_0 add constraint somebodys check (id <> 'strange')")
	for i, name := range []string{"1", "2", "strange", "3"} {
		pgtest.Exec(t, pool, strange{table: "scheduled", with: map[string]string{"due_at": fmt.Sprintf("now() - interval '1 minute' + %d * interval '1 second'", i)}}.insert("k", name))
	}
	run(t, pool, b, relay.Config{})
	arrives(t, b, "1", "2", "3")
	wantFirsts(t, b, "k", "1", "2", "3")
	wantOnce(t, b)
	if n := pgtest.Count(t, pool, "select count(*) from holdfast.letter where event_id = 'strange' and reason like '%somebodys%'"); n != 1 || letters(t, pool) != 1 {
		t.Error("the letter is not that of the event, or does not say why")
	}
}
