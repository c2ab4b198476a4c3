package holdfast_test

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/dlq"
	"github.com/holdfast-go/holdfast/inbox"
	"github.com/holdfast-go/holdfast/internal/test/endtoend"
	"github.com/holdfast-go/holdfast/internal/test/kafkatest"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/internal/test/wait"
	"github.com/holdfast-go/holdfast/outbox"
	"github.com/holdfast-go/holdfast/retry"
)

// keyring is a KeyStore with a key for each Event.Key.
type keyring struct {
	mu     sync.Mutex
	keys   map[string][]byte
	erased map[string]bool
}

func newKeyring() *keyring { return &keyring{keys: map[string][]byte{}, erased: map[string]bool{}} }

func (k *keyring) KeyOf(_ context.Context, e holdfast.Event) (string, []byte, error) {
	if e.Key == "" {
		return "", nil, nil
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	id := "of-" + e.Key
	if k.erased[id] {
		return "", nil, holdfast.ErrKeyErased
	}
	if k.keys[id] == nil {
		k.keys[id] = bytes.Repeat([]byte(fmt.Sprintf("%8.8s", id)), 4)
	}
	return id, k.keys[id], nil
}

func (k *keyring) Key(_ context.Context, id string) ([]byte, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.erased[id] {
		return nil, holdfast.ErrKeyErased
	}
	if k.keys[id] == nil {
		return nil, errors.New("the key service does not know it yet")
	}
	return k.keys[id], nil
}

func (k *keyring) erase(id string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.keys, id)
	k.erased[id] = true
}

func TestEncryption_ACiphertextBelongsToItsEvent(t *testing.T) {
	t.Parallel()
	ring := newKeyring()
	a := holdfast.NewAESGCM(ring)
	e := holdfast.Event{ID: "1", Source: "shop", Topic: "orders", Type: "order.placed", Key: "ann", Payload: []byte("the payload")}
	s, err := a.Encrypt(t.Context(), e)
	if err != nil || s.Key != "of-ann" || s.Algorithm != "aes-256-gcm" || bytes.Contains(s.Payload, e.Payload) || len(s.Payload) != len(e.Payload)+28 {
		t.Fatalf("%+v, %v", s, err)
	}
	if again, err := a.Encrypt(t.Context(), e); err != nil || !bytes.Equal(again.Payload, s.Payload) {
		t.Error("the same event has other bytes")
	}
	if got, err := a.Decrypt(t.Context(), e, s); err != nil || !bytes.Equal(got, e.Payload) {
		t.Errorf("got %q, %v", got, err)
	}
	empty := e
	empty.Payload = []byte{}
	sealed, err := a.Encrypt(t.Context(), empty)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := a.Decrypt(t.Context(), empty, sealed); err != nil || got == nil || len(got) != 0 {
		t.Errorf("an empty payload is %#v, %v", got, err)
	}
	for what, change := range map[string]func(e *holdfast.Event, s *holdfast.Sealed){
		"id":        func(e *holdfast.Event, _ *holdfast.Sealed) { e.ID = "2" },
		"source":    func(e *holdfast.Event, _ *holdfast.Sealed) { e.Source = "else" },
		"topic":     func(e *holdfast.Event, _ *holdfast.Sealed) { e.Topic = "else" },
		"type":      func(e *holdfast.Event, _ *holdfast.Sealed) { e.Type = "else" },
		"borders":   func(e *holdfast.Event, _ *holdfast.Sealed) { e.Source, e.ID = "shop1", "" },
		"algorithm": func(_ *holdfast.Event, s *holdfast.Sealed) { s.Algorithm = "rot13" },
		"nonce":     func(_ *holdfast.Event, s *holdfast.Sealed) { s.Payload[0] ^= 1 },
		"payload":   func(_ *holdfast.Event, s *holdfast.Sealed) { s.Payload[len(s.Payload)-1] ^= 1 },
		"length":    func(_ *holdfast.Event, s *holdfast.Sealed) { s.Payload = s.Payload[:11] },
		"no bytes":  func(_ *holdfast.Event, s *holdfast.Sealed) { s.Payload = []byte{} },
	} {
		other, moved := e, s
		moved.Payload = bytes.Clone(s.Payload)
		change(&other, &moved)
		if got, err := a.Decrypt(t.Context(), other, moved); !errors.Is(err, holdfast.ErrSealBroken) || got != nil {
			t.Errorf("another %s: got %q, %v", what, got, err)
		}
	}
	other := e
	other.Key = "bob"
	ofBob, err := a.Encrypt(t.Context(), other)
	if err != nil {
		t.Fatal(err)
	}
	ofBob.Key = s.Key
	if _, err := a.Decrypt(t.Context(), other, ofBob); !errors.Is(err, holdfast.ErrSealBroken) {
		t.Errorf("another key: %v", err)
	}
	if _, err := a.Decrypt(t.Context(), e, holdfast.Sealed{Algorithm: s.Algorithm, Key: "unknown", Payload: s.Payload}); err == nil || errors.Is(err, holdfast.ErrSealBroken) || errors.Is(err, holdfast.ErrKeyErased) {
		t.Errorf("a key that is not there yet: %v", err)
	}
	ring.keys["of-ann"] = []byte("short")
	if _, err := a.Encrypt(t.Context(), e); err == nil || !strings.Contains(err.Error(), "it must have 32") {
		t.Errorf("a short key: %v", err)
	}
	ring.erase("of-ann")
	if _, err := a.Decrypt(t.Context(), e, s); !errors.Is(err, holdfast.ErrKeyErased) {
		t.Errorf("an erased key: %v", err)
	}
}

