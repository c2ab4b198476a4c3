package waiting_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/dlq"
	"github.com/holdfast-go/holdfast/inbox"
	"github.com/holdfast-go/holdfast/internal/lane"
	"github.com/holdfast-go/holdfast/internal/steps"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/rows"
	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/internal/test/wait"
	"github.com/holdfast-go/holdfast/waiting"
)

func ids(events []waiting.Event) string {
	var all []string
	for _, s := range events {
		all = append(all, s.Event.ID)
	}
	return strings.Join(all, " ")
}

func TestConsumer_StoredEventsAreListedByAFilter(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.stored(t, "k1", "head", "order.split", "now")
	b.stored(t, "k1", "follower", "order.placed", "infinity")
	b.stored(t, "k2", "other", "order.placed", "2100-01-01")
	b.stored(t, "", "alone", "order.split", "now")
	pgtest.Exec(t, b.Pool, "update holdfast.stored set consumer = 'mail' where event_id = 'mails'")
	pgtest.Exec(t, b.Pool, "insert into holdfast.consumer_type (consumer, type, node, seen_until) values ('billing', 'order.placed', 'n', now() + interval '1 minute')")
	for name, row := range map[string]struct {
		filter waiting.Filter
		want   string
	}{
		"all":                  {waiting.Filter{}, "alone head follower other"},
		"of no node's types":   {waiting.Filter{Why: waiting.NoHandler}, "alone head"},
		"what failed":          {waiting.Filter{Why: waiting.Failed}, "other"},
		"what is behind":       {waiting.Filter{Why: waiting.BehindEvent}, "follower"},
		"heads":                {waiting.Filter{Heads: true}, "alone head other"},
		"by key and topic":     {waiting.Filter{Key: "k1", Topic: "orders"}, "head follower"},
		"by type":              {waiting.Filter{Type: "order.placed"}, "follower other"},
		"by event and source":  {waiting.Filter{EventID: "other", Source: "shop"}, "other"},
		"a page":               {waiting.Filter{Limit: 2}, "alone head"},
		"the page after that":  {waiting.Filter{Limit: 2, After: &waiting.Event{Consumer: "billing", Event: holdfast.Event{Topic: "orders", Key: "k1"}, Place: 1}}, "follower other"},
		"of another's filters": {waiting.Filter{Topic: "bills"}, ""},
	} {
		row.filter.Consumer = "billing"
		got, err := b.w.List(t.Context(), row.filter)
		if err != nil || ids(got) != row.want {
			t.Errorf("%s: %q, %v; want %q", name, ids(got), err, row.want)
		}
	}
	got, err := b.w.List(t.Context(), waiting.Filter{Consumer: "billing", Key: "k1"})
	if err != nil {
		t.Fatal(err)
	}
	if s := got[0]; !s.Head || s.Why != waiting.NoHandler || s.Running || s.Attempts != 2 || s.Error != "two" || s.NextAt.IsZero() || s.Origin != dlq.OriginInbox || s.Since.IsZero() {
		t.Errorf("the head is %+v", s)
	}
	if s := got[1]; s.Head || s.Why != waiting.BehindEvent || !s.NextAt.IsZero() {
		t.Errorf("the follower is %+v", s)
	}
	for _, f := range []waiting.Filter{{Consumer: "billing", Limit: -1}, {Consumer: "billing", Limit: 1001}, {Consumer: "billing", Origin: dlq.OriginRelay}, {Origin: "log"}, {Why: "tired"}, {Consumer: "billing", Why: waiting.Topic}, {Origin: dlq.OriginRelay, Why: waiting.NoHandler}} {
		if _, err := b.w.List(t.Context(), f); err == nil {
			t.Errorf("%+v is no error", f)
		}
	}
}

