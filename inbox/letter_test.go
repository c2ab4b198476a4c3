package inbox

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/dlq"
	"github.com/holdfast-go/holdfast/internal/test/logtest"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/internal/wire"
	"github.com/holdfast-go/holdfast/retry"
	"github.com/holdfast-go/holdfast/waiting"
)

// published reads the events of the log, in their order.
func (b *bundle) published() []holdfast.Event {
	b.Helper()
	rows, err := b.db.Query(b.Context(), "select id, source, type, topic, key, time, headers::text, payload from holdfast.event order by seq")
	if err != nil {
		b.Fatal(err)
	}
	events, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (e holdfast.Event, err error) {
		var headers *string
		if err := row.Scan(&e.ID, &e.Source, &e.Type, &e.Topic, &e.Key, &e.Time, &headers, &e.Payload); err != nil {
			return e, err
		}
		e.Headers, err = headersOf(headers)
		return e, err
	})
	if err != nil {
		b.Fatal(err)
	}
	return events
}

// publishing is an inbox whose handler gives up on everything, and that publishes it.
func (b *bundle) publishing(change ...func(*Config)) *Inbox {
	b.Helper()
	in := b.inbox(append([]func(*Config){func(c *Config) { c.DeadLetterTopic = "*.dlq" }}, change...)...)
	in.Handle("order.placed", func(context.Context, pgx.Tx, holdfast.Event) error {
		return retry.Permanent(errors.New("no such customer\ngoroutine 1 [running]:\nmain.main()"))
	})
	return in
}

func TestLetter_ALetterIsPublishedWithItsEventAndItsStory(t *testing.T) {
	b := setup(t)
	in := b.publishing()
	e := event("1", "k")
	e.Headers = map[string]string{"traceparent": "00-ab", "hf_forged": "x", "HF_FORGED": "x", "content-type": "text/plain"}
	b.receive(in, e, Dead)
	got := b.published()
	if len(got) != 1 {
		t.Fatalf("%d events are published, want 1", len(got))
	}
	p := got[0]
	if p.Topic != "orders.dlq" || p.Key != "k" || p.Type != e.Type || p.Source != e.Source || string(p.Payload) != "payload of 1" || p.ID == "1" || len(p.ID) != 36 {
		t.Errorf("published %+v", p)
	}
	var first, last string
	const iso = `YYYY-MM-DD"T"HH24:MI:SS.US"Z"`
	if err := b.db.QueryRow(t.Context(), "select to_char(first_at at time zone 'UTC', $1), to_char(last_at at time zone 'UTC', $1) from holdfast.letter", iso).Scan(&first, &last); err != nil {
		t.Fatal(err)
	}
	want := map[string]string{
		"traceparent": "00-ab", "content-type": "text/plain",
		wire.HeaderLetter: "1", wire.HeaderOrigin: "inbox", wire.HeaderConsumer: "billing", wire.HeaderReason: "its handler returned a permanent failure: no such customer",
		wire.HeaderFingerprint: "order.placed transient: no such customer", wire.HeaderError: "no such customer", wire.HeaderAttempts: "1",
		wire.HeaderEventID: "1", wire.HeaderTopic: "orders", wire.HeaderFirstAt: first, wire.HeaderLastAt: last,
	}
	want[wire.HeaderFingerprint] = p.Headers[wire.HeaderFingerprint]
	if !strings.Contains(p.Headers[wire.HeaderFingerprint], "no such customer") {
		t.Errorf("fingerprint %q", p.Headers[wire.HeaderFingerprint])
	}
	if g, w := fmt.Sprint(p.Headers), fmt.Sprint(want); g != w {
		t.Errorf("headers\n%s\nwant\n%s", g, w)
	}
}

func TestLetter_AConflictIsALetterThatIsPublishedToo(t *testing.T) {
	b := setup(t)
	in := b.inbox(func(c *Config) { c.DeadLetterTopic = "dead-letters" })
	in.Handle("order.placed", effectOf)
	b.receive(in, event("1", "k"), Handled)
	other := event("1", "k")
	other.Payload = []byte("other")
	b.receive(in, other, Conflict)
	b.receive(in, other, Conflict) // the same letter: nothing new to report
	if got := b.published(); len(got) != 1 || got[0].Topic != "dead-letters" || string(got[0].Payload) != "other" {
		t.Errorf("published %+v", got)
	}
}

