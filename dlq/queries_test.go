package dlq

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/pgtest"
)

func TestEveryStatementIsPreparedAgainstTheSchema(t *testing.T) {
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

// Open letters are few, closed ones many: a list of the open ones must not read the others, in any kind of plan.
func TestAListOfOpenLettersReadsTheirIndex(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	if err := holdfast.Migrate(t.Context(), db.Pool, holdfast.SchemaConfig{}); err != nil {
		t.Fatal(err)
	}
	pgtest.Exec(t, db.Pool, `insert into holdfast.letter (origin, reason, event_id, source, type, topic, key, time, hash, state)
		select 'relay', 'r', n::text, 's', 't', 'orders', '', now(), '', case when n % 1000 = 0 then 'open' else 'replayed' end from generate_series(1, 20000) n`)
	pgtest.Exec(t, db.Pool, "analyze holdfast.letter")
	conn, err := db.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	for _, plan := range []string{"force_custom_plan", "force_generic_plan"} {
		pgtest.Exec(t, conn, "select set_config('plan_cache_mode', $1, false)", plan)
		rows, err := conn.Query(t.Context(), "explain (analyze, costs off, timing off, summary off) "+listLetters,
			append([]any{pgx.QueryExecModeCacheStatement}, append(Filter{Since: time.Unix(0, 0)}.args(0), int32(100), true)...)...)
		if err != nil {
			t.Fatal(err)
		}
		lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			t.Fatal(err)
		}
		text := strings.Join(lines, "\n")
		if !strings.Contains(text, "letter_open") || strings.Contains(text, "Rows Removed by Filter: 19") {
			t.Errorf("%s:\n%s", plan, text)
		}
		for _, line := range lines {
			if strings.Contains(line, "letter_pkey") && !strings.Contains(line, "never executed") || strings.Contains(line, "Seq Scan") && !strings.Contains(line, "never executed") {
				t.Errorf("%s reads closed letters:\n%s", plan, text)
			}
		}
	}
}