// found is in how many rows of holdfast's tables a text is, as text or as bytes, by table.
func found(t *testing.T, db *pgtest.DB, text string) map[string]int64 {
	t.Helper()
	rows, err := db.Query(t.Context(), "select c.oid::regclass::text from pg_class c where c.relnamespace = 'holdfast'::regnamespace and c.relkind = 'r'")
	if err != nil {
		t.Fatal(err)
	}
	tables, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil || len(tables) < 15 {
		t.Fatalf("%d tables, %v", len(tables), err)
	}
	in := map[string]int64{}
	for _, table := range tables {
		if n := pgtest.Count(t, db, fmt.Sprintf("select count(*) from %s r where strpos(r::text, $1) > 0 or strpos(r::text, $2) > 0", table), text, hex.EncodeToString([]byte(text))); n > 0 {
			in[table] = n
		}
	}
	return in
}

func TestEncryption_ErasingAKeyErasesWhatItEncryptedEverywhere(t *testing.T) {
	skip.InShort(t, "it takes 25 s beside the others")
	t.Parallel()
	const canary = "canary-of-ann-4111"
	p := endtoend.Setup(t, pgtest.New(t), kafkatest.New(t), 1)
	ring := newKeyring()
	sealing := holdfast.NewAESGCM(ring)
	out, err := outbox.New(outbox.Config{Source: "shop", Encryptor: sealing})
	if err != nil {
		t.Fatal(err)
	}
	event := func(id, topic, key string) holdfast.Event {
		return holdfast.Event{ID: id, Topic: topic, Type: "changed", Key: key, Payload: []byte(canary + " " + id), Headers: map[string]string{"tenant": "t"}}
	}
	later := event("scheduled", p.Topic(), "ann")
	later.NotBefore = time.Now().Add(time.Hour)
	gone := event("tombstone", p.Topic(), "ann")
	gone.Payload = nil
	write := func(events ...holdfast.Event) {
		t.Helper()
		if err := pgx.BeginFunc(t.Context(), p.Db.Pool, func(tx pgx.Tx) error { return out.Write(t.Context(), tx, events...) }); err != nil {
			t.Fatal(err)
		}
	}
	write(event("good", p.Topic(), "ann"), event("bad", p.Topic(), "ann"), event("slow", p.Topic(), "ann"), gone, later, event("parked", "no-such-topic", "ann"), event("of bob", p.Topic(), "bob"))
	p.Relay(nil)
	var mu sync.Mutex
	seen := map[string]map[string]string{}
	handler := func(consumer string) inbox.Handler {
		return func(_ context.Context, _ pgx.Tx, e holdfast.Event) error {
			mu.Lock()
			defer mu.Unlock()
			if seen[consumer] == nil {
				seen[consumer] = map[string]string{}
			}
			seen[consumer][e.ID] = string(e.Payload)
			if len(e.Headers) != 1 {
				t.Errorf("%s has the headers %v", e.ID, e.Headers)
			}
			switch e.ID {
			case "bad":
				return retry.Permanent(errors.New("refused"))
			case "slow":
				return retry.After(errors.New("later"), time.Hour)
			}
			return nil
		}
	}
	var erased []string
	config := func(c *inbox.Config) {
		c.Decryptor = sealing
		c.DeadLetterTopic = "*.dlq"
		c.Observer.OnErased = func(e holdfast.Event) { mu.Lock(); defer mu.Unlock(); erased = append(erased, e.ID) }
	}
	p.Consume("billing", handler("billing"), config)
	wait.Until(t, "all are handled, stored, parked or given up", func() bool {
		return pgtest.Count(t, p.Db, "select (select count(*) from holdfast.letter where event_id = 'bad') + (select count(*) from holdfast.stored where event_id = 'slow') + (select count(*) from holdfast.parked where id = 'parked') + (select count(*) from holdfast.inbox where result = 'handled' and event_id = 'of bob')") == 4
	})
	mu.Lock()
	if got := fmt.Sprint(seen["billing"]["good"], "|", seen["billing"]["of bob"]); got != canary+" good|"+canary+" of bob" {
		t.Errorf("the handler got %s", got)
	}
	mu.Unlock()

	// 1. Nothing is in the clear, in no table and no record.
	if in := found(t, p.Db, canary); len(in) > 0 {
		t.Errorf("the canary is in %v", in)
	}
	records := p.Cluster.ReadAll(t, p.Topic())
	if len(records) < 4 {
		t.Fatalf("%d records", len(records))
	}
	for _, r := range records {
		if all := fmt.Sprintf("%s %s %v", r.Key, r.Value, r.Headers); strings.Contains(all, canary) {
			t.Errorf("a record has the canary: %s", all)
		}
	}
	// The search finds what is there.
	if err := pgx.BeginFunc(t.Context(), p.Db.Pool, func(tx pgx.Tx) error {
		return outbox.Write(t.Context(), tx, holdfast.Event{Topic: "no-such-topic", Type: "t", Payload: []byte("in the clear, 4112")})
	}); err != nil {
		t.Fatal(err)
	}
	if len(found(t, p.Db, "in the clear, 4112")) == 0 {
		t.Error("the search finds nothing")
	}

	// 2. A letter that is encrypted cannot be edited, so that nothing comes into the clear.
	d, err := dlq.New(p.Db.Pool, dlq.Config{})
	if err != nil {
		t.Fatal(err)
	}
	letter := pgtest.Count(t, p.Db, "select id from holdfast.letter where event_id = 'bad'")
	if err := d.Edit(t.Context(), letter, []byte(canary), "ann", "a test"); !errors.Is(err, dlq.ErrEncrypted) {
		t.Errorf("Edit returned %v", err)
	}

	// 3. The same event written again is a duplicate.
	before := pgtest.Count(t, p.Db, "select count(*) from holdfast.letter")
	write(event("good", p.Topic(), "ann"), event("after", p.Topic(), "bob"))
	wait.Until(t, "the next is handled", func() bool {
		return pgtest.Count(t, p.Db, "select count(*) from holdfast.inbox where event_id = 'after'") == 1
	})
	if n := pgtest.Count(t, p.Db, "select count(*) from holdfast.letter"); n != before {
		t.Errorf("%d letters, there were %d", n, before)
	}

	// 4. Without the key, nobody reads it: what is on its way, what is replayed, and what is read from the topic's beginning.
	ring.erase("of-ann")
	if _, err := d.Replay(t.Context(), dlq.Filter{IDs: []int64{letter}}, dlq.ReplayOptions{By: "ann", Reason: "a test"}); err != nil {
		t.Fatal(err)
	}
	p.Consume("audit", handler("audit"), func(c *inbox.Config) { config(c); c.ErasedKey = inbox.ErasedSkip })
	p.Consume("mail", handler("mail"), config)
	wait.Until(t, "the others have seen all", func() bool {
		return pgtest.Count(t, p.Db, "select count(*) from holdfast.inbox where event_id = 'after'") == 3 &&
			pgtest.Count(t, p.Db, "select count(*) from holdfast.letter where state = 'open' and reason like 'its handler returned a permanent failure: decrypt the payload (key %: the key was erased' and array_to_string(errors, ' ') like '%the key was erased%'") >= 4
	})
	wait.Until(t, "billing's stored event and letter are unreadable", func() bool {
		pgtest.Exec(t, p.Db, "update holdfast.stored set next_at = now() where event_id = 'slow'")
		return pgtest.Count(t, p.Db, "select count(*) from holdfast.letter where consumer = 'billing' and state = 'open' and event_id in ('bad', 'slow') and errors[cardinality(errors)] like '%the key was erased%'") == 2
	})
	mu.Lock()
	defer mu.Unlock()
	for _, consumer := range []string{"audit", "mail"} {
		if got := seen[consumer]; got["after"] == "" || got["of bob"] == "" || got["good"] != "" || got["bad"] != "" || got["slow"] != "" {
			t.Errorf("%s has seen %v", consumer, got)
		}
		if payload, handled := seen[consumer]["tombstone"]; !handled || payload != "" {
			t.Errorf("%s has not seen the tombstone", consumer)
		}
	}
	if len(erased) < 3 || pgtest.Count(t, p.Db, "select count(*) from holdfast.letter where consumer = 'audit'") > 0 {
		t.Errorf("erased %v", erased)
	}
}
