package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/inbox"
	"github.com/holdfast-go/holdfast/retry"
	"github.com/holdfast-go/holdfast/webhook"
)

// tables are the service's own. Nothing in them keeps a payment from being booked twice.
const tables = `
create table accounts (name text primary key);
insert into accounts values ('alice');
create table payments (
    n       bigint generated always as identity primary key,
    account text not null references accounts,
    cents   bigint not null
);
create table deploys (n bigint generated always as identity primary key, ref text not null);
`

// Secrets come from wherever the service keeps its secrets.
const (
	bankSecret   = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
	githubSecret = "It's a Secret to Everybody"
)

// service books payments that a bank reports, and deploys what is pushed to GitHub.
type service struct {
	in  *inbox.Inbox
	mux *http.ServeMux

	booking func() // called while a payment is being booked, for the story
}

func newService(pool *pgxpool.Pool, schema string, trusting bool, log *slog.Logger) (*service, error) {
	s := &service{mux: http.NewServeMux(), booking: func() {}}
	in, err := inbox.New(pool, inbox.Config{Schema: schema, Consumer: "bookkeeping", Logger: log,
		// GitHub signs no time: a recorded request is recognised for that long.
		SourceRetention:  map[string]time.Duration{"github": 30 * 24 * time.Hour},
		ImmediateRetries: -1, Retry: retry.Policy{Base: 50 * time.Millisecond, Cap: 100 * time.Millisecond}}) // soon, to be seen
	if err != nil {
		return nil, err
	}
	s.in = in
	in.Handle("payment.received", s.book)
	in.Handle("push", deploy)

	if trusting {
		return s, s.believe("bank", "github")
	}
	// snippet: webhook
	bank, err := webhook.Standard(bankSecret) // give the new secret before the old one while they change
	if err != nil {
		return nil, err
	}
	github, err := webhook.GitHub(githubSecret)
	if err != nil {
		return nil, err
	}
	for source, v := range map[string]webhook.Verifier{"bank": bank, "github": github} {
		h, err := webhook.New(in, source, v, webhook.Config{})
		if err != nil {
			return nil, err
		}
		s.mux.Handle("/hooks/"+source, h) // the URL says whose secret is asked for
	}
	// end snippet
	return s, nil
}

func (s *service) book(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
	s.booking()
	var p struct {
		Data struct {
			Account string `json:"account"`
			Cents   int64  `json:"cents"`
		} `json:"data"`
	}
	if err := json.Unmarshal(e.Payload, &p); err != nil {
		return retry.Permanent(err)
	}
	if _, err := tx.Exec(ctx, "insert into payments (account, cents) values ($1, $2)", p.Data.Account, p.Data.Cents); err != nil {
		return fmt.Errorf("book payment: %w", err)
	}
	return nil
}

func deploy(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
	var p struct {
		Ref string `json:"ref"`
	}
	if err := json.Unmarshal(e.Payload, &p); err != nil {
		return retry.Permanent(err)
	}
	_, err := tx.Exec(ctx, "insert into deploys (ref) values ($1)", p.Ref)
	return err
}

// believe makes endpoints that ask nobody for a signature.
func (s *service) believe(sources ...string) error {
	for _, source := range sources {
		h, err := webhook.New(s.in, source, anyone, webhook.Config{})
		if err != nil {
			return err
		}
		s.mux.Handle("/hooks/"+source, h)
	}
	return nil
}

// anyone believes what is signed by nobody: what a service does that leaves the check for later.
var anyone = webhook.VerifierFunc(func(h http.Header, body []byte, _ time.Time) (webhook.Delivery, error) {
	var said struct {
		Type string `json:"type"`
	}
	_ = json.Unmarshal(body, &said)
	if github := h.Get("X-GitHub-Event"); github != "" {
		return webhook.Delivery{ID: h.Get("X-GitHub-Delivery"), Type: github}, nil
	}
	return webhook.Delivery{ID: h.Get("webhook-id"), IDSigned: true, Type: said.Type}, nil
})
