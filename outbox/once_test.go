package outbox_test

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/wait"
	"github.com/holdfast-go/holdfast/outbox"
	"github.com/holdfast-go/holdfast/retry"
)

// once writes an event once in a transaction of its own.
func once(t *testing.T, db *pgtest.DB, o *outbox.Outbox, key string, e holdfast.Event) (did outbox.Once, err error) {
	t.Helper()
	err = pgx.BeginFunc(t.Context(), db.Pool, func(tx pgx.Tx) error {
		did, err = o.WriteOnce(t.Context(), tx, key, e)
		return err
	})
	return did, err
}

func outboxOf(t *testing.T, c outbox.Config) *outbox.Outbox {
	t.Helper()
	o, err := outbox.New(c)
	if err != nil {
		t.Fatal(err)
	}
	return o
}

const inLog = "select count(*) from holdfast.event"

func TestOnce_ADedupeKeyWritesItsEventOnce(t *testing.T) {
	t.Parallel()
	db, o := setup(t), outboxOf(t, outbox.Config{Source: "shop"})
	first, err := once(t, db, o, "invoice 17 is due", good())
	if err != nil || !first.Written {
		t.Fatalf("got %+v, %v", first, err)
	}
	again := good()
	again.ID, again.Time, again.Headers, again.NotBefore = "another", time.Now(), map[string]string{"attempt": "2"}, time.Now().Add(time.Hour)
	if got, err := once(t, db, o, "invoice 17 is due", again); err != nil || got.Written || got.ID != first.ID {
		t.Errorf("got %+v, %v, want the id %s of the first", got, err, first.ID)
	}
	for name, other := range map[string]func(e *holdfast.Event){
		"another type":  func(e *holdfast.Event) { e.Type = "order.paid" },
		"another topic": func(e *holdfast.Event) { e.Topic = "mail" },
	} {
		e := good()
		other(&e)
		if got, err := once(t, db, o, "invoice 17 is due", e); err != nil || !got.Written || got.ID == first.ID {
			t.Errorf("%s: got %+v, %v", name, got, err)
		}
	}
	if n := pgtest.Count(t, db.Pool, inLog+" where id = $1 and source = 'shop' and payload = '{}'", first.ID); n != 1 {
		t.Errorf("the log has the first %d times", n)
	}
	if n := pgtest.Count(t, db.Pool, "select (select count(*) from holdfast.event) + (select count(*) from holdfast.scheduled)"); n != 3 {
		t.Errorf("%d events were written, want 3", n)
	}
}

func TestOnce_ADedupeKeyIsFreeAgainAfterARollback(t *testing.T) {
	t.Parallel()
	db, o := setup(t), outboxOf(t, outbox.Config{})
	undone := errors.New("undone")
	if err := pgx.BeginFunc(t.Context(), db.Pool, func(tx pgx.Tx) error {
		if did, err := o.WriteOnce(t.Context(), tx, "k", good()); err != nil || !did.Written {
			t.Errorf("got %+v, %v", did, err)
		}
		if did, err := o.WriteOnce(t.Context(), tx, "k", good()); err != nil || did.Written {
			t.Errorf("again in the transaction: got %+v, %v", did, err)
		}
		return undone
	}); !errors.Is(err, undone) {
		t.Fatal(err)
	}
	if did, err := once(t, db, o, "k", good()); err != nil || !did.Written {
		t.Errorf("got %+v, %v", did, err)
	}
	if n := pgtest.Count(t, db.Pool, inLog); n != 1 {
		t.Errorf("the log has %d events", n)
	}
}

