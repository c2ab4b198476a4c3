package rights

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/dlq"
	"github.com/holdfast-go/holdfast/inbox"
	"github.com/holdfast-go/holdfast/internal/test/endtoend"
	"github.com/holdfast-go/holdfast/internal/test/kafkatest"
	"github.com/holdfast-go/holdfast/internal/test/migrated"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/roletest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/internal/test/wait"
	"github.com/holdfast-go/holdfast/kafkago"
	"github.com/holdfast-go/holdfast/retry"

	"github.com/segmentio/kafka-go"
)

// rowsOf writes a row of a consumer, for each table that has rows of consumers. %[1]s is the consumer, %[2]s another word.
var rowsOf = map[string]string{
	"inbox":             `insert into holdfast.inbox (consumer, source, event_id, topic, hash, result, processed_at) values ('%[1]s', '', '%[2]s', 'orders', '', 'handled', now())`,
	"retention":         `insert into holdfast.retention (consumer) values ('%[1]s')`,
	"stored":            `insert into holdfast.stored (consumer, topic, key, place, source, event_id, type, time, hash, payload) values ('%[1]s', 'orders', '', 0, '', '%[2]s', 't', now(), '', 'secret')`,
	"consumer_position": `insert into holdfast.consumer_position (consumer, topic, partition) values ('%[1]s', '%[2]s', 0)`,
	"consumer_backfill": `insert into holdfast.consumer_backfill (consumer, node, began_at, partitions, partitions_left, done, remaining, per_second) values ('%[1]s', '%[2]s', now(), 1, 1, 1, 1, 1)`,
	"start":             `insert into holdfast.start (consumer, source, event_id) values ('%[1]s', '', '%[2]s')`,
	"inbox_step":        `insert into holdfast.inbox_step (consumer, source, event_id, hash, name, key, result) values ('%[1]s', '', '%[2]s', '', 'charge', '', '"secret"')`,
	"consumer_type":     `insert into holdfast.consumer_type (consumer, type, node, seen_until) values ('%[1]s', '%[2]s', 'n', now())`,
	"consumer_skip":     `insert into holdfast.consumer_skip (consumer, topic, type, events) values ('%[1]s', '%[2]s', 't', 1)`,
	"dependency":        `insert into holdfast.dependency (consumer, name) values ('%[1]s', '%[2]s')`,
	"watermark":         `insert into holdfast.watermark (consumer, entity, version) values ('%[1]s', '%[2]s', 1)`,
	"letter":            `insert into holdfast.letter (origin, consumer, reason, event_id, source, type, topic, key, time, hash, payload) values ('inbox', '%[1]s', 'r', '%[2]s', '', 't', 'orders', '', now(), '', 'secret')`,
	"stored_action":     `insert into holdfast.stored_action (action, consumer, source, event_id, type, topic, key, by, reason) values ('retry', '%[1]s', '', '%[2]s', 't', 'orders', '', 'ann', '')`,
	"pause":             `insert into holdfast.pause (consumer, topic, key, by, reason) values ('%[1]s', 'orders', '%[2]s', 'ann', '')`,
	"pause_action":      `insert into holdfast.pause_action (action, consumer, topic, key, by, reason) values ('pause', '%[1]s', 'orders', '%[2]s', 'ann', '')`,
	"letter_action":     `insert into holdfast.letter_action (letter, action, by, reason) select l.id, 'edit', 'ann', '%[2]s' from holdfast.letter l where l.consumer = '%[1]s'`,
}

// parts has each table once, letters before what was done to them.
var parts = []string{"inbox", "retention", "stored", "consumer_position", "consumer_backfill", "start", "inbox_step", "consumer_type", "consumer_skip", "dependency", "watermark", "letter", "stored_action", "pause", "pause_action", "letter_action"}

