package dlq_test

import (
	"context"
	"crypto/rand"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/dlq"
	"github.com/holdfast-go/holdfast/inbox"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/rows"
	"github.com/holdfast-go/holdfast/internal/test/wait"
	"github.com/holdfast-go/holdfast/retry"
)

// conflict makes a letter of an event whose id came with another payload before.
func (b bundle) conflict(t testing.TB, id, payload string) int64 {
	t.Helper()
	return pgtest.Count(t, b.Pool, `insert into holdfast.letter (origin, consumer, reason, event_id, source, type, topic, key, time, payload, hash)
		values ('inbox', 'billing', 'conflict', $1, 'shop', 'order.placed', 'orders', 'k', now(), $2::text::bytea, sha256($2::text::bytea)) returning id`, id, payload)
}

func TestChange_WhatIsDoneToAConflictLeavesTheFirstPayloadsRowAlone(t *testing.T) {
	t.Parallel()
	b := setup(t)
	rows.Dead(t, b.Pool, "billing", "k", "e")
	before := pgtest.Text(t, b.Pool, "select i::text from holdfast.inbox i")
	edited := b.conflict(t, "e", "other")
	if err := b.d.Edit(t.Context(), edited, []byte("third"), "ann", ""); err != nil {
		t.Fatal(err)
	}
	b.replay(t, dlq.Filter{IDs: []int64{edited}}, 1)
	pgtest.Exec(t, b.Pool, "delete from holdfast.stored")
	for _, payload := range []string{"other", "e"} { // The hash of one is above that of the first payload, the other's is below.
		replayed := b.conflict(t, "e", payload)
		b.replay(t, dlq.Filter{IDs: []int64{replayed}}, 1)
		if err := b.d.Discard(t.Context(), replayed, "ann", ""); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.d.Discard(t.Context(), b.conflict(t, "e", "fourth"), "ann", ""); err != nil {
		t.Fatal(err)
	}
	if after := pgtest.Text(t, b.Pool, "select i::text from holdfast.inbox i"); after != before {
		t.Errorf("the row was %s and is %s", before, after)
	}
	if err := b.d.Edit(t.Context(), 1, []byte("other"), "ann", ""); err == nil || !strings.Contains(err.Error(), "another letter with this payload") {
		t.Errorf("an edit to the payload of another letter: %v", err)
	}
}

// A letter may have no row in the inbox, if a trigger refused that. When its event comes again and is handled, the letter is still open.
func TestChange_ALetterWhoseEventWasHandledMeanwhileIsNotReplayed(t *testing.T) {
	t.Parallel()
	b := setup(t)
	id, other := rows.Dead(t, b.Pool, "billing", "k", "e"), rows.Dead(t, b.Pool, "billing", "k", "f")
	pgtest.Exec(t, b.Pool, "update holdfast.inbox set result = 'handled' where event_id = 'e'")
	conflict := b.conflict(t, "e", "other") // Its payload was not handled.
	n, err := b.d.Replay(t.Context(), dlq.Filter{IDs: []int64{id, other, conflict}}, dlq.ReplayOptions{By: "ann", Reason: "r"})
	if whyNot(err) != "handled" || n != 2 {
		t.Errorf("replayed %d, %v, want the others, and why", n, err)
	}
	const states = "select string_agg(l.event_id || ' ' || l.state || ' ' || i.result, ', ' order by l.id) from holdfast.letter l join holdfast.inbox i using (event_id)"
	if got := pgtest.Text(t, b.Pool, states); got != "e open handled, f replaying stored, e replaying handled" {
		t.Errorf("the letters are %s", got)
	}
	if err := b.d.Edit(t.Context(), id, []byte("third"), "ann", ""); err != nil {
		t.Fatal(err)
	}
	if got := pgtest.Text(t, b.Pool, "select (hash = sha256('{}'))::text from holdfast.inbox where event_id = 'e'"); got != "true" {
		t.Error("an edit has changed by which payload the handled event is recognised")
	}
	if err := b.d.Discard(t.Context(), id, "ann", "it was handled"); err != nil {
		t.Fatal(err)
	}
	if got := pgtest.Text(t, b.Pool, states); got != "e discarded handled, f replaying stored, e replaying handled" {
		t.Errorf("the letters are %s", got)
	}
}

func TestChange_ADiscardReleasesTheEventsThatItsLetterHeld(t *testing.T) {
	t.Parallel()
	b := setup(t)
	first, second := rows.Dead(t, b.Pool, "billing", "k", "1"), rows.Dead(t, b.Pool, "billing", "k", "2")
	pgtest.Exec(t, b.Pool, "update holdfast.letter set holds = true")
	b.follower(t, "f")
	b.follower(t, "g")
	const due = "select coalesce(string_agg(event_id, ' '), '') from holdfast.stored where next_at <= now()"
	if err := b.d.Discard(t.Context(), first, "ann", ""); err != nil {
		t.Fatal(err)
	}
	if got := pgtest.Text(t, b.Pool, due); got != "" {
		t.Errorf("%q is due while another letter holds the key", got)
	}
	if err := b.d.Discard(t.Context(), second, "ann", ""); err != nil {
		t.Fatal(err)
	}
	if got := pgtest.Text(t, b.Pool, due); got != "f" {
		t.Errorf("%q is due, want the head alone", got)
	}
}

func TestChange_AReplayThatWaitsCanBeDiscardedUnlessAHandlerIsAtIt(t *testing.T) {
	t.Parallel()
	b := setup(t)
	id, relay := rows.Dead(t, b.Pool, "billing", "k", "e"), rows.Dead(t, b.Pool, "", "k", "e")
	b.replay(t, dlq.Filter{}, 2)
	if got := pgtest.Text(t, b.Pool, "select result || coalesce(processed_at::text, '') from holdfast.inbox"); got != "stored" {
		t.Errorf("while it waits the inbox says %q", got)
	}
	pgtest.Exec(t, b.Pool, "update holdfast.stored set lease_until = now() + interval '1 minute'")
	for _, letter := range []int64{id, relay} {
		if err := b.d.Discard(t.Context(), letter, "ann", ""); !errors.Is(err, dlq.ErrNotOpen) {
			t.Errorf("letter %d: %v", letter, err)
		}
		if err := b.d.Edit(t.Context(), letter, nil, "ann", ""); !errors.Is(err, dlq.ErrNotOpen) {
			t.Errorf("letter %d: %v", letter, err)
		}
	}
	pgtest.Exec(t, b.Pool, "update holdfast.stored set lease_until = '-infinity'")
	if err := b.d.Discard(t.Context(), id, "ann", ""); err != nil {
		t.Fatal(err)
	}
	if got := pgtest.Text(t, b.Pool, "select (select count(*) from holdfast.stored) || ' ' || (select result from holdfast.inbox) || ' ' || (select state from holdfast.letter where id = 1)"); got != "0 discarded discarded" {
		t.Errorf("after it: %s", got)
	}
}

func TestChange_TheStoryOfALetterIsKept(t *testing.T) {
	t.Parallel()
	b := setup(t)
	id := rows.Dead(t, b.Pool, "billing", "k", "e")
	for _, payload := range []string{"second", "third"} {
		if err := b.d.Edit(t.Context(), id, []byte(payload), "ann", "a typo"); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.d.Edit(t.Context(), id, nil, "bob", ""); err != nil {
		t.Fatal(err)
	}
	b.replay(t, dlq.Filter{}, 1)
	actions, err := b.d.Actions(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	var story []string
	for _, a := range actions {
		story = append(story, strings.Join([]string{a.Action, a.By, a.Reason, string(a.Payload), string(rune('0' + a.Version))}, "|"))
	}
	if got, want := strings.Join(story, "\n"), "edit|ann|a typo|{}|1\nedit|ann|a typo|second|2\nedit|bob||third|3\nreplay|ann|||0"; got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	l, err := b.d.Get(t.Context(), id)
	if err != nil || l.Event.Payload != nil || l.PayloadSize != -1 || l.Version != 4 {
		t.Errorf("the tombstone is %+v, %v", l, err)
	}
}

func TestChange_AFilterThatCannotBeMeantIsRefused(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for _, f := range []dlq.Filter{{State: "opened"}, {Origin: "kafka"}, {Limit: -1}, {Limit: 5000}} {
		if _, err := b.d.List(t.Context(), f); err == nil {
			t.Errorf("%+v was taken", f)
		}
	}
	id := rows.Dead(t, b.Pool, "billing", "k", "e")
	if letters, err := b.d.List(t.Context(), dlq.Filter{IDs: []int64{}}); err != nil || len(letters) != 0 {
		t.Errorf("an empty list of ids chose %d letters, %v", len(letters), err)
	}
	letters, err := b.d.List(t.Context(), dlq.Filter{NoPayloads: true})
	if err != nil || len(letters) != 1 || letters[0].ID != id || letters[0].Event.Payload != nil || letters[0].PayloadSize != 2 {
		t.Errorf("without payloads: %+v, %v", letters, err)
	}
}

// The dlq and the inbox must use one lock for a key's queue: the inbox is stopped while it has its own, and the dlq is
// seen to wait for it.
func TestChange_AReplayWaitsForTheInboxThatIsStoringAnEventOfItsKey(t *testing.T) {
	t.Parallel()
	b := setup(t)
	rows.Dead(t, b.Pool, "billing", "k", "dead")
	pgtest.Exec(t, b.Pool, `create function halt() returns trigger language plpgsql as $$ begin
		if new.event_id = 'new' then perform pg_advisory_xact_lock(42); end if; return new; end $$`)
	pgtest.Exec(t, b.Pool, "create trigger halt before insert on holdfast.stored for each row execute function halt()")
	tx, err := b.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.Background())
	pgtest.Exec(t, tx, "select pg_advisory_xact_lock(42)")
	in, err := inbox.New(b.Pool, inbox.Config{Consumer: "billing", ImmediateRetries: -1})
	if err != nil {
		t.Fatal(err)
	}
	in.Handle("order.placed", func(context.Context, pgx.Tx, holdfast.Event) error { return errors.New("not today") })
	done := make(chan error, 2)
	waiters := func(want int64) {
		t.Helper()
		for pgtest.Count(t, b.Pool, "select count(*) from pg_locks where locktype = 'advisory' and not granted and database = (select oid from pg_database where datname = current_database())") != want {
			select {
			case err := <-done:
				t.Fatalf("somebody did not wait: %v", err)
			default:
			}
		}
	}
	go func() {
		_, err := in.Receive(context.Background(), holdfast.Event{ID: "new", Source: "shop", Type: "order.placed", Topic: "orders", Key: "k"})
		done <- err
	}()
	waiters(1)
	go func() {
		_, err := b.d.Replay(context.Background(), dlq.Filter{}, dlq.ReplayOptions{By: "ann"})
		done <- err
	}()
	waiters(2)
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
	if got := pgtest.Text(t, b.Pool, queueOfK); got != "dead new" {
		t.Errorf("the queue is %q", got)
	}
}

func TestChange_AFixedEventIsReplayedAndHandledBeforeThoseItHeld(t *testing.T) {
	t.Parallel()
	b := setup(t)
	pgtest.Exec(t, b.Pool, "create table effect (n bigint generated always as identity, what text)")
	in, err := inbox.New(b.Pool, inbox.Config{Consumer: "billing", HoldKey: true, ImmediateRetries: -1, Retry: retry.Policy{Attempts: 1}})
	if err != nil {
		t.Fatal(err)
	}
	in.Handle("order.placed", func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
		if string(e.Payload) == "poison" {
			return retry.Permanent(errors.New("it cannot be read"))
		}
		_, err := tx.Exec(ctx, "insert into effect (what) values ($1)", string(e.Payload))
		return err
	})
	receive := func(id, payload string, want inbox.Outcome) {
		t.Helper()
		got, err := in.Receive(t.Context(), holdfast.Event{ID: id, Source: "shop", Type: "order.placed", Topic: "orders", Key: "k", Payload: []byte(payload)})
		if got != want {
			t.Fatalf("event %s is %s, want %s: %v", id, got, want, err)
		}
	}
	receive("1", "poison", inbox.Dead)
	receive("2", "behind", inbox.Stored)
	letters, err := b.d.List(t.Context(), dlq.Filter{})
	if err != nil || len(letters) != 1 || !letters[0].Holds {
		t.Fatalf("letters %+v, %v", letters, err)
	}
	if err := b.d.Edit(t.Context(), letters[0].ID, []byte("fixed"), "ann", "a typo"); err != nil {
		t.Fatal(err)
	}
	b.replay(t, dlq.Filter{}, 1)
	receive("1", "fixed", inbox.Duplicate) // It waits: a redelivery is not handled beside it.
	stop := running(t, in.Run)
	wait.Until(t, "both are handled", func() bool { return pgtest.Count(t, b.Pool, "select count(*) from effect") >= 2 })
	stop()
	if got := pgtest.Text(t, b.Pool, "select string_agg(what, ' ' order by n) from effect"); got != "fixed behind" {
		t.Errorf("the effects are %q", got)
	}
	if got := pgtest.Text(t, b.Pool, "select l.state || ' ' || i.result || ' ' || (i.hash = sha256('fixed')) from holdfast.letter l join holdfast.inbox i using (event_id)"); got != "replayed handled true" {
		t.Errorf("in the end: %s", got)
	}
}

// The grants are those that docs/operations.md lists for whoever works on letters.
func TestChange_ItWorksWithTheRightsThatAreDocumentedAndNoMore(t *testing.T) {
	t.Parallel()
	b := setup(t)
	role := "letters_" + strings.ToLower(rand.Text())
	pgtest.Exec(t, b.Pool, "create role "+role)
	t.Cleanup(func() {
		pgtest.Exec(t, b.Pool, "drop owned by "+role)
		pgtest.Exec(t, b.Pool, "drop role "+role)
	})
	for _, grant := range []string{
		"usage on schema holdfast", "select, update on holdfast.letter", "select, insert on holdfast.letter_action", "select, insert, update on holdfast.letter_replay",
		"select, insert, update, delete on holdfast.stored", "select, insert, update on holdfast.inbox", "usage on all sequences in schema holdfast",
		"execute on function holdfast.new_id", "execute on function holdfast.replay_letter", "execute on function holdfast.purge_letters",
	} {
		pgtest.Exec(t, b.Pool, "grant "+grant+" to "+role)
	}
	pool := b.PoolWith(t, func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["role"] = role })
	d, err := dlq.New(pool, dlq.Config{})
	if err != nil {
		t.Fatal(err)
	}
	for _, consumer := range []string{"billing", ""} {
		id, other := rows.Dead(t, b.Pool, consumer, "k", "e"), rows.Dead(t, b.Pool, consumer, "k", "f")
		if err := d.Edit(t.Context(), id, []byte("fixed"), "ann", ""); err != nil {
			t.Error(err)
		}
		if err := d.Discard(t.Context(), other, "ann", ""); err != nil {
			t.Error(err)
		}
		if n, err := d.Replay(t.Context(), dlq.Filter{}, dlq.ReplayOptions{By: "ann", Name: "n", Anew: true}); n != 1 || err != nil {
			t.Errorf("replayed %d: %v", n, err)
		}
		if _, err := d.Groups(t.Context(), dlq.Filter{}); err != nil {
			t.Error(err)
		}
		if n, err := d.DiscardAll(t.Context(), dlq.Filter{}, dlq.DiscardOptions{By: "ann"}); n != 0 || err != nil {
			t.Errorf("discarded %d: %v", n, err)
		}
		pgtest.Exec(t, b.Pool, "update holdfast.letter set last_at = now() - interval '1 day' where state = 'discarded'")
		if n, err := d.Purge(t.Context(), dlq.PurgeOptions{OlderThan: time.Hour}); n == 0 || err != nil {
			t.Errorf("purged %d: %v", n, err)
		}
		if _, err := d.Actions(t.Context(), id); err != nil {
			t.Error(err)
		}
		if consumer != "" {
			if err := d.Discard(t.Context(), id, "ann", ""); err != nil {
				t.Error(err)
			}
		}
	}
	pgtest.Exec(t, b.Pool, "revoke execute on function holdfast.replay_letter from "+role)
	rows.Dead(t, b.Pool, "", "k", "g")
	if _, err := d.Replay(t.Context(), dlq.Filter{}, dlq.ReplayOptions{By: "ann"}); err == nil || !strings.Contains(err.Error(), "docs/operations.md") {
		t.Errorf("a missing right: %v", err)
	}
}
