// Package versions runs nodes of one build on the schema of another, and both builds side by side. It has no code but tests.
package versions

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/dlq"
	"github.com/holdfast-go/holdfast/inbox"
	"github.com/holdfast-go/holdfast/internal/test/endtoend"
	"github.com/holdfast-go/holdfast/internal/test/kafkatest"
	"github.com/holdfast-go/holdfast/internal/test/migrated"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/roletest"
	"github.com/holdfast-go/holdfast/internal/test/rows"
	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/internal/test/wait"
	"github.com/holdfast-go/holdfast/kafkago"
	"github.com/holdfast-go/holdfast/relay"
)

func TestMain(m *testing.M) {
	os.Exit(pgtest.Main(m, kafkatest.Stop))
}

// version1 is the schema of the first release, for the schema "holdfast".
const version1 = "../../migrations/testdata/1.sql"

// grantsOf1 are those that the documentation of version 1 of the schema listed.
var grantsOf1 = map[string][]string{
	"producer": {"usage on schema holdfast", "execute on function holdfast.append, holdfast.append_one, holdfast.lock, holdfast.lock_number, holdfast.write, holdfast.new_id"},
	"relay": {"usage on schema holdfast", "select on all tables in schema holdfast",
		"insert, update, delete on holdfast.incarnation, holdfast.lane, holdfast.relay, holdfast.parked, holdfast.letter, holdfast.scheduled",
		"update on holdfast.segments", "usage on all sequences in schema holdfast", "execute on function holdfast.append, holdfast.reclaim, holdfast.publish_letter"},
	"consumer": {"usage on schema holdfast",
		"select, insert, update, delete on holdfast.inbox, holdfast.retention, holdfast.stored, holdfast.consumer_position, holdfast.start, holdfast.consumer_type, holdfast.letter, holdfast.watermark",
		"select, insert on holdfast.incarnation", "select on holdfast.letter_action", "usage on all sequences in schema holdfast", "execute on function holdfast.publish_letter"},
	"letters": {"usage on schema holdfast", "select, insert, update, delete on holdfast.letter", "select, insert on holdfast.letter_action",
		"select on holdfast.consumer_type", "select, insert, update, delete on holdfast.letter_replay",
		"select, insert, update, delete on holdfast.stored", "select, insert, update on holdfast.inbox", "usage on all sequences in schema holdfast", "execute on function holdfast.append, holdfast.new_id"},
}

// asOf1 connects with a role that has the grants of version 1 and nothing else.
func asOf1(t testing.TB, db *pgtest.DB, who string) *pgxpool.Pool {
	t.Helper()
	return roletest.With(t, db, who, grantsOf1[who])
}

// publisher publishes every event.
type publisher func(holdfast.Event)

func (publish publisher) Publish(_ context.Context, events []holdfast.Event) []error {
	for _, e := range events {
		publish(e)
	}
	return make([]error, len(events))
}

