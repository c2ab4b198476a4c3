package find_test

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/dlq"
	"github.com/holdfast-go/holdfast/find"
	"github.com/holdfast-go/holdfast/inbox"

	"github.com/holdfast-go/holdfast/internal/test/migrated"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/roletest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/internal/test/wait"
	"github.com/holdfast-go/holdfast/outbox"
	"github.com/holdfast-go/holdfast/relay"
	"github.com/holdfast-go/holdfast/retry"
	"github.com/holdfast-go/holdfast/waiting"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

// seen is each sighting as "place state consumer".
func seen(t testing.TB, pool *pgxpool.Pool, q find.Query) (all []string, found find.Found) {
	t.Helper()
	if q.Within == 0 {
		q.Within = time.Minute // the machine may be slow
	}
	found, err := find.Event(t.Context(), pool, q)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range found.Sightings {
		all = append(all, strings.TrimSpace(s.Place+" "+s.State+" "+s.Consumer))
	}
	for _, u := range found.Unsearched {
		all = append(all, "not "+u.Place)
	}
	return all, found
}

func wantSeen(t testing.TB, pool *pgxpool.Pool, q find.Query, want ...string) find.Found {
	t.Helper()
	got, found := seen(t, pool, q)
	if !slices.Equal(got, want) {
		t.Errorf("%s is seen as %q, want %q", q.ID, got, want)
	}
	return found
}

func write(t testing.TB, pool *pgxpool.Pool, events ...holdfast.Event) {
	t.Helper()
	if err := pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error { return outbox.Write(t.Context(), tx, events...) }); err != nil {
		t.Fatal(err)
	}
}

// broker publishes everything but events of the type "refused".
type broker struct{}

func (broker) Publish(ctx context.Context, events []holdfast.Event) []error {
	errs := make([]error, len(events))
	for i, e := range events {
		if e.Type == "refused" {
			errs[i] = retry.Permanent(errors.New("it is too odd"))
		}
	}
	return errs
}

func TestFind_AnEventIsFollowedFromItsCommitToTheBroker(t *testing.T) {
	skip.InShort(t, "it takes 4 s beside the others")
	t.Parallel()
	db := migrated.New(t)
	event := func(id, eventType string) holdfast.Event {
		return holdfast.Event{ID: id, Source: "shop", Type: eventType, Topic: "orders", Key: "k-" + id, Payload: []byte("a secret")}
	}
	later := event("later", "placed")
	later.NotBefore = time.Now().Add(time.Hour)
	write(t, db.Pool, event("placed", "placed"), event("odd", "refused"), later)

	wantSeen(t, db.Pool, find.Query{ID: "placed"}, "log unowned")
	found := wantSeen(t, db.Pool, find.Query{ID: "later"}, "scheduled waits")
	if s := found.Sightings[0]; s.NextAt.Sub(later.NotBefore).Abs() > time.Millisecond || s.Event.Key != "k-later" || s.Event.Type != "placed" || s.Lane < 0 {
		t.Errorf("it is seen as %+v", s)
	}
	wantSeen(t, db.Pool, find.Query{ID: "nowhere"})
	wantSeen(t, db.Pool, find.Query{ID: "placed", Key: "k-placed", Topic: "orders", Source: "shop"}, "log unowned")
	for _, q := range []find.Query{{Key: "k"}, {Topic: "bills"}, {Source: "bank"}} {
		q.ID = "placed"
		wantSeen(t, db.Pool, q)
	}

	r, err := relay.New(db.Pool, broker{}, relay.Config{Name: "relay-1", Logger: slog.New(slog.DiscardHandler), HoldKey: true})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	wait.Until(t, "the relay has published one and given up the other", func() bool {
		got, _ := seen(t, db.Pool, find.Query{ID: "placed"})
		gone, _ := seen(t, db.Pool, find.Query{ID: "odd"})
		return slices.Equal(got, []string{"log read"}) && slices.Equal(gone, []string{"log read", "letter open"})
	})
	stop()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	found = wantSeen(t, db.Pool, find.Query{ID: "odd"}, "log read", "letter open")
	s := found.Sightings[1]
	if s.Letter == 0 || int64(s.Attempts) != pgtest.Count(t, db.Pool, "select attempts from holdfast.letter") || s.Attempts == 0 || !strings.Contains(s.Says, "it is too odd") || s.Lane < 0 || s.Partition != -1 || s.Offset != -1 {
		t.Errorf("it is seen as %+v", s)
	}
	d, err := dlq.New(db.Pool, dlq.Config{})
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Discard(t.Context(), s.Letter, "ann", "a test order"); err != nil {
		t.Fatal(err)
	}
	found = wantSeen(t, db.Pool, find.Query{ID: "odd"}, "log read", "letter discarded", "action discard")
	if s := found.Sightings[2]; s.By != "ann" || s.Reason != "a test order" || time.Since(s.At).Abs() > time.Hour {
		t.Errorf("the action is %+v", s)
	}
}