// A deploy brought a type and was rolled back: its events block their keys, and no node will handle them.
func TestConsumer_SkippingAStoredEventLetsItsKeyGoOn(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		act           func(*waiting.Room, context.Context, waiting.Filter, waiting.Options) (int, error)
		state, result string
		action        string
	}{
		"skipped":       {(*waiting.Room).Discard, "discarded", "discarded", "discard"},
		"dead-lettered": {(*waiting.Room).GiveUp, "open", "dead", "give-up"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			b.stored(t, "k", "split", "order.split", "now")
			b.stored(t, "k", "placed", "order.placed", "infinity")
			in, err := inbox.New(b.Pool, inbox.Config{Consumer: "billing", PollMax: 50 * time.Millisecond})
			if err != nil {
				t.Fatal(err)
			}
			handled := make(chan string, 10)
			in.Handle("order.placed", func(_ context.Context, _ pgx.Tx, e holdfast.Event) error { handled <- e.ID; return nil })
			stop := running(t, in.Run)

			f := waiting.Filter{Consumer: "billing", Type: "order.split"}
			if n, err := row.act(b.w, t.Context(), f, waiting.Options{DryRun: true}); n != 1 || err != nil {
				t.Errorf("a dry run found %d, %v", n, err)
			}
			if _, err := row.act(b.w, t.Context(), f, waiting.Options{}); err == nil {
				t.Error("nobody's name is no error")
			}
			if n, err := row.act(b.w, t.Context(), f, waiting.Options{By: "ann", Reason: "rolled back"}); n != 1 || err != nil {
				t.Fatalf("%d, %v", n, err)
			}
			if id := <-handled; id != "placed" {
				t.Errorf("%s was handled", id)
			}
			stop()
			if n := pgtest.Count(t, b.Pool, `select count(*) from holdfast.letter where event_id = 'split' and state = $1 and payload = '{}' and not holds
				and reason = 'a person gave it up: rolled back' and attempts = 2`, row.state); n != 1 {
				t.Error("it is no letter")
			}
			if n := pgtest.Count(t, b.Pool, "select count(*) from holdfast.inbox where event_id = 'split' and result = $1 and processed_at is not null", row.result); n != 1 {
				t.Error("its inbox row does not say so")
			}
			if n := pgtest.Count(t, b.Pool, `select count(*) from holdfast.stored_action a join holdfast.letter l on l.id = a.letter
				where a.action = $1 and a.by = 'ann' and a.reason = 'rolled back' and a.event_id = 'split'`, row.action); n != 1 {
				t.Error("nobody knows who did it")
			}
		})
	}
}

func TestConsumer_ReleasingStoredEventsMakesHeadsDueOnly(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.stored(t, "k", "head", "order.placed", "2100-01-01")
	b.stored(t, "k", "follower", "order.placed", "infinity")
	b.stored(t, "running", "running", "order.placed", "2100-01-01")
	b.stored(t, "held", "held", "order.placed", "infinity")
	pgtest.Exec(t, b.Pool, "update holdfast.stored set lease_until = now() + interval '1 hour' where event_id = 'running'")
	pgtest.Exec(t, b.Pool, "update holdfast.letter set holds = true, place = 0 where id = $1", rows.Dead(t, b.Pool, "billing", "held", "holder"))
	if n, err := b.w.Retry(t.Context(), waiting.Filter{Consumer: "billing"}, waiting.Options{DryRun: true}); n != 1 || err != nil {
		t.Errorf("%d would be released, %v", n, err)
	}
	if n, err := b.w.Retry(t.Context(), waiting.Filter{Consumer: "billing", EventID: "follower"}, waiting.Options{By: "ann"}); n != 0 || err != nil {
		t.Errorf("an event behind another: %d, %v", n, err)
	}
	n, err := b.w.Retry(t.Context(), waiting.Filter{Consumer: "billing"}, waiting.Options{By: "ann", Reason: "fixed"})
	if n != 1 || err != nil {
		t.Errorf("%d were released, %v; want the head", n, err)
	}
	if n := pgtest.Count(t, b.Pool, "select count(*) from holdfast.stored where next_at <= now() and event_id = 'head' and attempts = 2"); n != 1 {
		t.Error("the head is not due")
	}
	if n := pgtest.Count(t, b.Pool, "select count(*) from holdfast.stored where next_at <= now()"); n != 1 {
		t.Errorf("%d events are due", n)
	}
	if n := pgtest.Count(t, b.Pool, "select count(*) from holdfast.stored_action where action = 'retry' and letter is null and by = 'ann'"); n != 1 {
		t.Errorf("%d actions are kept", n)
	}
}

