package dlq_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/dlq"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/rows"
	"github.com/holdfast-go/holdfast/internal/test/skip"
)

// letters makes n letters of billing, on ten keys, in one statement.
func (b bundle) letters(t testing.TB, n int) {
	t.Helper()
	pgtest.Exec(t, b.Pool, `insert into holdfast.inbox (consumer, source, event_id, topic, hash, processed_at, result)
		select 'billing', 'shop', 'e' || n, 'orders', sha256('{}'), now(), 'dead' from generate_series(1, $1::int) n`, n)
	pgtest.Exec(t, b.Pool, `insert into holdfast.letter (origin, consumer, reason, event_id, source, type, topic, key, time, payload, hash)
		select 'inbox', 'billing', 'r', 'e' || n, 'shop', 'order.placed', 'orders', 'k' || n % 10, now(), '{}', sha256('{}') from generate_series(1, $1::int) n`, n)
}

// failAgain makes what is on its way fail again, as the inbox does.
func (b bundle) failAgain(t testing.TB) {
	t.Helper()
	pgtest.Exec(t, b.Pool, "delete from holdfast.stored")
	pgtest.Exec(t, b.Pool, "update holdfast.inbox set result = 'dead', processed_at = now() where result = 'stored'")
	pgtest.Exec(t, b.Pool, "update holdfast.letter set state = 'open', last_at = now() where state = 'replaying'")
}

const movedTwice = "select count(*) from (select from holdfast.letter_action where action = 'replay' group by letter having count(*) > 1) t"

func TestBulk_AnInterruptedReplayGoesOnWithoutMovingALetterTwice(t *testing.T) {
	skip.InShort(t, "it takes 10 s beside the others")
	t.Parallel()
	b := setup(t)
	b.letters(t, 250)
	pgtest.Exec(t, b.Pool, "update holdfast.letter set last_at = now() - interval '45 minutes' where id > 240")
	f := dlq.Filter{Consumer: "billing", Since: time.Now().Add(-time.Hour)}
	// 1. Interrupted by its caller.
	ctx, stop := context.WithCancel(t.Context())
	n, err := b.d.Replay(ctx, f, dlq.ReplayOptions{By: "ann", Name: "after the fix", ProgressFunc: func(p dlq.Progress) {
		if p.Moved == 60 {
			stop()
		}
	}})
	if n != 60 || !errors.Is(err, context.Canceled) {
		t.Fatalf("replayed %d: %v", n, err)
	}
	b.failAgain(t) // all of them are open again
	late := rows.Dead(t, b.Pool, "billing", "k", "written later")
	// 2. Broken off by the database.
	pgtest.Exec(t, b.Pool, `create function halt() returns trigger language plpgsql as $$ begin
		if (select count(*) from holdfast.letter_action) >= 130 then perform pg_terminate_backend(pg_backend_pid()); end if; return new; end $$`)
	pgtest.Exec(t, b.Pool, "create trigger halt before insert on holdfast.letter_action for each row execute function halt()")
	f.Since = time.Now().Add(-30 * time.Minute) // as a span that is reckoned from now: the first one's counts
	o := dlq.ReplayOptions{By: "bob", Name: "after the fix"}
	if n, err := b.d.Replay(t.Context(), f, o); n != 70 || err == nil {
		t.Fatalf("replayed %d: %v", n, err)
	}
	pgtest.Exec(t, b.Pool, "drop trigger halt on holdfast.letter_action")
	b.failAgain(t)
	// 3. What is left is known beforehand, and a replay of another filter is not taken for this one.
	dry := o
	dry.DryRun = true
	if n, err := b.d.Replay(t.Context(), f, dry); n != 120 || err != nil {
		t.Errorf("%d are left, want 120: %v", n, err)
	}
	if _, err := b.d.Replay(t.Context(), dlq.Filter{Consumer: "mail"}, o); err == nil || !strings.Contains(err.Error(), "had another filter") {
		t.Errorf("another filter under the name: %v", err)
	}
	// 4. To its end.
	var begin *dlq.Progress
	o.ProgressFunc = func(p dlq.Progress) {
		if begin == nil {
			begin = &p
		}
	}
	if n, err := b.d.Replay(t.Context(), f, o); n != 120 || err != nil {
		t.Fatalf("replayed %d: %v", n, err)
	}
	if *begin != (dlq.Progress{Total: 120, Before: 130}) {
		t.Errorf("at its beginning it said %+v", *begin)
	}
	if n := pgtest.Count(t, b.Pool, movedTwice); n != 0 {
		t.Errorf("%d letters were replayed twice", n)
	}
	if n := pgtest.Count(t, b.Pool, "select count(*) from holdfast.letter_action where action = 'replay'"); n != 250 {
		t.Errorf("%d letters were replayed, want 250", n)
	}
	if l, err := b.d.Get(t.Context(), late); err != nil || l.State != dlq.StateOpen {
		t.Errorf("the letter that was written after its beginning is %s, %v", l.State, err)
	}
	// 5. The name is free again: the next replay takes what is open now.
	b.failAgain(t)
	if n, err := b.d.Replay(t.Context(), f, dlq.ReplayOptions{By: "ann", Name: "after the fix"}); n != 251 || err != nil {
		t.Errorf("the next replay moved %d, want 251: %v", n, err)
	}
}