func TestFind_AnEventIsFollowedThroughItsConsumers(t *testing.T) {
	t.Parallel()
	db := migrated.New(t)
	fails := true
	open := func(consumer string) *inbox.Inbox {
		in, err := inbox.New(db.Pool, inbox.Config{Consumer: consumer, Logger: slog.New(slog.DiscardHandler), ImmediateRetries: -1, Retry: retry.Policy{Attempts: 2, Base: time.Hour, Cap: time.Hour}})
		if err != nil {
			t.Fatal(err)
		}
		in.Handle("placed", func(context.Context, pgx.Tx, holdfast.Event) error {
			if consumer == "billing" && fails {
				return errors.New("the bank is closed\nand its door too")
			}
			return nil
		})
		return in
	}
	billing, mail := open("billing"), open("mail")
	receive := func(in *inbox.Inbox, id string) {
		t.Helper()
		if _, err := in.Receive(t.Context(), holdfast.Event{ID: id, Source: "shop", Type: "placed", Topic: "orders", Key: "k", Payload: []byte("a secret")}); err != nil {
			t.Fatal(err)
		}
	}
	receive(billing, "first")
	receive(billing, "second")
	receive(mail, "first")
	pgtest.Exec(t, db.Pool, `insert into holdfast.consumer_type (consumer, type, node, seen_until) values ('billing', 'placed', 'n', now() + interval '1 hour')
		on conflict (consumer, type, node) do nothing`)

	found := wantSeen(t, db.Pool, find.Query{ID: "first"}, "stored failed billing", "inbox stored billing", "inbox handled mail")
	if s := found.Sightings[0]; s.Attempts != 1 || s.Error != "the bank is closed" || !s.NextAt.After(s.At) || s.Lane != -1 {
		t.Errorf("it is stored as %+v", s)
	}
	if s := found.Sightings[2]; s.Event.Topic != "orders" || s.Event.Source != "shop" || s.Partition != -1 || s.Offset != -1 {
		t.Errorf("it is handled as %+v", s)
	}
	wantSeen(t, db.Pool, find.Query{ID: "second"}, "stored behind-event billing", "inbox stored billing")
	wantSeen(t, db.Pool, find.Query{ID: "first", Source: "bank"})

	pgtest.Exec(t, db.Pool, "update holdfast.stored set lease_until = now() + interval '1 hour' where event_id = 'first'")
	wantSeen(t, db.Pool, find.Query{ID: "first", Key: "k", Topic: "orders"}, "stored runs billing", "inbox stored billing", "inbox handled mail")
	pgtest.Exec(t, db.Pool, "update holdfast.stored set lease_until = '-infinity', next_at = 'infinity' where event_id = 'first'")
	pgtest.Exec(t, db.Pool, "update holdfast.consumer_type set seen_until = now() - interval '1 hour'")
	wantSeen(t, db.Pool, find.Query{ID: "first", Topic: "orders"}, "stored no-handler billing", "inbox stored billing", "inbox handled mail")

	room, err := waiting.New(db.Pool, waiting.Config{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := room.GiveUp(t.Context(), waiting.Filter{Consumer: "billing", EventID: "first"}, waiting.Options{By: "ann", Reason: "the bank stays closed"}); err != nil {
		t.Fatal(err)
	}
	found = wantSeen(t, db.Pool, find.Query{ID: "first"}, "inbox dead billing", "inbox handled mail", "letter open billing", "action give-up billing")
	if s := found.Sightings[3]; s.Letter == 0 || s.Letter != found.Sightings[2].Letter || s.By != "ann" {
		t.Errorf("the action is %+v", s)
	}
	pgtest.Exec(t, db.Pool, "update holdfast.letter set holds = true, place = 0")
	pgtest.Exec(t, db.Pool, "update holdfast.consumer_type set seen_until = now() + interval '1 hour'")
	wantSeen(t, db.Pool, find.Query{ID: "second"}, "stored behind-letter billing", "inbox stored billing")
	pgtest.Exec(t, db.Pool, "insert into holdfast.start (consumer, source, event_id, starts) values ('billing', 'shop', 'second', 2)")
	found = wantSeen(t, db.Pool, find.Query{ID: "second", Key: "k"}, "stored behind-letter billing", "inbox stored billing", "start started billing")
	for _, s := range found.Sightings {
		if strings.Contains(s.Says, "secret") || strings.Contains(s.Says, "%!") || s.Says == "" {
			t.Errorf("%s says %q", s.Place, s.Says)
		}
	}
}

// The inbox counts the attempts of a replay alone, and the letter those before.
func TestFind_AReplayIsToldFromTheFirstDelivery(t *testing.T) {
	t.Parallel()
	db := migrated.New(t)
	var works atomic.Bool
	in, err := inbox.New(db.Pool, inbox.Config{Consumer: "billing", Logger: slog.New(slog.DiscardHandler), ImmediateRetries: -1, Retry: retry.Policy{Attempts: 2, Base: time.Millisecond, Cap: time.Millisecond}})
	if err != nil {
		t.Fatal(err)
	}
	in.Handle("placed", func(context.Context, pgx.Tx, holdfast.Event) error {
		if works.Load() {
			return nil
		}
		return errors.New("the bank is closed")
	})
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- in.Run(ctx) }()
	if _, err := in.Receive(t.Context(), holdfast.Event{ID: "first", Source: "shop", Type: "placed", Topic: "orders", Key: "k"}); err != nil {
		t.Fatal(err)
	}
	d, err := dlq.New(db.Pool, dlq.Config{})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		works         bool
		inbox, letter string // what they say
		attempts      int    // of the letter
	}{
		{false, " after 2 attempts", "open since", 2},
		{false, " after 2 attempts of the replay of dead letter 1", "open since", 4},
		{true, " after 1 attempt of the replay of dead letter 1", "replayed since", 4},
	} {
		if works.Store(c.works); strings.Contains(c.inbox, "replay") {
			if _, err := d.Replay(t.Context(), dlq.Filter{}, dlq.ReplayOptions{By: "ann", Reason: "again"}); err != nil {
				t.Fatal(err)
			}
		}
		var got []find.Sighting
		wait.Until(t, "it is settled", func() bool {
			found, err := find.Event(t.Context(), db.Pool, find.Query{ID: "first"})
			got = found.Sightings
			return err == nil && len(got) >= 2 && got[0].Place == "inbox" && got[1].Place == "letter" && strings.Contains(got[1].Says, c.letter) && got[1].Attempts == c.attempts
		})
		if !strings.HasSuffix(got[0].Says, c.inbox) || (got[0].Letter != 0) != strings.Contains(c.inbox, "replay") {
			t.Errorf("the inbox says %q, want %q; its letter is %d", got[0].Says, c.inbox, got[0].Letter)
		}
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	// While the next replay waits, the inbox has what was before it.
	pgtest.Exec(t, db.Pool, "update holdfast.letter set state = 'replaying'")
	pgtest.Exec(t, db.Pool, "update holdfast.inbox set result = 'dead', attempts = 2")
	if s := wantSeen(t, db.Pool, find.Query{ID: "first"}, "inbox dead billing", "letter replaying billing", "action replay billing", "action replay billing").Sightings[0]; s.Letter != 0 || !strings.HasSuffix(s.Says, " after 2 attempts") {
		t.Errorf("before it is replayed again it is seen as %+v", s)
	}
}

func TestFind_ParkedEventsSayWhatTheyWaitFor(t *testing.T) {
	skip.InShort(t, "it takes 3 s beside the others")
	t.Parallel()
	db := migrated.New(t)
	for i, row := range []struct{ id, column, says, why string }{
		{"refused", "record", "failed", "after 2 attempts (new): it is tried again"}, {"away", "topic", "topic", "topic orders is missing or takes no events"},
		{"stuck", "partition", "partition", "its partition takes no events"}, {"before", "record", "failed", ""}, {"behind", "follows", "behind-event", "an earlier event of its key has to go first"},
		{"paused", "topic", "paused", "it is paused"},
	} {
		key, topic := row.id, "orders"
		switch row.id {
		case "behind":
			key = "before"
		case "paused":
			topic = "bills"
		}
		pgtest.Exec(t, db.Pool, `insert into holdfast.parked (lane, topic, key, place, why, attempts, next_at, errors, id, source, type, time, partition)
			values (3, $1, $2, $3, $4, 2, case when $4 = 'record' then '2100-01-01' else 'infinity' end::timestamptz, '{old,new}', $5, 'shop', 'placed', '-infinity', case when $4 = 'partition' then 5 end)`, topic, key, i, row.column, row.id)
		pgtest.Exec(t, db.Pool, "insert into holdfast.pause (topic, by, reason) values ('bills', 'ann', 'r') on conflict do nothing")
		s := wantSeen(t, db.Pool, find.Query{ID: row.id}, "parked "+row.says).Sightings[0]
		if s.Lane != 3 || (s.Partition == 5) != (row.column == "partition") || s.Error != "new" || s.Attempts != 2 || s.NextAt.IsZero() != (row.column != "record") || !s.Event.Time.IsZero() || s.At.IsZero() || !strings.Contains(s.Says, row.why) {
			t.Errorf("%s is seen as %+v", row.id, s)
		}
	}
}

// Beside what is there, what another type needs, and what is away of another consumer.
func TestFind_AnEventThatWaitsForADependencyNamesIt(t *testing.T) {
	t.Parallel()
	db := migrated.New(t)
	pgtest.Exec(t, db.Pool, `insert into holdfast.consumer_type (consumer, type, node, seen_until, needs) values ('billing', 'placed', 'n', now() + interval '1 hour', '{bank,mail,stripe}'), ('billing', 'placed', 'm', now() + interval '1 hour', '{stripe}'),
		('billing', 'other', 'n', now() + interval '1 hour', '{fax}'), ('crm', 'placed', 'n', now() + interval '1 hour', '{mail}')`)
	pgtest.Exec(t, db.Pool, `insert into holdfast.dependency (consumer, name, away, since, error) values ('billing', 'stripe', true, '2026-11-30 13:00:00+01', E'no answer\nof any kind'), ('billing', 'bank', true, '2026-11-30 11:00:00Z', ''),
		('billing', 'mail', false, now(), 'refused'), ('billing', 'fax', true, now(), 'busy'), ('crm', 'mail', true, now(), 'x')`)
	pgtest.Exec(t, db.Pool, `insert into holdfast.stored (consumer, topic, key, place, source, event_id, type, time, hash, next_at, attempts, errors) values ('billing', 'orders', 'k', 1, 's', 'e', 'placed', now(), '', now(), 0, '{}'),
		('billing', 'orders', 'k', 2, 's', 'later', 'placed', now(), '', 'infinity', 0, '{}')`)
	s := wantSeen(t, db.Pool, find.Query{ID: "e"}, "stored dependency billing").Sightings[0]
	const want = "bank, which is away since 2026-11-30T11:00:00Z, and for stripe, which is away since 2026-11-30T12:00:00Z; last error: no answer"
	if s.Reason != want || !strings.HasSuffix(s.Says, ": it waits for "+want) {
		t.Errorf("it is seen as %+v", s)
	}
	if s := wantSeen(t, db.Pool, find.Query{ID: "later"}, "stored behind-event billing").Sightings[0]; s.Reason != "" {
		t.Errorf("what is behind it is seen as %+v", s)
	}
	pgtest.Exec(t, db.Pool, "update holdfast.dependency set away = false where name = 'bank'")
	prefix := roletest.Make(t, db)
	for _, who := range []string{"operator", "consumer"} {
		as := db.PoolWith(t, func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["role"] = prefix + "_" + who })
		if got, found := seen(t, as, find.Query{ID: "e"}); got[0] != "stored dependency billing" || !strings.HasPrefix(found.Sightings[0].Reason, "stripe, which is away since 2026-11-30T12:00:00Z; ") {
			t.Errorf("a %s sees %q, %+v", who, got, found)
		}
	}
}

