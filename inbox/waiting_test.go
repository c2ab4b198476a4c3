package inbox

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/retry"
)

func TestWaiting_BlockedKeysSayWhatTheyWaitForAndHowLong(t *testing.T) {
	b := setup(t)
	in := b.inbox(func(c *Config) {
		c.HoldKey = true
		c.Retry.Base, c.Retry.Cap = time.Hour, time.Hour
		c.UnknownType = UnknownStore
	})
	in.Handle("order.placed", func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
		switch e.Key {
		case "later":
			return errors.New("no such customer")
		case "held":
			return retry.Permanent(errors.New("it cannot be"))
		}
		return effectOf(ctx, tx, e)
	})
	if keys, err := in.Blocked(t.Context(), 10); err != nil || len(keys) != 0 {
		t.Fatalf("nothing waits, but: %v, %v", keys, err)
	}
	b.receive(in, event("1", "held"), Dead)
	b.receive(in, event("2", "held"), Stored)
	b.receive(in, event("3", "later"), Retrying)
	b.receive(in, event("4", "later"), Stored)
	b.receive(in, event("5", "later"), Stored)
	b.receive(in, event("6", ""), Handled)
	strange := event("7", "strange")
	strange.Type = "order.archived"
	b.receive(in, strange, Stored)
	pgtest.Exec(t, b.db, "update holdfast.stored set first_at = first_at - interval '1 hour' where key = 'later'")

	keys, err := in.Blocked(t.Context(), 10)
	if err != nil || len(keys) != 3 {
		t.Fatalf("%d keys, %v", len(keys), err)
	}
	later, held, stranger := keys[0], keys[1], keys[2]
	if later.Topic != "orders" || later.Key != "later" || later.Events != 3 || later.ID != "3" || later.Type != "order.placed" || later.Source != "shop" ||
		later.Attempts != 1 || later.LastError != "no such customer" || later.NextAt.IsZero() || later.Letter != 0 || later.For < time.Hour || later.For > 2*time.Hour {
		t.Errorf("a failing head: %+v", later)
	}
	if held.Key != "held" || held.Events != 1 || held.ID != "2" || held.Letter != b.count("select id from holdfast.letter") || !held.NextAt.IsZero() {
		t.Errorf("a held key: %+v", held)
	}
	if stranger.Key != "strange" || stranger.Type != "order.archived" || stranger.Attempts != 0 || stranger.LastError != "" {
		t.Errorf("an unknown type: %+v", stranger)
	}
	if one, err := in.Blocked(t.Context(), 1); err != nil || len(one) != 1 || one[0].Key != "later" {
		t.Errorf("the first of them: %v, %v", one, err)
	}
	if _, err := in.Blocked(t.Context(), 0); err == nil {
		t.Error("a limit of 0 was taken")
	}

	pgtest.Exec(t, b.db, in.sql.declare, "billing", []string{"order.placed"}, "node", int64(60e6))
	w, err := in.Waiting(t.Context())
	if err != nil || w.Events != 5 || w.Keys != 3 || w.Undeclared != 1 || w.Oldest < time.Hour {
		t.Errorf("what waits: %+v, %v", w, err)
	}
	other := b.inbox(func(c *Config) { c.Consumer = "other" })
	if w, err := other.Waiting(t.Context()); err != nil || w != (Waiting{}) {
		t.Errorf("what waits for another consumer: %+v, %v", w, err)
	}
}
