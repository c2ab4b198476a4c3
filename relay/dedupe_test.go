package relay_test

import (
	"testing"

	"github.com/holdfast-go/holdfast/internal/test/migrated"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/wait"
	"github.com/holdfast-go/holdfast/relay"
)

const addKeys = `insert into holdfast.written_once (dedupe_key, topic, type, event_id, source, key, expires_at)
	select $1 || n, 'orders', 't', n::text, '', '', now() + make_interval(hours => $2::int) from generate_series(1, $3::int) n`

func TestDedupe_ARelayRemovesExpiredDedupeKeys(t *testing.T) {
	t.Parallel()
	pool := setup(t, 1)
	pgtest.Exec(t, pool, addKeys, "old", -1, 1500) // more than one call removes
	pgtest.Exec(t, pool, addKeys, "new", 1, 3)
	run(t, pool, newBroker(), relay.Config{})
	wait.Until(t, "the expired keys are gone", func() bool {
		return pgtest.Count(t, pool, "select count(*) from holdfast.written_once where expires_at < now()") == 0
	})
	if n := pgtest.Count(t, pool, "select count(*) from holdfast.written_once"); n != 3 {
		t.Errorf("%d keys are left, want 3", n)
	}
}

// It is a function, so what it reads is counted.
func TestDedupe_ExpiredDedupeKeysAreRemovedByTheIndex(t *testing.T) {
	t.Parallel()
	db := migrated.New(t)
	pgtest.Exec(t, db.Pool, addKeys, "new", 1, 20_000)
	pgtest.Exec(t, db.Pool, addKeys, "old", -1, 20)
	pgtest.Exec(t, db.Pool, "analyze holdfast.written_once")
	tx, err := db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(t.Context()) }()
	if n := pgtest.Count(t, tx, "select holdfast.expire_written_once(10)"); n != 10 {
		t.Errorf("removed %d, want 10", n)
	}
	if n := pgtest.Count(t, tx, "select holdfast.expire_written_once(1000)"); n != 10 {
		t.Errorf("removed %d, want the 10 that are left", n)
	}
	read := pgtest.Count(t, tx, "select seq_tup_read + idx_tup_fetch from pg_stat_xact_all_tables where relname = 'written_once' and schemaname = 'holdfast'")
	if read > 200 {
		t.Errorf("%d rows were read to remove 20", read)
	}
}