func TestBulk_ANamedReplayKeepsItsLimitOverInterruptions(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.letters(t, 30)
	f := dlq.Filter{Limit: 20}
	interrupted := func(o dlq.ReplayOptions, after int) {
		t.Helper()
		ctx, stop := context.WithCancel(t.Context())
		o.By, o.Name = "ann", "n"
		o.ProgressFunc = func(p dlq.Progress) {
			if p.Moved == after {
				stop()
			}
		}
		if n, err := b.d.Replay(ctx, f, o); n != after || err == nil {
			t.Fatalf("replayed %d: %v", n, err)
		}
	}
	interrupted(dlq.ReplayOptions{}, 5)
	b.failAgain(t)
	if n, err := b.d.Replay(t.Context(), f, dlq.ReplayOptions{By: "ann", Name: "n"}); n != 15 || err != nil {
		t.Errorf("the rest is %d, want 15 of the 20: %v", n, err)
	}
	b.failAgain(t)
	interrupted(dlq.ReplayOptions{}, 5)
	b.failAgain(t)
	if n, err := b.d.Replay(t.Context(), f, dlq.ReplayOptions{By: "ann", Name: "n", Anew: true}); n != 20 || err != nil {
		t.Errorf("anew it moved %d, want 20: %v", n, err)
	}
	for _, o := range []dlq.ReplayOptions{{By: "ann", Name: strings.Repeat("n", 256)}, {By: "ann", Name: "\x00"}, {By: "ann", Anew: true}} {
		if _, err := b.d.Replay(t.Context(), f, o); err == nil {
			t.Errorf("%+v was taken", o)
		}
	}
}

