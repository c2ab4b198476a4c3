package drivers_test

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
	sqloutbox "github.com/holdfast-go/holdfast/contrib/sql"
	"github.com/holdfast-go/holdfast/internal/sqlschema"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/roletest"
	"github.com/holdfast-go/holdfast/outbox"
)

// says checks an error's text, and what it wraps.
func says(t testing.TB, err error, wraps error, want ...string) {
	t.Helper()
	if err == nil || wraps != nil && !errors.Is(err, wraps) {
		t.Errorf("got %v, want it to wrap %v", err, wraps)
		return
	}
	for _, w := range want {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("%q does not say %q", err, w)
		}
	}
}

// state is the SQLSTATE in an error of any driver.
func state(err error) string {
	var failed interface{ SQLState() string }
	if errors.As(err, &failed) {
		return failed.SQLState()
	}
	return ""
}

func TestRefuse_ARefusedEventLeavesTheTransactionUsable(t *testing.T) {
	onEach(t, func(b bundle) {
		tooLarge, misnamed, late := good(), good(), good()
		tooLarge.Payload = make([]byte, 1<<20-16<<10+1)
		misnamed.Headers = map[string]string{"ce_id": "x"}
		late.Time = time.Date(10_000, 1, 1, 0, 0, 0, 0, time.UTC)
		b.in(func(tx *sql.Tx) {
			for want, e := range map[string]holdfast.Event{
				"write events: event 1: payload is 1032193 bytes long: it must be at most 1032192": tooLarge,
				`event 1: header "ce_id" is reserved`:                                              misnamed,
				"event 1: time is in the year 10000":                                               late,
				"event 1: type is empty":                                                           {Topic: "orders"},
				`event 1: topic is "a b": it must be letters`:                                      {Topic: "a b", Type: "t"},
				"event 1: key is 3 bytes long: it must not contain NUL":                            {Topic: "o", Type: "t", Key: "a\x00b"},
			} {
				err := sqloutbox.Write(b.Context(), tx, good(), e)
				var limit *outbox.LimitError
				if says(b, err, nil, want); !errors.As(err, &limit) || limit.Index != 1 {
					b.Errorf("%v is no LimitError about event 1", err)
				}
			}
			says(b, sqloutbox.Write(b.Context(), tx, make([]holdfast.Event, 10_001)...), nil, "number of events is 10001: it must be at most 10000")
			says(b, sqloutbox.Lock(b.Context(), tx, "a", ""), nil, "lock keys: key is empty")
			says(b, sqloutbox.Lock(b.Context(), tx, strings.Repeat("k", 1025)), nil, "lock keys: key is 1025 bytes long")
			b.write(tx, good())
		})
		if n := b.count(); n != 1 {
			b.Errorf("%d events, want the one that was not refused", n)
		}
	})
}

func TestRefuse_WriteFailsInATransactionThatCannotWrite(t *testing.T) {
	onEach(t, func(b bundle) {
		aborted := b.begin(nil)
		if _, err := aborted.ExecContext(b.Context(), "select 1/0"); err == nil {
			b.Fatal("a division by zero is no error")
		}
		if err := sqloutbox.Write(b.Context(), aborted, good()); state(err) != "25P02" {
			b.Errorf("in an aborted transaction: %v", err)
		}
		if err := sqloutbox.Lock(b.Context(), aborted, "k"); state(err) != "25P02" {
			b.Errorf("in an aborted transaction: %v", err)
		}
		if err := aborted.Commit(); err == nil {
			b.Error("an aborted transaction committed")
		}
		for _, events := range [][]holdfast.Event{{good()}, {good(), good()}} {
			readOnly := b.begin(&sql.TxOptions{ReadOnly: true})
			if err := sqloutbox.Write(b.Context(), readOnly, events...); state(err) != "25006" {
				b.Errorf("in a read-only transaction: %v", err)
			}
		}
		ended := b.begin(nil)
		b.commit(ended)
		says(b, sqloutbox.Write(b.Context(), ended, good()), sql.ErrTxDone, "write events: ")
		says(b, sqloutbox.Lock(b.Context(), ended, "k"), sql.ErrTxDone, "lock keys: ")
		ctx, cancel := context.WithCancel(b.Context())
		cancel()
		says(b, sqloutbox.Write(ctx, b.begin(nil), good()), context.Canceled, "write events: ")
		if n := b.count(); n != 0 {
			b.Errorf("%d events were written", n)
		}
	})
}