// starts are the parts of holdfast that run, each with the rights that docs/operations.md lists.
func starts(t *testing.T, db *pgtest.DB, as func(testing.TB, *pgtest.DB, string) *pgxpool.Pool) map[string]func(context.Context) error {
	t.Helper()
	quiet := slog.New(slog.NewTextHandler(io.Discard, nil))
	r, err := relay.New(as(t, db, "relay"), publisher(func(holdfast.Event) {}), relay.Config{Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	consumer := func() *inbox.Inbox {
		in, err := inbox.New(as(t, db, "consumer"), inbox.Config{Consumer: "billing", Logger: quiet})
		if err != nil {
			t.Fatal(err)
		}
		in.Handle("t", func(context.Context, pgx.Tx, holdfast.Event) error { return nil })
		return in
	}
	running, consuming := consumer(), consumer()
	cluster := kafkatest.InProcess(t)
	group := kafkago.GroupConfig{GroupID: "billing", Topics: []string{cluster.Topic(t, 1)}}
	return map[string]func(context.Context) error{
		"Relay.Run": r.Run, "Inbox.Run": running.Run,
		"Inbox.Consume": func(ctx context.Context) error { return endtoend.ConsumeGroup(ctx, consuming, cluster.Brokers, group) },
	}
}

func TestVersions_ANewNodeOnAnOldSchemaSaysWhatToRun(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	migrated.Script(t, db.Pool, "holdfast", version1)
	want := fmt.Sprintf("schema holdfast is at version 1, this build needs %d: run holdfast migrate", holdfast.SchemaVersion)
	for name, run := range starts(t, db, asOf1) {
		ctx, cancel := context.WithTimeout(t.Context(), wait.Limit())
		err := run(ctx)
		cancel()
		if !errors.Is(err, holdfast.ErrSchemaVersion) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s ends with %v, want %q", name, err, want)
		}
	}
	if err := holdfast.Check(t.Context(), db.Pool, holdfast.SchemaConfig{}); !errors.Is(err, holdfast.ErrSchemaVersion) || !strings.Contains(err.Error(), want) {
		t.Errorf("Check says %v, want %q", err, want)
	}
}

func TestVersions_AnOldNodeOnANewSchemaRunsUnlessItMustNot(t *testing.T) {
	skip.InShort(t, "it takes 3 s beside the others")
	t.Parallel()
	db := migrated.New(t)
	parts := starts(t, db, roletest.As)
	pgtest.Exec(t, db.Pool, "update holdfast.installation set version = $1 + 1, compatible_from = $1 + 1", holdfast.SchemaVersion)
	want := fmt.Sprintf("schema holdfast is at version %d, for builds that know version %[1]d or a newer one; this build knows %d: use a newer build", holdfast.SchemaVersion+1, holdfast.SchemaVersion)
	for name, run := range parts {
		ctx, cancel := context.WithTimeout(t.Context(), wait.Limit())
		err := run(ctx)
		cancel()
		if !errors.Is(err, holdfast.ErrSchemaVersion) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s ends with %v, want %q", name, err, want)
		}
	}
	pgtest.Exec(t, db.Pool, "update holdfast.installation set compatible_from = $1", holdfast.SchemaVersion)
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	for name, run := range starts(t, db, roletest.As) {
		running.Go(func() {
			if err := run(ctx); err != nil {
				t.Errorf("%s ends with %v", name, err)
			}
		})
	}
	wait.Until(t, "the relay owns lanes, and the consumer declares its types", func() bool {
		return pgtest.Count(t, db.Pool, "select (select count(*) from holdfast.lane where owner is not null) * (select count(*) from holdfast.consumer_type)") > 0
	})
	stop()
	running.Wait()
}

// The statements of version 1's outbox, word by word: its processes write while the schema is upgraded, and afterwards until
// they are replaced.
const (
	appendEventsOf1 = `select holdfast.append($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::timestamptz[], $7::text[], $8::bytea[], $9::timestamptz[], null)`
	appendEventOf1  = `select holdfast.append_one($1::text, $2::text, $3::text, $4::text, $5::text, $6::timestamptz, $7::text, $8::bytea)`
	writeEventOf1   = `select holdfast.write('orders', $1, 't', 'by SQL', headers => '{"tenant": "a"}')`
)