func TestOnce_AnotherEventUnderADedupeKeyIsAConflict(t *testing.T) {
	t.Parallel()
	db, o := setup(t), outboxOf(t, outbox.Config{})
	if _, err := once(t, db, o, "private key", good()); err != nil {
		t.Fatal(err)
	}
	for want, change := range map[string]func(e *holdfast.Event){
		"source":               func(e *holdfast.Event) { e.Source = "shop" },
		"key":                  func(e *holdfast.Event) { e.Key = "other" },
		"payload":              func(e *holdfast.Event) { e.Payload = []byte("{ }") },
		"key, payload":         func(e *holdfast.Event) { e.Key, e.Payload = "", nil }, // a tombstone
		"source, key, payload": func(e *holdfast.Event) { e.Source, e.Key, e.Payload = "s", "o", []byte{} },
	} {
		e := good()
		change(&e)
		did, err := once(t, db, o, "private key", e)
		if !errors.Is(err, outbox.ErrDedupeConflict) || !strings.Contains(err.Error(), "differs in: "+want+" (") || strings.Contains(err.Error(), "private") || did != (outbox.Once{}) {
			t.Errorf("%s: got %+v, %v", want, did, err)
		}
		if class := retry.Classify(err); class != retry.Conflict || class.Retryable() {
			t.Errorf("%s: the class is %s", want, class)
		}
	}
	if n := pgtest.Count(t, db.Pool, inLog); n != 1 {
		t.Errorf("the log has %d events", n)
	}
}

// The second waits for the first, and then either finds its event or writes its own.
func TestOnce_ASecondWriterOfADedupeKeyWaits(t *testing.T) {
	t.Parallel()
	for name, commits := range map[string]bool{"the first commits": true, "the first rolls back": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db, o := setup(t), outboxOf(t, outbox.Config{})
			tx, err := db.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = tx.Rollback(context.Background()) }()
			first, err := o.WriteOnce(t.Context(), tx, "k", good())
			if err != nil {
				t.Fatal(err)
			}
			type answer struct {
				did outbox.Once
				err error
			}
			second := make(chan answer, 1)
			go func() {
				var a answer
				a.err = pgx.BeginFunc(context.Background(), db.Pool, func(tx pgx.Tx) error {
					a.did, a.err = o.WriteOnce(context.Background(), tx, "k", good())
					return a.err
				})
				second <- a
			}()
			wait.Until(t, "the second waits for the first", func() bool {
				return pgtest.Count(t, db.Pool, "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock' and query like '-- outbox.write_once%'") == 1
			})
			if commits {
				err = tx.Commit(t.Context())
			} else {
				err = tx.Rollback(t.Context())
			}
			if err != nil {
				t.Fatal(err)
			}
			if a := <-second; a.err != nil || a.did.Written == commits || a.did.ID != first.ID {
				t.Errorf("got %+v, %v, after %+v", a.did, a.err, first)
			}
			if n := pgtest.Count(t, db.Pool, inLog); n != 1 {
				t.Errorf("the log has %d events", n)
			}
		})
	}
}

