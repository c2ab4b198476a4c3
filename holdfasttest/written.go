package holdfasttest

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/sqlschema"
)

// Log is the outbox of a schema. The package functions use the zero Log.
type Log struct {
	// Schema is the Postgres schema that holdfast.Migrate created. Defaults to "holdfast".
	Schema string
}

// Written is Log{}.Written.
func Written(t testing.TB, tx pgx.Tx) []holdfast.Event {
	t.Helper()
	return Log{}.Written(t, tx)
}

// WrittenSince is Log{}.WrittenSince.
func WrittenSince(t testing.TB, db querier, since Mark) []holdfast.Event {
	t.Helper()
	return Log{}.WrittenSince(t, db, since)
}

// Now is Log{}.Now.
func Now(t testing.TB, db querier) Mark {
	t.Helper()
	return Log{}.Now(t, db)
}

// RequireWritten is Log{}.RequireWritten.
func RequireWritten(t testing.TB, tx pgx.Tx, want ...holdfast.Event) {
	t.Helper()
	Log{}.RequireWritten(t, tx, want...)
}

// Written returns the events that tx has written so far, in the order of the writes. It includes scheduled events
// (Event.NotBefore); within one call of Write they come first. A NotBefore that was not in the future is not kept: such
// an event is like any other.
func (l Log) Written(t testing.TB, tx pgx.Tx) []holdfast.Event {
	t.Helper()
	return l.read(t, tx, written)
}

// Mark is a position in a log.
type Mark int64

// Now returns the current position, for WrittenSince. db is a pool, a connection or a transaction.
func (l Log) Now(t testing.TB, db querier) (now Mark) {
	t.Helper()
	if err := db.QueryRow(t.Context(), l.statement(t, mark)).Scan(&now); err != nil {
		t.Fatalf("mark the log: %v", err)
	}
	return now
}

// WrittenSince returns the events that were written after the mark and that db sees; through a pool these are the
// committed ones. Use it to test code that has its own transactions. Events that a relay moved into the log since then
// count too: scheduled events that became due, and replayed dead letters. The log forgets published events after some
// hundred megabytes, which tests do not reach.
func (l Log) WrittenSince(t testing.TB, db querier, since Mark) []holdfast.Event {
	t.Helper()
	return l.read(t, db, writtenSince, int64(since))
}

// RequireWritten ends the test unless tx has written the wanted events: see RequireEvents.
func (l Log) RequireWritten(t testing.TB, tx pgx.Tx, want ...holdfast.Event) {
	t.Helper()
	RequireEvents(t, l.Written(t, tx), want...)
}

func (l Log) statement(t testing.TB, sql string) string {
	t.Helper()
	if err := sqlschema.Validate(l.Schema); err != nil {
		t.Fatalf("%v", err)
	}
	return sqlschema.In(l.Schema, sql)
}

func (l Log) read(t testing.TB, db querier, sql string, args ...any) []holdfast.Event {
	t.Helper()
	rows, err := db.Query(t.Context(), l.statement(t, sql), args...)
	if err != nil {
		t.Fatalf("read the log: %v", err)
	}
	events, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (e holdfast.Event, err error) {
		var seq int64
		var notBefore *time.Time
		var headers *string
		if err := row.Scan(&seq, &e.ID, &e.Source, &e.Type, &e.Topic, &e.Key, &e.Time, &notBefore, &headers, &e.Payload); err != nil {
			return e, err
		}
		e.Time = e.Time.UTC()
		if notBefore != nil {
			e.NotBefore = notBefore.UTC()
		}
		if headers != nil {
			err = json.Unmarshal([]byte(*headers), &e.Headers)
		}
		return e, err
	})
	if err != nil {
		t.Fatalf("read the log: %v", err)
	}
	return events
}

// RequireEvents ends the test unless got contains the wanted events in this order; others may come between them. Of a
// wanted event, only the fields that are set are compared, and of its Headers only those it names. If both payloads are
// JSON they are compared as JSON: spaces and the order of fields do not matter. The message shows how the closest event
// differs, including payloads. To check for a tombstone, or that nothing was written, look at the events themselves.
func RequireEvents(t testing.TB, got []holdfast.Event, want ...holdfast.Event) {
	t.Helper()
	next := 0 // Invariant: the wanted events so far were found before got[next].
	for i, w := range want {
		at := find(got[next:], w)
		if at < 0 {
			t.Fatalf("%s", missing(got, next, w, i, len(want)))
			return // for a testing.TB whose Fatalf returns
		}
		next += at + 1
	}
}

func find(events []holdfast.Event, want holdfast.Event) int {
	for i, e := range events {
		if len(differences(want, e)) == 0 {
			return i
		}
	}
	return -1
}

// missing says that want, number i of n, is not in got[next:], and which event comes closest.
func missing(got []holdfast.Event, next int, want holdfast.Event, i, n int) string {
	var b strings.Builder
	if n > 1 {
		fmt.Fprintf(&b, "event %d of the %d wanted was not written", i+1, n)
	} else {
		b.WriteString("the event wanted was not written")
	}
	fmt.Fprintf(&b, ": %s\n", describe(want))
	if len(got) == 0 {
		b.WriteString("nothing was written at all")
		return b.String()
	}
	if at := find(got[:next], want); at >= 0 {
		fmt.Fprintf(&b, "event %d written matches, but comes too early: the events wanted before it were found up to event %d\n", at+1, next)
	} else {
		closest, fewest := 0, differences(want, got[0])
		for j, e := range got[1:] {
			if d := differences(want, e); weight(d) < weight(fewest) {
				closest, fewest = j+1, d
			}
		}
		fmt.Fprintf(&b, "event %d written comes closest, but\n", closest+1)
		for _, d := range fewest {
			fmt.Fprintf(&b, "    %s: want %s, got %s\n", d.field, d.want, d.got)
		}
	}
	b.WriteString("events written:\n")
	for j, e := range got {
		if j == 20 && len(got) > 21 {
			fmt.Fprintf(&b, "    … and %d more\n", len(got)-j)
			break
		}
		fmt.Fprintf(&b, "    %d. %s\n", j+1, describe(e))
	}
	return strings.TrimSuffix(b.String(), "\n")
}