// One place that takes too long, or that is not for this role, hides none of the others.
func TestFind_APlaceThatCannotBeSearchedIsNamed(t *testing.T) {
	skip.InShort(t, "it takes 4 s beside the others")
	t.Parallel()
	db := migrated.New(t)
	write(t, db.Pool, holdfast.Event{ID: "e", Source: "shop", Type: "placed", Topic: "orders", Key: "k"})
	pgtest.Exec(t, db.Pool, `insert into holdfast.inbox (consumer, source, event_id, topic, hash, processed_at, result) values ('mail', 'shop', 'e', 'orders', '', now(), 'handled')`)
	tx, err := db.Pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	pgtest.Exec(t, tx, "lock table holdfast.parked in access exclusive mode")
	found := wantSeen(t, db.Pool, find.Query{ID: "e", Within: 300 * time.Millisecond}, "log unowned", "inbox handled mail", "not parked")
	if why := found.Unsearched[0].Why; !strings.Contains(why, "300ms were not enough") {
		t.Errorf("it says %q", why)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}

	prefix := roletest.Make(t, db)
	as := func(who string) *pgxpool.Pool {
		return db.PoolWith(t, func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["role"] = prefix + "_" + who })
	}
	wantSeen(t, as("operator"), find.Query{ID: "e"}, "log unowned", "inbox handled mail")
	found = wantSeen(t, as("consumer"), find.Query{ID: "e"}, "inbox handled mail", "not scheduled", "not log", "not parked", "not action")
	if why := found.Unsearched[0].Why; !strings.Contains(why, "permission denied") || !strings.Contains(why, "operator") {
		t.Errorf("it says %q", why)
	}
}