func TestLetter_ALetterAndItsPublicationAreOneCommit(t *testing.T) {
	b := setup(t)
	in := b.publishing()
	tx, err := b.db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if out, err := in.ReceiveTx(t.Context(), tx, event("1", "k")); out != Dead || err != nil {
		t.Fatal(out, err)
	}
	if n := pgtest.Count(t, tx, "select count(*) from holdfast.event"); n != 1 {
		t.Errorf("inside the transaction %d events are published, want 1", n)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := b.count("select (select count(*) from holdfast.event) + (select count(*) from holdfast.letter)"); n != 0 {
		t.Error("a letter that was rolled back left something")
	}
	// Without the right to publish the letter is not written either, and nothing is decided.
	b.receive(b.publishing(), event("2", "k"), Dead)
	pgtest.Exec(t, b.db, "drop function holdfast.publish_letter")
	if out, err := in.Receive(t.Context(), event("3", "k")); err == nil {
		t.Errorf("it is %s although the letter could not be published", out)
	}
	if n := b.count("select count(*) from holdfast.letter"); n != 1 {
		t.Errorf("%d letters, want the first alone", n)
	}
}

func TestLetter_WhatIsPublishedOfALetterIsBounded(t *testing.T) {
	b := setup(t)
	in := b.inbox(func(c *Config) { c.DeadLetterTopic = "*.dlq"; c.LetterPayload = 100 })
	long := strings.Repeat("é", 3000)
	in.Handle("order.placed", func(context.Context, pgx.Tx, holdfast.Event) error { return retry.Permanent(errors.New(long)) })
	in.Handle(strings.Repeat("t", 255), func(context.Context, pgx.Tx, holdfast.Event) error { return retry.Permanent(errors.New(long)) })
	large := event(strings.Repeat("i", 255), strings.Repeat("k", 1024))
	large.Type, large.Source = strings.Repeat("t", 255), strings.Repeat("s", 255)
	large.Payload = make([]byte, 101)
	large.Headers = map[string]string{"traceparent": "00-ab", "huge": strings.Repeat("x", 64<<10)}
	for i := range 100 {
		large.Headers[fmt.Sprintf("h%02d", i)] = strings.Repeat("x", 200)
	}
	b.receive(in, large, Dead)
	fits := event("fits", "")
	fits.Payload = make([]byte, 100)
	b.receive(in, fits, Dead)
	tombstone := event("tombstone", "")
	tombstone.Payload = nil
	b.receive(in, tombstone, Dead)
	got := b.published()
	if len(got) != 3 {
		t.Fatalf("%d events are published, want 3", len(got))
	}
	p := got[0]
	bytes := 0
	for name, value := range p.Headers {
		bytes += len(name) + len(value)
	}
	if bytes > wire.MaxLetterHeaders {
		t.Errorf("the headers have %d bytes, want at most %d", bytes, wire.MaxLetterHeaders)
	}
	if p.Headers["traceparent"] != "00-ab" || p.Headers["h00"] == "" || p.Headers["huge"] != "" {
		t.Errorf("the short headers are not those that are kept: %d bytes", bytes)
	}
	kept := len(p.Headers) - 13 // ours
	if p.Headers[wire.HeaderHeadersLeftOut] != fmt.Sprint(102-kept) {
		t.Errorf("%d of 102 headers are kept, and it says that %s are not", kept, p.Headers[wire.HeaderHeadersLeftOut])
	}
	if p.Payload != nil || p.Headers[wire.HeaderPayloadLeftOut] != "101" || p.Key != large.Key {
		t.Errorf("the payload has %d bytes, and the header says %q", len(p.Payload), p.Headers[wire.HeaderPayloadLeftOut])
	}
	for _, p := range got[1:] {
		if _, said := p.Headers[wire.HeaderPayloadLeftOut]; said || p.Payload == nil != (p.Headers[wire.HeaderEventID] == "tombstone") {
			t.Errorf("%s: %d bytes, %v", p.Headers[wire.HeaderEventID], len(p.Payload), p.Headers)
		}
	}
	none := b.publishing(func(c *Config) { c.LetterPayload = -1 })
	b.receive(none, event("private", ""), Dead)
	if got := b.published()[3]; got.Payload != nil || got.Headers[wire.HeaderPayloadLeftOut] != "18" {
		t.Errorf("-1 leaves no payload out: %+v", got)
	}
}

func TestLetter_ALetterAboutALetterIsNotPublished(t *testing.T) {
	b := setup(t)
	in := b.publishing()
	of := event("1", "k")
	of.Topic = "orders.dlq"
	b.receive(in, of, Dead)
	marked := event("2", "k")
	marked.Headers = map[string]string{wire.HeaderLetter: "7"}
	b.receive(in, marked, Dead)
	b.receive(b.publishing(func(c *Config) { c.DeadLetterTopic = "" }), event("3", "k"), Dead)
	if got := b.published(); len(got) != 0 {
		t.Errorf("published %+v", got)
	}
	if n := b.count("select count(*) from holdfast.letter"); n != 3 {
		t.Errorf("%d letters, want 3", n)
	}
}

func TestLetter_ALetterThatNoTopicTakesIsALetterNevertheless(t *testing.T) {
	b := setup(t)
	log := &logtest.Log{}
	in := b.publishing(watched(log))
	e := event("1", "k")
	e.Topic = strings.Repeat("o", 249)
	b.receive(in, e, Dead)
	said := func(times int) {
		t.Helper()
		if n := strings.Count(log.String(), "dead letter not published"); n != times {
			t.Errorf("it is said %d times that it is not published, want %d:\n%s", n, times, log.String())
		}
	}
	said(1)
	if n, err := b.letters().Replay(t.Context(), dlq.Filter{}, dlq.ReplayOptions{By: "ann"}); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	b.run(in.Run)
	b.await("the replay's end", func(o *observations) bool { return len(o.outcomes["1"]) == 2 })
	said(2)
	if got := b.published(); len(got) != 0 {
		t.Errorf("published %+v", got)
	}
	if n := b.count("select count(*) from holdfast.letter"); n != 1 {
		t.Errorf("%d letters, want 1", n)
	}
}

func TestLetter_AReplayThatFailsAgainIsPublishedAgain(t *testing.T) {
	skip.InShort(t, "it takes 1 s beside the others")
	b := setup(t)
	in := b.publishing()
	b.receive(in, event("1", "k"), Dead)
	d := b.letters()
	if n, err := d.Replay(t.Context(), dlq.Filter{}, dlq.ReplayOptions{By: "ann"}); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	b.run(in.Run)
	b.awaitOutcome("1", Dead)
	b.await("the replay's end", func(o *observations) bool { return len(o.outcomes["1"]) == 2 })
	got := b.published()
	if len(got) != 2 || got[1].Headers[wire.HeaderAttempts] != "2" || got[1].Headers[wire.HeaderLetter] != "1" || got[1].ID == got[0].ID {
		t.Errorf("published %+v", got)
	}
}

func (b *bundle) letters() *dlq.DLQ {
	b.Helper()
	d, err := dlq.New(b.db.Pool, dlq.Config{})
	if err != nil {
		b.Fatal(err)
	}
	return d
}

func (b *bundle) room() *waiting.Room {
	b.Helper()
	room, err := waiting.New(b.db.Pool, waiting.Config{})
	if err != nil {
		b.Fatal(err)
	}
	return room
}

func TestLetter_ALetterTopicThatCannotBeIsRefusedAtNew(t *testing.T) {
	b := setup(t)
	c := b.config()
	c.DeadLetterTopic, c.LetterPayload = "*/dlq", -2
	if _, err := New(b.db.Pool, c); err == nil || !strings.Contains(err.Error(), "letter topic is") || !strings.Contains(err.Error(), "letter payload is -2") {
		t.Errorf("got %v", err)
	}
}

// A canary of a handler's error, of its payload or of a record's headers must not leave the database when payloads do not.
func TestLetter_ALetterThatIsPublishedWithoutItsPayloadHasNoErrorText(t *testing.T) {
	skip.InShort(t, "it takes 2 s beside the others")
	b := setup(t)
	in := b.inbox(func(c *Config) { c.DeadLetterTopic, c.LetterPayload = "*.dlq", -1 })
	pgtest.Exec(t, b.db, "create table card (number integer, holder text primary key); insert into card values (1, 'CANARY-4111')")
	in.Handle("order.placed", func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
		switch e.ID {
		case "syntax":
			_, err := tx.Exec(ctx, "insert into card (number, holder) select $1::text::integer, 'x'", string(e.Payload))
			return fmt.Errorf("charge %s: %w", e.Payload, err)
		case "unique":
			_, err := tx.Exec(ctx, "insert into card values (1, $1)", string(e.Payload))
			return err
		case "panic":
			panic("no card " + string(e.Payload))
		}
		return retry.Permanent(fmt.Errorf("charge %q, card=%s, %s: declined", e.Payload, e.Payload, e.Payload))
	})
	in.Handle("never", func(context.Context, pgx.Tx, holdfast.Event) error { return nil })
	want := map[string]string{"syntax": "SQLSTATE 22P02", "unique": "SQLSTATE 23505", "panic": "panic", "text": "VALIDATION"}
	for id := range want {
		e := event(id, id)
		e.Payload = []byte("CANARY-4111")
		out, err := in.Receive(t.Context(), e)
		if err != nil {
			t.Fatal(err)
		}
		if out == Dead {
			continue
		}
		stop := b.run(in.Run)
		b.awaitOutcome(id, Dead)
		stop()
	}
	got := b.published()
	if len(got) != len(want) {
		t.Fatalf("%d letters are published, want %d", len(got), len(want))
	}
	for _, p := range got {
		if all := fmt.Sprint(p.Headers, string(p.Payload)); strings.Contains(all, "CANARY") {
			t.Errorf("it says %s", all)
		}
		if id := p.Headers[wire.HeaderEventID]; !strings.HasPrefix(p.Headers[wire.HeaderError], want[id]) {
			t.Errorf("%s failed with %q, want %q", id, p.Headers[wire.HeaderError], want[id])
		}
	}
	// Who works on the letter reads the error.
	if n := b.count("select count(*) from holdfast.letter where errors[cardinality(errors)] like '%CANARY-4111%'"); n != int64(len(want)-1) {
		t.Errorf("%d letters have their error, want %d: Postgres's own of the unique key is in its detail", n, len(want)-1)
	}
	if n := b.count("select count(*) from holdfast.letter where fingerprint like '%CANARY%' or fingerprint like '%4111%'"); n != 0 {
		t.Errorf("%d fingerprints have the canary", n)
	}
}

// The words of an event are values too: two cities that are unknown are one kind of failure, and neither is named. Nor does it matter how
// long a value is that the event does not have.
func TestLetter_AFingerprintHasNoWordOfItsEvent(t *testing.T) {
	b := setup(t)
	in := b.inbox()
	numbers := map[string]string{"Atlantis": "7", "Avalon": "4711-0815-0000-1111-222222"}
	in.Handle("order.placed", func(_ context.Context, _ pgx.Tx, e holdfast.Event) error {
		return retry.Permanent(fmt.Errorf("unknown city %s of customer %s: ticket %s%s", e.Payload, e.Key, numbers[string(e.Payload)], strings.Repeat(" is not in the catalog", 12)))
	})
	for city := range numbers {
		e := event(city, "customer-of-"+city)
		e.Payload = []byte(city)
		b.receive(in, e, Dead)
	}
	got := pgtest.Text(t, b.db, "select string_agg(distinct fingerprint, ', ') from holdfast.letter")
	if want := "order.placed VALIDATION: unknown city # of customer #: ticket # is not in the catalog"; !strings.HasPrefix(got, want) || strings.Count(got, "order.placed") != 1 {
		t.Errorf("fingerprints are %q, want one that begins with %q", got, want)
	}
}
