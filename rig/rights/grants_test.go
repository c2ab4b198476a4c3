package rights

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/segmentio/kafka-go"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/dlq"
	"github.com/holdfast-go/holdfast/idempotency"
	"github.com/holdfast-go/holdfast/inbox"
	"github.com/holdfast-go/holdfast/internal/rights"
	"github.com/holdfast-go/holdfast/internal/test/endtoend"
	"github.com/holdfast-go/holdfast/internal/test/kafkatest"
	"github.com/holdfast-go/holdfast/internal/test/logtest"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/roletest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/internal/test/wait"
	"github.com/holdfast-go/holdfast/kafkago"
	"github.com/holdfast-go/holdfast/outbox"
	"github.com/holdfast-go/holdfast/relay"
	"github.com/holdfast-go/holdfast/relay/publish"
	"github.com/holdfast-go/holdfast/retry"
	"github.com/holdfast-go/holdfast/waiting"
)

var (
	relayAtOnce = retry.Policy{Attempts: 1}
	permanent   = retry.Permanent(errors.New("never"))
)

// refusing publishes everything but what it is told to refuse for good.
type refusing func(e holdfast.Event) bool

func (refuse refusing) Publish(_ context.Context, events []holdfast.Event) []error {
	errs := make([]error, len(events))
	for i, e := range events {
		if refuse(e) {
			errs[i] = &publish.Error{Topic: e.Topic, Partition: -1, Fault: publish.FaultRecord, Err: errors.New("record refused")}
		}
	}
	return errs
}

