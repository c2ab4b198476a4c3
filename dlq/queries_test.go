package dlq

import (
	"fmt"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/test/migrated"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
)

func TestQueries_EveryStatementIsPreparedAgainstTheSchema(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	if err := holdfast.Migrate(t.Context(), db.Pool, holdfast.SchemaConfig{Schema: "other"}); err != nil {
		t.Fatal(err)
	}
	conn, err := db.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	s := reflect.ValueOf(newStatements("other"))
	for i := range s.NumField() {
		sql := s.Field(i).String()
		if !strings.HasPrefix(sql, "-- dlq.") || strings.Contains(strings.SplitN(sql, "\n", 2)[1], "holdfast.") {
			t.Errorf("%s is not named, or not in the configured schema", sql)
		}
		if _, err := conn.Conn().Prepare(t.Context(), "", sql); err != nil {
			t.Errorf("%s: %v", sql, err)
		}
	}
}

// Open letters are few, closed ones many: what reads the open ones must not read the others, in any kind of plan.
func TestQueries_OpenLettersAreReadByTheirIndex(t *testing.T) {
	skip.InShort(t, "it takes 2 s beside the others")
	t.Parallel()
	explain := closed(t, migrated.New(t))
	f := Filter{Since: time.Unix(0, 0)}
	some := scope{upTo: 1 << 40, replay: 7}
	for name, text := range map[string]string{
		"list":   explain(listLetters, append(f.stateArgs(), int32(100), true)...),
		"groups": explain(groupLetters, append(f.stateArgs(), int32(100))...),
		"count":  explain(countLetters, some.args(f, 100)...),
		"walk":   explain(walkLetters, some.args(f, 100)...),
	} {
		if name == "walk" && (strings.Contains(text, "Sort") || strings.Contains(text, "hashed")) {
			t.Errorf("every page reads what follows it, or went before:\n%s", text)
		}
		if !strings.Contains(text, "letter_open") || strings.Contains(text, "Rows Removed by Filter: 19") {
			t.Errorf("%s:\n%s", name, text)
		}
		for line := range strings.Lines(text) {
			once := strings.Contains(line, "Index Cond: (id = ") || strings.Contains(line, "letter_pkey on letter e") // one row by its id
			if !once && strings.Contains(line, "letter_pkey") && !strings.Contains(line, "never executed") || strings.Contains(line, "Seq Scan on letter ") && !strings.Contains(line, "never executed") {
				t.Errorf("%s reads closed letters:\n%s", name, text)
			}
		}
	}
}