// Two who give the same command at once share one replay, also where letters fail again in between.
func TestBulk_TwoWhoReplayUnderOneNameMoveEveryLetterOnce(t *testing.T) {
	skip.InShort(t, "it takes 6 s beside the others")
	t.Parallel()
	b := setup(t)
	b.letters(t, 200)
	done := make(chan error, 3)
	for range cap(done) {
		go func() {
			_, err := b.d.Replay(context.Background(), dlq.Filter{}, dlq.ReplayOptions{By: "ann", Name: "n", ProgressFunc: func(p dlq.Progress) {
				if p.Moved%10 == 1 {
					b.Pool.Exec(context.Background(), `with gone as (delete from holdfast.stored where letter is not null returning letter)
						update holdfast.letter l set state = 'open' from gone where l.id = gone.letter`)
				}
			}})
			done <- err
		}()
	}
	for range cap(done) {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	replays := pgtest.Count(t, b.Pool, "select count(*) from holdfast.letter_replay")
	if n := pgtest.Count(t, b.Pool, "select count(*) from (select from holdfast.letter_action group by letter, replay having count(*) > 1) t"); n != 0 {
		t.Errorf("%d letters were moved twice by one replay", n)
	}
	if n := pgtest.Count(t, b.Pool, "select count(*) from holdfast.letter_action where replay = 1"); n != 200 {
		t.Errorf("the first of %d replays moved %d letters, want 200", replays, n)
	}
}

func TestBulk_ADryRunSaysHowManyAndWhich(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.letters(t, 130)
	f := dlq.Filter{Key: "k7"}
	var replay, discard []int64
	n, err := b.d.Replay(t.Context(), f, dlq.ReplayOptions{DryRun: true, ProgressFunc: func(p dlq.Progress) { replay = append(replay, p.Letter) }})
	if n != 13 || err != nil {
		t.Errorf("%d would be replayed: %v", n, err)
	}
	m, err := b.d.DiscardAll(t.Context(), f, dlq.DiscardOptions{DryRun: true, ProgressFunc: func(p dlq.Progress) { discard = append(discard, p.Letter) }})
	if m != 13 || err != nil {
		t.Errorf("%d would be discarded: %v", m, err)
	}
	want := []int64{0, 7, 17, 27, 37, 47, 57, 67, 77, 87, 97, 107, 117, 127}
	if !slices.Equal(replay, want) || !slices.Equal(discard, want) {
		t.Errorf("it names %v and %v, want %v", replay, discard, want)
	}
	if n := pgtest.Count(t, b.Pool, "select count(*) from holdfast.letter where state = 'open'"); n != 130 {
		t.Error("a dry run changed something")
	}
	if n := pgtest.Count(t, b.Pool, "select (select count(*) from holdfast.letter_action) + (select count(*) from holdfast.letter_replay) + (select count(*) from holdfast.stored)"); n != 0 {
		t.Error("a dry run left something behind")
	}
}

func TestBulk_LettersAreDiscardedByFilterEachWithWhoAndWhy(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.letters(t, 40)
	pgtest.Exec(t, b.Pool, "update holdfast.letter set holds = true where key = 'k3'")
	b.replay(t, dlq.Filter{IDs: []int64{3, 4}}, 2) // these are on their way: not open
	var reported []dlq.Progress
	n, err := b.d.DiscardAll(t.Context(), dlq.Filter{Key: "k3"}, dlq.DiscardOptions{By: "ann", Reason: "test orders", ProgressFunc: func(p dlq.Progress) { reported = append(reported, p) }})
	if n != 3 || err != nil {
		t.Fatalf("discarded %d, want 3: %v", n, err)
	}
	if len(reported) != 4 || reported[3] != (dlq.Progress{Letter: 33, Looked: 3, Moved: 3, Total: 3}) {
		t.Errorf("it reported %+v", reported)
	}
	if got := pgtest.Text(t, b.Pool, "select string_agg(letter || ' ' || by || ': ' || reason, ', ' order by letter) from holdfast.letter_action where action = 'discard'"); got != "13 ann: test orders, 23 ann: test orders, 33 ann: test orders" {
		t.Errorf("the actions are %s", got)
	}
	if got := pgtest.Text(t, b.Pool, "select string_agg(event_id, ' ' order by event_id) from holdfast.inbox where result = 'discarded'"); got != "e13 e23 e33" {
		t.Errorf("the inbox says that %s are discarded", got)
	}
	if n := pgtest.Count(t, b.Pool, "select count(*) from holdfast.letter where state = 'open'"); n != 35 {
		t.Errorf("%d letters are open, want 35", n)
	}
	ctx, stop := context.WithCancel(t.Context())
	stop()
	if _, err := b.d.DiscardAll(ctx, dlq.Filter{}, dlq.DiscardOptions{By: "ann"}); !errors.Is(err, context.Canceled) {
		t.Errorf("after its context's end: %v", err)
	}
	if n, err := b.d.DiscardAll(t.Context(), dlq.Filter{Limit: 2}, dlq.DiscardOptions{By: "ann"}); n != 2 || err != nil {
		t.Errorf("discarded %d, want 2: %v", n, err)
	}
	for _, bad := range []struct {
		f dlq.Filter
		o dlq.DiscardOptions
	}{{dlq.Filter{}, dlq.DiscardOptions{}}, {dlq.Filter{State: dlq.StateReplayed}, dlq.DiscardOptions{By: "ann"}}} {
		if _, err := b.d.DiscardAll(t.Context(), bad.f, bad.o); err == nil {
			t.Errorf("%+v was taken", bad)
		}
	}
}

func TestBulk_NothingThatIsOpenIsEverPurged(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.letters(t, 30)
	pgtest.Exec(t, b.Pool, `update holdfast.letter set last_at = now() - interval '40 days', first_at = now() - interval '50 days',
		state = case id % 3 when 0 then 'open' when 1 then 'replayed' else 'discarded' end where id <= 24`)
	pgtest.Exec(t, b.Pool, "update holdfast.letter set state = 'replaying' where id = 3")
	pgtest.Exec(t, b.Pool, "update holdfast.letter set state = 'replayed' where id = 30") // not long ago
	pgtest.Exec(t, b.Pool, "insert into holdfast.letter_action (letter, action, by, reason, payload) select id, 'edit', 'ann', '', 'secret' from holdfast.letter")
	pgtest.Exec(t, b.Pool, `insert into holdfast.letter_replay (name, filter, upto, by, reason, began_at, ended_at)
		values ('old', '{}', 1, 'ann', '', now() - interval '41 days', now() - interval '40 days'), ('unended', '{}', 1, 'ann', '', now() - interval '41 days', null), ('new', '{}', 1, 'ann', '', now(), now())`)
	// Given up long ago, but discarded only now.
	if err := b.d.Discard(t.Context(), 6, "ann", ""); err != nil {
		t.Fatal(err)
	}
	o := dlq.PurgeOptions{OlderThan: 30 * 24 * time.Hour, DryRun: true, Batch: 5}
	if n, err := b.d.Purge(t.Context(), o); n != 16 || err != nil {
		t.Errorf("%d would be removed, want 16: %v", n, err)
	}
	if n := pgtest.Count(t, b.Pool, "select count(*) from holdfast.letter"); n != 30 {
		t.Errorf("a dry run left %d letters of 30", n)
	}
	// One of them is in somebody's hands: it is left for later, without waiting.
	tx, err := b.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	pgtest.Exec(t, tx, "select from holdfast.letter where id = 1 for update")
	o.DryRun = false
	var batches []int
	o.ProgressFunc = func(n int) { batches = append(batches, n) }
	if n, err := b.d.Purge(t.Context(), o); n != 15 || err != nil || fmt.Sprint(batches) != "[5 10 15]" {
		t.Errorf("%d were removed in batches of %v, want 15 in three: %v", n, batches, err)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n, err := b.d.Purge(t.Context(), o); n != 1 || err != nil {
		t.Errorf("%d were removed, want the one that was left: %v", n, err)
	}
	if got := pgtest.Text(t, b.Pool, "select string_agg(id::text, ' ' order by id) from holdfast.letter"); got != "3 6 9 12 15 18 21 24 25 26 27 28 29 30" {
		t.Errorf("left are %s", got)
	}
	// What was done stays, signed, without the payloads of letters that are gone.
	if got := pgtest.Text(t, b.Pool, `select format('%s %s %s', count(*), count(*) filter (where login = session_user), count(distinct payload)) from holdfast.letter_action a
		where action = 'edit' and not exists (select from holdfast.letter l where l.id = a.letter)`); got != "16 16 0" {
		t.Errorf("actions, signatures and payloads of removed letters: %s", got)
	}
	if n := pgtest.Count(t, b.Pool, "select count(*) from holdfast.letter_action where action = 'edit' and payload = 'secret'"); n != 14 {
		t.Errorf("%d payloads of letters that are left were kept, want 14", n)
	}
	if got := pgtest.Text(t, b.Pool, "select string_agg(name, ' ' order by name) from holdfast.letter_replay"); got != "new unended" {
		t.Errorf("the replays that are left are %s", got)
	}
	for _, o := range []dlq.PurgeOptions{{}, {OlderThan: time.Second}, {OlderThan: time.Hour, Batch: -1}, {OlderThan: time.Hour, Batch: 10_001}} {
		if _, err := b.d.Purge(t.Context(), o); err == nil {
			t.Errorf("%+v was taken", o)
		}
	}
}