func TestRefuse_AMissingSchemaOrRightSaysWhatToDo(t *testing.T) {
	onEach(t, func(b bundle) {
		other, err := sqloutbox.New(outbox.Config{Schema: "not_there"})
		if err != nil {
			b.Fatal(err)
		}
		says(b, other.Write(b.Context(), b.begin(nil), good()), holdfast.ErrSchemaMissing, "write events: ", "run holdfast migrate")
		says(b, other.Write(b.Context(), b.begin(nil), good(), good()), holdfast.ErrSchemaMissing, "run holdfast migrate")
		says(b, other.Lock(b.Context(), b.begin(nil), "k"), holdfast.ErrSchemaMissing, "lock keys: ", "run holdfast migrate")

		_, nobody := roletest.Login(b, b.own, "")
		tx := b.begin(nil)
		b.exec(tx, "set local role "+nobody)
		says(b, sqloutbox.Write(b.Context(), tx, good()), sqlschema.ErrNoRights, "grant usage on the schema", "execute on its functions append, append_one, write_once and lock")
	})
}

// The server's own hint is better than ours. lib/pq has it too.
func TestRefuse_TheHintOfTheServerIsTold(t *testing.T) {
	onEach(t, func(b bundle) {
		pgtest.Exec(b, b.own.Pool, "create function holdfast_refuses() returns trigger language plpgsql as $$ begin raise exception 'no' using errcode = '42501', hint = 'ask the administrator'; end $$")
		pgtest.Exec(b, b.own.Pool, "create trigger refuses before insert on holdfast.scheduled for each row execute function holdfast_refuses()")
		e := good()
		e.NotBefore = time.Now().Add(time.Hour)
		says(b, sqloutbox.Write(b.Context(), b.begin(nil), e), sqlschema.ErrNoRights, "ask the administrator: ")
	})
}

func TestRefuse_ASchemaOfAnotherNameIsWrittenTo(t *testing.T) {
	onEach(t, func(b bundle) {
		if err := holdfast.Migrate(b.Context(), b.own.Pool, holdfast.SchemaConfig{Schema: "second"}); err != nil {
			b.Fatal(err)
		}
		second, err := sqloutbox.New(outbox.Config{Schema: "second"})
		if err != nil {
			b.Fatal(err)
		}
		b.in(func(tx *sql.Tx) {
			if err := second.Lock(b.Context(), tx, "k"); err != nil {
				b.Fatal(err)
			}
			if err := second.Write(b.Context(), tx, good()); err != nil {
				b.Fatal(err)
			}
		})
		if here, there := b.count(), pgtest.Count(b, b.own.Pool, "select count(*) from second.event"); here != 0 || there != 1 {
			b.Errorf("%d events in holdfast and %d in second, want 0 and 1", here, there)
		}
	})
}

func TestRefuse_LockMakesASecondTransactionOfTheKeyWait(t *testing.T) {
	onEach(t, func(b bundle) {
		first := b.begin(nil)
		hardKey := `b",\{}日本`
		if err := sqloutbox.Lock(b.Context(), first, "a", hardKey); err != nil {
			b.Fatal(err)
		}
		locked := func(key string) string {
			tx := b.begin(nil)
			defer tx.Rollback()
			b.exec(tx, "set local lock_timeout = '100ms'")
			return state(sqloutbox.Lock(b.Context(), tx, key))
		}
		// By package outbox, too: the same key is the same lock.
		lockedForPgx := func(key string) string {
			tx, err := b.own.Begin(b.Context())
			if err != nil {
				b.Fatal(err)
			}
			defer tx.Rollback(context.Background())
			pgtest.Exec(b, tx, "set local lock_timeout = '100ms'")
			return state(outbox.Lock(b.Context(), tx, key))
		}
		const timeout = "55P03"
		if a, h, p, c := locked("a"), locked(hardKey), lockedForPgx(hardKey), locked("c"); a != timeout || h != timeout || p != timeout || c != "" {
			b.Errorf("waiting for the locked keys ended with %q, %q and %q, for a free one with %q", a, h, p, c)
		}
		b.commit(first)
		if a := locked("a"); a != "" {
			b.Errorf("the lock outlived its transaction: %q", a)
		}
	})
}