func TestVersions_ProducersOfVersion1WriteThroughTheUpgrade(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	migrated.Script(t, db.Pool, "holdfast", version1)
	producer := asOf1(t, db, "producer")
	ctx, stop := context.WithCancel(t.Context())
	var wrote [3]int64
	var writers sync.WaitGroup
	for w, write := range []func(id string) error{
		func(id string) error {
			_, err := producer.Exec(t.Context(), appendEventOf1, id, "shop", "t", "orders", id, nil, `{"a": "1"}`, []byte("x"))
			return err
		},
		func(id string) error {
			two := []string{id, id + "b"}
			_, err := producer.Exec(t.Context(), appendEventsOf1, two, two, two, []string{"orders", "mail"}, two, nil, nil, [][]byte{nil, {}}, []*time.Time{nil, nil})
			return err
		},
		func(id string) error {
			_, err := producer.Exec(t.Context(), writeEventOf1, id)
			return err
		},
	} {
		writers.Go(func() {
			for ctx.Err() == nil {
				if err := write(fmt.Sprint(w, "-", wrote[w])); err != nil {
					t.Errorf("after %d: %v", wrote[w], err)
					return
				}
				wrote[w]++
			}
		})
	}
	written := func() int64 { return pgtest.Count(t, db.Pool, "select count(*) from holdfast.event") }
	wait.Until(t, "the writers write", func() bool { return written() > 100 })
	if err := holdfast.Migrate(t.Context(), db.Pool, holdfast.SchemaConfig{}); err != nil {
		t.Error(err)
	}
	upgraded := written()
	wait.Until(t, "the writers write on", func() bool { return t.Failed() || written() > upgraded+100 })
	stop()
	writers.Wait()
	if got, want := written(), wrote[0]+2*wrote[1]+wrote[2]; got != want {
		t.Errorf("%d events are in the log, %d were written", got, want)
	}
}

// replayOf1 is the statement by which version 1 of dlq named a letter.
const replayOf1 = `select holdfast.append(array[l.event_id], array[l.source], array[l.type], array[l.topic], array[l.key], array[l.time],
       array[l.headers::text], array[l.payload], null, array[l.id])
  from holdfast.letter l where l.id = $1::bigint`

func TestVersions_ReplaysOfTheOtherVersionSayWhatToDo(t *testing.T) {
	skip.InShort(t, "it takes 2 s beside the others")
	t.Parallel()
	db := pgtest.New(t)
	migrated.Script(t, db.Pool, "holdfast", version1)
	id := rows.Holding(t, db)
	letters := asOf1(t, db, "letters")
	d, err := dlq.New(letters, dlq.Config{})
	if err != nil {
		t.Fatal(err)
	}
	replay := func() (int, error) {
		return d.Replay(t.Context(), dlq.Filter{IDs: []int64{id}}, dlq.ReplayOptions{By: "ann"})
	}
	if n, err := replay(); n != 0 || !errors.Is(err, holdfast.ErrSchemaVersion) || !strings.Contains(err.Error(), "run holdfast migrate") {
		t.Errorf("on the old schema: replayed %d, %v", n, err)
	}
	if err := holdfast.Migrate(t.Context(), db.Pool, holdfast.SchemaConfig{}); err != nil {
		t.Fatal(err)
	}
	if _, err := letters.Exec(t.Context(), replayOf1, id); err == nil || !strings.Contains(err.Error(), "replay it by a newer build of holdfast") {
		t.Errorf("the old build on the new schema: %v", err)
	}
	letters.Reset()                               // It has prepared statements whose columns had another collation: each fails once.
	if n, err := replay(); n != 1 || err != nil { // The upgrade granted what is new.
		t.Errorf("on the new schema: replayed %d, %v", n, err)
	}
}