func TestGrants_TheGrantsOfTheOperationsPageAreEnough(t *testing.T) {
	skip.InShort(t, "it takes 7 s beside the others")
	t.Parallel()
	db := pgtest.New(t)
	if err := holdfast.Migrate(t.Context(), db.Pool, holdfast.SchemaConfig{}); err != nil {
		t.Fatal(err)
	}
	quiet := slog.New(slog.NewTextHandler(io.Discard, nil))

	producer := roletest.As(t, db, "producer")
	if err := pgx.BeginFunc(t.Context(), producer, func(tx pgx.Tx) error {
		if err := outbox.Lock(t.Context(), tx, "k"); err != nil {
			return err
		}
		if _, err := tx.Exec(t.Context(), "select holdfast.write('orders', 'k', 't', 'by SQL')"); err != nil {
			return err
		}
		if _, err := outbox.WriteOnce(t.Context(), tx, "once", holdfast.Event{Topic: "orders", Type: "t", Key: "k"}); err != nil {
			return err
		}
		return outbox.Write(t.Context(), tx,
			holdfast.Event{Topic: "orders", Type: "t", Key: "k"}, holdfast.Event{Topic: "orders", Type: "bad", Key: "b"},
			holdfast.Event{Topic: "orders", Type: "t", Key: "later", NotBefore: time.Now().Add(300 * time.Millisecond)})
	}); err != nil {
		t.Fatalf("producer: %v", err)
	}

	var log logtest.Log
	r, err := relay.New(roletest.As(t, db, "relay"), refusing(func(e holdfast.Event) bool { return e.Type == "bad" && e.Topic == "orders" }),
		relay.Config{Logger: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelError})), Retry: relayAtOnce, DeadLetterTopic: "*.dlq"})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	if !wait.For(wait.Limit(), func() bool {
		return pgtest.Count(t, db.Pool, "select (select count(*) from holdfast.letter) + 1 - (select count(*) from holdfast.scheduled)") == 2
	}) {
		t.Fatalf("the relay did not make a dead letter of the refused event and move the scheduled one: %s", log.String())
	}
	stop()
	if err := <-done; err != nil {
		t.Fatalf("relay: %v", err)
	}

	in, err := inbox.New(roletest.As(t, db, "consumer"), inbox.Config{Consumer: "billing", Logger: quiet, DeadLetterTopic: "*.dlq"})
	if err != nil {
		t.Fatal(err)
	}
	in.Handle("t", func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
		if _, err := inbox.Step(ctx, "one", func(context.Context, string) (int, error) { return 1, nil }); err != nil {
			return err
		}
		_, err := in.Watermark(ctx, tx, e.Key, 1)
		return err
	})
	in.Handle("poison", func(context.Context, pgx.Tx, holdfast.Event) error { return permanent })
	for event, want := range map[*holdfast.Event]inbox.Outcome{
		{ID: "1", Source: "s", Topic: "orders", Type: "t", Key: "k"}:      inbox.Handled,
		{ID: "2", Source: "s", Topic: "orders", Type: "poison", Key: "p"}: inbox.Dead,
	} {
		if got, err := in.Receive(t.Context(), *event); err != nil || got != want {
			t.Fatalf("consumer: got %v, %v, want %v", got, err, want)
		}
	}

	cluster := kafkatest.InProcess(t)
	topic := cluster.Topic(t, 1)
	if _, err := cluster.Client.Produce(t.Context(), &kafka.ProduceRequest{Topic: topic, RequiredAcks: kafka.RequireAll,
		Records: kafka.NewRecordReader(kafka.Record{Value: kafka.NewBytes([]byte("nobody's"))})}); err != nil {
		t.Fatal(err)
	}
	ctx, stop = context.WithCancel(t.Context())
	go func() {
		done <- endtoend.ConsumeGroup(ctx, in, cluster.Brokers, kafkago.GroupConfig{GroupID: "billing", Topics: []string{topic}})
	}()
	wait.Until(t, "the consumer saves its position", func() bool {
		return pgtest.Count(t, db.Pool, "select count(*) from holdfast.consumer_position where position = 1") == 1
	})
	stop()
	if err := <-done; err != nil {
		t.Fatalf("consumer: %v", err)
	}

	if got, err := in.Receive(t.Context(), holdfast.Event{ID: "1", Source: "s", Topic: "orders", Type: "t", Key: "k", Payload: []byte("another")}); err != nil || got != inbox.Conflict {
		t.Fatalf("consumer: got %v, %v, want a conflict", got, err)
	}
	if n := pgtest.Count(t, db.Pool, "select count(*) from holdfast.event where topic = 'orders.dlq'"); n != 3 {
		t.Fatalf("%d letters are published, want one of the relay and two of the consumer", n)
	}

	guard, err := idempotency.New(roletest.As(t, db, "web"), idempotency.Config{Principal: func(*http.Request) (string, error) { return "a", nil }, KeepExpired: time.Hour, Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, err := idempotency.Step(r.Context(), "one", func(context.Context, pgx.Tx) (int, error) { return 1, nil }); err != nil {
			t.Error(err)
		}
		w.WriteHeader(http.StatusOK)
	})
	asItIs := func(r *http.Request, _ idempotency.Info) *http.Request { return r }
	services := map[string]http.Handler{
		"transaction": guard.Middleware(handler),
		"lease":       guard.Route(idempotency.Route{Lease: time.Minute, Operation: "leased", Complete: asItIs})(handler),
	}
	for range 2 { // The second time the key has expired.
		for mode, service := range services {
			request := httptest.NewRequest(http.MethodPost, "/", nil)
			request.Header.Set("Idempotency-Key", mode)
			answer := httptest.NewRecorder()
			service.ServeHTTP(answer, request)
			if answer.Code != http.StatusOK || answer.Header().Get("Idempotency-Status") != "stored" {
				t.Errorf("a service with idempotent routes, by %s: got %d %s", mode, answer.Code, answer.Body)
			}
		}
		pgtest.Exec(t, db.Pool, "update holdfast.idempotency set expires_at = now()")
	}
	if _, err := guard.CompleteOnce(t.Context()); err != nil {
		t.Error(err)
	}
	if n, err := guard.RunOnce(t.Context()); n != 2 || err != nil {
		t.Errorf("cleanup removed %d: %v", n, err)
	}

	letters, err := dlq.New(roletest.As(t, db, "operator"), dlq.Config{})
	if err != nil {
		t.Fatal(err)
	}
	open, err := letters.List(t.Context(), dlq.Filter{})
	if err != nil || len(open) != 3 {
		t.Fatalf("letters: got %d, %v", len(open), err)
	}
	for _, l := range open {
		if err := letters.Edit(t.Context(), l.ID, []byte("fixed"), "ann", "typo"); err != nil {
			t.Fatalf("letters: %v", err)
		}
	}
	if n, err := letters.Replay(t.Context(), dlq.Filter{IDs: []int64{open[0].ID, open[1].ID}}, dlq.ReplayOptions{By: "ann", Name: "n"}); n != 2 || err != nil {
		t.Fatalf("letters: got %d, %v", n, err)
	}
	if n, err := letters.DiscardAll(t.Context(), dlq.Filter{}, dlq.DiscardOptions{By: "ann"}); n != 1 || err != nil {
		t.Fatalf("letters: got %d, %v", n, err)
	}
	pgtest.Exec(t, db.Pool, "update holdfast.letter set last_at = now() - interval '1 day' where state = 'discarded'")
	if n, err := letters.Purge(t.Context(), dlq.PurgeOptions{OlderThan: time.Hour}); n != 1 || err != nil {
		t.Fatalf("letters: got %d, %v", n, err)
	}
	const waiting = "select count(*) from holdfast.stored"
	if n := pgtest.Count(t, db.Pool, waiting); n == 0 {
		t.Error("no replayed event waits for the consumer")
	}
	ctx, stop = context.WithCancel(t.Context())
	defer stop()
	go func() { // Until it is settled: one that is only claimed when the stop comes is handed back.
		defer stop()
		wait.For(wait.Limit(), func() bool { return ctx.Err() != nil || pgtest.Count(t, db.Pool, waiting) == 0 })
	}()
	if err := in.Run(ctx); err != nil {
		t.Fatalf("consumer: %v", err)
	}
	if n := pgtest.Count(t, db.Pool, waiting); n != 0 {
		t.Error("the consumer did not settle the replayed event")
	}
}

