package inbox

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/internal/test/pgtest"
)

// whenFull runs a test in the two ways to be full, each with one event stored.
func whenFull(t *testing.T, f func(t *testing.T, b *bundle, in *Inbox)) {
	for name, full := range map[string]func(*Config){
		"MaxStored":    func(c *Config) { c.MaxStored, c.MaxStoredKey = 1, -1 },
		"MaxStoredKey": func(c *Config) { c.MaxStored, c.MaxStoredKey = -1, 1 },
	} {
		t.Run(name, func(t *testing.T) {
			b := setup(t)
			in := b.inbox(full)
			b.store(in, event("first", "k"))
			f(t, b, in)
		})
	}
}

// A consumer that is full is one under load: whoever is refused must not cost it the payload, written and rolled back.
func TestRefused_WhatIsRefusedForWantOfRoomIsNotWrittenAndRolledBack(t *testing.T) {
	whenFull(t, func(t *testing.T, b *bundle, in *Inbox) {
		place := b.count("select last_value from holdfast.stored_place")
		for i := range 20 {
			if out, err := in.TryStore(t.Context(), event(fmt.Sprint(i), "k")); !errors.Is(err, ErrFull) {
				t.Fatalf("%s, %v, want ErrFull", out, err)
			}
		}
		if got := b.count("select last_value from holdfast.stored_place"); got != place {
			t.Errorf("%d rows were written for events that were refused", got-place)
		}
	})
}

// Whoever stores an event in a transaction of its own may commit the rest of it when there is no room: the event must not
// be left recorded without being stored, for it would be a duplicate when it comes again.
func TestRefused_WhatStoreRefusesLeavesNothingInTheCallersTransaction(t *testing.T) {
	whenFull(t, func(t *testing.T, b *bundle, in *Inbox) {
		err := pgx.BeginFunc(t.Context(), b.db, func(tx pgx.Tx) error {
			if out, err := in.StoreTx(t.Context(), tx, event("refused", "k")); !errors.Is(err, ErrFull) {
				t.Errorf("%s, %v, want ErrFull", out, err)
			}
			return effectOf(t.Context(), tx, event("the caller's own", "k"))
		})
		if err != nil {
			t.Fatal(err)
		}
		if b.effects("the caller's own") != 1 {
			t.Error("the caller's own work is not there")
		}
		if n := b.count("select (select count(*) from holdfast.inbox where event_id = 'refused') + (select count(*) from holdfast.stored where event_id = 'refused')"); n != 0 {
			t.Errorf("the event that was refused left %d rows", n)
		}
		pgtest.Exec(t, b.db, "delete from holdfast.stored")
		in.receiver.queues.quota.usage.mu.Lock()
		in.receiver.queues.quota.usage.counted, in.receiver.queues.quota.usage.queues = time.Time{}, nil // as after some seconds, when it is counted again
		in.receiver.queues.quota.usage.mu.Unlock()
		b.store(in, event("refused", "k"))
	})
}

func TestRefused_AnEventThatWasNotStoredDoesNotCountAsStored(t *testing.T) {
	b := setup(t)
	in := b.inbox(func(c *Config) { c.MaxStored, c.MaxStoredKey = 3, 1 })
	b.store(in, event("first", "k"))
	in.receiver.queues.quota.usage.found(1, time.Now(), nil)
	for i := range 10 {
		if _, err := in.TryStore(t.Context(), event(fmt.Sprint(i), "k")); !errors.Is(err, ErrFull) {
			t.Fatalf("the key has no room, and it says %v", err)
		}
	}
	b.store(in, event("second", "another"))
	b.store(in, event("third", "a third"))
}