// errorOf is the SQLSTATE of a statement that is taken back, "" if it does not fail, and how many rows it touched.
func errorOf(t *testing.T, pool *pgxpool.Pool, role, sql string) (state string, rows int64) {
	t.Helper()
	tx, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	if role != "" {
		pgtest.Exec(t, tx, "set local role "+role)
	}
	tag, err := tx.Exec(t.Context(), sql, pgx.QueryExecModeSimpleProtocol)
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		return pg.Code, 0
	}
	if err != nil {
		t.Fatal(err)
	}
	return "", tag.RowsAffected()
}

// twoConsumers are the rows of billing, shipping and a relay, and the roles.
func twoConsumers(t *testing.T) (db *pgtest.DB, prefix string) {
	t.Helper()
	db = migrated.New(t)
	prefix = roletest.Make(t, db)
	for _, table := range parts {
		for _, consumer := range []string{"billing", "shipping"} {
			pgtest.Exec(t, db.Pool, fmt.Sprintf(rowsOf[table], consumer, "1"))
		}
	}
	pgtest.Exec(t, db.Pool, `insert into holdfast.letter (origin, reason, event_id, source, type, topic, key, time, hash, lane) values ('relay', 'r', '1', '', 't', 'orders', '', now(), '', 0)`)
	return db, prefix
}

// A table that gets a column consumer later needs the policy too.
func TestBindings_EveryTableWithAConsumerHasItsPolicy(t *testing.T) {
	t.Parallel()
	db := migrated.New(t)
	const with = `select count(*) from pg_class c where c.relnamespace = 'holdfast'::regnamespace and c.relkind = 'r' and c.relname not in ('consumer_binding')
		and (c.relname = 'letter_action' or exists (select from pg_attribute a where a.attrelid = c.oid and a.attname = 'consumer'))`
	if n := pgtest.Count(t, db.Pool, with); n != int64(len(parts)) {
		t.Errorf("%d tables have rows of consumers, the tests know %d", n, len(parts))
	}
	if n := pgtest.Count(t, db.Pool, with+` and not exists (select from pg_policy p where p.polrelid = c.oid and p.polname = 'own_rows')`); n != 0 {
		t.Errorf("%d tables have no policy", n)
	}
}