// The relay of the new build has the rights that the upgrade gave to that of the old one, and publishes what that has left.
func TestVersions_TheNewRelayPublishesWhatTheOldVersionWrote(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	migrated.Script(t, db.Pool, "holdfast", version1)
	pool, producer := asOf1(t, db, "relay"), asOf1(t, db, "producer")
	for i := range 3 {
		pgtest.Exec(t, producer, "select holdfast.write('orders', 'k', 't', 'x', id => $1)", fmt.Sprint("e", i))
	}
	pgtest.Exec(t, producer, "select holdfast.write('orders', 'k', 't', 'x', id => 'e3', not_before => now() + interval '1 second')")
	if err := holdfast.Migrate(t.Context(), db.Pool, holdfast.SchemaConfig{}); err != nil {
		t.Fatal(err)
	}
	published := make(chan string, 4)
	r, err := relay.New(pool, publisher(func(e holdfast.Event) { published <- e.ID }), relay.Config{Lease: wait.Limit(), Logger: slog.New(slog.NewTextHandler(io.Discard, nil))})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithTimeout(t.Context(), wait.Limit())
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	for i := range 4 {
		select {
		case id := <-published:
			if want := fmt.Sprint("e", i); id != want {
				t.Errorf("%s is published, want %s", id, want)
			}
		case <-ctx.Done():
			t.Fatalf("%d events are published, want 4", i)
		}
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// A change of a collation makes each prepared statement that returns the column fail once ("cached plan must not change result
// type"). Builds for version 1 go through that while they run on.
func TestVersions_RelaysAndConsumersRunOnThroughAChangeOfCollations(t *testing.T) {
	skip.InShort(t, "it takes 5 s beside the others")
	t.Parallel()
	db := migrated.New(t)
	quiet := slog.New(slog.NewTextHandler(io.Discard, nil))
	var published, handled atomic.Int64
	r, err := relay.New(roletest.As(t, db, "relay"), publisher(func(holdfast.Event) { published.Add(1) }), relay.Config{Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	in, err := inbox.New(roletest.As(t, db, "consumer"), inbox.Config{Consumer: "billing", Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	in.Handle("t", func(context.Context, pgx.Tx, holdfast.Event) error { handled.Add(1); return nil })
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	for name, run := range map[string]func(context.Context) error{"Relay.Run": r.Run, "Inbox.Run": in.Run} {
		running.Go(func() {
			if err := run(ctx); err != nil {
				t.Errorf("%s ends with %v", name, err)
			}
		})
	}
	other, err := inbox.New(db.Pool, inbox.Config{Consumer: "billing", Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	few := func(from, to int) {
		t.Helper()
		for i := from; i < to; i++ {
			id := fmt.Sprint("e", i)
			pgtest.Exec(t, db.Pool, "select holdfast.write('orders', 'k', 't', 'x', id => $1)", id)
			err := pgx.BeginFunc(t.Context(), db.Pool, func(tx pgx.Tx) error {
				_, err := other.StoreTx(t.Context(), tx, holdfast.Event{ID: id, Source: "s", Topic: "orders", Type: "t", Key: id})
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
		}
		wait.Until(t, fmt.Sprint(to, " events are published, and handled"), func() bool { return published.Load() >= int64(to) && handled.Load() >= int64(to) })
	}
	few(0, 10)
	pgtest.Exec(t, db.Pool, "drop policy own_rows on holdfast.stored; drop policy own_rows on holdfast.inbox; drop view holdfast.inbox_events, holdfast.backlog, holdfast.waiting, holdfast.waiting_in_relays, holdfast.waiting_in_consumers, holdfast.waiting_in_schedule") // They keep the types of columns.
	for i, collation := range []string{"default", "C"} {
		for table, columns := range map[string][]string{
			"event": {"id", "source", "type", "topic", "key"}, "parked": {"id", "source", "type", "topic", "key"}, "scheduled": {"id", "source", "type", "key"}, "lane": {"owner"},
			"stored": {"consumer", "topic", "key", "source", "event_id", "type"}, "inbox": {"consumer", "source", "event_id", "topic"},
		} {
			var change []string
			for _, column := range columns {
				change = append(change, fmt.Sprintf(`alter column %s type text collate "%s"`, column, collation))
			}
			pgtest.Exec(t, db.Pool, "alter table holdfast."+table+" "+strings.Join(change, ", "))
		}
		db.Reset() // The test's own connections do not go through that.
		few(10*(i+1), 10*(i+2))
	}
	stop()
	running.Wait()
	if n := pgtest.Count(t, db.Pool, "select count(*) from holdfast.letter"); n != 0 {
		t.Errorf("%d events became dead letters", n)
	}
}

// Nodes for version 1 go on removing rows of the inbox, with its statements.
func TestVersions_RetentionOfVersion1RunsOnTheNewSchema(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	migrated.Script(t, db.Pool, "holdfast", version1)
	old := asOf1(t, db, "consumer")
	if err := holdfast.Migrate(t.Context(), db.Pool, holdfast.SchemaConfig{}); err != nil {
		t.Fatal(err)
	}
	pgtest.Exec(t, db.Pool, "insert into holdfast.retention (consumer, sources) values ('mail', '{\"stripe\": \"2026-01-31T00:00:00Z\"}')")
	for range 2 {
		pgtest.Exec(t, old, `insert into holdfast.retention (consumer) select $1::text
			where not exists (select from holdfast.retention r where r.consumer = $1::text)
			on conflict (consumer) do nothing`, "billing")
	}
	if n := pgtest.Count(t, old, `select count(*) from (select r.from_at, r.kept_at from holdfast.retention r
		where r.consumer = $1::text and (r.next_at <= now() or r.next_at > now() + 2 * $2::bigint * interval '1 microsecond') for update skip locked) r`, "billing", int64(600_000_000)); n != 1 {
		t.Errorf("%d turns are taken", n)
	}
	for _, consumer := range []string{"billing", "mail"} {
		if n := pgtest.Exec(t, old, `update holdfast.retention r
			set from_at = $2::timestamptz, kept_at = $3::timestamptz, next_at = clock_timestamp() + $4::bigint * interval '1 microsecond'
			where r.consumer = $1::text`, consumer, time.Now(), nil, int64(1000)); n != 1 {
			t.Errorf("%s: %d rows are saved", consumer, n)
		}
	}
	if n := pgtest.Count(t, db.Pool, "select count(*) from holdfast.retention where consumer = 'mail' and sources ? 'stripe'"); n != 1 {
		t.Error("the mark of a source is gone")
	}
}

// Who could consume and replay before an upgrade has the rights to the steps of handlers after it, without roles.sql.
func TestVersions_AnUpgradeGivesTheRightsToSteps(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	migrated.Script(t, db.Pool, "holdfast", version1)
	consumer, operator, producer := asOf1(t, db, "consumer"), asOf1(t, db, "letters"), asOf1(t, db, "producer")
	if err := holdfast.Migrate(t.Context(), db.Pool, holdfast.SchemaConfig{}); err != nil {
		t.Fatal(err)
	}
	in, err := inbox.New(consumer, inbox.Config{Consumer: "billing", Logger: slog.New(slog.NewTextHandler(io.Discard, nil))})
	if err != nil {
		t.Fatal(err)
	}
	calls := 0
	in.Handle("t", func(ctx context.Context, _ pgx.Tx, e holdfast.Event) error {
		_, err := inbox.Step(ctx, "charge", func(context.Context, string) (int, error) { calls++; return calls, nil })
		return err
	})
	for range 2 { // The second time the handler runs again: its event's row is gone.
		if got, err := in.Receive(t.Context(), holdfast.Event{ID: "e", Source: "s", Topic: "orders", Type: "t"}); err != nil || got != inbox.Handled {
			t.Fatalf("%v, %v", got, err)
		}
		pgtest.Exec(t, consumer, "delete from holdfast.inbox")
	}
	if n := pgtest.Count(t, operator, "select count(*) from holdfast.inbox_step"); n != 1 || calls != 1 {
		t.Errorf("%d steps are recorded after %d calls, want 1", n, calls)
	}
	if n := pgtest.Exec(t, operator, "delete from holdfast.inbox_step"); n != 1 {
		t.Errorf("an operator removes %d steps, want 1", n)
	}
	if _, err := producer.Exec(t.Context(), "select from holdfast.inbox_step"); err == nil {
		t.Error("a producer reads steps")
	}
}
