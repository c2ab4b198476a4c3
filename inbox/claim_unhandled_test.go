package inbox

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
)

// A deploy that was rolled back can leave many heads of a type that nobody handles any more.
func TestClaimUnhandled_AClaimIsFastBesideHeadsThatNobodyHandles(t *testing.T) {
	skip.InShort(t, "it takes 6 s beside the others")
	b := setup(t)
	const heads = 20_000
	pgtest.Exec(t, b.db, `insert into holdfast.stored (consumer, topic, key, place, source, event_id, type, time, hash, next_at)
		select 'billing', 'orders', 'k' || n, n, '', n::text, 'order.split', now(), '', now() - interval '1 hour' from generate_series(1, $1::int) n`, heads)
	pgtest.Exec(t, b.db, `insert into holdfast.stored (consumer, topic, key, place, source, event_id, type, time, hash, next_at)
		select 'billing', 'orders', 'ours ' || n, $1::int + n, '', 'ours ' || n, case n % 2 when 0 then 'order.placed' else 'order.shipped' end, now(), '', now() - n * interval '1 second'
		  from generate_series(1, 40) n`, heads)
	pgtest.Exec(t, b.db, "analyze holdfast.stored")
	pool := b.db.PoolOf(t, 1)
	in := b.inboxOn(pool)
	in.Handle("order.placed", effectOf)
	in.Handle("order.shipped", effectOf)
	in.registry.start()
	const claims = 10
	before, begun := b.storedRead(pool), time.Now()
	found := 0
	for range claims {
		got, err := in.claims.claim(t.Context(), 8)
		if err != nil {
			t.Fatal(err)
		}
		found += len(got)
		if found == len(got) && (got[0].e.ID < "ours 33" || got[0].e.ID > "ours 40") {
			t.Errorf("%s was claimed first: the oldest ones are 33 to 40", got[0].e.ID)
		}
	}
	if found != 40 {
		t.Errorf("%d of 40 events were claimed", found)
	}
	took := time.Since(begun)
	read := b.storedRead(pool) - before
	t.Logf("%d claims read %d rows and index entries beside %d heads, in %v", claims, read, heads, took)
	if read > claims*100 {
		t.Errorf("%d claims read %d rows and index entries beside %d heads that nobody handles", claims, read, heads)
	}
}

// storedRead is how many rows of stored, and entries of its indexes, were read so far. The sessions of pool say what they read.
func (b *bundle) storedRead(pool *pgxpool.Pool) int64 {
	b.Helper()
	pgtest.Exec(b, pool, "select pg_stat_force_next_flush()")
	return b.count(`select (select seq_tup_read from pg_stat_user_tables where relid = 'holdfast.stored'::regclass)
		+ (select sum(idx_tup_read)::bigint from pg_stat_user_indexes where relid = 'holdfast.stored'::regclass)`)
}