// Billing has the rights of a consumer and of an operator together, which is more than any service needs, in every way in which a
// user can come by them; its binding still holds.
func TestBindings_ABoundConsumerSeesAndChangesOnlyItsOwnRows(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, options string
		group         bool // the binding is for a role that the user is a member of
		set           bool // it sets a role first, which has the rights
	}{{name: "a user"}, {name: "a member of the bound role", group: true}, {name: "a user who sets another role", set: true},
		{name: "a member without inheritance who sets another role", options: "noinherit", group: true, set: true}} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			db, prefix := twoConsumers(t)
			consumer, operator := prefix+"_consumer", prefix+"_operator"
			pgtest.Exec(t, db.Pool, "grant "+operator+" to "+consumer)
			pool, user := roletest.Login(t, db, c.options, consumer)
			bound, role := user, ""
			if c.group {
				_, bound = roletest.Login(t, db, "")
				pgtest.Exec(t, db.Pool, "grant "+bound+" to "+user)
			}
			if c.set {
				role = consumer
			}
			if _, rows := errorOf(t, pool, role, "select from holdfast.letter"); rows != 3 {
				t.Errorf("before anybody is bound it sees %d letters, want 3", rows)
			}
			roletest.BindConsumer(t, db, bound, "billing", "*.dlq")
			for _, table := range parts {
				if _, rows := errorOf(t, pool, role, "select from holdfast."+table); rows != 1 {
					t.Errorf("%s: it sees %d rows, want its own", table, rows)
				}
				set := "consumer = consumer"
				if table == "letter_action" {
					set = "letter = letter"
				}
				if state, rows := errorOf(t, pool, role, "update holdfast."+table+" set "+set); rows > 1 || state == "" && rows != 1 || state != "" && state != "42501" {
					t.Errorf("%s: it changes %d rows (%s), want at most its own", table, rows, state)
				}
				if state, _ := errorOf(t, pool, role, "update holdfast."+table+" set "+strings.Replace(set, "= consumer", "= 'shipping'", 1)); table != "letter_action" && state != "42501" {
					t.Errorf("%s: it gives a row to shipping (%s)", table, state)
				}
				if state, rows := errorOf(t, pool, role, "delete from holdfast."+table); rows > 1 || state != "" && state != "42501" {
					t.Errorf("%s: it removes %d rows (%s), want at most its own", table, rows, state)
				}
				if state, rows := errorOf(t, pool, role, fmt.Sprintf(rowsOf[table], "shipping", "2")); state != "42501" && rows != 0 || table != "letter_action" && state != "42501" {
					t.Errorf("%s: it writes a row of shipping (%q, %d rows)", table, state, rows)
				}
				if table == "retention" || table == "consumer_backfill" {
					continue // They have one row a consumer.
				}
				if state, rows := errorOf(t, pool, role, fmt.Sprintf(rowsOf[table], "billing", "2")); state != "" && table != "stored" && table != "letter" || rows != 1 && table != "stored" && table != "letter" {
					t.Errorf("%s: it cannot write a row of its own (%s)", table, state)
				}
			}
			if state, _ := errorOf(t, pool, role, `insert into holdfast.letter_action (letter, action, by, reason) select id, 'edit', 'ann', '' from generate_series(1, 3) id`); state != "42501" {
				t.Errorf("it writes an action on others' letters (%s)", state)
			}
			if state, _ := errorOf(t, pool, role, `insert into holdfast.letter (origin, reason, event_id, source, type, topic, key, time, hash, lane) values ('relay', 'r', '2', '', 't', 'orders', '', now(), '', 0)`); state != "42501" {
				t.Errorf("it writes a letter of a relay (%s)", state)
			}
			if state, _ := errorOf(t, pool, role, `insert into holdfast.letter (id, origin, consumer, reason, event_id, source, type, topic, key, time, hash) overriding system value
				values (100, 'inbox', 'billing', 'r', '3', '', 't', 'orders', '', now(), '')`); state != "42501" {
				t.Errorf("it takes the id of somebody's next letter (%s)", state)
			}
			if _, err := pool.Exec(t.Context(), "insert into holdfast.consumer_binding (role, consumer) values ($1, 'shipping')", user); err == nil {
				t.Error("it binds itself to another consumer")
			}
			// An operator of billing's letters acts on no others.
			if n := pgtest.Count(t, db.Pool, "select count(*) from holdfast.letter where state = 'open'"); n != 3 {
				t.Fatalf("%d letters are open", n)
			}
			if state, _ := errorOf(t, pool, role, "do $$ begin if (select holdfast.replay_letter(id) from holdfast.letter_action limit 0) or holdfast.replay_letter(3) then raise exception 'replayed' using errcode = 'XX001'; end if; end $$"); state != "" {
				t.Errorf("it replays a relay's letter (%s)", state)
			}
			pgtest.Exec(t, db.Pool, "update holdfast.letter set state = 'discarded', last_at = now() - interval '1 year'")
			tx, err := pool.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = tx.Rollback(context.Background()) }()
			if role != "" {
				pgtest.Exec(t, tx, "set local role "+role)
			}
			if n := pgtest.Count(t, tx, "select holdfast.purge_letters(3600000000, 100)"); n != 1 {
				t.Errorf("it purges %d letters, want its own", n)
			}
		})
	}
}