// The event after a head that was discarded is a head by then, and nobody meant it.
func TestConsumer_HeadsAreThoseOfTheBeginning(t *testing.T) {
	skip.InShort(t, "it takes 3 s beside the others")
	t.Parallel()
	for name, f := range map[string]waiting.Filter{"heads": {Heads: true}, "failed": {Why: waiting.Failed}, "behind letters": {Why: waiting.BehindLetter}, "dependency": {Why: waiting.Dependency}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			pgtest.Exec(t, b.Pool, `insert into holdfast.stored (consumer, topic, key, place, source, event_id, type, time, hash, next_at)
				select 'billing', 'orders', format('k%s', lpad(k::text, 3, '0')), n, 's', format('%s/%s', k, n), 't', now(), '', '2100-01-01' from generate_series(1, 250) k, generate_series(1, 3) n`)
			pgtest.Exec(t, b.Pool, "insert into holdfast.consumer_type (consumer, type, node, seen_until) values ('billing', 't', 'n', now() + interval '1 hour')")
			if f.Why == waiting.BehindLetter {
				pgtest.Exec(t, b.Pool, `insert into holdfast.letter (origin, consumer, reason, holds, event_id, source, type, topic, key, time, hash)
					select 'inbox', 'billing', 'r', true, 'letter ' || k, 's', 't', 'orders', format('k%s', lpad(k::text, 3, '0')), now(), '' from generate_series(1, 250) k`)
			}
			if f.Why == waiting.Dependency {
				pgtest.Exec(t, b.Pool, "update holdfast.consumer_type set needs = '{stripe}'; insert into holdfast.dependency (consumer, name, away) values ('billing', 'stripe', true)")
			}
			f.Consumer = "billing"
			if n, err := b.w.Discard(t.Context(), f, waiting.Options{DryRun: true}); n != 250 || err != nil {
				t.Errorf("%d would be discarded, %v", n, err)
			}
			if n, err := b.w.Discard(t.Context(), f, anns); n != 250 || err != nil {
				t.Errorf("%d were discarded, %v", n, err)
			}
			if n := pgtest.Count(t, b.Pool, "select count(*) from holdfast.stored where place = 1"); n != 0 {
				t.Errorf("%d heads are left", n)
			}
		})
	}
}

// A person gave up what no node handles, while a node that does was starting.
func TestConsumer_WhatWaitsOtherwiseByThenIsLeft(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.stored(t, "k", "e", "order.split", "now")
	tx, err := b.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	pgtest.Exec(t, tx, "select pg_advisory_xact_lock($1, $2)", int32(lane.KeyClass), lane.Number("holdfast", "billing", "orders", "k"))
	discarded := make(chan int, 1)
	go func() {
		n, err := b.w.Discard(t.Context(), waiting.Filter{Consumer: "billing", Why: waiting.NoHandler}, anns)
		if err != nil {
			t.Error(err)
		}
		discarded <- n
	}()
	wait.Until(t, "it has read the event, and waits for the lock of the key", func() bool {
		return pgtest.Count(t, b.Pool, "select count(*) from pg_locks where locktype = 'advisory' and not granted") == 1
	})
	pgtest.Exec(t, b.Pool, "insert into holdfast.consumer_type (consumer, type, node, seen_until) values ('billing', 'order.split', 'n', now() + interval '1 minute')")
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := <-discarded; n != 0 || pgtest.Count(t, b.Pool, "select count(*) from holdfast.stored") != 1 {
		t.Errorf("%d were discarded", n)
	}
}

// What a worker has is left to it, also if it took the event after the list was read.
func TestConsumer_AStoredEventThatRunsIsNotSkipped(t *testing.T) {
	skip.InShort(t, "it takes 12 s beside the others")
	t.Parallel()
	b := setup(t)
	for i := range 250 { // more than a page
		b.stored(t, fmt.Sprint("k", i), fmt.Sprint(i), "order.split", "now")
	}
	pgtest.Exec(t, b.Pool, "update holdfast.stored set lease_until = now() + interval '1 hour' where event_id = '7'")
	n, err := b.w.Discard(t.Context(), waiting.Filter{Consumer: "billing", Limit: 120}, waiting.Options{By: "ann"})
	if n != 120 || err != nil {
		t.Errorf("%d of at most 120 were skipped, %v", n, err)
	}
	n, err = b.w.Discard(t.Context(), waiting.Filter{Consumer: "billing"}, waiting.Options{By: "ann"})
	if n != 129 || err != nil {
		t.Errorf("%d were skipped, %v; want all but the one that runs", n, err)
	}
	wait.Until(t, "one is left", func() bool {
		return pgtest.Count(t, b.Pool, "select count(*) from holdfast.stored where event_id = '7'") == 1
	})
}