func TestQueries_APurgeFindsOldLettersByTheirIndex(t *testing.T) {
	skip.InShort(t, "it takes 3 s beside the others")
	t.Parallel()
	db := migrated.New(t)
	explain := closed(t, db)
	if text := explain(countPurge, (time.Hour).Microseconds()); !strings.Contains(text, "letter_closed") || strings.Contains(text, "Seq Scan on letter ") {
		t.Errorf("count:\n%s", text)
	}
	// purge_letters makes its own plans: for the first calls of a session one each, then one for all. What it reads shows them.
	pgtest.Exec(t, db.Pool, "insert into holdfast.letter_action (letter, action, by, reason) select n, 'replay', 'ann', '' from generate_series(1, 20000) n")
	conn, err := db.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	// Rows, not pages: a session whose catalogs another one has changed reads those anew at any time.
	const rowsRead = "select sum(seq_tup_read + coalesce(idx_tup_fetch, 0)) from pg_stat_xact_user_tables where schemaname = 'holdfast' and relname in ('letter', 'letter_action')"
	for call := range 8 {
		tx, err := conn.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if n := pgtest.Count(t, tx, "select holdfast.purge_letters(3600000000, 5)"); n != 5 {
			t.Errorf("call %d purged %d letters, want 5", call, n)
		}
		if read := pgtest.Count(t, tx, rowsRead); read == 0 || read > 1000 { // 200 of them are old
			t.Errorf("call %d read %d rows of 40,000, want at most 1,000", call, read)
		}
		if err := tx.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if n := pgtest.Count(t, conn, "select count(*) from holdfast.letter"); n != 20000-8*5 {
		t.Errorf("%d letters are left", n)
	}
}

// closed makes a table of letters that has few open ones, and explains statements on it.
func closed(t *testing.T, db *pgtest.DB) (explain func(statement string, args ...any) string) {
	t.Helper()
	pgtest.Exec(t, db.Pool, `insert into holdfast.letter (origin, reason, event_id, source, type, topic, key, time, hash, state, last_at)
		select 'relay', 'r', n::text, 's', 't', 'orders', '', now(), '', case when n % 1000 = 0 then 'open' else 'replayed' end,
		       now() - case when n % 100 = 1 then interval '1 day' else interval '0' end from generate_series(1, 20000) n`)
	pgtest.Exec(t, db.Pool, "analyze holdfast.letter")
	return explainer(t, db)
}

// A letter's place in a long queue is found, not searched for: a replay of many letters of one key would take for ever.
func TestQueries_ThePlaceOfALetterInALongQueueIsFoundByTheKey(t *testing.T) {
	skip.InShort(t, "it takes 10 s beside the others")
	t.Parallel()
	db := migrated.New(t)
	pgtest.Exec(t, db.Pool, `insert into holdfast.letter (origin, consumer, reason, event_id, source, type, topic, key, time, hash)
		select 'inbox', 'billing', 'r', n::text, 's', 't', 'orders', 'k', now(), '' from generate_series(1, 501) n`)
	pgtest.Exec(t, db.Pool, `insert into holdfast.stored (consumer, topic, key, place, source, event_id, type, time, hash, next_at)
		select 'billing', 'orders', 'k', n, 's', 'follower ' || n, 't', now(), '', 'infinity' from generate_series(1, 10000) n`)
	pgtest.Exec(t, db.Pool, "analyze holdfast.stored")
	d, err := New(db.Pool, Config{})
	if err != nil {
		t.Fatal(err)
	}
	if n, err := d.Replay(t.Context(), Filter{Limit: 500}, ReplayOptions{By: "ann"}); n != 500 || err != nil {
		t.Fatal(n, err)
	}
	explain := explainer(t, db)
	for name, text := range map[string]string{"store": explain(storeLetter, int64(501)), "unstore": explain(unstoreLetter, int64(500)), "wake": explain(wakeQueue, int64(500))} {
		if regexp.MustCompile(`Rows Removed by Filter: \d\d|rows=\d{4,} loops|Seq Scan on stored`).MatchString(text) {
			t.Errorf("%s reads the queue:\n%s", name, text)
		}
	}
}

// explainer explains statements, run as they are, in both kinds of plan.
func explainer(t *testing.T, db *pgtest.DB) func(statement string, args ...any) string {
	return func(statement string, args ...any) string {
		t.Helper()
		conn, err := db.Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Release()
		var lines []string
		pgtest.Exec(t, conn, "prepare explained as "+statement)
		var numbers []string
		for i := range args {
			numbers = append(numbers, fmt.Sprint("$", i+1))
		}
		for _, plan := range []string{"force_custom_plan", "force_generic_plan"} {
			pgtest.Exec(t, conn, "select set_config('plan_cache_mode', $1, false)", plan)
			rows, err := conn.Query(t.Context(), "explain (analyze, costs off, timing off, summary off) execute explained ("+strings.Join(numbers, ", ")+")",
				append([]any{pgx.QueryExecModeSimpleProtocol}, args...)...)
			if err != nil {
				t.Fatal(err)
			}
			more, err := pgx.CollectRows(rows, pgx.RowTo[string])
			if err != nil {
				t.Fatal(err)
			}
			lines = append(append(lines, plan), more...)
		}
		pgtest.Exec(t, conn, "deallocate explained")
		return strings.Join(lines, "\n")
	}
}