func TestFind_MoreEventsOfAnIDThanAreListedAreSaid(t *testing.T) {
	skip.InShort(t, "it takes 3 s beside the others")
	t.Parallel()
	db := migrated.New(t)
	pgtest.Exec(t, db.Pool, `insert into holdfast.inbox (consumer, source, event_id, topic, hash, processed_at, result)
		select 'mail', 'shop ' || n, 'e', 'orders', '', now(), 'handled' from generate_series(1, 101) n`)
	got, found := seen(t, db.Pool, find.Query{ID: "e"})
	if len(found.Sightings) != 100 || got[100] != "not inbox" || !strings.Contains(found.Unsearched[0].Why, "more than 100") {
		t.Errorf("%d are seen, and %+v", len(found.Sightings), found.Unsearched)
	}
	wantSeen(t, db.Pool, find.Query{ID: "e", Source: "shop 77"}, "inbox handled mail")
}

func TestFind_AWrongQueryNamesEveryProblem(t *testing.T) {
	t.Parallel()
	_, err := find.Event(t.Context(), nil, find.Query{Key: "a\x00", Within: time.Microsecond, Schema: "Not A Name"})
	for _, want := range []string{"pool is nil", "id has 0 bytes", "has a NUL", "within is 1µs", "Not A Name"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("the error is %v, want %q in it", err, want)
		}
	}
	db := pgtest.New(t)
	if _, err := find.Event(t.Context(), db.Pool, find.Query{ID: "e"}); !errors.Is(err, holdfast.ErrSchemaMissing) {
		t.Errorf("without a schema: %v", err)
	}
}