// A replay that is dead-lettered again is the same letter.
func TestConsumer_AReplayThatIsGivenUpIsItsLetterAgain(t *testing.T) {
	t.Parallel()
	b := setup(t)
	id := rows.Dead(t, b.Pool, "billing", "k", "e1")
	if n, err := b.d.Replay(t.Context(), dlq.Filter{}, dlq.ReplayOptions{By: "ann"}); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	if n, err := b.w.Discard(t.Context(), waiting.Filter{Consumer: "billing"}, waiting.Options{By: "ann", Reason: "no"}); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	if n := pgtest.Count(t, b.Pool, "select count(*) from holdfast.letter where id = $1 and state = 'discarded'", id); n != 1 {
		t.Error("it is not discarded")
	}
	if n := pgtest.Count(t, b.Pool, "select count(*) from holdfast.letter"); n != 1 {
		t.Errorf("%d letters", n)
	}
}

// Somebody removed the letter by hand. The event is given up all the same, and not lost.
func TestConsumer_AReplayWithoutItsLetterIsGivenUp(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.stored(t, "k", "e1", "order.split", "now")
	pgtest.Exec(t, b.Pool, "update holdfast.stored set letter = 4711")
	if n, err := b.w.GiveUp(t.Context(), waiting.Filter{Consumer: "billing"}, anns); n != 1 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
	if n := pgtest.Count(t, b.Pool, "select count(*) from holdfast.letter where event_id = 'e1' and state = 'open' and payload = '{}'"); n != 1 {
		t.Error("the event is gone")
	}
}

func TestConsumer_AStoredEventIsShownWithItsErrors(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.stored(t, "k", "e1", "order.split", "2100-01-01")
	pgtest.Exec(t, b.Pool, `update holdfast.stored set headers = '{"a": "b"}', failed_at = '2026-01-02', partition = 3, "offset" = 44`)
	got, err := b.w.Show(t.Context(), waiting.Filter{Consumer: "billing", EventID: "e1"}, false)
	if err != nil || len(got) != 1 {
		t.Fatalf("%+v, %v", got, err)
	}
	if s := got[0]; fmt.Sprint(s.Errors) != "[one two]" || s.Error != "two" || s.Attempts != 2 || !s.Head || s.RecordPartition != 3 || s.RecordOffset != 44 || s.PayloadSize != 2 ||
		s.Event.Event.Payload != nil || s.Event.Event.Headers["a"] != "b" || s.FailedAt.Year() != 2026 || s.NextAt.Year() != 2100 {
		t.Errorf("%+v", s)
	}
	if got, err := b.w.Show(t.Context(), waiting.Filter{Source: "shop", EventID: "e1"}, true); err != nil || string(got[0].Event.Event.Payload) != "{}" {
		t.Errorf("%+v, %v", got, err)
	}
	if _, err := b.w.Show(t.Context(), waiting.Filter{Consumer: "mail", EventID: "e1"}, false); !errors.Is(err, waiting.ErrNotFound) {
		t.Errorf("another consumer's: %v", err)
	}
}

func TestConsumer_AnEventIsShownWithTheStepsThatAreDone(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.stored(t, "k", "e1", "order.placed", "infinity")
	pgtest.Exec(t, b.Pool, "update holdfast.stored set hash = sha256('{}') || '\\x07'::bytea") // of a webhook, with its version
	pgtest.Exec(t, b.Pool, `insert into holdfast.inbox_step (consumer, source, event_id, hash, name, key, result, done_at) values
		('billing', 'shop', 'e1', '', 'charge', '', '{"paid": 5}', '2026-01-02'), ('billing', 'shop', 'e1', sha256('old'), 'charge', '', '1', '2026-01-01'), ('mail', 'shop', 'e1', sha256('{}'), 'charge', '', '2', '2026-01-01')`)
	b.write(t, holdfast.Event{ID: "e1", Source: "shop", Type: "t", Topic: "orders", Key: "k", NotBefore: time.Now().Add(time.Hour)})
	for _, results := range []bool{true, false} {
		found, err := b.w.Show(t.Context(), waiting.Filter{EventID: "e1"}, results)
		if err != nil || len(found) != 2 {
			t.Fatalf("%d are found, %v", len(found), err)
		}
		if found[1].Why != waiting.Scheduled || found[1].Steps != nil {
			t.Errorf("a scheduled event has the steps %v", found[1].Steps)
		}
		all := found[0].Steps
		if len(all) != 2 || !all[0].OtherPayload || all[1].OtherPayload || all[1].Name != "charge" || all[1].DoneAt.UTC().Day() != 2 || all[1].Key != steps.Key("billing", "shop", "e1", nil, "charge") {
			t.Errorf("the steps are %v", all)
		}
		if (all[1].Result == `{"paid": 5}`) != results || (all[1].Result == "") == results {
			t.Errorf("asked for results: %v; got %q", results, all[1].Result)
		}
	}
}
