package inbox

import (
	"slices"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/internal/test/pgtest"
)

// A deploy that was rolled back can leave many heads of a type that nobody handles any more.
func TestAClaimIsFastBesideHeadsThatNobodyHandles(t *testing.T) {
	b := setup(t)
	const heads = 200_000
	pgtest.Exec(t, b.db, `insert into holdfast.stored (consumer, topic, key, place, source, event_id, type, time, hash, next_at)
		select 'billing', 'orders', 'k' || n, n, '', n::text, 'order.split', now(), '', now() - interval '1 hour' from generate_series(1, $1::int) n`, heads)
	pgtest.Exec(t, b.db, `insert into holdfast.stored (consumer, topic, key, place, source, event_id, type, time, hash, next_at)
		select 'billing', 'orders', 'ours ' || n, $1::int + n, '', 'ours ' || n, case n % 2 when 0 then 'order.placed' else 'order.shipped' end, now(), '', now() - n * interval '1 second'
		  from generate_series(1, 40) n`, heads)
	pgtest.Exec(t, b.db, "analyze holdfast.stored")
	in := b.inbox()
	in.Handle("order.placed", effectOf)
	in.Handle("order.shipped", effectOf)
	in.registry.start()
	var took []time.Duration
	found := 0
	for range 10 {
		begun := time.Now()
		got, err := in.claims.claim(t.Context(), 8)
		if err != nil {
			t.Fatal(err)
		}
		took = append(took, time.Since(begun))
		found += len(got)
		if found == len(got) && (got[0].e.ID < "ours 33" || got[0].e.ID > "ours 40") {
			t.Errorf("%s was claimed first: the oldest ones are 33 to 40", got[0].e.ID)
		}
	}
	if found != 40 {
		t.Errorf("%d of 40 events were claimed", found)
	}
	// A plan that reads all heads makes each claim slow, a busy machine one of them.
	slices.Sort(took)
	median := took[len(took)/2]
	t.Logf("10 claims took %v beside %d heads", took, heads)
	if median > 100*time.Millisecond {
		t.Errorf("a claim took %v beside %d heads that nobody handles", median, heads)
	}
}