// Bindings hold nobody else back, and cost nothing while there are none.
func TestBindings_BindingsLeaveOthersAlone(t *testing.T) {
	skip.InShort(t, "it takes 3 s beside the others")
	t.Parallel()
	db, prefix := twoConsumers(t)
	secured := func() int64 {
		return pgtest.Count(t, db.Pool, "select count(*) from pg_class c where c.relnamespace = 'holdfast'::regnamespace and c.relrowsecurity")
	}
	if n := secured(); n != 0 {
		t.Errorf("row security is on for %d tables of a new installation", n)
	}
	_, bound := roletest.Login(t, db, "")
	roletest.BindConsumer(t, db, bound, "billing", "")
	roletest.BindConsumer(t, db, bound, "shipping", "")
	if n := secured(); n != int64(len(parts)) {
		t.Errorf("row security is on for %d tables, want %d", n, len(parts))
	}
	for _, who := range []string{"consumer", "operator", "relay", "reader"} {
		pool, _ := roletest.Login(t, db, "", prefix+"_"+who)
		if n := pgtest.Count(t, pool, "select count(id) from holdfast.letter"); n != 3 {
			t.Errorf("%s sees %d letters, want 3", who, n)
		}
	}
	owner, _ := roletest.Login(t, db, "", prefix+"_owner")
	if n := pgtest.Count(t, owner, "select count(*) from holdfast.letter"); n != 3 {
		t.Errorf("the owner sees %d letters, want 3", n)
	}
	if err := holdfast.Check(t.Context(), owner, holdfast.SchemaConfig{}); err != nil {
		t.Errorf("with bindings: %v", err)
	}
	pgtest.Exec(t, owner, "delete from holdfast.consumer_binding where consumer = 'billing'")
	if n := secured(); n != int64(len(parts)) {
		t.Errorf("row security is on for %d tables while somebody is bound", n)
	}
	pgtest.Exec(t, owner, "truncate holdfast.consumer_binding")
	if n := secured(); n != 0 {
		t.Errorf("row security is on for %d tables when nobody is bound", n)
	}
	if _, err := owner.Exec(t.Context(), "insert into holdfast.consumer_binding (role, consumer) values ('\"no such role\"', 'billing')"); err == nil || !strings.Contains(err.Error(), `role "no such role" does not exist`) {
		t.Errorf("a role that does not exist: %v", err)
	}
	for _, bad := range []string{"*", "a b", "**.dlq"} {
		if _, err := owner.Exec(t.Context(), "insert into holdfast.consumer_binding (role, consumer, letter_topic) values ($1, 'billing', $2)", bound, bad); err == nil || !strings.Contains(err.Error(), "letter_topic_is_a_topic_or_a_pattern") {
			t.Errorf("letter topic %q: %v", bad, err)
		}
	}
	// A user who also runs a relay has the relays' letters too.
	both, user := roletest.Login(t, db, "", prefix+"_consumer", prefix+"_relay")
	roletest.BindConsumer(t, db, user, "billing", "")
	if n := pgtest.Count(t, both, "select count(*) from holdfast.letter where consumer in ('', 'billing')"); n != 2 || pgtest.Count(t, both, "select count(*) from holdfast.letter") != 2 {
		t.Errorf("a relay and consumer sees %d letters", n)
	}
}