func TestOnce_ManyWritersOfADedupeKeyWriteOne(t *testing.T) {
	t.Parallel()
	db, o := setup(t), outboxOf(t, outbox.Config{})
	var written atomic.Int32
	var writers sync.WaitGroup
	const keys = 20
	for range 4 {
		writers.Go(func() {
			for i := range keys {
				err := pgx.BeginFunc(context.Background(), db.Pool, func(tx pgx.Tx) error {
					did, err := o.WriteOnce(context.Background(), tx, fmt.Sprint("k", i), good())
					if did.Written {
						written.Add(1)
					}
					return err
				})
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	writers.Wait()
	if n := pgtest.Count(t, db.Pool, inLog); n != keys || written.Load() != keys {
		t.Errorf("%d were written, and the log has %d, want %d", written.Load(), n, keys)
	}
}

func TestOnce_ADedupeKeyNewerThanTheSnapshotIsASerializationFailure(t *testing.T) {
	t.Parallel()
	db, o := setup(t), outboxOf(t, outbox.Config{})
	err := pgx.BeginTxFunc(t.Context(), db.Pool, pgx.TxOptions{IsoLevel: pgx.RepeatableRead}, func(tx pgx.Tx) error {
		pgtest.Exec(t, tx, "select 1")
		if _, err := once(t, db, o, "k", good()); err != nil {
			t.Fatal(err)
		}
		_, err := o.WriteOnce(t.Context(), tx, "k", good())
		return err
	})
	var pgErr *pgconn.PgError
	if !errors.As(err, &pgErr) || pgErr.Code != "40001" {
		t.Errorf("got %v", err)
	}
}

// An event that is written again after its key was forgotten has the same id, so that an inbox sees a repeat.
func TestOnce_AForgottenDedupeKeyGivesTheSameID(t *testing.T) {
	t.Parallel()
	db, o := setup(t), outboxOf(t, outbox.Config{DedupeRetention: time.Hour})
	first, err := once(t, db, o, "k", good())
	if err != nil {
		t.Fatal(err)
	}
	expire := func() int64 { return pgtest.Count(t, db.Pool, "select holdfast.expire_written_once(10)") }
	if n := expire(); n != 0 {
		t.Errorf("%d keys were forgotten at once", n)
	}
	if n := pgtest.Count(t, db.Pool, "select count(*) from holdfast.written_once where expires_at - written_at = interval '1 hour'"); n != 1 {
		t.Error("the key does not expire after an hour")
	}
	pgtest.Exec(t, db.Pool, "update holdfast.written_once set expires_at = now() - interval '1 second'")
	if did, err := once(t, db, o, "k", good()); err != nil || did.Written {
		t.Errorf("expired, and not removed yet: got %+v, %v", did, err)
	}
	tx, err := db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	pgtest.Exec(t, tx, "select from holdfast.written_once for update")
	if n := expire(); n != 0 {
		t.Errorf("%d keys were removed that somebody had locked", n)
	}
	_ = tx.Rollback(t.Context())
	if n := expire(); n != 1 {
		t.Errorf("%d keys were removed", n)
	}
	again, err := once(t, db, o, "k", good())
	if err != nil || !again.Written || again.ID != first.ID {
		t.Errorf("got %+v, %v, after %+v", again, err, first)
	}
	if n := pgtest.Count(t, db.Pool, "select count(*) from holdfast.written_once where holdfast.once_id(dedupe_key, topic, type) <> event_id"); n != 0 {
		t.Error("SQL makes another id than Go")
	}
}

// Every language writes once, and all share the keys.
func TestOnce_SQLWritesOnceToo(t *testing.T) {
	t.Parallel()
	db, o := setup(t), outboxOf(t, outbox.Config{})
	const call = `select written, event_id from holdfast.write_once('ä', 'orders', 'k', 'order.placed', '{}', headers => '{"a": "1"}')`
	var did outbox.Once
	if err := db.QueryRow(t.Context(), call).Scan(&did.Written, &did.ID); err != nil || !did.Written {
		t.Fatalf("got %+v, %v", did, err)
	}
	if again, err := once(t, db, o, "ä", good()); err != nil || again.Written || again.ID != did.ID {
		t.Errorf("Go after SQL: got %+v, %v", again, err)
	}
	var pgErr *pgconn.PgError
	for sql, want := range map[string]string{
		"select holdfast.write_once('', 'orders', 'k', 't', '')":                        "dedupe key has 0 bytes",
		"select holdfast.write_once(repeat('k', 256), 'orders', 'k', 't', '')":          "dedupe key has 256 bytes",
		"select holdfast.write_once(null, 'orders', 'k', 't', '')":                      "dedupe key has 0 bytes",
		"select holdfast.write_once('k', 'no topic', 'k', 't', '')":                     "topic is",
		"select holdfast.write_once('k', 'orders', 'k', 't', '', keep => '-1 hour')":    "keep is -01:00:00",
		"select holdfast.write_once('k', 'orders', 'k', 't', '', keep => '11 years')":   "keep is 11 years",
		`select holdfast.write_once('k', 'orders', 'k', 't', '', headers => '{"a":1}')`: "header a is a JSON number",
	} {
		if _, err := db.Exec(t.Context(), sql); !errors.As(err, &pgErr) || pgErr.Code != "22023" || !strings.Contains(pgErr.Message, want) {
			t.Errorf("%s: %v", sql, err)
		}
	}
}

func TestOnce_WriteOnceRefusesBadInput(t *testing.T) {
	t.Parallel()
	db, o := setup(t), outboxOf(t, outbox.Config{})
	bad := good()
	bad.Topic = ""
	err := pgx.BeginFunc(t.Context(), db.Pool, func(tx pgx.Tx) error {
		for key, want := range map[string]string{"": "dedupe key is empty", strings.Repeat("k", 256): "dedupe key is 256 bytes long", "\xff": "UTF-8", "\x00": "NUL"} {
			_, err := o.WriteOnce(t.Context(), tx, key, bad)
			var limit *outbox.LimitError
			if !errors.As(err, &limit) || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "topic is empty") {
				t.Errorf("%q: got %v", key, err)
			}
		}
		_, err := o.WriteOnce(t.Context(), tx, "k", good()) // tx is still usable
		return err
	})
	if err != nil {
		t.Error(err)
	}
	if _, err := o.WriteOnce(t.Context(), nil, "k", good()); err == nil || !strings.Contains(err.Error(), "tx is nil") {
		t.Errorf("got %v", err)
	}
	if _, err := o.WriteOnceThrough(t.Context(), nil, "k", good()); err == nil || !strings.Contains(err.Error(), "query is nil") {
		t.Errorf("got %v", err)
	}
	for _, keep := range []time.Duration{-1, time.Millisecond, 1 << 62} {
		if _, err := outbox.New(outbox.Config{DedupeRetention: keep}); err == nil || !strings.Contains(err.Error(), "dedupe retention is "+keep.String()+": it must be from 1s to ") {
			t.Errorf("got %v", err)
		}
	}
}

func TestOnce_WriteOnceGoesThroughMiddleware(t *testing.T) {
	t.Parallel()
	db := setup(t)
	calls := 0
	adds := func(next outbox.WriteFunc) outbox.WriteFunc {
		return func(ctx context.Context, tx pgx.Tx, events []holdfast.Event) error {
			calls++
			e := events[0]
			e.Headers = map[string]string{"tenant": "a"}
			return next(ctx, tx, []holdfast.Event{e})
		}
	}
	drops := func(outbox.WriteFunc) outbox.WriteFunc {
		return func(context.Context, pgx.Tx, []holdfast.Event) error { return nil }
	}
	o := outboxOf(t, outbox.Config{Use: []func(outbox.WriteFunc) outbox.WriteFunc{adds}})
	for _, want := range []bool{true, false} {
		if did, err := once(t, db, o, "k", good()); err != nil || did.Written != want || did.ID == "" {
			t.Errorf("got %+v, %v", did, err)
		}
	}
	if n := pgtest.Count(t, db.Pool, inLog+` where headers = '{"tenant": "a"}'`); n != 1 || calls != 2 {
		t.Errorf("%d events, %d calls of the middleware", n, calls)
	}
	if did, err := once(t, db, outboxOf(t, outbox.Config{Use: []func(outbox.WriteFunc) outbox.WriteFunc{drops}}), "other", good()); err == nil || did != (outbox.Once{}) {
		t.Errorf("got %+v, %v", did, err)
	}
}

// Each encryption of a payload is another text, and a hash of what was encrypted would outlive its erasure.
func TestOnce_EncryptedPayloadsAreNotCompared(t *testing.T) {
	t.Parallel()
	db := setup(t)
	n := 0
	o := outboxOf(t, outbox.Config{Encryptor: encryptFunc(func(e holdfast.Event) (holdfast.Sealed, error) {
		n++
		return holdfast.Sealed{Algorithm: "counted", Key: "k1", Payload: fmt.Appendf(nil, "%d %s %s", n, e.ID, base64.StdEncoding.EncodeToString(e.Payload))}, nil
	})})
	first, err := once(t, db, o, "k", good())
	if err != nil || !first.Written {
		t.Fatalf("got %+v, %v", first, err)
	}
	if did, err := once(t, db, o, "k", good()); err != nil || did.Written || did.ID != first.ID {
		t.Errorf("got %+v, %v", did, err)
	}
	if n := pgtest.Count(t, db.Pool, inLog+" where payload = convert_to('1 ' || id || ' e30=', 'UTF8')"); n != 1 {
		t.Error("the event is not encrypted under its id")
	}
	if n := pgtest.Count(t, db.Pool, "select count(*) from holdfast.written_once where hash is null"); n != 1 {
		t.Error("a hash of the payload was kept")
	}
	other := good()
	other.Key = "other"
	if _, err := once(t, db, o, "k", other); !errors.Is(err, outbox.ErrDedupeConflict) {
		t.Errorf("another key: got %v", err)
	}
}
