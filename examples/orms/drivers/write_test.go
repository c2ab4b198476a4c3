package drivers_test

import (
	"bytes"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-go/holdfast"
	sqloutbox "github.com/holdfast-go/holdfast/contrib/sql"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/outbox"
)

var east = time.FixedZone("east", 5*3600+1800)

// hard are events with what drivers might write in another way.
func hard() (events []holdfast.Event) {
	all := make([]byte, 256)
	for i := range all {
		all[i] = byte(i)
	}
	add := func(change func(e *holdfast.Event)) {
		e := good()
		e.ID, e.Source, e.Time = fmt.Sprint("event ", len(events)), "shop", time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
		change(&e)
		events = append(events, e)
	}
	add(func(e *holdfast.Event) {})
	add(func(e *holdfast.Event) { e.Payload = nil })
	add(func(e *holdfast.Event) { e.Payload = []byte{} })
	add(func(e *holdfast.Event) { e.Payload = all })
	add(func(e *holdfast.Event) { e.Payload = []byte(`\x00 \\ {"a","b"} '' $1 NULL`) })
	add(func(e *holdfast.Event) { e.Payload = bytes.Repeat([]byte("\x00\\\""), 300_000) })
	add(func(e *holdfast.Event) { e.Key, e.ID = `",\{}'"`, `\"` })
	add(func(e *holdfast.Event) { e.Key, e.Source = "NULL", "null" })
	add(func(e *holdfast.Event) { e.Key, e.Source = " \t\r\n leading and trailing ", `a\` })
	add(func(e *holdfast.Event) { e.Key, e.Source = "日本 ☃ 𝄞 é e\u0301", "\u2028\ufeff" })
	add(func(e *holdfast.Event) { e.Key = "" })
	add(func(e *holdfast.Event) { e.Key = strings.Repeat(`\`, 1024) })
	add(func(e *holdfast.Event) {
		e.Headers = map[string]string{"a": `quote " and \ and ' and {}`, "b": "", "Traceparent": "日本\n"}
	})
	add(func(e *holdfast.Event) { e.Time = time.Date(2026, 3, 29, 2, 30, 0, 123_456_789, east) })
	add(func(e *holdfast.Event) { e.Time = time.Date(1, 1, 1, 0, 0, 0, 1000, time.UTC) })
	add(func(e *holdfast.Event) { e.Time = time.Date(9999, 12, 31, 23, 59, 59, 999_999_999, time.UTC) })
	add(func(e *holdfast.Event) { e.Time = time.Date(1883, 11, 18, 12, 0, 0, 0, time.UTC) })
	add(func(e *holdfast.Event) { e.NotBefore = time.Date(2100, 2, 3, 4, 5, 6, 7_999, east) })
	return events
}

// What arrives is what package outbox writes, alone or among others.
func TestWrite_EventsArriveAsPackageOutboxWritesThem(t *testing.T) {
	onEach(t, func(b bundle) {
		b.byPgx(hard()...)
		byID := func() []holdfast.Event { // scheduled ones come first in a Write
			events := b.written()
			slices.SortFunc(events, func(a, b holdfast.Event) int { return strings.Compare(a.ID, b.ID) })
			return events
		}
		want := byID()
		if len(want) != len(hard()) {
			b.Fatalf("%d events, want %d", len(want), len(hard()))
		}
		compare := func(how string) {
			b.Helper()
			if got := byID(); !reflect.DeepEqual(want, got) { // cmp takes a second for a mebibyte
				b.Errorf("%s (-outbox +sqloutbox):\n%.3000s", how, cmp.Diff(want, got))
			}
		}
		again := func() {
			pgtest.Exec(b, b.own.Pool, "truncate holdfast.event; delete from holdfast.scheduled")
		}
		again()
		b.in(func(tx *sql.Tx) { b.write(tx, hard()...) })
		compare("all in one Write")
		again()
		b.in(func(tx *sql.Tx) {
			for _, e := range hard() {
				b.write(tx, e)
			}
		})
		compare("one by one")
	})
}