func TestBindings_ABoundConsumerPublishesLettersOnlyToItsTopic(t *testing.T) {
	t.Parallel()
	db, prefix := twoConsumers(t)
	consumer, user := roletest.Login(t, db, "", prefix+"_consumer")
	publish := func(letter, topic string) string {
		t.Helper()
		var refused *string
		if err := consumer.QueryRow(t.Context(), fmt.Sprintf("select holdfast.publish_letter(%s, $1, 1000)", letter), topic).Scan(&refused); err != nil {
			t.Fatal(err)
		}
		if refused == nil {
			return ""
		}
		return *refused
	}
	const billing, shipping, relays = "1", "2", "3"
	roletest.BindConsumer(t, db, user, "billing", "*.dlq")
	only := "dead letter topic is 'payments': user " + user + " may publish those of consumer billing to *.dlq only (table consumer_binding)"
	for _, c := range []struct{ letter, topic, want string }{
		{billing, "orders.dlq", ""}, {billing, "payments", only}, {billing, "payments.dlq", strings.Replace(only, "payments", "payments.dlq", 1)},
		{shipping, "orders.dlq", "it is not there"}, {relays, "orders.dlq", "it is not there"}, {"4711", "orders.dlq", "it is not there"},
	} {
		if got := publish(c.letter, c.topic); got != c.want {
			t.Errorf("letter %s to %s: %q, want %q", c.letter, c.topic, got, c.want)
		}
	}
	pgtest.Exec(t, db.Pool, "update holdfast.consumer_binding set letter_topic = 'dead'")
	if got := publish(billing, "dead"); got != "" {
		t.Errorf("to a fixed topic: %s", got)
	}
	pgtest.Exec(t, db.Pool, "update holdfast.consumer_binding set letter_topic = ''")
	if got := publish(billing, "dead"); !strings.Contains(got, "to no topic only") {
		t.Errorf("to none: %s", got)
	}
	if n := pgtest.Count(t, db.Pool, "select count(*) from holdfast.event where topic in ('orders.dlq', 'dead')"); n != 2 || pgtest.Count(t, db.Pool, "select count(*) from holdfast.event") != 2 {
		t.Errorf("%d letters are in the log, want 2 and nothing else", n)
	}
}

