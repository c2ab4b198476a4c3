package main

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast/idempotency"
	"github.com/holdfast-go/holdfast/inbox"
	"github.com/holdfast-go/holdfast/outbox"
	"github.com/holdfast-go/holdfast/retry"
	"github.com/holdfast-go/holdfast/webhook"
)

// tables are the service's own. Nothing in them keeps a refund from being made, paid or booked twice.
const tables = `
create table payments (
    id      text primary key,
    account text not null,   -- whose it is
    cents   bigint not null,
    state   text not null,   -- pending, then captured or declined; captured, then voiding, then voided
    receipt text             -- of the gateway
);
create table refunds (
    id      text primary key,
    charge  text not null references payments,
    cents   bigint not null,
    state   text not null,   -- pending, then succeeded or declined
    receipt text
);
create table ledger (
    n         bigint generated always as identity primary key,
    reference text not null, -- to the payment or the refund
    cents     bigint not null
);
`

// pace is how long what takes its time may take.
type pace struct {
	lease         time.Duration // a process that is silent for so long has lost its request to the next
	timeout       time.Duration // what the gateway does after that is not known
	completion    retry.Policy  // of what its client leaves half done
	completeEvery time.Duration
	webhooks      retry.Policy
}

// usual is a pace for services; where it says nothing holdfast's defaults hold. hurried shows in seconds what happens.
var (
	usual   = pace{lease: 30 * time.Second, timeout: 5 * time.Second}
	hurried = pace{
		lease:         2 * time.Second,
		timeout:       time.Second,
		completion:    retry.Policy{Base: 200 * time.Millisecond, Cap: time.Second},
		completeEvery: 100 * time.Millisecond,
		webhooks:      retry.Policy{Base: 50 * time.Millisecond, Cap: 200 * time.Millisecond},
	}
)

// settings are what a service is made of.
type settings struct {
	pool      *pgxpool.Pool
	schema    string // of holdfast's tables
	gateway   string // its URL
	pace      pace   // usual or hurried
	telemetry *telemetry
	log       *slog.Logger

	// forgetful makes a service that gives every request a key of its own, to see that the story finds it.
	forgetful bool

	// at is called where something may happen to the process, for the story.
	at func(where place, reference string)
}

// place is a point of a request's way.
type place string

const (
	onArrival    place = "asked"    // the request is known, and nothing of it is done
	whenPaid     place = "paid"     // the gateway has moved money, and nothing of that is recorded
	whenRecorded place = "recorded" // that it has is recorded, and nobody was notified
	whenDeclined place = "declined" // that it has not is recorded, and nobody was notified
)

// service takes payments and gives them back.
type service struct {
	settings
	provider *provider
	outbox   *outbox.Outbox
	guard    *idempotency.Guard
	in       *inbox.Inbox
	mux      *http.ServeMux
}

func newService(c settings) (s *service, err error) {
	if c.at == nil {
		c.at = func(place, string) {}
	}
	s = &service{settings: c, provider: newProvider(c.gateway, c.pace.timeout), mux: http.NewServeMux()}
	if s.outbox, err = outbox.New(outbox.Config{Schema: c.schema, Source: "payments"}); err != nil {
		return nil, err
	}
	return s, errors.Join(s.routes(), s.hooks())
}

// routes are those that move money: forwards and back alike, each needs a key.
func (s *service) routes() (err error) {
	s.guard, err = idempotency.New(s.pool, idempotency.Config{
		Schema:         s.schema,
		Principal:      principal,           // whom the token named, not whom the request names
		TTL:            30 * 24 * time.Hour, // that of disputes
		MaxRetryWindow: 72 * time.Hour,
		Wait:           5 * time.Second, // a copy waits for the first one's answer
		Completion:     s.pace.completion,
		CompleteEvery:  s.pace.completeEvery,
		Observer:       s.telemetry.observer(),
		Logger:         s.log,
	})
	if err != nil {
		return err
	}
	for _, route := range []struct {
		pattern, prefix string
		handler         http.HandlerFunc
	}{
		{"POST /payments", "payment", s.capture},
		{"POST /payments/{id}/void", "void", s.void},
		{"POST /refunds", "refund", s.refund},
	} {
		guarded := s.guard.Route(idempotency.Route{
			Operation: route.pattern,
			KeyFormat: idempotency.Prefixed(route.prefix),
			Lease:     s.pace.lease,
			Complete:  complete, // what its client leaves half done, guard.Run finishes
		})(route.handler)
		s.mux.Handle(route.pattern, s.telemetry.spans(authenticate(s.forgetting(route.prefix, guarded))))
	}
	return nil
}

// hooks are what the gateway calls.
func (s *service) hooks() (err error) {
	s.in, err = inbox.New(s.pool, inbox.Config{Schema: s.schema, Consumer: "payments", Logger: s.log, ImmediateRetries: -1, Retry: s.pace.webhooks})
	if err != nil {
		return err
	}
	s.in.Handle("refund.succeeded", s.succeeded)
	v, err := webhook.Standard(gatewaySecret)
	if err != nil {
		return err
	}
	h, err := webhook.New(s.in, "gateway", v, webhook.Config{Observer: s.telemetry.hooks()})
	if err != nil {
		return err
	}
	s.mux.Handle("/hooks/gateway", h)
	return nil
}

// tokens come from wherever the service keeps its customers.
var tokens = map[string]string{"Bearer teashop-token": "teashop", "Bearer bookshop-token": "bookshop"}

type accountKey struct{}

// authenticate stands in front of the guard: a key belongs to an account, and a client that has lost the
// right to ask gets no answer to a repeat.
func authenticate(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		account, known := tokens[r.Header.Get("Authorization")]
		if !known {
			w.Header().Set("WWW-Authenticate", "Bearer")
			answerProblem(w, http.StatusUnauthorized, "AUTH.token", "the token is missing or not known")
			return
		}
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), accountKey{}, account)))
	})
}

func accountOf(ctx context.Context) string {
	account, _ := ctx.Value(accountKey{}).(string)
	return account
}

// complete gives a request that nobody sends any more what authenticate gave it.
func complete(r *http.Request, info idempotency.Info) *http.Request {
	return r.WithContext(context.WithValue(r.Context(), accountKey{}, info.Principal))
}

func principal(r *http.Request) (string, error) { return accountOf(r.Context()), nil }

// forgetting is what a service does that makes a key for each request by itself: there is always one, and it is of no use.
func (s *service) forgetting(prefix string, next http.Handler) http.Handler {
	if !s.forgetful {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.Header.Set("Idempotency-Key", prefix+":"+idempotency.NewKey())
		next.ServeHTTP(w, r)
	})
}
