package holdfast_test

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/inbox"
	"github.com/holdfast-go/holdfast/internal/test/migrated"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/wait"
	"github.com/holdfast-go/holdfast/outbox"
	"github.com/holdfast-go/holdfast/retry"
)

// taken has an inbox take in an event that was written, as from a topic.
func taken(t *testing.T, in *inbox.Inbox, e holdfast.Event, token holdfast.Token) {
	t.Helper()
	e.Source, e.ID, e.Time = token.Source, token.ID, time.Now()
	if _, err := in.Receive(t.Context(), e); err != nil {
		t.Error(err)
	}
}

func newInbox(t *testing.T, pool *pgxpool.Pool, c inbox.Config) *inbox.Inbox {
	t.Helper()
	c.Logger = slog.New(slog.DiscardHandler)
	in, err := inbox.New(pool, c)
	if err != nil {
		t.Fatal(err)
	}
	return in
}

// When it returns, the effect is there.
func TestWait_ItReturnsHowAConsumerHasSettledTheEvent(t *testing.T) {
	t.Parallel()
	db := migrated.New(t)
	pgtest.Exec(t, db.Pool, "create table effect (id text primary key)")
	other := db.PoolOf(t, 2)
	in := newInbox(t, db.Pool, inbox.Config{Consumer: "billing"})
	in.Handle("placed", func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
		if _, err := tx.Exec(ctx, "insert into effect values ($1)", e.ID); err != nil {
			return err
		}
		if string(e.Payload) == "bad" {
			return retry.Permanent(errors.New("bad"))
		}
		return nil
	})
	for _, row := range []struct {
		eventType, payload string
		want               holdfast.Settlement
		effects            int64
	}{{"placed", "good", holdfast.Handled, 1}, {"placed", "bad", holdfast.Dead, 0}} {
		t.Run(string(row.want), func(t *testing.T) {
			e := holdfast.Event{Topic: "orders", Type: row.eventType, Payload: []byte(row.payload)}
			var token holdfast.Token
			if err := pgx.BeginFunc(t.Context(), db.Pool, func(tx pgx.Tx) (err error) {
				token, err = outbox.WriteToken(t.Context(), tx, e)
				return err
			}); err != nil {
				t.Fatal(err)
			}
			var receives sync.WaitGroup
			receives.Go(func() { taken(t, in, e, token) })
			defer receives.Wait()
			got, err := holdfast.WaitFor(t.Context(), other, token, "billing")
			if got != row.want || err != nil {
				t.Errorf("%q %v, want %q", got, err, row.want)
			}
			if n := pgtest.Count(t, other, "select count(*) from effect where id = $1", token.ID); n != row.effects {
				t.Errorf("%d effects are visible, want %d", n, row.effects)
			}
		})
	}
}

// However it ends, the caller's context bounds it, and what is known then is said.
func TestWait_ItEndsWithItsContextAndSaysHowFarTheConsumerGot(t *testing.T) {
	t.Parallel()
	db := migrated.New(t)
	in := newInbox(t, db.Pool, inbox.Config{Consumer: "billing", Retry: retry.Policy{Base: time.Hour, Cap: time.Hour}})
	in.Handle("placed", func(context.Context, pgx.Tx, holdfast.Event) error { return errors.New("not yet") })
	token := holdfast.Token{Source: "shop", ID: "1"}
	for _, want := range []holdfast.Settlement{holdfast.Unseen, holdfast.Stored} {
		if want == holdfast.Stored {
			taken(t, in, holdfast.Event{Topic: "orders", Type: "placed"}, token)
		}
		wait.Until(t, fmt.Sprintf("a wait ends at %q", want), func() bool { // The time may be too short for a look.
			ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
			defer cancel()
			got, err := holdfast.WaitFor(ctx, db.Pool, token, "billing")
			if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), `the consumer billing`) {
				t.Errorf("%q %v: want the end of the time", got, err)
			}
			return got == want
		})
	}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if got, err := holdfast.WaitFor(over, db.Pool, token, "billing"); got != holdfast.Unseen || !errors.Is(err, context.Canceled) {
		t.Errorf("after its context: %q %v", got, err)
	}
}

func TestWait_AllThatIsWrongIsSaidAtOnce(t *testing.T) {
	t.Parallel()
	var told []holdfast.Waited
	w := holdfast.Waiter{Schema: "A B", Observer: holdfast.WaitObserver{OnWaited: func(_ context.Context, w holdfast.Waited) { told = append(told, w) }}}
	_, err := w.For(t.Context(), holdfast.Token{Source: "a\x00"}, "")
	for _, want := range []string{"the token names no event", "the pool is nil", "the consumer's name must have 1 to 255 bytes", `schema`} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: it lacks %q", err, want)
		}
	}
	if len(told) != 1 || !errors.Is(told[0].Err, err) {
		t.Errorf("the observer was told %+v", told)
	}
}