// An edit gives the event of a relay's letter another id. Who asks by the first one finds the letter, what was done to it, and the other id.
func TestFind_AnEditedEventIsFoundByTheIDThatItHad(t *testing.T) {
	db := migrated.New(t)
	for _, id := range []string{"e1", "e2"} {
		pgtest.Exec(t, db.Pool, `insert into holdfast.letter (origin, reason, event_id, source, type, topic, key, time, payload, hash, lane) values ('relay', 'r', $1, 'shop', 'placed', 'orders', 'k', now(), 'one', sha256('one'), 0)`, id)
	}
	d, err := dlq.New(db.Pool, dlq.Config{})
	if err != nil {
		t.Fatal(err)
	}
	ids := []string{"e1"}
	for _, payload := range []string{"two", "three"} {
		if err := d.Edit(t.Context(), 1, []byte(payload), "ann", "a typo"); err != nil {
			t.Fatal(err)
		}
		l, err := d.Get(t.Context(), 1)
		if err != nil || slices.Contains(ids, l.Event.ID) {
			t.Fatalf("the edit left the id %s, %v", l.Event.ID, err)
		}
		ids = append(ids, l.Event.ID)
	}
	found := wantSeen(t, db.Pool, find.Query{ID: "e1"}, "letter open", "action edit", "action edit")
	if says := found.Sightings[0].Says; !strings.Contains(says, ids[2]) {
		t.Errorf("it does not say that its id is %s now: %s", ids[2], says)
	}
	found = wantSeen(t, db.Pool, find.Query{ID: ids[2], Key: "k"}, "letter open", "action edit", "action edit")
	if says := found.Sightings[0].Says; strings.Contains(says, "an edit has given") {
		t.Errorf("asked by its own id it says %s", says)
	}
	wantSeen(t, db.Pool, find.Query{ID: "e2"}, "letter open")
	wantSeen(t, db.Pool, find.Query{ID: "e3"})
}
