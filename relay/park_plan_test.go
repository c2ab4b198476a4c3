package relay

import (
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/pgtest"
)

// The first replay was refused by Kafka before anything of its key was parked: it waits at the end of the sequence.
func TestAReplayBehindOneThatWasParkedJustBeforeItHasAPlace(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	if err := holdfast.Migrate(t.Context(), db.Pool, holdfast.SchemaConfig{}); err != nil {
		t.Fatal(err)
	}
	pgtest.Exec(t, db.Pool, `insert into holdfast.parked (lane, place, topic, key, why, id, source, type, time, next_at, letter)
		select 0, nextval('holdfast.parked_place'), 'orders', 'k', 'record', 'first', 's', 't', now(), 'infinity', 1`)
	for letter := int64(2); letter < 5; letter++ {
		id := strings.Repeat("I", int(letter))
		if _, err := db.Exec(t.Context(), parkFirst, int16(0), "orders", "k", id, "s", "t", time.Now(), nil, nil, letter); err != nil {
			t.Fatalf("letter %d: %v", letter, err)
		}
	}
	var order string
	err := db.QueryRow(t.Context(), "select string_agg(id, ' ' order by place) from holdfast.parked").Scan(&order)
	if err != nil || order != "first II III IIII" {
		t.Errorf("they wait in the order %q, %v", order, err)
	}
}

// A replayed event's place in a long queue is found, not searched for: a replay of many letters of one key would take
// for ever.
func TestThePlaceOfAReplayedEventInALongQueueIsFoundByTheKey(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	if err := holdfast.Migrate(t.Context(), db.Pool, holdfast.SchemaConfig{}); err != nil {
		t.Fatal(err)
	}
	pgtest.Exec(t, db.Pool, `insert into holdfast.parked (lane, place, topic, key, why, id, source, type, time, next_at, letter)
		select 0, nextval('holdfast.parked_place'), 'orders', 'k', 'record', n::text, 's', 't', now(), 'infinity', n from generate_series(1, 2000) n`)
	pgtest.Exec(t, db.Pool, "select setval('holdfast.parked_place', 1000000)") // others were parked meanwhile
	pgtest.Exec(t, db.Pool, "analyze holdfast.parked")
	for _, plan := range []string{"force_custom_plan", "force_generic_plan"} {
		err := pgx.BeginFunc(t.Context(), db.Pool, func(tx pgx.Tx) error {
			pgtest.Exec(t, tx, "select set_config('plan_cache_mode', $1, true)", plan)
			pgtest.Exec(t, tx, "prepare explained as "+parkFirst)
			rows, err := tx.Query(t.Context(), `explain (analyze, costs off, timing off, summary off)
				execute explained (0, 'orders', 'k', 'again', 's', 't', now(), null, null, 3000)`, pgx.QueryExecModeSimpleProtocol)
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
