package inbox

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/internal/test/wait"
)

// Beside a snapshot that is held, what was handled stays in the indexes. An event must read what is left of its own key, and not
// of all keys, also if Postgres has planned for a small table.
func TestStoredSnapshot_StoredEventsBesideAHeldSnapshotReadTheirKeyOnly(t *testing.T) {
	skip.InShort(t, "it takes 5 s beside the others")
	b := setup(t)
	const n, keys = 3000, 300
	pgtest.Exec(t, b.db, "alter table holdfast.stored set (autovacuum_enabled = off)")
	pgtest.Exec(t, b.db, `insert into holdfast.stored (consumer, topic, key, place, source, event_id, type, time, hash, next_at)
		select 'billing', 'orders', 'k1', n, 'shop', 'before ' || n, 'order.placed', now(), '', 'infinity' from generate_series(1, 8) n`)
	pgtest.Exec(t, b.db, "analyze holdfast.stored")
	pgtest.Exec(t, b.db, "delete from holdfast.stored")
	pgtest.Exec(t, b.db, `insert into holdfast.stored (consumer, topic, key, place, source, event_id, type, time, hash, next_at)
		select 'billing', 'orders', 'k' || n % $2::int, n, 'shop', n::text, 'order.placed', now(), '', case when n <= $2::int then now() else 'infinity' end
		  from generate_series(1, $1::int) n`, n, keys)
	held, err := b.db.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = held.Rollback(context.Background()) }()
	if n := pgtest.Count(t, held, "select count(*) from holdfast.stored"); n == 0 {
		t.Fatal("the snapshot sees nothing")
	}
	pool, _ := b.counted("nothing")
	in := b.inboxOn(pool)
	in.Handle("order.placed", effectOf)
	stop := b.run(in.Run)
	b.await("all of them", func(o *observations) bool { return len(o.outcomes) == n })
	stop()
	pool.Close() // Only a session that ends says at once what it has read.
	wait.Until(t, "the sessions have said what they read", func() bool {
		return b.count("select idx_scan from pg_stat_user_indexes where indexrelname = 'stored_pkey'") >= n
	})
	for _, index := range []string{"stored_pkey", "stored_due", "stored_active", "stored_consumer_source_event_id_key"} {
		read := b.count("select idx_tup_read from pg_stat_user_indexes where indexrelname = $1", index)
		t.Logf("%s: %d entries for %d events", index, read, n)
		if read > 100*n {
			t.Errorf("%d entries of %s were read for %d events", read, index, n)
		}
	}
}
