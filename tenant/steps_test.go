package tenant

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/inbox"
	"github.com/holdfast-go/holdfast/internal/test/migrated"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/internal/test/wait"
	"github.com/holdfast-go/holdfast/retry"
)

// While its event is stored or a dead letter, a step is of whose the header says, whatever its key says; and else of whose that says.
func TestSteps_AStepIsOfTheTenantOfItsEvent(t *testing.T) {
	t.Parallel()
	db := migrated.New(t)
	tenants, err := New(db.Pool, Config{})
	if err != nil {
		t.Fatal(err)
	}
	write(t, db, `
insert into holdfast.stored (consumer, topic, key, place, source, event_id, type, time, headers, hash) values
	('billing', 'orders', 'gamma/1', 1, 's', 'waits', 't', now(), '{"tenant": "acme"}', ''), ('billing', 'orders', 'acme/1', 1, 's', 'of gamma', 't', now(), '{"tenant": "gamma"}', ''),
	('billing', 'orders', 'acme/1', 2, 's', 'no header', 't', now(), null, '');
insert into holdfast.letter (origin, consumer, reason, state, event_id, source, type, topic, key, time, headers, hash) values
	('inbox', 'billing', 'r', 'open', 'dead', 's', 't', 'orders', 'gamma/1', now(), '{"tenant": "acme"}', ''),
	('inbox', 'billing', 'r', 'replayed', 'was dead', 's', 't', 'orders', 'k', now(), '{"tenant": "acme"}', ''),
	('relay', '', 'r', 'replayed', 'nobody', 's', 't', 'orders', 'k', now(), '{"tenant": "acme"}', '')`)
	for event, key := range map[string]string{"waits": "gamma/1", "of gamma": "acme/1", "no header": "acme/1", "dead": "gamma/1", "was dead": "k", "handled": "gamma/1", "nobody": "k"} {
		for _, of := range [][]string{{"billing", "s", "charge"}, {"billing", "s", "mail"}, {"billing", "other", "charge"}, {"mail", "s", "charge"}} {
			pgtest.Exec(t, db.Pool, "insert into holdfast.inbox_step (consumer, source, event_id, hash, name, key, result) values ($1, $2, $3, '', $4, $5, '1')", of[0], of[1], event, of[2], key)
		}
	}
	erase := func(name string) Place {
		t.Helper()
		report, err := tenants.Erase(t.Context(), name, EraseOptions{By: "ann", Reason: "r"})
		if err != nil {
			t.Fatal(err)
		}
		return report.Places[slices.IndexFunc(report.Places, func(p Place) bool { return p.Name == "inbox_step" })]
	}
	left := func() string {
		return pgtest.Text(t, db, "select string_agg(concat_ws(' ', consumer, source, event_id, name), ', ' order by event_id, consumer, source, name) from holdfast.inbox_step where event_id <> 'handled' and event_id <> 'nobody'")
	}
	// Of the two others' events with a key of acme, those of other consumers and sources go too: nothing but the key says whose they are.
	if p := erase("acme"); p.Found != 12 || p.Erased != 12 || p.Remains != 0 || p.Unattributed != 6 {
		t.Errorf("of acme: %+v", p)
	}
	const want = "billing other dead charge, mail s dead charge, billing s of gamma charge, billing s of gamma mail, billing other waits charge, mail s waits charge, billing other was dead charge, mail s was dead charge"
	if got := left(); got != want {
		t.Errorf("after acme %s are left, want %s", got, want)
	}
	if p := erase("gamma"); p.Found != 10 || p.Remains != 0 || p.Unattributed != 6 {
		t.Errorf("of gamma: %+v", p)
	}
	if n := pgtest.Count(t, db, "select count(*) from holdfast.inbox_step"); n != 6 {
		t.Errorf("%d steps are left, want the 6 that do not say whose they are", n)
	}
}

// A handler that calls another system for a tombstone gives the key that it gave before: the other system knows the call.
func TestSteps_AStepThatWasErasedHasTheSameKeyAgain(t *testing.T) {
	skip.InShort(t, "it takes 1 s beside the others")
	t.Parallel()
	db := migrated.New(t)
	quiet := slog.New(slog.NewTextHandler(io.Discard, nil))
	in, err := inbox.New(db.Pool, inbox.Config{Consumer: "billing", Logger: quiet, Retry: retry.Policy{Base: time.Hour}})
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var calls []string
	in.Handle("t", func(ctx context.Context, _ pgx.Tx, e holdfast.Event) error {
		_, err := inbox.Step(ctx, "charge", func(_ context.Context, key string) (string, error) {
			mu.Lock()
			defer mu.Unlock()
			calls = append(calls, fmt.Sprintf("%q %s", e.Payload, key))
			return "acme-secret", nil
		})
		if err == nil && e.Payload != nil {
			err = errors.New("not now")
		}
		return err
	})
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	defer running.Wait()
	defer stop()
	running.Go(func() {
		if err := in.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	if _, err := in.Store(t.Context(), holdfast.Event{ID: "e", Source: "s", Topic: "orders", Key: "acme/1", Type: "t", Payload: []byte("acme-secret")}); err != nil {
		t.Fatal(err)
	}
	wait.Until(t, "the handler has called, and failed", func() bool {
		return pgtest.Count(t, db, "select count(*) from holdfast.stored where attempts = 1 and next_at > now()") == 1
	})
	tenants, err := New(db.Pool, Config{})
	if err != nil {
		t.Fatal(err)
	}
	report, err := tenants.Erase(t.Context(), "acme", EraseOptions{By: "ann", Reason: "r"})
	if err != nil {
		t.Fatal(err)
	}
	if found, left := found(report), everywhere(t, db, "acme-secret"); found["inbox_step"] != 1 || len(left) != 0 {
		t.Errorf("found are %v, and what acme said is in %v", found, left)
	}
	pgtest.Exec(t, db, "update holdfast.stored set next_at = now()")
	wait.Until(t, "the tombstone is handled", func() bool {
		return pgtest.Count(t, db, "select count(*) from holdfast.inbox where result = 'handled'") == 1
	})
	mu.Lock()
	defer mu.Unlock()
	if len(calls) != 2 || strings.Replace(calls[0], `"acme-secret"`, `""`, 1) != calls[1] || len(calls[1]) != len(`"" `)+64 {
		t.Errorf("it called %q", calls)
	}
}
