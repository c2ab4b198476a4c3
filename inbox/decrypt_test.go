package inbox

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/test/logtest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
)

// decryptFunc is a Decryptor.
type decryptFunc func(s holdfast.Sealed) ([]byte, error)

func (f decryptFunc) Decrypt(_ context.Context, _ holdfast.Event, s holdfast.Sealed) ([]byte, error) {
	return f(s)
}

// upper decrypts to capitals. Some keys are not there.
func upper(s holdfast.Sealed) ([]byte, error) {
	switch s.Key {
	case "erased":
		return nil, fmt.Errorf("vault: %w", holdfast.ErrKeyErased)
	case "broken":
		return nil, holdfast.ErrSealBroken
	case "away":
		return nil, errors.New("vault: no answer")
	case "nil":
		return nil, nil
	}
	return bytes.ToUpper(s.Payload), nil
}

func encrypted(id, key string) holdfast.Event {
	e := event(id, "")
	e.Headers = map[string]string{"holdfast-encryption": "upper " + key, "a": "b"}
	return e
}

func TestDecrypt_HandlersGetPayloadsInTheClear(t *testing.T) {
	skip.InShort(t, "it takes 1 s beside the others")
	b := setup(t)
	in := b.inbox(func(c *Config) { c.Decryptor = decryptFunc(upper) })
	var got []holdfast.Event
	in.Handle("order.placed", func(_ context.Context, _ pgx.Tx, e holdfast.Event) error { got = append(got, e); return nil })
	sealed := encrypted("1", "k")
	b.receive(in, sealed, Handled)
	b.receive(in, sealed, Duplicate)
	b.receive(in, encrypted("2", "nil"), Handled)
	tombstone := encrypted("3", "erased")
	tombstone.Payload = nil
	b.receive(in, tombstone, Handled)
	if len(got) != 3 || string(got[0].Payload) != "PAYLOAD OF 1" || fmt.Sprint(got[0].Headers) != "map[a:b]" || got[1].Payload == nil || len(got[1].Payload) != 0 || got[2].Payload != nil {
		t.Errorf("got %+v", got)
	}
	if string(sealed.Payload) != "payload of 1" || len(sealed.Headers) != 2 {
		t.Errorf("the caller's event was changed: %+v", sealed)
	}
	other := encrypted("1", "k")
	other.Payload = []byte("other bytes")
	b.receive(in, other, Conflict)
}

func TestDecrypt_WhatCannotBeDecryptedIsNotHandled(t *testing.T) {
	for key, want := range map[string]Outcome{"erased": Dead, "broken": Dead, "away": Retrying, "unset": Retrying} {
		t.Run(key, func(t *testing.T) {
			b := setup(t)
			in := b.inbox(func(c *Config) {
				if key != "unset" {
					c.Decryptor = decryptFunc(upper)
				}
			})
			in.Handle("order.placed", func(context.Context, pgx.Tx, holdfast.Event) error { t.Error("the handler was called"); return nil })
			b.receive(in, encrypted("1", key), want)
			if want == Dead {
				if n := b.count("select count(*) from holdfast.letter where payload = 'payload of 1' and headers->>'holdfast-encryption' is not null and errors[1] like 'decrypt the payload (key \"" + key + "\")%'"); n != 1 {
					t.Errorf("%d letters have what came", n)
				}
			}
		})
	}
}

func TestDecrypt_AnErasedEventOfABatchIsLeftOut(t *testing.T) {
	b := setup(t)
	var log logtest.Log
	var erased, got []string
	in := b.inbox(func(c *Config) {
		c.Decryptor, c.ErasedKey, c.Logger = decryptFunc(upper), ErasedSkip, slog.New(slog.NewTextHandler(&log, nil))
		c.Observer.OnErased = func(e holdfast.Event) { erased = append(erased, e.ID) }
	})
	h := in.decrypting(func(_ context.Context, _ pgx.Tx, events []holdfast.Event) error {
		for _, e := range events {
			got = append(got, e.ID+"="+string(e.Payload))
		}
		return nil
	})
	events := []holdfast.Event{event("1", ""), encrypted("2", "k"), encrypted("3", "erased"), event("4", ""), encrypted("5", "erased"), encrypted("6", "k")}
	if err := h(t.Context(), nil, events); err != nil {
		t.Fatal(err)
	}
	if fmt.Sprint(got) != "[1=payload of 1 2=PAYLOAD OF 2 4=payload of 4 6=PAYLOAD OF 6]" || fmt.Sprint(erased) != "[3 5]" {
		t.Errorf("the handler got %v, erased were %v", got, erased)
	}
	if n := strings.Count(log.String(), "event skipped: its key was erased"); n != 2 {
		t.Errorf("the log says %s", log.String())
	}
	in.Handle("order.placed", func(context.Context, pgx.Tx, holdfast.Event) error { t.Error("the handler was called"); return nil })
	b.receive(in, encrypted("7", "erased"), Handled)
}