func TestWait_TheObserverHearsHowLongAndWhat(t *testing.T) {
	t.Parallel()
	db := migrated.New(t)
	pgtest.Exec(t, db.Pool, `insert into holdfast.inbox (consumer, source, event_id, topic, hash, processed_at, result) values ('billing', '', '1', 'orders', '', now(), 'discarded')`)
	var told []holdfast.Waited
	w := holdfast.Waiter{Pool: db.Pool, Observer: holdfast.WaitObserver{OnWaited: func(_ context.Context, w holdfast.Waited) { told = append(told, w) }}}
	if _, err := w.For(t.Context(), holdfast.Token{ID: "1"}, "billing"); err != nil {
		t.Fatal(err)
	}
	if len(told) != 1 || told[0].Consumer != "billing" || told[0].Settlement != holdfast.Discarded || told[0].Took <= 0 || told[0].Err != nil {
		t.Errorf("it was told %+v", told)
	}
}

func TestWait_ATokenIsATextForHeadersAndBack(t *testing.T) {
	t.Parallel()
	for _, token := range []holdfast.Token{{"shop", "1"}, {"", "1"}, {"https://shop.example/a?b#c", "ä ö/%2F"}, {strings.Repeat("ü", 127), strings.Repeat("/", 255)}} {
		text := token.String()
		if strings.ContainsFunc(text, func(r rune) bool { return r <= ' ' || r > '~' }) {
			t.Errorf("%q is no text for a header", text)
		}
		if got, err := holdfast.ParseToken(text); got != token || err != nil {
			t.Errorf("%q is read as %q, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "1", "shop/", "a/b/c", "%zz/1", "%00/1", "a/%ff", "/" + strings.Repeat("x", 256), strings.Repeat("x", 256) + "/1", base64.StdEncoding.EncodeToString([]byte("shop"))} {
		if got, err := holdfast.ParseToken(text); err == nil || got != (holdfast.Token{}) {
			t.Errorf("%q is read as %q", text, got)
		} else if len(text) > 100 && strings.Contains(err.Error(), text) {
			t.Errorf("the error repeats what anybody sent: %v", err)
		}
	}
}

// An event is a token's whatever the middleware and the configuration make of it.
func TestWait_TheTokenIsOfTheEventThatIsWritten(t *testing.T) {
	t.Parallel()
	db := migrated.New(t)
	rename := func(next outbox.WriteFunc) outbox.WriteFunc {
		return func(ctx context.Context, tx pgx.Tx, events []holdfast.Event) error {
			events[0].ID += "-renamed"
			return next(ctx, tx, events)
		}
	}
	for i, row := range []struct {
		c    outbox.Config
		e    holdfast.Event
		want string
	}{
		{outbox.Config{}, holdfast.Event{}, ""},
		{outbox.Config{Source: "shop"}, holdfast.Event{}, "shop"},
		{outbox.Config{Source: "shop"}, holdfast.Event{Source: "bank", ID: "7"}, "bank"},
		{outbox.Config{Source: "shop", Use: []func(outbox.WriteFunc) outbox.WriteFunc{rename}}, holdfast.Event{ID: "8"}, "shop"},
	} {
		o, err := outbox.New(row.c)
		if err != nil {
			t.Fatal(err)
		}
		row.e.Topic, row.e.Type = fmt.Sprint("topic-", i), "placed"
		var token holdfast.Token
		if err := pgx.BeginFunc(t.Context(), db.Pool, func(tx pgx.Tx) (err error) {
			token, err = o.WriteToken(t.Context(), tx, row.e)
			return err
		}); err != nil {
			t.Fatal(err)
		}
		if token.Source != row.want || token.ID == "" {
			t.Errorf("%d: the token is %+v", i, token)
		}
		if n := pgtest.Count(t, db.Pool, "select count(*) from holdfast.event where topic = $1 and source = $2 and id = $3", row.e.Topic, token.Source, token.ID); n != 1 {
			t.Errorf("%d: %d events have the token %s", i, n, token)
		}
	}
	tx := pgtest.Begin(t, db)
	if token, err := outbox.WriteToken(t.Context(), tx, holdfast.Event{}); err == nil || token != (holdfast.Token{}) {
		t.Errorf("a refused event has the token %v (%v)", token, err)
	}
	if _, err := outbox.WriteToken(t.Context(), nil, holdfast.Event{Topic: "a", Type: "b"}); err == nil {
		t.Error("without a transaction it is no error")
	}
}
