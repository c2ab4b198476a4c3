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
	"github.com/holdfast-go/holdfast/internal/test/skip"
)

// Nobody has analyzed the table yet, so the planner believes that it is empty. A long queue drains a hundred rows at a time, and
// none of its other rows may be read for that.
func TestLongQueue_ALongQueueIsNotReadToDrainItsHead(t *testing.T) {
	t.Parallel()
	db := migrated.New(t)
	pgtest.Exec(t, db.Pool, `insert into holdfast.parked (lane, topic, key, place, why, next_at, id, source, type, time, payload)
		select 0, 'orders', 'k', n, 'follows', 'infinity', n, 's', 't', now(), convert_to(repeat('x', 1000), 'UTF8') from generate_series(1, 5000) n`)
	var topics, keys, errs []string
	var places []int64
	var adds, partitions []int32
	var delays []float64
	for place := range int64(100) {
		topics, keys, places = append(topics, "orders"), append(keys, "k"), append(places, place+1)
		errs, adds, partitions, delays = append(errs, "refused"), append(adds, 1), append(partitions, 3), append(delays, 1)
	}
	for _, step := range []struct {
		statement string
		args      []any
	}{
		{readHeads, []any{0, topics[:1], keys[:1], places[:1], 100, 1 << 20}},
		{delayParked, []any{0, topics, keys, places, adds, errs, delays}},
		{holdParked, []any{0, topics, keys, places, partitions}},
		{deleteParked, []any{0, topics, keys, places}},
		{resumeQueues, []any{0, []string{"orders"}, []string{"k"}}},
		{parkEvents, []any{0, topics, keys, slices.Repeat([]string{"follows"}, 100), adds, errs, topics, topics, topics, slices.Repeat([]time.Time{time.Now()}, 100),
			make([]*string, 100), make([][]byte, 100), make([]int64, 100), slices.Repeat([]*float64{seconds(0)}, 100), make([]*int32, 100)}},
	} {
		rows, err := db.Query(t.Context(), "explain (analyze, costs off, timing off) "+step.statement, step.args...)
		if err != nil {
			t.Fatal(err)
		}
		lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			t.Fatal(err)
		}
		if plan := strings.Join(lines, "\n"); regexp.MustCompile(`rows=\d{4,} loops|loops=\d{4,}|Removed by (Join )?Filter: \d{4,}`).MatchString(plan) {
			t.Errorf("it reads the queue:\n%s", plan)
		}
	}
	if n := pgtest.Count(t, db.Pool, "select sum(place) from holdfast.parked where next_at < 'infinity'"); n != 101 {
		t.Errorf("the row at %d is due, want the first", n)
	}
}

// An owner is given half of its lease to load a lane, and others load theirs meanwhile: it may not read all that is parked, however
// the planner thinks of the table.
func TestLongQueue_ALaneWithLongQueuesIsLoadedWithoutReadingThem(t *testing.T) {
	skip.InShort(t, "it takes 17 s beside the others")
	t.Parallel()
	db := migrated.New(t)
	const queues, each = 50, 2000
	pgtest.Exec(t, db.Pool, "alter table holdfast.parked set (autovacuum_enabled = off)")
	park := func(queues, each int) {
		t.Helper()
		pgtest.Exec(t, db.Pool, `insert into holdfast.parked (lane, topic, key, place, why, next_at, id, source, type, time, payload)
			select 0, case when n % 2 = 0 then 'gone' else 'orders' end, n % $1::integer, nextval('holdfast.parked_place'), 'topic', 'infinity', n, 's', 't', now(), convert_to(repeat('x', 300), 'UTF8')
			  from generate_series(1, $2::integer) n`, queues, queues*each)
	}
	for _, known := range []string{"nothing", "that it was small", "all"} {
		switch known {
		case "nothing":
			park(queues, each)
		case "that it was small":
			pgtest.Exec(t, db.Pool, "truncate holdfast.parked")
			park(10, 1)
			pgtest.Exec(t, db.Pool, "analyze holdfast.parked")
			park(queues, each)
		case "all":
			pgtest.Exec(t, db.Pool, "analyze holdfast.parked")
		}
		for statement, args := range map[string][]any{
			listQueues:  {0, usualBounds.listed, "", ""},
			keylessGone: {0, []string{"gone", "orders"}},
			loadHolds:   {0},
		} {
			rows, err := db.Query(t.Context(), "explain (analyze, costs off, timing off) "+statement, args...)
			if err != nil {
				t.Fatal(err)
			}
			lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
			if err != nil {
				t.Fatal(err)
			}
			const reads = `rows=\d{4,} loops|loops=\d{4,}|Removed by (Join )?Filter: \d{4,}|Seq Scan on parked`
			if plan := strings.Join(lines, "\n"); regexp.MustCompile(reads).MatchString(plan) {
				t.Errorf("the planner knows %s: it reads the queues:\n%s", known, plan)
			}
		}
	}
}
