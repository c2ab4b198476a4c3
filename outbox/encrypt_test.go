package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/test/migrated"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/outbox"
)

// encryptFunc is an Encryptor.
type encryptFunc func(e holdfast.Event) (holdfast.Sealed, error)

func (f encryptFunc) Encrypt(_ context.Context, e holdfast.Event) (holdfast.Sealed, error) {
	return f(e)
}

// reversed is no encryption, but what a test can read.
func reversed(e holdfast.Event) (holdfast.Sealed, error) {
	out := []byte(e.ID + "/" + e.Source + ":")
	for i := range e.Payload {
		out = append(out, e.Payload[len(e.Payload)-1-i])
	}
	return holdfast.Sealed{Algorithm: "reversed", Key: "k1", Payload: out}, nil
}

func TestEncrypt_PayloadsAreWrittenEncrypted(t *testing.T) {
	t.Parallel()
	db := migrated.New(t)
	o, err := outbox.New(outbox.Config{Source: "shop", Encryptor: encryptFunc(func(e holdfast.Event) (holdfast.Sealed, error) {
		if e.Type == "clear" {
			return holdfast.Sealed{}, nil
		}
		return reversed(e)
	})})
	if err != nil {
		t.Fatal(err)
	}
	events := []holdfast.Event{
		{Topic: "o", Type: "t", Payload: []byte("abc"), Headers: map[string]string{"a": "b"}}, {ID: "2", Source: "else", Topic: "o", Type: "t", Payload: []byte("def")},
		{Topic: "o", Type: "clear", Payload: []byte("ghi")}, {Topic: "o", Type: "t"}, {Topic: "o", Type: "t", Payload: []byte{}},
	}
	for _, write := range []func(tx pgx.Tx) error{
		func(tx pgx.Tx) error { return o.Write(t.Context(), tx, events...) },
		func(tx pgx.Tx) error { // one event has a statement of its own
			for _, e := range events {
				if err := o.Write(t.Context(), tx, e); err != nil {
					return err
				}
			}
			return nil
		},
		func(tx pgx.Tx) error {
			b := &pgx.Batch{}
			if err := o.Queue(b, events...); err != nil {
				return err
			}
			return tx.SendBatch(t.Context(), b).Close()
		},
	} {
		pgtest.Exec(t, db, "truncate holdfast.event_0")
		if err := pgx.BeginFunc(t.Context(), db.Pool, write); err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{
			`convert_from(payload, 'UTF8') = id || '/shop:cba' and headers = '{"a": "b", "holdfast-encryption": "reversed k1"}'`,
			`convert_from(payload, 'UTF8') = '2/else:fed' and id = '2' and headers = '{"holdfast-encryption": "reversed k1"}'`,
			`payload = 'ghi' and headers is null`, `payload is null and headers is null`, `convert_from(payload, 'UTF8') = id || '/shop:'`,
		} {
			if n := pgtest.Count(t, db, "select count(*) from holdfast.event where "+want); n != 1 {
				t.Errorf("%d events have %s", n, want)
			}
		}
	}
	if fmt.Sprint(events[0].Headers) != "map[a:b]" || string(events[0].Payload) != "abc" || events[0].ID != "" {
		t.Errorf("the caller's event was changed: %v", events[0])
	}
}

func TestEncrypt_WhatCannotBeEncryptedIsNotWritten(t *testing.T) {
	t.Parallel()
	db := migrated.New(t)
	headers := map[string]string{}
	for i := range 64 {
		headers[fmt.Sprint("h", i)] = "x"
	}
	as := func(algorithm, key string, payload []byte) encryptFunc {
		return func(holdfast.Event) (holdfast.Sealed, error) {
			return holdfast.Sealed{Algorithm: algorithm, Key: key, Payload: payload}, nil
		}
	}
	for name, c := range map[string]struct {
		encrypt encryptFunc
		event   holdfast.Event
		want    string
	}{
		"no key service":          {func(holdfast.Event) (holdfast.Sealed, error) { return holdfast.Sealed{}, errors.New("no answer") }, holdfast.Event{}, "event 0: encrypt the payload: no answer"},
		"a longer payload":        {reversed, holdfast.Event{ID: "1", Payload: make([]byte, 98)}, "event 0: payload is 101 bytes long, encrypted: it must be at most 100"},
		"one header too many":     {reversed, holdfast.Event{Headers: headers}, "number of headers is 65"},
		"headers too long":        {as("a", strings.Repeat("k", 200), []byte("x")), holdfast.Event{Headers: map[string]string{"h": strings.Repeat("x", 8<<10-20)}}, "headers is 8"},
		"a key without a name":    {as("a", "", []byte("x")), holdfast.Event{}, "the key id has 0 bytes: it must be 1 to 255"},
		"a key with a blank":      {as("a", "a b", []byte("x")), holdfast.Event{}, "the key id has 3 bytes"},
		"a long algorithm":        {as(strings.Repeat("a", 65), "k", []byte("x")), holdfast.Event{}, "the algorithm has 65 bytes"},
		"a tombstone instead":     {as("a", "k", nil), holdfast.Event{}, "the encrypted payload is nil"},
		"the user's own header":   {reversed, holdfast.Event{Headers: map[string]string{"Holdfast-Encryption": "none x"}}, `header "Holdfast-Encryption" is reserved`},
		"a plain payload too big": {reversed, holdfast.Event{Payload: make([]byte, 101)}, "payload is 101 bytes long: it must be at most 100"},
	} {
		o, err := outbox.New(outbox.Config{Encryptor: c.encrypt, MaxPayload: 100})
		if err != nil {
			t.Fatal(err)
		}
		e := c.event
		e.Topic, e.Type = "o", "t"
		if e.Payload == nil {
			e.Payload = []byte("x")
		}
		err = pgx.BeginFunc(t.Context(), db.Pool, func(tx pgx.Tx) error {
			err := o.Write(t.Context(), tx, e)
			if _, still := tx.Exec(t.Context(), "select 1"); still != nil {
				t.Errorf("%s: the transaction is not usable: %v", name, still)
			}
			return err
		})
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", name, err, c.want)
		}
	}
	if n := pgtest.Count(t, db, "select count(*) from holdfast.event"); n != 0 {
		t.Errorf("%d events were written", n)
	}
}
