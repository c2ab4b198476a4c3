package relay_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/holdfast-go/holdfast/internal/test/migrated"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/wait"
	"github.com/holdfast-go/holdfast/relay"
)

// Whatever somebody writes into the log or among the parked events by SQL, the relay gets past it: the row is published or
// a dead letter, and its neighbours of the same key are published once, in order. Columns of a letter's key and of the
// relay's own (xid, seq, place) keep their defaults: they say where a row is.
func FuzzRowsPastTheDoor(f *testing.F) {
	f.Add(false, "orders", "k", "id", "type", `{"a": "b"}`, "2026-01-01", []byte("x"), int64(0), uint32(0))
	f.Add(true, "a b", "k", "", "", `[{"a": 1}]`, "infinity", []byte(nil), int64(-1), uint32(3000))
	f.Add(false, "orders", "", "id", "\u2028", `null`, "-infinity", []byte{0, 0xff}, int64(1)<<62, uint32(70_000))
	f.Add(true, "orders", "k", "id", "t", `17`, "4713-01-01 BC", []byte("x"), int64(-1)<<63, uint32(1))
	f.Add(false, strings.Repeat("t", 300), "k", "id", "t", `{"a": null, "b": [1e400]}`, "294276-01-01", []byte("x"), int64(5), uint32(1500))
	f.Fuzz(func(t *testing.T, inParked bool, topic, key, id, eventType, headers, at string, payload []byte, letter int64, long uint32) {
		for _, text := range []string{topic, key, id, eventType, headers, at} {
			if !utf8.ValidString(text) || strings.ContainsRune(text, 0) {
				return // no column can hold it
			}
		}
		if !json.Valid([]byte(headers)) || strings.Contains(headers, `\u`) {
			return
		}
		if _, err := time.Parse("2006-01-02", at); err != nil && !slices.Contains([]string{"infinity", "-infinity", "4713-01-01 BC", "294276-01-01"}, at) {
			return
		}
		db := migrated.Lanes(t, 1)
		b := newBroker()
		write(t, db.Pool, event("neighbour", "before"), event("same", "before it"))
		table, columns, values := "event_0", "lane, letter, id, source, type, topic, key, time, headers, payload", "0, $1, $2, repeat('s', $3::integer), $4, $5, $6, $7::text::timestamptz, $8::text::jsonb, $9"
		if inParked {
			table, columns, values = "parked", columns+", place, why, next_at", values+", nextval('holdfast.parked_place'), 'record', now()"
		}
		if _, err := db.Pool.Exec(t.Context(), fmt.Sprintf("insert into holdfast.%s (%s) values (%s)", table, columns, values),
			letter, id, int32(long%200_000), eventType, topic, key, at, headers, payload); err != nil {
			return // the types do not allow it
		}
		write(t, db.Pool, event("neighbour", "after"), event("same", "after it"))
		stop := run(t, db.Pool, b, relay.Config{Retry: swift})
		wait.Until(t, "all are published, or a dead letter", func() bool {
			return len(b.events())+int(letters(t, db.Pool)) == 5 && parked(t, db.Pool) == 0
		})
		stop()
		wantFirsts(t, b, "neighbour", "before", "after")
		wantFirsts(t, b, "same", "before it", "after it")
		if n := letters(t, db.Pool); n > 1 || n == 1 && pgtest.Count(t, db.Pool, "select count(*) from holdfast.letter where type = $1 and topic = $2", eventType, topic) != 1 {
			t.Errorf("%d letters, and not of the row", n)
		}
	})
}
