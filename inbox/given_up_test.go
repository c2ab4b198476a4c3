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
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
)

// An event is most often given up out of `stored`, after its retries: what is reported of a letter must not depend on where
// the last attempt was made.
func TestGivenUp_AStoredEventThatIsGivenUpIsReportedWithItsLetter(t *testing.T) {
	for _, row := range []struct {
		name     string
		given    string // what the row of `stored` has behind it
		attempts int
		reason   string
		err      string
	}{
		{"after its last attempt", "attempts = 2", 3, "it failed 3 times: no such customer", "no such customer"},
		{"as the replay of a letter", "attempts = 2, letter = (select id from holdfast.letter)", 3, "it failed 3 times: no such customer", "no such customer"},
		{"because the process ended each time", "attempts = 3, lease_until = now() - interval '1 second'", 3, "it was started too often and never finished", "nothing was recorded"},
	} {
		t.Run(row.name, func(t *testing.T) {
			b := setup(t)
			var log bytes.Buffer
			in := b.inbox(func(c *Config) { c.Logger = slog.New(slog.NewTextHandler(&log, nil)) })
			in.Handle("order.placed", func(context.Context, pgx.Tx, holdfast.Event) error { return errors.New(row.err) })
			pgtest.Exec(t, b.db, `insert into holdfast.letter (origin, consumer, reason, event_id, source, type, topic, key, time, hash, state)
				values ('inbox', 'billing', 'r', '1', 'shop', 'order.placed', 'orders', 'k', now(), $1, 'replaying')`, in.registry.newDelivery(event("1", "k")).hash)
			b.store(in, event("1", "k"))
			pgtest.Exec(t, b.db, "update holdfast.stored set "+row.given)
			stop := b.run(in.Run)
			b.awaitOutcome("1", Dead)
			stop()
			b.observed.mu.Lock()
			defer b.observed.mu.Unlock()
			if len(b.observed.dead) != 1 {
				t.Fatalf("OnDead was called %d times, want once", len(b.observed.dead))
			}
			letter := b.count("select id from holdfast.letter where state = 'open'")
			d := b.observed.dead[0]
			if d.Event.ID != "1" || d.Letter != letter || d.Attempts != row.attempts || d.Reason != row.reason || !strings.Contains(fmt.Sprint(d.Err), row.err) {
				t.Errorf("OnDead got %+v of letter %d", d, letter)
			}
			short, _, _ := strings.Cut(row.reason, ": ")
			if n := strings.Count(log.String(), "event given up"); n != 1 || !strings.Contains(log.String(), fmt.Sprintf("letter=%d reason=%q attempts=%d", letter, short, row.attempts)) {
				t.Errorf("the log says it %d times:\n%s", n, log.String())
			}
		})
	}
}

// A person was to decide before the key goes on, whether the event failed or ended the process.
func TestGivenUp_AStoredEventThatEndsItsProcessHoldsItsKey(t *testing.T) {
	b := setup(t)
	in := b.inbox(func(c *Config) { c.HoldKey = true })
	in.Handle("order.placed", effectOf)
	b.store(in, event("1", "k"))
	b.store(in, event("2", "k"))
	pgtest.Exec(t, b.db, `update holdfast.stored set attempts = 3, failed_at = now() - interval '1 hour', lease_token = gen_random_uuid(), lease_until = now() - interval '1 second'
		where event_id = '1'`)
	b.run(in.Run)
	b.awaitOutcome("1", Dead)
	b.store(in, event("another", "other"))
	b.awaitOutcome("another", Handled)
	if n := b.count("select count(*) from holdfast.letter where holds and first_at < now() - interval '50 minutes'"); n != 1 {
		t.Error("the letter does not hold the key, or does not know when the event failed first")
	}
	if n := b.count("select count(*) from holdfast.stored where event_id = '2' and attempts = 0"); n != 1 {
		t.Error("the key went on")
	}
}