// A consumer that is bound lives as before: it consumes from Kafka, retries, dead-letters and publishes, gets replays and edits from
// an operator who is bound to it too, and removes old rows.
func TestBindings_ABoundConsumerWorksAsBefore(t *testing.T) {
	skip.InShort(t, "it takes 12 s beside the others")
	t.Parallel()
	db := migrated.New(t)
	prefix := roletest.Make(t, db)
	pool, user := roletest.Login(t, db, "", prefix+"_consumer")
	letters, operator := roletest.Login(t, db, "", prefix+"_operator")
	roletest.BindConsumer(t, db, user, "billing", "*.dlq")
	roletest.BindConsumer(t, db, operator, "billing", "")
	quiet := slog.New(slog.NewTextHandler(io.Discard, nil))
	in, err := inbox.New(pool, inbox.Config{Consumer: "billing", Logger: quiet, DeadLetterTopic: "*.dlq", HoldKey: true, Retry: retry.Policy{Base: time.Millisecond, Attempts: 3}, Retention: 10 * time.Minute}) // which looks for old rows every 10 s
	if err != nil {
		t.Fatal(err)
	}
	in.Handle("t", func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
		if _, err := inbox.Step(ctx, "one", func(context.Context, string) (int, error) { return 1, nil }); err != nil {
			return err
		}
		if string(e.Payload) == "bad" {
			return errors.New("not now")
		}
		_, err := in.Watermark(ctx, tx, e.Key, 1)
		return err
	})
	cluster := kafkatest.InProcess(t)
	topic := cluster.Topic(t, 1)
	record := func(key, payload string) kafka.Record {
		return kafka.Record{Key: kafka.NewBytes([]byte(key)), Value: kafka.NewBytes([]byte(payload)), Headers: []kafka.Header{
			{Key: "ce_specversion", Value: []byte("1.0")}, {Key: "ce_id", Value: []byte(key + payload)}, {Key: "ce_source", Value: []byte("shop")}, {Key: "ce_type", Value: []byte("t")}}}
	}
	if _, err := cluster.Client.Produce(t.Context(), &kafka.ProduceRequest{Topic: topic, RequiredAcks: kafka.RequireAll,
		Records: kafka.NewRecordReader(record("k", "bad"), record("k", "follows"), record("other", "good"))}); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	done := make(chan error, 2)
	go func() {
		done <- endtoend.ConsumeGroup(ctx, in, cluster.Brokers, kafkago.GroupConfig{GroupID: "billing", Topics: []string{topic}})
	}()
	go func() { done <- in.Run(ctx) }()
	wait.Until(t, "a letter holds its key, and the other event is handled", func() bool {
		return pgtest.Count(t, db.Pool, "select count(*) from holdfast.letter where state = 'open' and holds and attempts = 3") == 1 &&
			pgtest.Count(t, db.Pool, "select count(*) from holdfast.inbox where result = 'handled'") == 1 && pgtest.Count(t, db.Pool, "select count(*) from holdfast.stored") == 1
	})
	if n := pgtest.Count(t, db.Pool, "select count(*) from holdfast.event where topic = $1", topic+".dlq"); n != 1 {
		t.Errorf("%d letters are published", n)
	}
	d, err := dlq.New(letters, dlq.Config{})
	if err != nil {
		t.Fatal(err)
	}
	open, err := d.List(t.Context(), dlq.Filter{})
	if err != nil || len(open) != 1 {
		t.Fatalf("%d letters, %v", len(open), err)
	}
	if err := d.Edit(t.Context(), open[0].ID, []byte("good"), "ann", "typo"); err != nil {
		t.Fatal(err)
	}
	if n, err := d.Replay(t.Context(), dlq.Filter{}, dlq.ReplayOptions{By: "ann", Name: "n"}); n != 1 || err != nil {
		t.Fatalf("replayed %d: %v", n, err)
	}
	wait.Until(t, "all are handled, in a position that is saved", func() bool {
		return pgtest.Count(t, db.Pool, "select count(*) from holdfast.inbox where result = 'handled'") == 3 && pgtest.Count(t, db.Pool, "select count(*) from holdfast.consumer_position where position = 3") == 1
	})
	if actions, err := d.Actions(t.Context(), open[0].ID); err != nil || len(actions) != 2 || actions[0].Login != operator || string(actions[0].Payload) != "bad" {
		t.Errorf("%+v, %v", actions, err)
	}
	if n := pgtest.Count(t, db.Pool, "select count(*) from holdfast.inbox_step"); n != 4 { // one of them with the payload before the edit
		t.Errorf("%d steps are recorded, want 4", n)
	}
	pgtest.Exec(t, db.Pool, "update holdfast.inbox set processed_at = now() - interval '1 day'")
	pgtest.Exec(t, db.Pool, "update holdfast.retention set next_at = '-infinity', from_at = null, kept_at = null")
	wait.Until(t, "old rows are removed", func() bool { return pgtest.Count(t, db.Pool, "select count(*) from holdfast.inbox") == 0 })
	if n := pgtest.Count(t, db.Pool, "select count(*) from holdfast.inbox_step"); n != 0 {
		t.Errorf("%d steps are left after their events' rows", n)
	}
	pgtest.Exec(t, db.Pool, "update holdfast.letter set last_at = now() - interval '1 day'")
	if n, err := d.Purge(t.Context(), dlq.PurgeOptions{OlderThan: time.Hour}); n != 1 || err != nil {
		t.Errorf("purged %d: %v", n, err)
	}
	stop()
	for range 2 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

// A node whose user is bound to another consumer says so instead of trying for ever.
func TestBindings_AConsumerThatIsBoundToAnotherEndsAndSaysSo(t *testing.T) {
	skip.InShort(t, "it takes 2 s beside the others")
	t.Parallel()
	db := migrated.New(t)
	prefix := roletest.Make(t, db)
	pool, user := roletest.Login(t, db, "", prefix+"_consumer")
	roletest.BindConsumer(t, db, user, "shipping", "")
	in, err := inbox.New(pool, inbox.Config{Consumer: "billing", Logger: slog.New(slog.NewTextHandler(io.Discard, nil))})
	if err != nil {
		t.Fatal(err)
	}
	in.Handle("t", func(context.Context, pgx.Tx, holdfast.Event) error { return nil })
	ctx, cancel := context.WithTimeout(t.Context(), wait.Limit())
	defer cancel()
	want := "it lacks: a row of consumer_binding for consumer billing (user " + user + " is bound to shipping)"
	if err := in.Run(ctx); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("Run ends with %v, want %q", err, want)
	}
}