func TestGrants_TheGrantsOfTheOperationsPageAreEnoughForWhatWaits(t *testing.T) {
	skip.InShort(t, "it takes 2 s beside the others")
	t.Parallel()
	db := pgtest.New(t)
	if err := holdfast.Migrate(t.Context(), db.Pool, holdfast.SchemaConfig{}); err != nil {
		t.Fatal(err)
	}
	pgtest.Exec(t, db.Pool, `insert into holdfast.letter (origin, reason, event_id, source, type, topic, key, time, hash, lane, state)
		select 'relay', 'r', n::text, 's', 't', 'topic ' || n, 'k', now(), '', 3, 'replaying' from generate_series(1, 3) n`)
	pgtest.Exec(t, db.Pool, `insert into holdfast.parked (lane, topic, key, place, why, next_at, id, source, type, time, letter)
		select 3, l.topic, 'k', -n, 'topic', 'infinity', n, 's', 't', now(), case when n = 1 then l.id end from holdfast.letter l, generate_series(1, 2) n`)
	room, err := waiting.New(roletest.As(t, db, "operator"), waiting.Config{})
	if err != nil {
		t.Fatal(err)
	}
	o := waiting.Options{By: "ann", Reason: "retired"}
	if groups, err := room.Groups(t.Context(), waiting.Filter{}); len(groups) != 3 || err != nil {
		t.Errorf("%v, %v", groups, err)
	}
	if events, err := room.List(t.Context(), waiting.Filter{}); len(events) != 6 || err != nil {
		t.Errorf("%v, %v", events, err)
	}
	if n, err := room.Retry(t.Context(), waiting.Filter{Origin: "relay", Topic: "topic 1"}, o); err != nil {
		t.Errorf("retried: %d, %v", n, err)
	}
	if n, err := room.GiveUp(t.Context(), waiting.Filter{Origin: "relay", Topic: "topic 1"}, o); n != 2 || err != nil {
		t.Errorf("given up: %d, %v", n, err)
	}
	if n, err := room.Discard(t.Context(), waiting.Filter{Origin: "relay", Topic: "topic 2"}, o); n != 2 || err != nil {
		t.Errorf("discarded: %d, %v", n, err)
	}
	if n, err := room.Redirect(t.Context(), waiting.Filter{Topic: "topic 3"}, "orders", o); n != 2 || err != nil {
		t.Errorf("redirected: %d, %v", n, err)
	}

	without, err := waiting.New(roletest.As(t, db, "consumer"), waiting.Config{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := without.GiveUp(t.Context(), waiting.Filter{Origin: "relay", Topic: "orders"}, o); err == nil || !strings.Contains(err.Error(), "docs/operations.md lists what to grant") {
		t.Errorf("without the rights: %v", err)
	}
}

// The command is run with a role that may only look, on a log that is full, where status reads most.
func TestGrants_TheGrantsOfTheOperationsPageAreEnoughToLook(t *testing.T) {
	skip.InShort(t, "it takes 3 s beside the others")
	t.Parallel()
	db := pgtest.New(t)
	if err := holdfast.Migrate(t.Context(), db.Pool, holdfast.SchemaConfig{}); err != nil {
		t.Fatal(err)
	}
	for segment := range 4 {
		pgtest.Exec(t, db.Pool, fmt.Sprintf("insert into holdfast.event_%d (lane, id, type, topic) values (3, 'e', 't', 'o')", segment))
	}
	tx, err := db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(t.Context()) }()
	pgtest.Exec(t, tx, "select from holdfast.event")
	dsn, err := url.Parse(db.DSN)
	if err != nil {
		t.Fatal(err)
	}
	query := dsn.Query()
	query.Set("role", roletest.Granted(t, db, "reader", roletest.Grants["reader"]))
	dsn.RawQuery = query.Encode()
	looks := func(want string, args ...string) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), "go", append([]string{"run", "./cmd/holdfast"}, args...)...)
		cmd.Dir = filepath.Join("..", "..")
		cmd.Env = append(os.Environ(), "DATABASE_URL="+dsn.String())
		if out, _ := cmd.CombinedOutput(); !strings.Contains(string(out), want) || strings.Contains(string(out), `"seconds":-1`) {
			t.Errorf("holdfast %s says\n%s\nwant %s", strings.Join(args, " "), out, want)
		}
	}
	looks("schema holdfast is complete", "check")
	looks("unread in lane 3", "status")
	looks(`"log_holders":[{"pid":`, "status", "--json")
}

