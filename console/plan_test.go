package console

import (
	"testing"

	"github.com/holdfast-go/holdfast/internal/test/migrated"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/plantest"
	"github.com/holdfast-go/holdfast/internal/test/roletest"
)

// The overview is loaded again and again on the worst day, so it goes by indexes and stops counting.
func TestTheOverviewReadsByIndexes(t *testing.T) {
	t.Parallel()
	db := migrated.New(t)
	for _, sql := range []string{
		`insert into holdfast.stored (consumer, topic, key, place, source, event_id, type, time, hash, next_at)
			select 'c' || n % 3, 'orders', (n % 2000)::text, n, 's', n::text, 't', now(), '', 'infinity' from generate_series(1, 40000) n`,
		`insert into holdfast.parked (lane, topic, key, place, why, next_at, id, source, type, time)
			select n % 8, 'orders', (n % 2000)::text, n, 'topic', 'infinity', n::text, 's', 't', now() from generate_series(1, 20000) n`,
		`insert into holdfast.scheduled (lane, due_at, id, type, topic, key, time) select n % 8, now() + interval '1 hour', n::text, 't', 'orders', '', now() from generate_series(1, 20000) n`,
		`insert into holdfast.letter (origin, consumer, reason, event_id, source, type, topic, key, time, hash, state)
			select 'inbox', 'billing', 'r', n::text, 's', 't', 'orders', '', now(), '', case when n % 100 = 0 then 'open' else 'replayed' end from generate_series(1, 20000) n`,
	} {
		pgtest.Exec(t, db.Pool, sql)
	}
	for _, table := range []string{"stored", "parked", "scheduled", "letter"} {
		pgtest.Exec(t, db.Pool, "analyze holdfast."+table)
	}
	role := roletest.Make(t, db) + "_operator"
	for statement, tables := range map[string][]string{readLanes: {"parked", "scheduled"}, readConsumers: {"letter"}} {
		plantest.Allowed(t, db.Pool, role, statement, "")
		for _, plan := range plantest.Of(t, db.Pool, statement, "") {
			plan.NeverReadsAllOf(tables...)
		}
	}
	plantest.EveryStatement(t, []string{readLanes, readConsumers}, map[string]string{
		"console.written": "a view of the server's counts", "console.positions": "a row a consumer and partition"})
	rows := pgtest.Count(t, db.Pool, "select count(*) from ("+readConsumers+") c")
	if stored := pgtest.Count(t, db.Pool, "select max(c.coalesce) from ("+readConsumers+") c (consumer, coalesce, oldest, letters)"); rows != 4 || stored != counted+1 {
		t.Errorf("%d consumers are read, and of one %d stored events; want 4, and that it stops at %d", rows, stored, counted+1)
	}

	// The oldest is found where nobody counts any more: key 999 comes last of the 13,333 events of c0, and of lane 7.
	pgtest.Exec(t, db.Pool, "update holdfast.stored set first_at = now() - interval '9 hours' where place = 999")
	pgtest.Exec(t, db.Pool, "update holdfast.parked set first_at = now() - interval '9 hours' where place = 999")
	for statement, column := range map[string]string{readConsumers: "c (consumer, stored, oldest, letters)", readLanes: "c (lane, owner, owned, saved, parked, scheduled, oldest)"} {
		if n := pgtest.Count(t, db.Pool, "select count(*) from ("+statement+") "+column+" where c.oldest < now() - interval '8 hours'"); n != 1 {
			t.Errorf("%d rows have the oldest, want 1: %s", n, statement)
		}
	}
}
