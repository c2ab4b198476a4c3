package holdfast

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast/internal/settled"
	"github.com/holdfast-go/holdfast/internal/sqlschema"
)

// Token names an event that was written, for WaitFor. outbox.WriteToken returns it. A program that sets the ID of an event can make one. It is no
// secret, and grants nothing: who has one can wait for its event where the program lets them.
type Token struct {
	Source, ID string // of the event; the source may be empty
}

// String is the token as a text of visible ASCII characters without spaces, for a header or a URL: "shop%2Forders/0190b2c4-…". ParseToken reads it.
func (t Token) String() string { return url.PathEscape(t.Source) + "/" + url.PathEscape(t.ID) }

// ParseToken reads what Token.String made. An error says what is wrong with the text.
func ParseToken(text string) (Token, error) {
	if source, id, ok := strings.Cut(text, "/"); ok {
		var t Token
		var err [2]error
		t.Source, err[0] = url.PathUnescape(source)
		t.ID, err[1] = url.PathUnescape(id)
		if errors.Join(err[:]...) == nil && t.check() == nil && !strings.Contains(id, "/") {
			return t, nil
		}
	}
	return Token{}, fmt.Errorf("the text of %d bytes is no token: it must be one that Token.String made, SOURCE/ID", len(text))
}

// check says what is wrong with a token.
func (t Token) check() error {
	if len(t.Source) > 255 || t.ID == "" || len(t.ID) > 255 || !validText(t.Source) || !validText(t.ID) {
		return errors.New("the token names no event: its source must have at most 255 bytes and its id 1 to 255, of UTF-8 without NUL")
	}
	return nil
}

// validText says that Postgres can have a text.
func validText(s string) bool { return strings.ToValidUTF8(s, "") == s && !strings.Contains(s, "\x00") }

// Settlement is what a consumer has made of an event.
type Settlement string

// The settlements. All but Unseen and Stored are the end, unless a person replays a dead letter.
const (
	Unseen    Settlement = ""          // the consumer has no row of it: it is not published, or not received yet
	Stored    Settlement = "stored"    // it waits in the consumer: it failed and is retried, or waits for its turn
	Handled   Settlement = "handled"   // its handler has committed, and all that it has written is visible
	Dead      Settlement = "dead"      // it was given up: it is a dead letter
	Discarded Settlement = "discarded" // a person has discarded it
	Skipped   Settlement = "skipped"   // it was settled without a handler; no build since writes that
)

// Waited is a call of WaitFor that has ended.
type Waited struct {
	Consumer   string
	Settlement Settlement // how far the consumer had got
	Took       time.Duration
	Err        error // that WaitFor returned
}

// WaitObserver receives what a Waiter does. The function may be nil, may be called by many goroutines at once, and must be quick.
type WaitObserver struct {
	OnWaited func(ctx context.Context, w Waited) // a call has ended
}

// Waiter waits for consumers: WaitFor with settings. Many goroutines may use it at once. It holds nothing.
type Waiter struct {
	Pool *pgxpool.Pool // of the consumer's database, or of a replica of it. Required

	// Schema is the Postgres schema of the consumer. Defaults to "holdfast".
	Schema string

	Observer WaitObserver
}

// WaitFor is Waiter{Pool: pool}.For.
func WaitFor(ctx context.Context, pool *pgxpool.Pool, token Token, consumer string) (Settlement, error) {
	return Waiter{Pool: pool}.For(ctx, token, consumer)
}

// For returns when the consumer has settled the event, and how: Handled if its effect is there, on the server that the Waiter's pool asks. It
// is for a request that has to show what it has just caused. Call it after the transaction with the event has committed, and with a context
// that ends when the caller has waited long enough. Then it returns how far the consumer had got, and an error that wraps
// context.Cause(ctx). The event goes on its way all the same. An event of a type that the consumer skips leaves no row, so that a wait for
// it ends with its context.
//
// All who wait on one pool in one process share one connection, for a short statement at a time. An inbox in the same process says when it
// has settled an event. For one in another process the statement asks again after an eighth of the time waited so far, within 5 and 100 ms.
// An outage of the database is waited out.
//
// Do not call it inside a transaction of the same pool: that holds a connection for as long. The user of the pool needs to read the table
// inbox, as holdfast_consumer may, and rows of this consumer. Other errors say what is wrong with the arguments, or that the schema or a
// right is missing.
func (w Waiter) For(ctx context.Context, token Token, consumer string) (s Settlement, err error) {
	begun := time.Now()
	defer func() {
		if w.Observer.OnWaited != nil {
			w.Observer.OnWaited(ctx, Waited{
				Consumer:   consumer,
				Settlement: s,
				Took:       time.Since(begun),
				Err:        err,
			})
		}
	}()
	problems := []error{token.check(), sqlschema.Validate(w.Schema)}
	if w.Pool == nil {
		problems = append(problems, errors.New("the pool is nil: it must be one of the consumer's database"))
	}
	if consumer == "" || len(consumer) > 255 || !validText(consumer) {
		problems = append(problems, errors.New("the consumer's name must have 1 to 255 bytes of UTF-8 without NUL: it is inbox.Config.Consumer"))
	}
	if err := errors.Join(problems...); err != nil {
		return Unseen, fmt.Errorf("wait for an event: %w", err)
	}
	schema := w.Schema
	if schema == "" {
		schema = sqlschema.Default
	}
	e := settled.Event{Consumer: consumer, Source: token.Source, ID: token.ID}
	result, err := settled.Wait(ctx, w.Pool, schema, e)
	if err != nil {
		err = fmt.Errorf("wait for the consumer %s to settle the event %q: %w", consumer, token.ID, err)
	}
	return Settlement(result), err
}
