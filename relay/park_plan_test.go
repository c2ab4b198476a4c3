package relay

import (
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/internal/test/migrated"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
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