var uuid7 = regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`)

func TestWrite_AnEventWithoutAnIDOrASourceGetsThem(t *testing.T) {
	onEach(t, func(b bundle) {
		shop, err := sqloutbox.New(outbox.Config{Source: "shop"})
		if err != nil {
			b.Fatal(err)
		}
		b.in(func(tx *sql.Tx) {
			if err := shop.Write(b.Context(), tx, good()); err != nil {
				b.Fatal(err)
			}
			if err := shop.Write(b.Context(), tx, good(), good()); err != nil {
				b.Fatal(err)
			}
			if err := shop.Write(b.Context(), tx); err != nil { // of nothing
				b.Fatal(err)
			}
		})
		ids := map[string]bool{}
		for _, e := range b.written() {
			if ids[e.ID] = true; !uuid7.MatchString(e.ID) || e.Source != "shop" || e.Time.IsZero() {
				b.Errorf("written is %+v", e)
			}
		}
		if len(ids) != 3 {
			b.Errorf("%d ids, want 3", len(ids))
		}
	})
}

func TestWrite_TheChangeAndItsEventsCommitTogetherOrNotAtAll(t *testing.T) {
	onEach(t, func(b bundle) {
		pgtest.Exec(b, b.own.Pool, "create table orders (id text)")
		tx := b.begin(nil)
		b.exec(tx, "insert into orders values ('lost')")
		b.write(tx, good())
		if n := b.count(); n != 0 {
			b.Errorf("%d events are visible before the commit", n)
		}
		if err := tx.Rollback(); err != nil {
			b.Fatal(err)
		}
		if n := b.count(); n != 0 {
			b.Errorf("%d events after a rollback", n)
		}
		b.in(func(tx *sql.Tx) {
			b.exec(tx, "insert into orders values ('kept')")
			b.write(tx, good())
		})
		if events, orders := b.count(), pgtest.Count(b, b.own.Pool, "select count(*) from orders where id = 'kept'"); events != 1 || orders != 1 {
			b.Errorf("%d events and %d orders, want one of each", events, orders)
		}
	})
}

func TestWrite_ASavepointUndoesItsEventsAlone(t *testing.T) {
	onEach(t, func(b bundle) {
		b.in(func(tx *sql.Tx) {
			first, second, third := good(), good(), good()
			first.Key, second.Key, third.Key = "first", "second", "third"
			b.write(tx, first)
			b.exec(tx, "savepoint s")
			b.write(tx, second)
			if _, err := tx.ExecContext(b.Context(), "select 1/0"); err == nil {
				b.Fatal("a division by zero is no error")
			}
			b.exec(tx, "rollback to savepoint s")
			b.write(tx, third)
		})
		var keys []string
		for _, e := range b.written() {
			keys = append(keys, e.Key)
		}
		if diff := cmp.Diff([]string{"first", "third"}, keys); diff != "" {
			b.Error(diff)
		}
	})
}

func TestWrite_APreparedTransactionKeepsItsEvents(t *testing.T) {
	onEach(t, func(b bundle) {
		tx := b.begin(nil)
		b.write(tx, good(), good())
		name := "orms" + strings.ToLower(rand.Text()) // of the whole server
		b.exec(tx, "prepare transaction '"+name+"'")
		_ = tx.Rollback() // of nothing
		if n := b.count(); n != 0 {
			b.Errorf("%d events of a prepared transaction are visible", n)
		}
		pgtest.Exec(b, b.own.Pool, "commit prepared '"+name+"'")
		if n := b.count(); n != 2 {
			b.Errorf("%d events, want 2", n)
		}
	})
}

func TestWrite_EveryIsolationLevelWritesEvents(t *testing.T) {
	onEach(t, func(b bundle) {
		levels := []sql.IsolationLevel{sql.LevelDefault, sql.LevelReadCommitted, sql.LevelRepeatableRead, sql.LevelSerializable}
		for _, level := range levels {
			tx := b.begin(&sql.TxOptions{Isolation: level})
			if err := sqloutbox.Lock(b.Context(), tx, "k"); err != nil {
				b.Fatal(err)
			}
			b.write(tx, good())
			b.commit(tx)
		}
		if n := b.count(); n != int64(len(levels)) {
			b.Errorf("%d events, want %d", n, len(levels))
		}
	})
}

func TestWrite_TenThousandEventsKeepTheirOrder(t *testing.T) {
	onEach(t, func(b bundle) {
		events := make([]holdfast.Event, 10_000)
		for i := range events {
			events[i] = good()
			events[i].Payload = fmt.Append(nil, i)
		}
		b.in(func(tx *sql.Tx) { b.write(tx, events...) })
		inOrder := pgtest.Count(b, b.own.Pool, "select count(*) from (select seq > lag(seq) over (order by convert_from(payload, 'UTF8')::int) as ascends from holdfast.event) e where ascends")
		if inOrder != 9_999 {
			b.Errorf("%d of 9,999 neighbours ascend", inOrder)
		}
	})
}

// Whatever the driver is, a dedupe key writes its event once, and another event under it is a conflict.
func TestWrite_ADedupeKeyWritesItsEventOnce(t *testing.T) {
	onEach(t, func(b bundle) {
		e := good()
		e.Headers, e.Time, e.ID = map[string]string{"a": "b"}, time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), ""
		var first outbox.Once
		b.in(func(tx *sql.Tx) {
			var err error
			if first, err = sqloutbox.WriteOnce(b.Context(), tx, "k", e); err != nil || !first.Written || first.ID == "" {
				b.Fatalf("got %+v, %v", first, err)
			}
		})
		b.in(func(tx *sql.Tx) {
			if again, err := sqloutbox.WriteOnce(b.Context(), tx, "k", e); err != nil || again.Written || again.ID != first.ID {
				b.Errorf("got %+v, %v", again, err)
			}
		})
		e.Payload = nil
		if _, err := sqloutbox.WriteOnce(b.Context(), b.begin(nil), "k", e); !errors.Is(err, outbox.ErrDedupeConflict) {
			b.Errorf("got %v", err)
		}
		other, err := sqloutbox.New(outbox.Config{Schema: "not_there"})
		if err != nil {
			b.Fatal(err)
		}
		_, err = other.WriteOnce(b.Context(), b.begin(nil), "k", good())
		says(b, err, holdfast.ErrSchemaMissing, "write event once: ", "run holdfast migrate")
		if n := b.count(); n != 1 {
			b.Errorf("%d events were written", n)
		}
	})
}