// Whoever is told that a right is missing is told which one.
func TestGrants_MissingRightsAreNamed(t *testing.T) {
	skip.InShort(t, "it takes 7 s beside the others")
	t.Parallel()
	db := pgtest.New(t)
	if err := holdfast.Migrate(t.Context(), db.Pool, holdfast.SchemaConfig{}); err != nil {
		t.Fatal(err)
	}
	for who, needs := range rights.Of {
		role := roletest.Granted(t, db, who, roletest.Grants[who])
		pool := db.PoolWith(t, func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["role"] = role })
		lack := func() []string {
			t.Helper()
			missing, err := rights.Lack(t.Context(), pool, "holdfast", needs)
			if err != nil {
				t.Fatal(err)
			}
			return missing
		}
		if missing := lack(); len(missing) > 0 {
			t.Errorf("%s: the grants of docs/operations.md lack %q", who, missing)
		}
		for _, grant := range roletest.Grants[who] {
			privileges, objects, on := strings.Cut(grant, " on ")
			if !on { // membership of a role of the server
				continue
			}
			kind := ""
			for _, word := range []string{"function ", "sequence ", "schema "} {
				if strings.HasPrefix(objects, word) {
					kind, objects = word, strings.TrimPrefix(objects, word)
				}
			}
			for object := range strings.SplitSeq(objects, ", ") {
				name := strings.TrimPrefix(object, "holdfast.")
				if slices.Contains(forEverybody, name) {
					continue
				}
				for _, privilege := range privilegesOf(privileges) {
					pgtest.Exec(t, db.Pool, fmt.Sprintf("revoke %s on %s%s from %s", privilege, kind, object, role))
					want := strings.ReplaceAll(privilege, `"`, "") + " on " + name
					if kind == "schema " {
						want = privilege + " on schema " + name
					}
					missing := lack()
					if sorted := inOrder(missing); !slices.Contains(sorted, inOrder([]string{want})[0]) || kind != "schema " && len(missing) != 1 {
						t.Errorf("%s without %s: it lacks %q", who, want, missing)
					}
					pgtest.Exec(t, db.Pool, fmt.Sprintf("grant %s on %s%s to %s", privilege, kind, object, role))
				}
			}
		}
	}
}

// inOrder sorts the columns of rights: "insert (b, a) on t" is "insert (a, b) on t".
func inOrder(rights []string) (sorted []string) {
	for _, right := range rights {
		if before, rest, ok := strings.Cut(right, " ("); ok {
			list, after, _ := strings.Cut(rest, ")")
			columns := strings.Split(list, ", ")
			slices.Sort(columns)
			right = before + " (" + strings.Join(columns, ", ") + ")" + after
		}
		sorted = append(sorted, right)
	}
	return sorted
}

// privilegesOf splits "select, update (a, b)" into "select" and "update (a, b)".
func privilegesOf(list string) []string {
	return regexp.MustCompile(`[a-z]+( \([^)]*\))?`).FindAllString(list, -1)
}

// forEverybody is what public may read and call.
var forEverybody = []string{"installation", "current_incarnation", "lane_hold", "consumer_hold", "idempotency_keys", "inbox_events", "backlog", "waiting", "waiting_in_relays", "waiting_in_consumers", "waiting_in_schedule", "last_errors", "own_consumers"}
