package inbox

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
)

func TestClaimMark_WhenAClaimLooksAtEverything(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	at := now.Add(-time.Hour)
	for _, row := range []struct {
		name string
		mark claimMark
		want bool
	}{
		{"nothing was claimed yet", claimMark{}, true},
		{"nothing was claimed yet and it is slow", claimMark{took: time.Second, ended: now}, true},
		{"it is quick", claimMark{at: at, took: quickLook, ended: now}, true},
		{"it is slow, and was just done", claimMark{at: at, took: quickLook + 1, ended: now}, false},
		{"it is slow, and the rest is not over", claimMark{at: at, took: 10 * time.Millisecond, ended: now.Add(time.Millisecond - 2*time.Second)}, false},
		{"it is slow, and the rest is over", claimMark{at: at, took: 10 * time.Millisecond, ended: now.Add(-2 * time.Second)}, true},
		{"it is very slow, and not ten seconds have passed", claimMark{at: at, took: time.Hour, ended: now.Add(1 - 10*time.Second)}, false},
		{"it is very slow, and ten seconds have passed", claimMark{at: at, took: time.Hour, ended: now.Add(-10 * time.Second)}, true},
	} {
		if got := row.mark.whole(now); got != row.want {
			t.Errorf("%s: %v, want %v", row.name, got, row.want)
		}
	}
	if m := (claimMark{}).looked(now, now.Add(time.Second)); m.took != time.Second || !m.ended.Equal(now.Add(time.Second)) {
		t.Errorf("after a look of a second the mark is %+v", m)
	}
}

// What commits a few seconds after it got its next_at is not passed.
func TestClaimMark_TheMarkStaysASecondBack(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	if m := (claimMark{}).claimed(at, 7, lateCommit); !m.at.Equal(at) || m.place != 7 {
		t.Errorf("after an event that has long been due the mark is %v, place %d", m.at, m.place)
	}
	if m := (claimMark{}).claimed(at, 7, time.Millisecond); !m.at.Equal(at.Add(time.Millisecond-lateCommit)) || m.place != 0 {
		t.Errorf("after an event that came due a millisecond ago the mark is %v, place %d", m.at, m.place)
	}
}

// Beside a snapshot that is held, what was handled stays in the index. A claim that goes on from the last one reads none of it, also if
// all came due at the same moment.
func TestClaimMark_AClaimFromTheMarkReadsNothingThatWasHandled(t *testing.T) {
	skip.InShort(t, "it takes 2 s beside the others")
	b := setup(t)
	in := b.inbox()
	const handled = 5000
	pgtest.Exec(t, b.db, "alter table holdfast.stored set (autovacuum_enabled = off)")
	pgtest.Exec(t, b.db, `insert into holdfast.stored (consumer, topic, key, place, source, event_id, type, time, hash, next_at)
		select 'billing', 'orders', 'k' || n, n, '', n::text, 'order.placed', now(), '', now() - interval '1 hour' from generate_series(1, $1 + 100) n order by md5(n::text)`, handled)
	pgtest.Exec(t, b.db, "analyze holdfast.stored")
	held, err := b.db.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = held.Rollback(context.Background()) }()
	if n := pgtest.Count(t, held, "select count(*) from holdfast.stored"); n == 0 {
		t.Fatal("the snapshot sees nothing")
	}
	pgtest.Exec(t, b.db, "delete from holdfast.stored where place <= $1", handled)
	var at time.Time
	if err := b.db.QueryRow(t.Context(), "select min(next_at) from holdfast.stored").Scan(&at); err != nil {
		t.Fatal(err)
	}
	claim := func(from any, place int64) int {
		return b.touched("claim", in.sql.claim, "billing", []string{"order.placed"}, int32(8), uuid.NewString(), int64(1e6), []string{}, int64(1<<20), true, from, place, true)
	}
	if pages := claim(at, handled); pages > 1000 {
		t.Errorf("a claim from the mark touches %d pages", pages)
	} else if whole := claim(nil, 0); whole < handled {
		t.Errorf("a claim that looks at everything touches %d pages: the test tests nothing", whole)
	} else {
		t.Logf("a claim touches %d pages from the mark, and %d if it looks at everything", pages, whole)
	}
}

// Claims go on from the last one. What was overlooked comes with the next look at everything.
func TestClaimMark_ClaimsGoOnFromTheMarkAndMissNothingForLong(t *testing.T) {
	b := setup(t)
	in := b.inbox()
	in.Handle("order.placed", effectOf)
	in.registry.start()
	put := func(id string, ago string) {
		t.Helper()
		b.store(in, event(id, id))
		pgtest.Exec(t, b.db, "update holdfast.stored set next_at = now() - $2::interval where event_id = $1", id, ago)
	}
	claims := func(n int, want ...string) {
		t.Helper()
		got, err := in.claims.claim(t.Context(), n)
		if err != nil {
			t.Fatal(err)
		}
		var ids []string
		for _, s := range got {
			ids = append(ids, s.e.ID)
		}
		if len(ids) != len(want) || len(ids) > 0 && ids[0] != want[0] {
			t.Fatalf("claimed %q, want %q", ids, want)
		}
	}
	slow := func(ended time.Time) { in.claims.mark.took, in.claims.mark.ended = time.Hour, ended }

	put("first", "50 minutes")
	put("second", "40 minutes")
	claims(1, "first")
	slow(time.Now())
	put("overlooked", "1 hour")
	claims(8, "second")
	claims(8)
	put("late", "1 second") // Its transaction took longer than that of one that was claimed.
	put("new", "0 seconds")
	claims(8, "late", "new")
	slow(time.Now())
	put("late again", "700 milliseconds")
	claims(8, "late again")
	slow(time.Now().Add(-wholeAtLeast))
	claims(8, "overlooked")

	slow(time.Now())
	put("of an unanswered claim", "2 hours")
	claims(8)
	in.claims.unanswered.add(uuid.NewString(), time.Now().Add(time.Minute), context.DeadlineExceeded)
	claims(8, "of an unanswered claim")
}

// An event that was active while it followed another comes due again when it is the head: claims may have passed it.
func TestClaimMark_AHeadThatWasActiveBeforeComesDueAgain(t *testing.T) {
	b := setup(t)
	in := b.inbox()
	in.Handle("order.placed", effectOf)
	in.registry.start()
	b.storeMany(in, 2, "k") // as StoreTx: both are active
	pgtest.Exec(t, b.db, "update holdfast.stored set next_at = now() - interval '1 hour'")
	got, err := in.claims.claim(t.Context(), 8)
	if err != nil || len(got) != 1 {
		t.Fatalf("claimed %d: %v", len(got), err)
	}
	err = in.backlog.runner.transact(t.Context(), func(ctx context.Context, tx pgx.Tx) error {
		_, err := in.backlog.giveUp(ctx, tx, got[0], letter{reason: "given up", errors: []string{"e"}})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if n := b.count("select count(*) from holdfast.stored where event_id = 'k 1' and next_at > now() - interval '30 minutes' and next_at < 'infinity'"); n != 1 {
		t.Error("the second is the head, and claims that have passed it would not meet it")
	}
}
