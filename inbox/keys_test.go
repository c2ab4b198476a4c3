package inbox

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/dlq"
	"github.com/holdfast-go/holdfast/retry"
)

// Keys as other producers write them: Java's LongSerializer, a UUID of 16 bytes, Confluent's wire format of Avro, and what a parser may trip over.
var binaryKeys = map[string]string{
	"long":      "\x00\x00\x00\x00\x00\x00\x00\x2a",
	"long 43":   "\x00\x00\x00\x00\x00\x00\x00\x2b",
	"uuid":      "\x01\x8f\x3c\x2e\x9a\x10\x7d\x4b\x8f\xff\x00\xde\xad\xbe\xef\x99",
	"avro":      "\x00\x00\x00\x00\x07\x0eorder-1",
	"a byte":    "\xff",
	"another":   "\xfe",
	"long text": strings.Repeat("k", 1024),
	"756 bytes": strings.Repeat("\xff", 756),
	"encoded":   "data:;base64,AAAAAAAAACo=", // a text that looks like the first
	"no base64": "data:;base64,AAAA!",
	"plain hi":  "data:;base64,aGk=",
	"hi":        "hi",
}

func TestKeys_KeysOfAnyBytesKeepEqualityAndOrder(t *testing.T) {
	b := setup(t)
	in := b.inbox()
	var failed atomic.Bool
	in.Handle("order.placed", func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
		if e.ID == "uuid/1" && !failed.Swap(true) { // It and what follows it are stored, under the key.
			return errors.New("not yet")
		}
		return effectOf(ctx, tx, e)
	})
	var events []holdfast.Event
	var keys [][]byte
	for n := range 3 {
		for name, key := range binaryKeys {
			events, keys = append(events, event(fmt.Sprintf("%s/%d", name, n+1), "")), append(keys, []byte(key))
		}
	}
	log := logOf(events...)
	for i := range log {
		log[i].Key = keys[i]
	}
	b.consumeFake(in, newFakeGeneration(log))
	for _, e := range events {
		b.awaitOutcome(e.ID, Handled)
	}
	names := map[string]string{} // by the key that handlers saw
	for name, bytes := range binaryKeys {
		var ids, keys []string
		if err := b.db.QueryRow(t.Context(), "select array_agg(id order by n), array_agg(distinct key) from effect where id like $1 || '/%'", name).Scan(&ids, &keys); err != nil {
			t.Fatal(err)
		}
		if want := []string{name + "/1", name + "/2", name + "/3"}; !slices.Equal(ids, want) || len(keys) != 1 || string(KeyBytes(keys[0])) != bytes {
			t.Errorf("%v are handled under the keys %q, want %v and the bytes %q", ids, keys, want, bytes)
			continue
		}
		if other, taken := names[keys[0]]; taken {
			t.Errorf("%s and %s have the same key", name, other)
		}
		names[keys[0]] = name
	}
	if n := b.count("select count(*) from holdfast.letter"); n != 0 {
		t.Errorf("%d letters", n)
	}
}

func TestKeys_ADeadLetterKeepsItsBinaryKey(t *testing.T) {
	b := setup(t)
	in := b.inbox(func(c *Config) { c.HoldKey = true })
	works := false
	keys := map[string]string{}
	in.Handle("order.placed", func(_ context.Context, _ pgx.Tx, e holdfast.Event) (err error) {
		b.observed.record(func() {
			keys[e.ID] = string(KeyBytes(e.Key))
			if !works && e.ID == "1" {
				err = retry.Permanent(errors.New("it cannot be read"))
			}
		})
		return err
	})
	log := logOf(event("1", ""), event("2", ""), event("3", ""))
	for i, name := range []string{"long", "long", "long 43"} {
		log[i].Key = []byte(binaryKeys[name])
	}
	b.consumeFake(in, newFakeGeneration(log))
	b.awaitOutcome("1", Dead)
	b.awaitOutcome("2", Stored) // The letter holds its key, and that alone.
	b.awaitOutcome("3", Handled)
	letters, err := b.letters().List(t.Context(), dlq.Filter{Key: "data:;base64,AAAAAAAAACo="}) // as a person reads it, and types it again
	if err != nil || len(letters) != 1 || string(KeyBytes(letters[0].Event.Key)) != binaryKeys["long"] {
		t.Fatalf("the letters are %+v, %v", letters, err)
	}
	b.observed.record(func() { works = true })
	if n, err := b.letters().Replay(t.Context(), dlq.Filter{Key: letters[0].Event.Key}, dlq.ReplayOptions{By: "ann"}); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	b.awaitOutcome("1", Handled)
	b.awaitOutcome("2", Handled)
	if keys["1"] != binaryKeys["long"] || keys["2"] != binaryKeys["long"] {
		t.Errorf("after the replay the keys are %q", keys)
	}
}

// What is longer than the tables hold becomes a letter, and two keys are two keys also there.
func TestKeys_LettersOfKeysThatAreTooLongHaveKeysOfTheirOwn(t *testing.T) {
	b := setup(t)
	in := b.inbox()
	in.Handle("order.placed", effectOf)
	long := strings.Repeat("ä", 600)
	log := logOf(event("1", ""), event("2", ""), event("3", ""), event("4", ""))
	for i, key := range []string{long + "a", long + "b", long + "a", strings.Repeat("\xff", 757)} {
		log[i].Key = []byte(key)
	}
	b.consumeFake(in, newFakeGeneration(log))
	b.awaitSettled(4)
	if n := b.count("select count(distinct key) from holdfast.letter where octet_length(key) <= 1024 and not holds and reason like 'invalid record: key has %'"); n != 3 {
		t.Errorf("the letters have %d keys, want 3", n)
	}
	if n := b.count("select count(*) from holdfast.letter a join holdfast.letter b on a.key = b.key where a.event_id = '1' and b.event_id = '3'"); n != 1 {
		t.Error("letters of one key have two")
	}
}
